"""What steps cost in joules, by the energy counters of devices and hosts, and what of it waiting for a late rank costs.

    counter readings  ->  energy over time  ->  joules of each step, of the job, of any span
    parts of a step   ->  watts of each part  ->  joules of each part; they sum to the counter

A counter is read more slowly than the parts of a step alternate. So the watts of a part are those that explain best
what the counter gained between readings, thousands of them over the whole run, each with its own mixture of parts.
Where all mixtures are alike (steps far shorter than the time between readings) the watts stay at the mean, and the
range of a part shows that.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.intervals import Intervals, union, union_of
from stepscope.records import Row
from stepscope.run.side_files import StepLog, Telemetry
from stepscope.stats.robust import FAR_LONGER, median, one_hiccup, slow_start
from stepscope.units import NS_PER_S, ms, rank_ranges

if TYPE_CHECKING:
    from stepscope.analyze.budget import RankBudget
    from stepscope.run.aligned import AlignedRun

Floats = npt.NDArray[np.float64]
#: by part, the start and the end of each span of time
Spans = Mapping[str, tuple[Any, Any]]

#: what a device does at each instant of a step: the first of these that holds for any of its ranks
PARTS = ("compute", "exposed_transfer", "wait", "idle")
_COMPUTE, _TRANSFER, _WAIT, _IDLE = range(4)
#: of steps that are far longer than the median: evaluation, checkpoints
RECURRING = "recurring"
NOT_RECORDED = "no energy counter was recorded; record with stepscope record"
NO_TRACE = "the split over the step needs a trace; record without --light"

_MIN_READINGS, _MIN_SPAN_S = 5, 1.0
_MIN_INTERVALS = 20
_MAX_WORLD = 1_000_000
#: power with a relative uncertainty above this share of the mean is not reported separately
_RESOLVED = 0.25
_COLUMNS = {"device": "energy_j", "host": "host_energy_j"}
_GRID = np.linspace(0.0, 1.0, 257)
_LAGS = np.linspace(-0.5, 0.5, 41)


class TracedSteps(NamedTuple):
    """What a trace shows of the steps."""

    shared: "AlignedRun"
    #: in the order of the run's ranks
    budgets: "Sequence[RankBudget | None]"
    stragglers: "Sequence[Row]"


def energy_of(
    telemetry: Sequence[Telemetry],
    logs: Sequence[StepLog],
    description: Mapping[str, Any],
    *,
    tokens_per_step: float | None = None,
    samples_per_step: float | None = None,
    traced: "TracedSteps | None" = None,
) -> dict[str, Any]:
    """Return the energy of a run as an object of the report's JSON; `traced` adds the split over the step."""
    by_rank = {log.rank: log for log in logs}
    devices = [_device(members, by_rank, traced) for members in _by_counter(telemetry, "device")]
    hosts = [_host(members[0], by_rank) for members in _by_counter(telemetry, "host")]
    on_device, missing = missing_counters(telemetry, description, by_rank)
    measured = devices if on_device else hosts
    known = [one for one in measured if one["j_per_step"] is not None]
    whole = bool(measured) and len(known) == len(measured) and not missing
    j_per_step = sum(one["j_per_step"] for one in known) if whole else None
    parts = _summed([one["parts"] for one in devices]) if whole and on_device else []
    notes = [note for one in measured for note in one.pop("notes")]
    reasons = [*(one["reason"] for one in measured if one["reason"]), *missing]
    return {
        "total_j": sum(one["total_j"] for one in measured) if whole else None,
        "j_per_step": j_per_step,
        "j_per_token": _per(j_per_step, tokens_per_step),
        "j_per_sample": _per(j_per_step, samples_per_step),
        "source": "+".join(sorted({one["source"] for one in measured})) or None,
        "seconds": max((one["seconds"] for one in known), default=None),
        "parts": parts,
        "wait_j_per_step": next((one["j"] for one in parts if one["part"] == "wait"), None),
        "late_ranks": [_late_rank(one, devices) for one in traced.stragglers] if parts and traced else [],
        "devices": devices,
        "host": _hosts(hosts) if on_device else None,
        "notes": notes,
        "reason": None if whole else "; ".join(dict.fromkeys(reasons)) or NOT_RECORDED,
    }


def energy_of_spans(attempts: Sequence[Sequence[tuple[Telemetry, Spans]]]) -> tuple[dict[str, Floats], str]:
    """Return joules, time between readings and all time (ns) of each part, summed over devices, and the source.

    Without any device, hosts count. Each rank of an attempt has its telemetry and the spans of time of each part, in
    epoch ns; of ranks that share a device, the mean counts. Counters go on between attempts. Outside their readings
    there are no joules.
    """
    flat = [(one, spans, k) for k, ranks in enumerate(attempts) for one, spans in ranks]
    telemetry = [one for one, _, _ in flat]
    what = "device" if any("device" in one.counters for one in telemetry) else "host"
    counted = _by_counter(telemetry, what)
    found: dict[str, Floats] = {}
    for members in counted:
        curve = _curve(_together(members), _COLUMNS[what])
        sharing = [(spans, k) for one, spans, k in flat if any(one is member for member in members)]
        for spans, k in sharing:
            weight = 1.0 / sum(other == k for _, other in sharing)
            for part, (start_ns, end_ns) in spans.items():
                inside = (0.0, 0.0) if curve is None else curve.inside(start_ns, end_ns)
                found[part] = found.get(part, 0.0) + weight * np.array([*inside, np.sum(end_ns - start_ns)])
    return found, "+".join(sorted({members[0].counters[what] for members in counted}))


def _together(members: Sequence[Telemetry]) -> dict[str, Floats]:
    """Return the readings of one counter by several ranks or attempts, by time."""
    rows = [one.energy for one in members if one.energy]
    joined = {name: np.concatenate([one[name] for one in rows]) for name in (rows[0] if rows else ())}
    return {name: column[np.argsort(joined["time_ns"], kind="stable")] for name, column in joined.items()}


def _by_counter(telemetry: Sequence[Telemetry], what: str) -> list[list[Telemetry]]:
    """Return the telemetry of each device or host that has a counter: several where ranks share it."""
    alike: dict[tuple[str, str], list[Telemetry]] = {}
    for one in sorted(telemetry, key=lambda one: one.rank):
        if what in one.counters:
            own = str(one.device.get("uuid") or f"rank {one.rank}") if what == "device" else ""
            alike.setdefault((one.counters.get("host_name", ""), own), []).append(one)
    return list(alike.values())


def _unknown(description: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    ranks = description.get("ranks")
    each = ranks.items() if isinstance(ranks, dict) else ()
    said = {rank: facts.get("energy_unknown") for rank, facts in each if isinstance(facts, dict)}
    return {int(rank): why for rank, why in said.items() if isinstance(why, dict) and str(rank).isdecimal()}


def missing_counters(
    telemetry: Sequence[Telemetry], description: Mapping[str, Any], ranks: Collection[int]
) -> tuple[bool, list[str]]:
    """Return whether the job runs on devices, and why the energy of some is unknown, with the ranks."""
    unknown, counted = _unknown(description), {one.rank for one in telemetry if "device" in one.counters}
    on_device = bool(counted) or any("device" in why for why in unknown.values())
    what = "device" if on_device else "host"
    reasons = {rank: why[what][:300] for rank, why in unknown.items() if isinstance(why.get(what), str)}
    if on_device:
        world = description.get("world_size")
        every = {*ranks, *range(world if isinstance(world, int) and 0 < world < _MAX_WORLD else 0)}
        reasons |= dict.fromkeys(every - counted - reasons.keys(), "no readings of its device's counter")
    alike: dict[str, list[int]] = {}
    for rank in sorted(reasons):
        alike.setdefault(reasons[rank], []).append(rank)
    return on_device, [f"rank {rank_ranges(where)}: {reason}" for reason, where in alike.items()]


def _per(joules: float | None, amount: float | None) -> float | None:
    return joules / amount if joules is not None and amount else None


class _Curve(NamedTuple):
    time_ns: Floats
    #: since the first time
    joules: Floats
    #: when the counter has just changed, where the recorder saw that; else where it is another than before
    exact: npt.NDArray[np.bool_]

    def gain_j(self, start_ns: Any, end_ns: Any) -> Floats:
        return np.asarray(np.interp(end_ns, *self[:2]) - np.interp(start_ns, *self[:2]))

    def inside(self, start_ns: Any, end_ns: Any) -> tuple[float, float]:
        """Return the joules of spans, and how much of their time is between readings."""
        start_ns, end_ns = (np.clip(at, self.time_ns[0], self.time_ns[-1]) for at in (start_ns, end_ns))
        return float(np.sum(self.gain_j(start_ns, end_ns))), float(np.sum(end_ns - start_ns))


def _curve(energy: Mapping[str, Floats], column: str) -> _Curve | None:
    """Return the energy over time, None where there are too few readings.

    Between two values of the counter its gain is spread by power. A counter that fell to less than half started again
    from 0; one that fell less was read by two processes at once, or while the clock was set back.
    """
    if not energy:
        return None
    rows = np.flatnonzero(np.isfinite(energy["time_ns"]) & np.isfinite(energy[column]))
    if len(rows) < _MIN_READINGS:
        return None
    counter, time_ns = energy[column][rows], energy["time_ns"][rows]
    if time_ns[-1] - time_ns[0] < _MIN_SPAN_S * NS_PER_S:
        return None
    again = counter[1:] < 0.5 * counter[:-1]
    counter = np.maximum.accumulate(counter + np.append(0.0, np.cumsum(np.where(again, counter[:-1], 0.0))))
    changed, sharp = np.diff(counter, prepend=-1.0) > 0, energy["fresh"][rows] > 0
    power = energy["power_w"][rows]
    is_known = column == "energy_j" and bool(np.isfinite(power).all())
    gains = np.diff(time_ns) * (power[1:] + power[:-1] if is_known else 1.0)
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    joules = np.interp(sums, sums[changed], counter[changed]) - counter[0]
    is_sharp = column == "energy_j" and sharp.sum() > _MIN_INTERVALS
    return _Curve(time_ns, joules, sharp if is_sharp else changed)


def _host(one: Telemetry, logs: Mapping[int, StepLog]) -> dict[str, Any]:
    about = {"host": one.counters.get("host_name"), "source": one.counters["host"]}
    return {**about, **_totals(_curve(one.energy, "host_energy_j"), logs.get(one.rank)), "notes": []}


def _hosts(hosts: list[dict[str, Any]]) -> dict[str, Any] | None:
    known = [one for one in hosts if one["j_per_step"] is not None]
    if not known:
        return None
    return {
        "total_j": sum(one["total_j"] for one in known),
        "j_per_step": sum(one["j_per_step"] for one in known),
        "source": known[0]["source"],
        "hosts": len(known),
    }


def _device(members: Sequence[Telemetry], logs: Mapping[int, StepLog], traced: TracedSteps | None) -> dict[str, Any]:
    first = max(members, key=lambda one: len(one.energy["time_ns"]) if one.energy else 0)
    ranks = [one.rank for one in members]
    curve, log = _curve(first.energy, "energy_j"), logs.get(first.rank)
    found = {
        "ranks": ranks,
        "name": first.device.get("name"),
        "uuid": first.device.get("uuid"),
        "source": first.counters["device"],
        "power_limit_w": first.device.get("power_limit_w"),
        **_totals(curve, log),
        "parts": [],
        "notes": [],
    }
    if len(ranks) > 1:
        found["notes"].append(
            f"ranks {rank_ranges(ranks)} share one device: its energy cannot be divided among them and counts once"
        )
    if curve is None or log is None or found["j_per_step"] is None:
        return found
    profile = _profile(traced, ranks) if traced is not None else None
    if profile is None:
        found["notes"].append(NO_TRACE if traced is None else "the split over the step needs device work in the trace")
        return found
    steps_ns = log.dur_ns[_measured_steps(curve, log)]
    if profile[0][_COMPUTE, -1] * profile[1] > FAR_LONGER * steps_ns.mean():
        return {**found, "j_per_step": None, "num_steps": None, "reason": _RAN_AHEAD}
    found["parts"], unresolved = _split(curve, log, *profile, j_per_step=found["j_per_step"])
    if unresolved:
        found["notes"].append(unresolved)
    return found


_RAN_AHEAD = (
    "the host ran ahead of the device in the measured steps, whose times are not the device's: measure more steps"
)


def _totals(curve: _Curve | None, log: StepLog | None) -> dict[str, Any]:
    unknown = dict.fromkeys(("total_j", "seconds", "mean_w", "j_per_step", "num_steps"))
    if curve is None:
        return {**unknown, "reason": f"too few readings of the counter: under {_MIN_SPAN_S:g} s of steps"}
    seconds, total_j = (curve.time_ns[-1] - curve.time_ns[0]) / NS_PER_S, float(curve.joules[-1])
    found = {**unknown, "total_j": total_j, "seconds": seconds, "mean_w": total_j / seconds}
    steps = _measured_steps(curve, log) if log is not None else np.empty(0, int)
    if log is None or not len(steps):
        return {**found, "reason": "no unprofiled step between two readings of the counter"}
    joules = curve.gain_j(log.start_ns[steps], log.end_ns[steps])
    return {**found, "j_per_step": float(joules.mean()), "num_steps": len(steps), "reason": None}


def _measured_steps(curve: _Curve, log: StepLog) -> npt.NDArray[np.intp]:
    inside = (log.start_ns >= curve.time_ns[0]) & (log.end_ns <= curve.time_ns[-1]) & (log.end_ns > log.start_ns)
    steps = np.flatnonzero(log.unprofiled & inside)
    steps = steps[slow_start(log.dur_ns[steps]) :] if len(steps) else steps
    return steps[~one_hiccup(log.dur_ns[steps])]


# When does a device do what in a step? By the trace, as a share of each part up to each phase of the step.


def _profile(traced: TracedSteps, ranks: Sequence[int]) -> tuple[Floats, float] | None:
    """Return the time of each part up to each phase of `_GRID`, the whole step being 1, and the recorded step in ns."""
    from stepscope.analyze.budget import painted

    shared = traced.shared
    members = [i for i, rank in enumerate(shared.run.ranks) if rank.rank in ranks and rank.has_device]
    budgets = [traced.budgets[i] for i in members]
    if not members or budgets[0] is None or (len(members) > 1 and not shared.clocks.known[members].all()):
        return None
    periods = budgets[0].periods
    start, end = (shared.clocks.shared(members[0], at[periods.typical]) for at in (periods.start_ns, periods.end_ns))
    each = [_layers(shared, i) for i in members]
    layers = [(part, union_of(*(layer[part] for layer in each))) for part in (_COMPUTE, _TRANSFER, _WAIT)]
    timeline = painted(layers, np.sort(np.concatenate([start, end])))
    at = start[:, None] + _GRID * (end - start)[:, None]
    profile = np.zeros((len(PARTS), len(_GRID)))
    for part in (_COMPUTE, _TRANSFER, _WAIT):
        spans = timeline.of(part)
        if len(spans):
            edges = np.stack(spans, axis=1).ravel().astype(np.float64)
            sums = np.concatenate([[0.0], np.repeat(np.cumsum(np.diff(edges)[::2]), 2)])[: len(edges)]
            so_far = np.interp(at, edges, sums)
            profile[part] = ((so_far - so_far[:, :1]) / (end - start)[:, None]).mean(axis=0)
    profile[_IDLE] = _GRID - profile.sum(axis=0)
    return profile, float((end - start).mean())


def _layers(shared: "AlignedRun", index: int) -> list[Intervals]:
    """Return when a rank computes or copies, moves data between ranks, and waits for one, on the shared clock."""
    from stepscope.run.aligned import UNMATCHED
    from stepscope.trace.table import EventKind

    rank, wait_ns = shared.run.ranks[index], shared.wait_ns[index]
    work, c = rank.work, rank.collectives
    busy = work.kind != EventKind.COMM_KERNEL
    turns = c.start_ns + np.where(wait_ns != UNMATCHED, wait_ns, 0)
    spans = ((work.start_ns[busy], work.end_ns[busy]), (turns, c.end_ns), (c.start_ns, turns))
    return [union(*(shared.clocks.shared(index, edge) for edge in span)) for span in spans]


def _unprofiled(profile: Floats, recorded_ns: float, step_ns: float) -> tuple[Floats, Floats]:
    """Return the phases and the profile of a step without the profiler: idle time shrinks or grows, then waits do."""
    times = profile[:, -1] * recorded_ns
    excess = recorded_ns - step_ns
    factor = np.ones(len(PARTS))
    for part in (_IDLE, _WAIT):
        if times[part] > 0:
            change = min(excess, times[part])
            factor[part] = 1 - change / times[part]
            excess -= change
    scaled = profile * factor[:, None]
    whole = float(scaled[:, -1].sum())
    return scaled.sum(axis=0) / whole, scaled / whole


# Watts of each part, joules of each part.


def _split(
    curve: _Curve, log: StepLog, profile: Floats, recorded_ns: float, *, j_per_step: float
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the joules of each part of the step and a note on parts that could not be separated."""
    steps = _measured_steps(curve, log)
    usual = steps[log.dur_ns[steps] <= FAR_LONGER * median(log.dur_ns[steps])]
    step_ns = float(log.dur_ns[usual].mean())
    ordinary_j = float(curve.gain_j(log.start_ns[usual], log.end_ns[usual]).mean())
    phases, shape = _unprofiled(profile, recorded_ns, step_ns)
    share = shape[:, -1]
    there = np.flatnonzero(share > 1e-3)
    mean_w = ordinary_j / step_ns * NS_PER_S
    watts, sigma = _watts(curve, log, usual, phases, shape[there], mean_w)
    scale = mean_w / float(watts @ share[there] / share[there].sum())
    parts = []
    for k, part in enumerate(there):
        seconds = step_ns * share[part] / share[there].sum() / NS_PER_S
        joules, spread = float(scale * watts[k] * seconds), float(2 * sigma[k] * seconds)
        low, high = max(0.0, joules - spread), min(ordinary_j, joules + spread)
        parts.append(
            _part(PARTS[part], joules, low, high, j_per_step, ms(float(seconds) * NS_PER_S), float(scale * watts[k]))
        )
    recurring_j = j_per_step - ordinary_j
    if len(usual) < len(steps) and recurring_j > 0:
        parts.append(_part(RECURRING, recurring_j, recurring_j, recurring_j, j_per_step, None, None))
    elif len(usual) < len(steps):  # long steps that take less power: the ordinary ones stand for all
        for one in parts:
            one.update({name: one[name] * j_per_step / ordinary_j for name in ("j", "low_j", "high_j")})
    vague = [PARTS[part] for k, part in enumerate(there) if len(there) > 1 and sigma[k] > _RESOLVED * mean_w]
    if not vague:
        return parts, None
    return parts, (
        f"power of {', '.join(vague)} not resolved: steps of {ms(step_ns):.3g} ms are too short, too few or too "
        "alike for the counter's readings; the mean power is assumed, see the range"
    )


def _part(
    name: str, joules: float, low: float, high: float, whole: float, time_ms: float | None, watts: float | None
) -> dict[str, Any]:
    return {
        "part": name,
        "j": joules,
        "pct": 100 * joules / whole if whole else None,
        "low_j": low,
        "high_j": high,
        "ms_per_step": time_ms,
        "power_w": watts,
    }


def _watts(
    curve: _Curve,
    log: StepLog,
    steps: npt.NDArray[np.intp],
    phases: Floats,
    shape: Floats,
    mean_w: float,
) -> tuple[Floats, Floats]:
    """Return the watts of each row of `shape` and their standard errors; the mean where nothing else is known.

    Device work is behind the host's steps and the counter behind the device: the lag with the best fit is taken, of
    those in which computing takes no less power than anything else.
    """
    prior_w = 0.5 * mean_w
    unresolved = np.full(len(shape), mean_w), np.full(len(shape), prior_w)
    time_ns, joules = curve.time_ns[curve.exact], np.diff(curve.joules[curve.exact])
    start, dur = log.start_ns[steps].astype(np.float64), (log.end_ns - log.start_ns)[steps].astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(dur)])
    took = np.diff(time_ns) / NS_PER_S

    def explained(lag_ns: float) -> tuple[float, Floats, Floats] | None:
        at = time_ns - lag_ns
        step = np.clip(np.searchsorted(start, at, side="right") - 1, 0, len(start) - 1)
        phase = np.clip((at - start[step]) / dur[step], 0.0, 1.0)
        so_far = np.array([sums[step] * row[-1] + dur[step] * np.interp(phase, phases, row) for row in shape])
        spent = np.diff(so_far, axis=1).T / NS_PER_S
        whole = np.abs(spent.sum(axis=1) - took) < 0.02 * took  # no other step in between
        if whole.sum() < _MIN_INTERVALS:
            return None
        error, watts, sigma = _fit(spent[whole], joules[whole], mean_w, prior_w)
        return (error, watts, sigma) if watts[0] >= 0.95 * watts.max() else None

    lags = _LAGS * float(np.mean(dur))
    for _ in range(2):  # the second time more finely around the best
        found = [(fit, lag) for lag in lags if (fit := explained(lag)) is not None]
        if not found:
            return unresolved
        best, lag = min(found, key=lambda one: one[0][0])
        lags = lag + lags * (2 / len(_LAGS))
    return best[1:]


def _fit(spent: Floats, joules: Floats, mean_w: float, prior_w: float) -> tuple[float, Floats, Floats]:
    """Return the mean squared error of joules by time in each part, the watts and their standard errors.

    A ridge regression around the mean power: parts that the readings do not resolve stay there.
    """
    beyond = joules - mean_w * spent.sum(axis=1)
    free = np.linalg.lstsq(spent, beyond, rcond=None)[0]
    error = float(((beyond - spent @ free) ** 2).sum() / max(1, len(joules) - spent.shape[1]))
    error = max(error, 1e-12 * float((joules**2).mean()), 1e-12)
    covariance = np.linalg.inv(spent.T @ spent / error + np.eye(spent.shape[1]) / prior_w**2)
    off = covariance @ (spent.T @ beyond) / error
    return float(((beyond - spent @ off) ** 2).mean()), np.maximum(mean_w + off, 0.0), np.sqrt(np.diag(covariance))


# The whole job


def _summed(devices: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the parts of all devices together, none where one of them was not split; times are means."""
    if not devices or not all(devices):
        return []
    out = []
    for name in (*PARTS, RECURRING):
        found = [one for parts in devices for one in parts if one["part"] == name]
        if found:
            low, high = (sum(one[key] for one in found) for key in ("low_j", "high_j"))
            joules, times = sum(one["j"] for one in found), [one["ms_per_step"] for one in found]
            time_ms = None if None in times else sum(times) / len(devices)
            out.append(_part(name, joules, low, high, 1.0, time_ms, None))
    whole = sum(one["j"] for one in out)
    for one in out:
        one["pct"] = 100 * one["j"] / whole
        one["power_w"] = one["j"] / (one["ms_per_step"] * len(devices) / 1e3) if one["ms_per_step"] else None
    return out


def _late_rank(late: "Row", devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a late rank costs: others wait for it, and its own device takes longer."""
    late_ms, waiting, own = ms(late.late_ns_per_step), 0.0, 0.0
    nothing = {"ms_per_step": 0.0, "power_w": 0.0}
    for device in devices:
        parts = {one["part"]: one for one in device["parts"]}
        wait = parts.get("wait", nothing)
        if late.rank not in device["ranks"]:
            waiting += wait["power_w"] * min(wait["ms_per_step"], late_ms) / 1e3
        elif late.cause in ("host", "data", "network"):
            idle = wait if len(device["ranks"]) > 1 and wait["ms_per_step"] else parts.get("idle", wait)
            own += idle["power_w"] * min(idle["ms_per_step"], late_ms) / 1e3
        else:
            own += parts.get("compute", nothing)["power_w"] * late_ms / 1e3
    return {
        "rank": late.rank,
        "late_ms_per_step": late_ms,
        "waiting_j_per_step": waiting,
        "own_j_per_step": own,
        "waste_j_per_step": waiting + own,
    }
