"""One run as a row of the history: what it was, and the few numbers that tell whether it went well.

    run.json, the report (where there are traces), the step logs (where there are none)  ->  `HistoryRow`

Every value comes from files that anybody may have written: what is not of its kind is unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.analyze.ranks.log_stragglers import lateness
from stepscope.contract.redaction import redacted
from stepscope.dataclass import dataclass
from stepscope.run.step_log import StepLog, unprofiled_step
from stepscope.side_file import is_number
from stepscope.units import ms

_WINDOW_STEPS = 1000
_MAX_TEXT = 200
_MAX_FINDINGS = 30
_MAX_RANKS = 1 << 30
_HOST = -1
"""device number of the host's own memory"""
_PEAKS = ("memory.reserved_bytes", "memory.allocated_bytes", "memory.host_peak_bytes")
"""of the step log, the first that it has"""


@dataclass(frozen=True)
class HostTime:
    """How slow a host was in one run, on the time before it waits for others."""

    host: str
    slowdown: float
    """own time of its ranks over the median of all hosts'"""
    has_rank_0: bool
    """by rank 0 alone: it often does more than the others"""


@dataclass(frozen=True)
class HistoryRow:
    """One run."""

    run: str
    created: str | None = None
    commit: str | None = None
    config: str = ""
    """what makes runs comparable: command, model, number of ranks, device, strategy"""
    hosts: tuple[str, ...] = ()
    world_size: int | None = None
    device: str | None = None
    step_ms: float | None = None
    step_source: str | None = None
    """`unprofiled` or `profiled`"""
    mfu: float | None = None
    tokens_per_s: float | None = None
    peak_memory_bytes: int | None = None
    verdict: str | None = None
    findings: tuple[tuple[str, float], ...] = ()
    """(id, what it would save in % of the step), the largest first"""
    host_times: tuple[HostTime, ...] = ()
    """empty where one host ran all ranks, or nothing tells them apart"""
    problem: str | None = None
    """why there are no numbers"""


def row_of_report(
    name: str, report: Mapping[str, Any], description: Mapping[str, Any], logs: Sequence[StepLog] = ()
) -> HistoryRow:
    """Return the row of a run that has traces."""
    step, used, told = report["step"], report["efficiency"], report["run"]
    unprofiled = step["unprofiled_ms"]
    hosts = {int(r["rank"]): _text(r["host"]) for r in report["ranks"]}
    own = {int(r["rank"]): _own_ms(r) for r in report["ranks"]}
    return replace(
        identity_of(description, device=_text(told["device"]), world_size=told["world_size"]),
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


def row_of_logs(name: str, logs: Sequence[StepLog], description: Mapping[str, Any]) -> HistoryRow:
    """Return the row of a run that was timed only."""
    step = unprofiled_step(logs)
    hosts = _hosts(description)
    return replace(
        identity_of(description, world_size=len(logs)),
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


def identity_of(description: Mapping[str, Any], *, device: str | None = None, world_size: object = None) -> HistoryRow:
    """Return a row with what a run was by its description, `device` and `world_size` where that does not say it."""
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
        config=config_of(description, device=known or device, world_size=size),
    )


def config_of(description: Mapping[str, Any], *, device: str | None, world_size: object) -> str:
    """Return what makes runs comparable, as text: command, model, ranks, device, strategy."""
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
    """Return each rank's own time over that of the others by the step logs, empty where too few steps tell."""
    return {late.rank: late.slowdown for late in lateness(logs, window_steps=_WINDOW_STEPS)}


def _own_ms(rank: Mapping[str, Any]) -> float | None:
    """Return a rank's time per step before it waits, None where waiting is unknown."""
    window, wait, steps = rank["window_ms"], rank["wait_ms"], rank["num_steps"]
    return (window - wait) / steps if window is not None and wait is not None and steps else None


def _relative(own: Mapping[int, float | None]) -> dict[int, float]:
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
