"""A folder of runs as rows, cached in `.stepscope/history.jsonl`: only new and changed runs are analysed.

    FOLDER/monday/run.json, FOLDER/monday/rank00000...   one run; also FOLDER/2026-11/monday, up to three levels below
    FOLDER/.stepscope/history.jsonl                      a line per run: key, row

The key covers all inputs of a row: the run's files by size, times and content, and the code itself. Rows that came with
a copied folder do not match.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from stepscope.analyze.account import account_of
from stepscope.analyze.ledger import PRODUCTIVE, ledger_of
from stepscope.analyze.log_stragglers import log_lateness
from stepscope.analyze.sampled import load_run
from stepscope.cache_files import content_key, open_trusted_file, write_trusted_file
from stepscope.contract.redaction import redacted
from stepscope.contract.run_folder import CACHE_FOLDER, RUN_JSON, json_object, json_object_in
from stepscope.contract.student import t_quantile
from stepscope.diagnose.findings import diagnose
from stepscope.document.cache import code_key
from stepscope.document.report import report_json
from stepscope.errors import InputError, StepscopeError
from stepscope.records import dataclass
from stepscope.run.attempts import attempts_of, sibling_folders
from stepscope.run.side_files import StepLog, readable_step_logs, unprofiled_step
from stepscope.run.sources import holds_traces
from stepscope.side_file import is_number
from stepscope.stats.robust import holm
from stepscope.units import json_text, ms

# One run as a row of the history: its configuration and its key figures.
#
#     run.json, the report (where there are traces), the step logs (where there are none)  ->  `HistoryRow`
#
# Files are not trusted: a value of the wrong kind is unknown.

_WINDOW_STEPS = 1000
_MAX_TEXT = 200
_MAX_FINDINGS = 30
_MAX_RANKS = 1 << 30
# device number of the host's own memory
_HOST = -1
# of the step log, the first that it has
_PEAKS = ("memory.reserved_bytes", "memory.allocated_bytes", "memory.host_peak_bytes")


@dataclass(frozen=True)
class HostTime:
    """How slow a host was in one run, on the time before it waits for others."""

    host: str
    #: own time of its ranks over the median of all hosts'
    slowdown: float
    #: by rank 0 alone: it often does more than the others
    has_rank_0: bool


@dataclass(frozen=True)
class HistoryRow:
    """One run."""

    run: str
    created: str | None = None
    commit: str | None = None
    #: what makes runs comparable: command, model, number of ranks, device, strategy
    config: str = ""
    hosts: tuple[str, ...] = ()
    world_size: int | None = None
    device: str | None = None
    step_ms: float | None = None
    #: `unprofiled` or `profiled`
    step_source: str | None = None
    mfu: float | None = None
    tokens_per_s: float | None = None
    peak_memory_bytes: int | None = None
    #: productive share of the job that the run belongs to, restarts included
    goodput_pct: float | None = None
    verdict: str | None = None
    #: (id, what it would save in % of the step), the largest first
    findings: tuple[tuple[str, float], ...] = ()
    #: empty where one host ran all ranks, or hosts are unknown
    host_times: tuple[HostTime, ...] = ()
    #: why there are no numbers
    problem: str | None = None


def _row_of_report(
    name: str, report: Mapping[str, Any], description: Mapping[str, Any], logs: Sequence[StepLog] = ()
) -> HistoryRow:
    step, used, told = report["step"], report["efficiency"], report["run"]
    unprofiled = step["unprofiled_ms"]
    hosts = {int(r["rank"]): _text(r["host"]) for r in report["ranks"]}
    own = {int(r["rank"]): _own_ms(r) for r in report["ranks"]}
    return replace(
        _identity_of(description, device=_text(told["device"]), world_size=told["world_size"]),
        run=name,
        hosts=tuple(sorted({host for host in hosts.values() if host})),
        step_ms=unprofiled if unprofiled is not None else step["profiled_ms"],
        step_source="unprofiled" if unprofiled is not None else "profiled" if step["profiled_ms"] is not None else None,
        mfu=used["mfu"],
        tokens_per_s=step["tokens_per_s"],
        peak_memory_bytes=_peak_of_report(report) or _peak_of_logs(logs),
        verdict=_text(report["verdict"]),
        findings=tuple((f["id"], f["saving_pct"]) for f in report["findings"][:_MAX_FINDINGS] if f["saving_pct"]),
        host_times=host_times(_slowdowns(logs) or _relative(own), hosts),
    )


def _row_of_logs(name: str, logs: Sequence[StepLog], description: Mapping[str, Any]) -> HistoryRow:
    step = unprofiled_step(logs)
    hosts = _hosts(description)
    return replace(
        _identity_of(description, world_size=len(logs)),
        run=name,
        hosts=tuple(sorted(set(hosts.values()))),
        step_ms=ms(step.mean_ns if step.long_share else step.median_ns) if step else None,
        step_source="unprofiled" if step else None,
        peak_memory_bytes=_peak_of_logs(logs),
        host_times=host_times(_slowdowns(logs), dict(hosts)),
    )


def host_times(slowdowns: Mapping[int, float], hosts: Mapping[int, str | None]) -> tuple[HostTime, ...]:
    """Return how slow each host's ranks were against all hosts, rank 0 left out where its host has others.

    >>> host_times({0: 1.3, 1: 1.0, 2: 1.2, 3: 1.2}, {0: "a", 1: "a", 2: "b", 3: "b"})
    (HostTime(host='a', slowdown=1.0, has_rank_0=False), HostTime(host='b', slowdown=1.2, has_rank_0=False))
    """
    by_host: dict[str, dict[int, float]] = {}
    for rank, slowdown in slowdowns.items():
        host = hosts.get(rank)
        if host:
            by_host.setdefault(host, {})[rank] = slowdown
    if len(by_host) < 2:
        return ()
    found = []
    for host in sorted(by_host):
        others = [value for rank, value in by_host[host].items() if rank != 0]
        found.append(HostTime(host, float(np.median(others or list(by_host[host].values()))), not others))
    return tuple(found)


def _identity_of(description: Mapping[str, Any], *, device: str | None = None, world_size: object = None) -> HistoryRow:
    said = description.get("world_size")
    size = said if is_number(said, low=1, high=_MAX_RANKS) else world_size
    described = description.get("device")
    known = _text(described.get("name")) if isinstance(described, dict) else None
    return HistoryRow(
        run="",
        created=_text(description.get("created")),
        commit=_text(description.get("commit")),
        world_size=int(size) if isinstance(size, int | float) and is_number(size, low=1, high=_MAX_RANKS) else None,
        device=device or known,
        config=_config_of(description, device=known or device, world_size=size),
    )


def _config_of(description: Mapping[str, Any], *, device: str | None, world_size: object) -> str:
    command = description.get("command")
    given = command[:_MAX_TEXT] if isinstance(command, list) else [command or ""]
    words = " ".join(redacted([str(word)[:_MAX_TEXT] for word in given]))
    model = description.get("model")
    size = model.get("parameters") if isinstance(model, dict) else None
    parts = [
        words[:_MAX_TEXT],
        f"{size:,} parameters" if isinstance(size, int) else "",
        f"{world_size} x {device or 'unknown device'}",
        _text(description.get("strategy")) or "",
    ]
    return ", ".join(part for part in parts if part)


def _hosts(description: Mapping[str, Any]) -> dict[int, str]:
    ranks = description.get("ranks")
    found = {}
    for rank, facts in (ranks if isinstance(ranks, dict) else {}).items():
        host = _text(facts.get("host")) if isinstance(facts, dict) else None
        if host and str(rank).isdigit() and len(str(rank)) < 10:
            found[int(rank)] = host
    return found


def _slowdowns(logs: Sequence[StepLog]) -> dict[int, float]:
    # own time of each rank, not its ratio to the others: hosts are compared with each other later
    return _relative({one.rank: one.own_ns for one in log_lateness(logs, window_steps=_WINDOW_STEPS)})


def _own_ms(rank: Mapping[str, Any]) -> float | None:
    window, wait, steps = rank["window_ms"], rank["wait_ms"], rank["num_steps"]
    return (window - wait) / steps if window is not None and wait is not None and steps else None


def _relative(own: Mapping[int, float | int | None]) -> dict[int, float]:
    known = {rank: value for rank, value in own.items() if value is not None and value > 0}
    middle = float(np.median(list(known.values()))) if known else 0.0
    return {rank: value / middle for rank, value in known.items()} if middle else {}


def _peak_of_report(report: Mapping[str, Any]) -> int | None:
    ranks = (report.get("memory") or {}).get("ranks") or ()
    on_device = [rank for rank in ranks if rank.get("device") not in (None, _HOST)]
    peaks = [rank.get("peak_reserved_bytes") or rank.get("peak_allocated_bytes") for rank in on_device]
    known = [peak for peak in peaks if peak]
    return max(known) if known else None


def _peak_of_logs(logs: Sequence[StepLog]) -> int | None:
    for name in _PEAKS:
        found = [log.column(name) for log in logs]
        known = [float(np.nanmax(column)) for column in found if len(column) and not np.isnan(column).all()]
        if known and max(known) < 2**62:
            return round(max(known))
    return None


def _text(value: object) -> str | None:
    return value[:_MAX_TEXT] if isinstance(value, str) and value else None


_KEPT = "history.jsonl"
_MAX_RUNS = 10_000
_LEVELS = 3
_MAX_FILES = 50_000
_MAX_KEPT_BYTES = 64 << 20
# Called with runs done so far and runs in all.
Progress = Callable[[int, int], None]


def run_folders(folder: Path) -> list[Path]:
    """Return the runs below a folder, or itself where it is one, by name."""
    try:
        found = list(_runs_below(folder, _LEVELS))
    except OSError as error:
        raise InputError(f"cannot list runs in {folder}: {error.strerror}; check the path") from error
    if len(found) > _MAX_RUNS:
        raise InputError(f"more than {_MAX_RUNS:,} runs below {folder}; give one of the folders in it")
    if not found:
        raise InputError(f"no runs (run.json or traces) in {folder}, up to {_LEVELS} levels below; check the path")
    return found


def history_rows(
    folder: Path, *, traces: bool = True, jobs: int | None = None, cache: bool = True, progress: Progress | None = None
) -> list[HistoryRow]:
    """Return a row for every run below a folder; without `traces` by run.json and step logs alone."""
    runs = run_folders(folder)
    kept = _kept(folder) if cache else {}
    rows: list[HistoryRow] = []
    keys: list[str | None] = []
    goodput_pct: dict[str, float] = {}
    for number, run in enumerate(runs):
        if progress:
            progress(number, len(runs))
        key = _key(run, traces=traces)
        row = kept.get(key) if key else None
        if row is None:
            row = row_of_run(run, name=_name(run, folder), traces=traces, jobs=jobs, cache=cache)
            row = replace(row, goodput_pct=_goodput_pct(run, goodput_pct))
        rows.append(row)
        keys.append(key)
    if cache and any(key and key not in kept for key in keys):
        _keep(folder, rows, keys)
    return rows


def row_of_run(
    folder: Path, *, name: str, traces: bool = True, jobs: int | None = None, cache: bool = True
) -> HistoryRow:
    """Return the row of one run; for an unreadable one, with the reason."""
    description = json_object_in(folder / RUN_JSON)
    try:
        logs, _ = readable_step_logs(folder)
        if traces and holds_traces(folder):
            account = account_of(load_run(folder, jobs=jobs, cache=cache))
            return _row_of_report(name, report_json(account, diagnose(account)), description, logs)
        if logs:
            return _row_of_logs(name, logs, description)
        return HistoryRow(run=name, problem="neither traces nor step logs")
    except (StepscopeError, OSError) as error:
        return HistoryRow(run=name, problem=str(error)[:300])


def _goodput_pct(run: Path, known: dict[str, float]) -> float | None:
    """Return the goodput of the run's job; one ledger covers all attempts."""
    here = run.absolute()
    if str(here) not in known:
        try:
            attempts = attempts_of(run)
            ledger = ledger_of(attempts)
        except (StepscopeError, OSError):  # without step logs
            return None
        if ledger.total_ns > 0 and all(one.has_start for one in attempts):
            share = 100 * ledger.part_ns(PRODUCTIVE) / ledger.total_ns
            known |= {str(here.with_name(one.name)): share for one in attempts}
    return known.get(str(here))


def _runs_below(folder: Path, levels: int) -> Iterator[Path]:
    if (folder / RUN_JSON).is_file() or holds_traces(folder):
        yield folder
        return
    if not levels:
        return
    for below in sorted(folder.iterdir()):
        if below.is_dir() and not below.is_symlink() and not below.name.startswith("."):
            yield from _runs_below(below, levels - 1)


def _name(run: Path, folder: Path) -> str:
    return str(run.relative_to(folder)) if run != folder else run.resolve().name


def _key(run: Path, *, traces: bool) -> str | None:
    try:
        files = [
            p for p in sorted(run.rglob("*")) if CACHE_FOLDER not in p.parts and p.is_file() and not p.is_symlink()
        ]
    except OSError:
        return None
    if len(files) > _MAX_FILES:
        return None
    content = {str(p.relative_to(run)): content_key(p) for p in files}
    attempts = [
        p for one in sibling_folders(run) if one.name != run.name for p in sorted(one.glob("rank*.facts.jsonl"))
    ]
    content |= {f"../{p.parent.name}/{p.name}": content_key(p) for p in attempts}
    if None in content.values():
        return None
    followed = {"files": content, "code": code_key(), "traces": traces, "run": str(run)}
    text = json.dumps(followed, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=20).hexdigest()


def _kept(folder: Path) -> dict[str, HistoryRow]:
    found: dict[str, HistoryRow] = {}
    try:
        with open_trusted_file(folder / CACHE_FOLDER / _KEPT, max_bytes=_MAX_KEPT_BYTES) as f:
            for line in f:
                entry = json_object(line)
                if entry and entry["key"]:
                    row = entry["row"]
                    row["hosts"], row["findings"] = tuple(row["hosts"]), tuple(map(tuple, row["findings"]))
                    row["host_times"] = tuple(HostTime(**one) for one in row["host_times"])
                    found[entry["key"]] = HistoryRow(**row)
    except (OSError, KeyError, TypeError):  # no cache, or of another version
        return found
    return found


def _keep(folder: Path, rows: Sequence[HistoryRow], keys: Sequence[str | None]) -> None:
    entries = [{"key": key, "row": asdict(row)} for row, key in zip(rows, keys, strict=True) if key]
    text = "".join(json_text(entry) + "\n" for entry in entries).encode(errors="surrogatepass")
    if len(text) <= _MAX_KEPT_BYTES:
        write_trusted_file(folder / CACHE_FOLDER / _KEPT, [text])


# Is the newest run of a configuration slower than runs of it usually are?
#
# The interval is that of one more run like those before it, on the logarithm of their step times:
#     exp(mean +- t(97.5 %, n - 1) * s * sqrt(1 + 1/n))
# A newest run above it is a regression, below it an improvement; with fewer than four runs before it neither.

_MIN_BEFORE = 4


def newest_runs(rows: Sequence[HistoryRow]) -> list[dict[str, Any]]:
    """Return the newest run of each configuration that has a step time, those that changed first.

    `verdict` is slower, faster, as usual, or unknown; without an interval with too few runs `before` it.
    """
    by_config: dict[tuple[str, str | None], list[HistoryRow]] = {}
    for row in _in_time(rows):
        if row.step_ms is not None and row.step_ms > 0:
            by_config.setdefault((row.config, row.step_source), []).append(row)
    order = {"slower": 0, "faster": 1, "as usual": 2, "unknown": 3}
    found = [_newest(several) for several in by_config.values()]
    return sorted(found, key=lambda one: (order[one["verdict"]], one["config"]))


def _in_time(rows: Sequence[HistoryRow]) -> list[HistoryRow]:
    return sorted(rows, key=lambda row: (row.created or "", row.run))


def _newest(rows: Sequence[HistoryRow]) -> dict[str, Any]:
    last = rows[-1]
    before = [row.step_ms for row in rows[:-1] if row.step_ms]
    assert last.step_ms is not None
    usual = exp(fmean(map(log, before))) if before else None
    change = None if usual is None else 100 * (last.step_ms / usual - 1)
    low, high = interval_of_one_more(before)
    verdict = "unknown"
    if low is not None and high is not None:
        verdict = "slower" if last.step_ms > high else "faster" if last.step_ms < low else "as usual"
    return {
        "config": last.config,
        "run": last.run,
        "commit": last.commit,
        "step_ms": last.step_ms,
        "before": len(before),
        "usual_ms": usual,
        "low_ms": low,
        "high_ms": high,
        "change_pct": change,
        "verdict": verdict,
    }


def interval_of_one_more(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 95 % prediction interval of one more run, None with too few runs."""
    if len(values) < _MIN_BEFORE:
        return None, None
    logs = [log(value) for value in values]
    # of step times on the logarithm: equal to the digit is chance
    reach = t_quantile(0.95, len(logs) - 1) * max(stdev(logs), 0.002) * sqrt(1 + 1 / len(logs))
    return exp(fmean(logs) - reach), exp(fmean(logs) + reach)


# Which hosts are slow across jobs, and not by chance?
#
# In a job of n hosts that are equal, each is the slowest with probability 1/n. How often one is over many jobs then has
# a known distribution (a sum of unequal coins), and a host is named where it was the slowest so often that this happens
# to an equal host in less than 1 of 100 histories, corrected for the number of hosts (Holm), and where it costs
# something:
#
#     at least 3 jobs, p < 0.01 after correction, median slowdown against the other hosts of at least 5 %
#
# Slowness is that of the time before ranks wait for each other; after it all look equal. A host that was slow only with
# rank 0 as its single rank is not named: rank 0 often does more.

_MAX_P = 0.01
_MIN_RUNS = 3
_MIN_SLOWDOWN = 1.05


def host_records(rows: Sequence[HistoryRow]) -> list[dict[str, Any]]:
    """Return every host that shared a job with another one, the most suspicious first.

    `p_value`: that an equal host is the slowest at least as often, corrected for the number of hosts; `expected`: how
    often such a host would be; `slowdown`: median over jobs, against the other hosts' median; `why_not`: why a
    slow host is not reported.
    """
    seen: dict[str, list[tuple[HostTime, float, int]]] = {}
    slowest: dict[str, int] = {}
    for times in (row.host_times for row in rows if len(row.host_times) > 1):
        worst = max(times, key=lambda one: one.slowdown)
        slowest[worst.host] = slowest.get(worst.host, 0) + 1
        for one in times:
            others = float(np.median([other.slowdown for other in times if other is not one]))
            seen.setdefault(one.host, []).append((one, one.slowdown / others if others else 1.0, len(times)))
    hosts = sorted(seen)
    p_values = [tail([1 / n for _, _, n in seen[host]], slowest.get(host, 0)) for host in hosts]
    corrected = holm(np.array(p_values, float)).tolist()
    found = [_record(h, seen[h], slowest.get(h, 0), p) for h, p in zip(hosts, corrected, strict=True)]
    return sorted(found, key=lambda one: (not one["is_slow"], one["p_value"], -one["slowdown"], one["host"]))


def tail(chances: Sequence[float], at_least: int) -> float:
    """Return the probability that at least `at_least` of independent events with these chances occur.

    >>> tail([0.5, 0.5, 0.5], 3), tail([0.5, 0.25], 1)
    (0.125, 0.625)
    """
    counts = np.zeros(len(chances) + 1)
    counts[0] = 1.0
    for p in chances:
        counts[1:] = counts[1:] * (1 - p) + counts[:-1] * p
        counts[0] *= 1 - p
    return float(min(1.0, counts[at_least:].sum())) if at_least else 1.0


def _record(host: str, jobs: Sequence[tuple[HostTime, float, int]], slowest: int, p_value: float) -> dict[str, Any]:
    slowdown = float(np.median([ratio for _, ratio, _ in jobs]))
    stands_out = p_value < _MAX_P and slowest > 0
    why_not = None
    if stands_out and len(jobs) < _MIN_RUNS:
        why_not = f"{len(jobs)} jobs, {_MIN_RUNS} are needed"
    elif stands_out and slowdown < _MIN_SLOWDOWN:
        why_not = f"less than {100 * (_MIN_SLOWDOWN - 1):.0f} % slower"
    elif stands_out and all(one.has_rank_0 for one, _, _ in jobs):
        why_not = "it always had rank 0 as its only rank, which may do more than the others"
    return {
        "host": host,
        "runs": len(jobs),
        "slowest": slowest,
        "expected": float(sum(1 / n for _, _, n in jobs)),
        "p_value": p_value,
        "slowdown": slowdown,
        "is_slow": stands_out and why_not is None,
        "why_not": why_not,
    }


# Which runs of a history is one run compared with? The last earlier ones of its configuration.


def runs_before(run: Path, folder: Path) -> list[Path]:
    """Return up to ten runs of the same command, model, ranks and device in a folder, the newest last.

    Runs without traces cannot be compared part by part and are left out; so are the run itself and newer ones.
    """
    own = _identity_of(json_object_in(run / RUN_JSON))
    alike = []
    for one in run_folders(folder):
        found = _identity_of(json_object_in(one / RUN_JSON))
        is_before = not own.created or not found.created or found.created < own.created
        if one.resolve() != run.resolve() and found.config == own.config and is_before and holds_traces(one):
            alike.append((found.created or "", str(one), one))
    if not alike:
        raise InputError(
            f"no earlier run with traces of the same command, model, ranks and device as {run} in {folder}; "
            "stepscope history --by config lists what is there"
        )
    return [one for *_, one in sorted(alike)[-10:]]


# Runs grouped by commit, configuration, host or device, each group with its middle and its range.


def _groups(rows: Sequence[HistoryRow], by: str) -> list[dict[str, Any]]:
    found: dict[str, list[HistoryRow]] = {}
    for row in _in_time(rows):
        names = row.hosts if by == "host" else (getattr(row, by),)  # a run on several hosts is in each of theirs
        for name in names or (None,):
            found.setdefault(name or "unknown", []).append(row)
    ordered = sorted(found) if by == "host" else found  # commits and configurations by their first run
    return [_group(name, found[name]) for name in ordered]


def _group(name: str, rows: Sequence[HistoryRow]) -> dict[str, Any]:
    steps = [row.step_ms for row in rows if row.step_ms is not None]
    used = [row.mfu for row in rows if row.mfu is not None]
    memory = [row.peak_memory_bytes for row in rows if row.peak_memory_bytes is not None]
    frequent = Counter(finding for row in rows for finding, _ in row.findings).most_common(3)
    return {
        "name": name,
        "runs": len(rows),
        "step_ms": median(steps) if steps else None,
        "min_step_ms": min(steps, default=None),
        "max_step_ms": max(steps, default=None),
        "mfu": median(used) if used else None,
        "peak_memory_bytes": max(memory, default=None),
        "findings": tuple(finding for finding, _ in frequent),
    }


# The history as the JSON document of `stepscope history`.

_SCHEMA = 1


def history_json(folder: str, rows: Sequence[HistoryRow], *, by: str) -> dict[str, Any]:
    """Return rows from the oldest to the newest, their groups, the newest of each configuration, and the hosts."""
    return {
        "schema": _SCHEMA,
        "folder": folder,
        "runs": [asdict(row) for row in _in_time(rows)],
        "by": by,
        "groups": _groups(rows, by),
        "newest": newest_runs(rows),
        "hosts": host_records(rows),
        "slow_host_rule": {"max_p": _MAX_P, "min_runs": _MIN_RUNS, "min_slowdown": _MIN_SLOWDOWN},
    }
