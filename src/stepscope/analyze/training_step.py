"""What is the mean step of the training, by all logged steps and not by those of the profiled window?

    mean step = ordinary step + what recurs in some steps

The logged steps that count ran without the profiler, after the warm-up. A step is ordinary where no cause takes
longer than usual there and it is not far longer than the others. Causes are regions of the step log other than
training itself (data_loading, loader_start, checkpoint, evaluation, ...), and host time outside every region.
What happened once has no period by which it could be a part of every step: such steps are excluded and reported, and so
is a single long step without a named cause.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from stepscope.contract.step_line import (
    BACKWARD,
    CLIPPING,
    DATA_LOADING,
    EVALUATION,
    FORWARD,
    GRADIENT_SYNC,
    LOADER_START,
    LR_SCHEDULING,
    OPTIMIZER,
    WINDOW,
)
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.core_time import no_core_ns
from stepscope.run.side_files import StepLog
from stepscope.stats.robust import FAR_LONGER, common, mad_sigma, median, num_stretches, one_hiccup, slow_start
from stepscope.units import NS_PER_S, ms

# What recurs in some steps of the training and not in the ordinary one, rank by rank and step by step.
#
# A loader that starts its workers again, a checkpoint, an evaluation: each is time of the host in a few steps. In every
# step the job waits for the rank that is busy longest with it:
#
#     rank 0   |  checkpoint 90  |            |
#     rank 1   |                 |  gc 10     |      2 of 10 steps: (90 + 10) / 10 = 10 per step

Floats = npt.NDArray[np.float64]

DATA_CAUSES = (DATA_LOADING, LOADER_START)
# host time of a step in none of its regions: code of the loop itself
OUTSIDE = "outside every region"
# the same in steps with more collectives than the others: parameters averaged every few steps, metrics gathered
COMMUNICATION = "collectives outside every region"
# the training thread was ready to run and had no core, by the kernel: in whatever region that happens to be
NO_CORE = "waiting for a CPU core"


@dataclass(frozen=True, eq=False, repr=False)
class Recurring(ArrayRecord):
    """Time beyond the ordinary step."""

    #: names of regions, or OUTSIDE
    causes: tuple[str, ...]
    ranks: tuple[int, ...]
    #: by cause, rank and step; the steps are those that all ranks logged
    excess_ns: Floats
    #: of that time lengthens the step: below 1 where the device's queue hides some, above where it slows the rest
    scale: float = 1.0
    #: per step: longer steps for which no cause is known
    other_ns: float = 0.0

    @property
    def total_ns(self) -> float:
        return self.scale * self._modelled_ns + self.other_ns

    @property
    def _modelled_ns(self) -> float:
        return float(self.excess_ns.sum(axis=0).max(axis=0).mean()) if self.excess_ns.size else 0.0

    def rank_ns(self, cause: str) -> Floats:
        if cause not in self.causes or not self.excess_ns.size:
            return np.zeros(len(self.ranks))
        return np.asarray(self.scale * self.excess_ns[self.causes.index(cause)].mean(axis=1))

    def waiting_ns(self) -> Floats:
        """Return per rank how long it waits, per step, for others in which something recurs."""
        if not self.excess_ns.size:
            return np.zeros(len(self.ranks))
        own = self.excess_ns.sum(axis=0).mean(axis=1)
        return np.asarray(self.scale * np.maximum(self._modelled_ns - own, 0))

    def num_steps_with(self, cause: str) -> tuple[int, int]:
        """Return in how many steps a cause shows on any rank, and of how many."""
        if not self.excess_ns.size:
            return 0, 0
        shown = self.excess_ns[self.causes.index(cause)].max(axis=0) > 0
        return int(shown.sum()), len(shown)

    def without(self, causes: Sequence[str]) -> "Recurring":
        kept = np.array([c not in causes for c in self.causes], float)
        return replace(self, excess_ns=self.excess_ns * kept[:, None, None])

    def with_ranks_like_others(self, ranks: Sequence[int]) -> "Recurring":
        """Return the same with the excess over the others' median removed from some ranks."""
        late = np.array([rank in ranks for rank in self.ranks], bool)
        if late.all() or not late.any():
            return self
        usual = np.median(self.excess_ns[:, ~late], axis=1, keepdims=True)
        kept = np.where(late[None, :, None], np.minimum(self.excess_ns, usual), self.excess_ns)
        return replace(self, excess_ns=kept)

    def late_ns(self) -> dict[int, float]:
        """Return per rank what recurs there beyond the others' median, per step."""
        own = self.excess_ns.sum(axis=0).mean(axis=1) if self.excess_ns.size else np.zeros(len(self.ranks))
        if len(own) < 2:
            return {}
        return {
            rank: float(self.scale * max(own[i] - median(np.delete(own, i)), 0.0)) for i, rank in enumerate(self.ranks)
        }


NOTHING_RECURS = Recurring((), (), np.zeros((0, 0, 0)))


# Which steps of a rank's log are ordinary, and how do the others differ?

Mask = npt.NDArray[np.bool_]
# the work of training itself: time there is not something else that the host does
WORK_REGIONS = (FORWARD, BACKWARD, GRADIENT_SYNC, OPTIMIZER, LR_SCHEDULING, CLIPPING)
# causes that no region names
_UNNAMED = (OUTSIDE, COMMUNICATION, NO_CORE)
# of the median step: a cause that takes less longer than usual is noise
_MIN_EXCESS_SHARE = 0.1
_EXCESS_SIGMAS = 5.0
# stretches of steps: host time outside every region that comes less often is not known to recur
_MIN_UNNAMED = 3


@dataclass(frozen=True, eq=False, repr=False)
class LoggedSteps(ArrayRecord):
    """One rank's log with its exceptional steps."""

    log: StepLog
    #: of the device where it was measured, else of the host
    step_ns: Floats
    counts: Mask
    event: Mask
    hiccup: Mask
    #: how much longer than usual, by step; 0 where that is noise
    causes: dict[str, Floats]
    #: how long named causes took that happened once, and in which step they began
    once: dict[str, tuple[float, int]]

    @property
    def ordinary(self) -> Mask:
        return np.asarray(self.counts & ~self.event)

    @property
    def mean_ns(self) -> float:
        return float(self.step_ns[self.counts & ~self.hiccup].mean())

    @property
    def ordinary_mean_ns(self) -> float:
        return float(self.step_ns[self.ordinary].mean())


def _logged_steps(log: StepLog) -> LoggedSteps | None:
    step_ns = _step_ns(log)
    usable = np.flatnonzero(log.unprofiled & (step_ns > 0))
    counts = np.zeros(len(log), bool)
    counts[usable[slow_start(step_ns[usable]) :]] = True
    if counts.sum() < 8:
        return None
    causes, long = _standing_out(log, step_ns, counts)
    if num_stretches(causes[OUTSIDE][counts] > 0) < _MIN_UNNAMED:
        causes[OUTSIDE] = np.zeros(len(log))
    if _with_more_collectives(log, counts, causes[OUTSIDE] > 0):
        causes[COMMUNICATION], causes[OUTSIDE] = causes[OUTSIDE], np.zeros(len(log))
    named = _any([x for name, x in causes.items() if name not in _UNNAMED], len(log))
    event = _any(list(causes.values()), len(log)) | long
    unnamed = counts & (step_ns > FAR_LONGER * median(step_ns[counts])) & ~named
    single = {name: x for name, x in causes.items() if name not in _UNNAMED and num_stretches(x[counts] > 0) == 1}
    alone = unnamed.sum() == 1 or one_hiccup(np.where(counts, step_ns, 0))
    hiccup = _any(list(single.values()), len(log)) | (unnamed & alone)
    once = {name: (float(x.sum()), int(log.step[x > 0][0])) for name, x in single.items()}
    if (counts & ~event).sum() < 3:  # no two steps are alike: all of them are what the job is like
        return LoggedSteps(log, step_ns, counts, np.zeros(len(log), bool), np.zeros(len(log), bool), {}, {})
    window = _in_window(log)
    if window.any():
        seen, long = _standing_out(log, step_ns, window)
        event |= _any(list(seen.values()), len(log)) | long
    return LoggedSteps(
        log, step_ns, counts, event, hiccup, {name: np.where(hiccup, 0, x) for name, x in causes.items()}, once
    )


def _with_more_collectives(log: StepLog, counts: Mask, these: Mask) -> bool:
    count = log.column("collectives.count")
    known = counts & ~np.isnan(count)
    mine, others = count[known & these], count[known & ~these]
    return bool(len(mine) and len(others) and median(mine) > median(others))


def _standing_out(log: StepLog, step_ns: Floats, among: Mask) -> tuple[dict[str, Floats], Mask]:
    usual = median(step_ns[among])
    causes = {name: _beyond_usual(time, among, usual) for name, time in _cause_times(log).items()}
    no_core = causes.get(NO_CORE)
    if no_core is not None:  # a region that lost its core is not itself longer
        causes = {name: x if name == NO_CORE else np.maximum(x - no_core, 0.0) for name, x in causes.items()}
    if np.isfinite(log.column("cpu.lost_ns")).any():  # where in the step it lost its core is not known
        longer = np.maximum(step_ns - usual, 0.0)
        causes = {name: np.minimum(x, longer) for name, x in causes.items()}
    spread = mad_sigma(step_ns[among])
    return causes, among & (step_ns > usual + max(0.25 * usual, _EXCESS_SIGMAS * spread))


def _in_window(log: StepLog) -> Mask:
    return np.asarray(log.profiled & (np.array(log.phase, str) == WINDOW))


def region_times(log: StepLog) -> dict[str, Floats]:
    """Return by region its time in every step, 0 where it was not entered."""
    paths = [path for path in log.numbers if path.startswith("regions.") and path.endswith(".ns")]
    return {path[len("regions.") : -len(".ns")]: np.nan_to_num(log.column(path)) for path in paths}


def _cause_times(log: StepLog) -> dict[str, Floats]:
    times = region_times(log)
    inside = sum(times.values(), np.zeros(len(log)))
    found = {name: time for name, time in times.items() if name not in WORK_REGIONS and not _is_work(name, time)}
    no_core = no_core_ns(log) if times else None
    if no_core is not None:
        found[NO_CORE] = no_core
    # A log without regions does not show the host's work: then nothing is known to be outside of them.
    return {**found, OUTSIDE: np.maximum(log.dur_ns - inside, 0.0) if times else np.zeros(len(log))}


def _is_work(name: str, time: Floats) -> bool:
    """Return whether passes without gradients are the work of the loop itself: there are some in nearly every step, as
    where a policy writes what it is trained on.
    """
    return name == EVALUATION and bool(len(time)) and bool((time > 0).mean() >= 0.9)


def _step_ns(log: StepLog) -> Floats:
    known = log.device_ns > 0
    host_ns = log.dur_ns.astype(float)
    if not len(log) or known.mean() < 0.8:
        return host_ns
    return _by_step(np.where(known, log.device_ns, log.dur_ns).astype(float), host_ns)


# groups of steps from which a line can be fitted; the share of the host's excess from which it is the device's as well
_MIN_GROUPS, _FOLLOWS = 8, 0.5


def _by_step(device_ns: Floats, host_ns: Floats) -> Floats:
    """Return the device's time of each step where neighbouring steps share a measurement, whose mean they all have.

    What long steps of the host take beyond the others is the device's time as well where it waits for the host, and not
    where the host waits for it: groups of steps show which, by whether their means grow with the host's excess.
    """
    group = np.cumsum(np.diff(device_ns, prepend=device_ns[:1]) != 0)
    size = np.bincount(group)
    beyond = np.maximum(host_ns - median(host_ns), 0.0)
    excess, mean = (np.bincount(group, weights=x) / size for x in (beyond, device_ns))
    fit = (size > 1) & (mean < FAR_LONGER * median(mean))
    if fit.sum() < _MIN_GROUPS:
        return device_ns
    x, y = (each[fit] - each[fit].mean() for each in (excess, mean))
    slope = float((x * y).sum() / max((x * x).sum(), 1.0))
    return device_ns if slope < _FOLLOWS else device_ns + min(slope, 1.0) * (beyond - excess[group])


def _beyond_usual(time: Floats, among: Mask, median_step: float) -> Floats:
    beyond = time - median(time[among])
    least = max(_MIN_EXCESS_SHARE * median_step, _EXCESS_SIGMAS * mad_sigma(time[among]))
    return np.where(among & (beyond > least), beyond, 0.0)


def _any(times: Sequence[Floats], length: int) -> Mask:
    return np.asarray(reduce(np.logical_or, [x > 0 for x in times], np.zeros(length, bool)))


_MIN_TO_TELL = 0.02
_LOADING_FACTORS = (0.2, 5.0)


@dataclass(frozen=True, eq=False, repr=False)
class TrainingStep(ArrayRecord):
    """The mean step over all logged steps that count."""

    mean_ns: float
    ordinary_ns: float
    recurring: Recurring
    #: logged steps that count, on the rank with the fewest
    num_steps: int
    #: by rank: numbers of the logged steps, profiled ones included, that are not ordinary
    event_steps: dict[int, frozenset[int]]
    #: by rank, ordinary profiled step of the window and region: how much longer it takes in the mean of the ordinary
    #: steps without the profiler; negative where it takes less
    region_gain_ns: dict[int, dict[int, dict[str, float]]]
    #: by rank and region of WORK_REGIONS: how much longer it takes in the mean step than in the ordinary one
    work_gain_ns: dict[int, dict[str, float]]
    #: by rank: how long loading data takes in ordinary steps against the profiled ones of the window
    loading_factor: dict[int, float]
    #: False for logs of step times alone: then long steps are known to recur, and nothing of why
    has_regions: bool
    notes: tuple[str, ...]

    @property
    def uneven(self) -> str | None:
        """Return what to know where the mean step is more than the ordinary one; else None."""
        more_ns = self.mean_ns - self.ordinary_ns
        if more_ns < _MIN_TO_TELL * self.mean_ns:
            return None
        return (
            f"the mean of {self.num_steps} logged steps is {ms(self.mean_ns):.2f} ms, an ordinary one takes "
            f"{ms(self.ordinary_ns):.2f} ms: {ms(more_ns):.2f} ms per step recur in some steps only"
        )


def training_step(logs: Sequence[StepLog]) -> TrainingStep | None:
    """Return the mean training step of the logs, None where a rank has fewer than eight steps that count."""
    ranks = [_logged_steps(log) for log in logs]
    if not ranks or any(r is None for r in ranks):
        return None
    known = [r for r in ranks if r is not None]
    ordinary_ns, disturbed = _ordinary(known)
    mean_ns = ordinary_ns + max(0.0, float(np.mean([r.mean_ns - r.ordinary_mean_ns for r in known])))
    found = _recurring(known, mean_ns - ordinary_ns)
    return TrainingStep(
        mean_ns=mean_ns,
        ordinary_ns=ordinary_ns,
        recurring=found,
        num_steps=min(int(r.counts.sum()) for r in known),
        event_steps={r.log.rank: frozenset(r.log.step[r.event].tolist()) for r in known},
        region_gain_ns={r.log.rank: _region_gain(r) for r in known},
        work_gain_ns={r.log.rank: _work_gain(r) for r in known},
        loading_factor={r.log.rank: _loading_factor(r) for r in known},
        has_regions=all(region_times(r.log) for r in known),
        notes=(*disturbed, *_hiccups(known)),
    )


def _ordinary(ranks: Sequence[LoggedSteps]) -> tuple[float, list[str]]:
    """Return the ordinary step, and a note where the steps before the window differ from those after it.

    Then those before it are the job's: nothing had been attached to it yet.
    """
    before, after = ([_phase_mean(r, phase) for r in ranks] for phase in ("before", "after"))
    every = float(np.mean([r.ordinary_mean_ns for r in ranks]))
    if any(x is None for x in (*before, *after)):
        return every, []
    first, last = (float(np.mean([x for x in xs if x is not None])) for xs in (before, after))
    if abs(last / first - 1) <= 0.05:
        return every, []
    waits = [_mean_wait(ranks, phase) for phase in ("before", "after")]
    if abs((last - waits[1]) / max(first - waits[0], 1.0) - 1) <= 0.05:
        return every, [
            f"ordinary steps took {ms(first):.2f} ms before the window and {ms(last):.2f} ms after it, of which the "
            f"training thread waited {ms(waits[0]):.2f} and {ms(waits[1]):.2f} ms for a CPU core"
        ]
    return first, [
        f"unprofiled step: {ms(first):.2f} ms before the recording, {ms(last):.2f} ms after it "
        f"({100 * (last / first - 1):+.0f} %); the earlier value is used"
    ]


def _phase_mean(rank: LoggedSteps, phase: str) -> float | None:
    mine = rank.ordinary & (np.array(rank.log.phase, str) == phase)
    return float(rank.step_ns[mine].mean()) if mine.sum() >= 10 else None


def _mean_wait(ranks: Sequence[LoggedSteps], phase: str) -> float:
    """Return the mean wait for a core in ordinary steps of a phase; 0 where steps are the device's."""
    found = []
    for rank in ranks:
        waited, mine = no_core_ns(rank.log), rank.ordinary & (np.array(rank.log.phase, str) == phase)
        on_host = bool((rank.step_ns == rank.log.dur_ns).all())
        found.append(float(waited[mine].mean()) if waited is not None and on_host else 0.0)
    return float(np.mean(found))


def _recurring(ranks: Sequence[LoggedSteps], total_ns: float) -> Recurring:
    steps = reduce(common, [r.log.step[r.counts] for r in ranks])
    causes = tuple(dict.fromkeys(name for r in ranks for name in r.causes))
    if not len(steps) or total_ns <= 0:
        return NOTHING_RECURS
    excess = np.zeros((len(causes), len(ranks), len(steps)))
    for i, rank in enumerate(ranks):
        order = np.argsort(rank.log.step, kind="stable")
        at = np.asarray(order[np.searchsorted(rank.log.step, steps, sorter=order)])
        for j, cause in enumerate(causes):
            if cause in rank.causes:
                excess[j, i] = rank.causes[cause][at]
    excess = _with_loader_starts(_without_waiting(excess, causes), causes)
    shown = [bool(each.any()) for each in excess]
    found = Recurring(
        tuple(c for c, s in zip(causes, shown, strict=True) if s), tuple(r.log.rank for r in ranks), excess[shown]
    )
    modelled = found.total_ns
    if modelled < 0.5 * total_ns:
        return Recurring(found.causes, found.ranks, found.excess_ns, 1.0, total_ns - modelled)
    return Recurring(found.causes, found.ranks, found.excess_ns, total_ns / modelled, 0.0)


def _without_waiting(excess: Floats, causes: tuple[str, ...]) -> Floats:
    """Return the excess without time outside regions where another rank does something that has a name.

    There the others wait for it, in any call: a barrier after a checkpoint is no communication of their own.
    """
    named = [j for j, cause in enumerate(causes) if cause not in _UNNAMED]
    if not named or excess.shape[1] < 2:
        return excess
    busy = excess[named].sum(axis=0)
    others_busy = np.array([np.delete(busy, i, axis=0).max(axis=0) > busy[i] for i in range(len(busy))])
    waits = np.isin(causes, (OUTSIDE, COMMUNICATION))[:, None, None] & others_busy
    return np.where(waits, 0.0, excess)


def _with_loader_starts(excess: Floats, causes: tuple[str, ...]) -> Floats:
    """Return the excess with what starts loaders counted where it belongs.

    A loader that is made anew starts its workers and joins the old ones around its first batch: that time is in no
    region of logs that know none for it. One that starts in a step with passes without gradients, in which training
    waits for no batch, is theirs.
    """
    out, of = excess.copy(), {cause: excess[j] for j, cause in enumerate(causes)}
    data = of.get(DATA_LOADING, np.zeros(excess.shape[1:]))
    if LOADER_START in of and EVALUATION in of:
        _move(out, causes, LOADER_START, EVALUATION, (of[EVALUATION] > 0) & (data == 0))
    if OUTSIDE in of and DATA_LOADING in of and LOADER_START not in of:
        together = (of[OUTSIDE] > 0) & (data > 0)
        if together.sum() >= 3 and together.sum() >= 0.9 * max((of[OUTSIDE] > 0).sum(), (data > 0).sum()):
            _move(out, causes, OUTSIDE, DATA_LOADING, together)
    return out


def _move(excess: Floats, causes: tuple[str, ...], source: str, target: str, where: Mask) -> None:
    moved = np.where(where, excess[causes.index(source)], 0.0)
    excess[causes.index(source)] -= moved
    excess[causes.index(target)] += moved


def _region_gain(rank: LoggedSteps) -> dict[int, dict[str, float]]:
    log = rank.log
    times = region_times(log) | _cause_times(log)
    usual = {name: float(time[rank.ordinary].mean()) for name, time in times.items()}
    window = np.flatnonzero(_in_window(log) & ~rank.event)
    return {int(log.step[i]): {name: usual[name] - float(time[i]) for name, time in times.items()} for i in window}


def _loading_factor(rank: LoggedSteps) -> float:
    time = region_times(rank.log).get(DATA_LOADING)
    window = _in_window(rank.log) & ~rank.event
    if time is None or not window.any():
        return 1.0
    usual, profiled = float(time[rank.ordinary].mean()), float(time[window].mean())
    least = _MIN_TO_TELL * rank.ordinary_mean_ns
    return float(np.clip(usual / profiled, *_LOADING_FACTORS)) if min(usual, profiled) > least else 1.0


def _work_gain(rank: LoggedSteps) -> dict[str, float]:
    times = {name: time for name, time in region_times(rank.log).items() if name in WORK_REGIONS}
    return _gains(times, rank.counts & ~rank.hiccup, rank.ordinary)


def _gains(times: dict[str, Floats], more: Mask, less: Mask) -> dict[str, float]:
    gains = {name: float(time[more].mean() - time[less].mean()) for name, time in times.items()}
    return {name: gain for name, gain in gains.items() if gain > 0}


def _hiccups(ranks: Sequence[LoggedSteps]) -> list[str]:
    once = {name: (time_ns, step) for r in reversed(ranks) for name, (time_ns, step) in r.once.items()}
    lines = [
        f"{name.replace('_', ' ')} once, {time_ns / NS_PER_S:.3g} s in step {step}: part of no time per step, "
        "since its period is not known"
        for name, (time_ns, step) in once.items()
    ]
    left_out = sorted({int(n) for r in ranks for n in r.log.step[r.hiccup]} - {step for _, step in once.values()})
    if left_out:
        which = ", ".join(map(str, left_out[:3]))
        more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        steps = f"step {which}" if len(left_out) == 1 else f"steps {which}{more}"
        lines.append(f"{steps} took over 1.5 times the median, once: excluded as an outlier")
    return lines
