"""What lies beside the traces of a run folder: device telemetry, live collectives, memory through a step, NCCL's log.

    rank00000.telemetry.jsonl    a line for the device, then a sample of its state a second       -> `Telemetry`
    rank00000.collectives.jsonl  a header, then a line per operation and group                     -> `LiveCollective`
    rank00000.memory.jsonl       snapshots at the edges of regions, the peak, whose storages       -> `MemoryEdge`
    rank00000.nccl.log           what NCCL itself says                                             -> `NcclLog`
    window1/                     the second profiled window, and so on                             -> its name

Files grow while the job runs and may be cut: lines that are no JSON objects are left out and counted.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import json_object, rank_of
from stepscope.units import ns_of_ms

_TELEMETRY, _COLLECTIVES, _MEMORY, _NCCL = "telemetry.jsonl", "collectives.jsonl", "memory.jsonl", "nccl.log"
_WINDOW = re.compile(r"^window\d+$")
_MAX_LINE = 1_000_000
_MAX_NCCL_WARNINGS = 20
_MAX_NUMBER = 1e300
_VERSION = re.compile(r"NCCL version (\S+)")
_CHANNELS = re.compile(r"(\d+) coll channels")
_VIA = re.compile(r"\bvia ([A-Za-z0-9]+(?:/[A-Za-z0-9]+)?)")
_NETWORK = re.compile(r"Using network (\S+)")
_WARNING = re.compile(r"NCCL WARN (.*)")


@dataclass(frozen=True)
class Telemetry:
    """The states of one rank's device, as the recorder sampled them."""

    rank: int
    device: dict[str, Any]
    """name, uuid, highest clocks, power limit"""
    states: tuple[dict[str, Any], ...]
    """by time"""


@dataclass(frozen=True)
class LiveCollective:
    """One operation of one group on one rank, over the whole job; bandwidths include the wait for later ranks."""

    rank: int
    op: str
    group: str
    group_desc: str
    """what the job calls the group (`default_pg`, `mesh_tp`), its name where it calls it nothing"""
    group_size: int | None
    count: int
    size_bytes: int | None
    time_ns: int | None
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None
    best_busbw_gb_per_s: float | None


@dataclass(frozen=True)
class MemoryEdge:
    """Memory of one rank at the edge of a region, in a step that was looked at closely."""

    rank: int
    step: int | None
    label: str
    bytes_by: dict[str, int]
    """allocated, reserved, parameters, gradients, ...; names without `_bytes`"""


@dataclass(frozen=True)
class NcclLog:
    """What NCCL's own log says on one rank."""

    rank: int
    version: str | None
    channels: int | None
    transports: dict[str, int]
    """connections by how they are made: P2P/CUMEM, SHM/direct, NET/Socket, ..."""
    network: str | None
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class SideFiles:
    """Everything beside the traces, by rank."""

    telemetry: tuple[Telemetry, ...] = ()
    collectives: tuple[LiveCollective, ...] = ()
    memory: tuple[MemoryEdge, ...] = ()
    memory_peaks: dict[int, dict[str, Any]] = field(default_factory=dict)
    """by rank: the peak by category, or the reason why it is unknown"""
    nccl: tuple[NcclLog, ...] = ()
    windows: tuple[Path, ...] = ()
    """folders of the second and later profiled windows"""
    lost_lines: int = 0


def is_later_window(folder: Path) -> bool:
    """Return whether a folder is the second or a later window of the run folder around it."""
    return bool(_WINDOW.match(folder.name))


def side_files(folder: Path) -> SideFiles:
    """Return what a run folder holds beside its traces and step logs."""
    lines, lost = {}, 0
    for path in sorted(p for p in folder.glob("rank*.jsonl") if p.is_file()):
        rank = rank_of(path.name)
        what = path.name.partition(".")[2]
        if rank is not None and what in (_TELEMETRY, _COLLECTIVES, _MEMORY):
            lines[rank, what], missed = _objects(path)
            lost += missed
    edges = [_edge(rank, x) for (rank, what), xs in lines.items() if what == _MEMORY for x in xs if _is(x, "snapshot")]
    peaks = {rank: x for (rank, what), xs in lines.items() if what == _MEMORY for x in xs if _is(x, "peak")}
    live = [_live(rank, x, _descriptions(xs)) for (rank, what), xs in lines.items() if what == _COLLECTIVES for x in xs]
    return SideFiles(
        telemetry=tuple(_telemetry(rank, xs) for (rank, what), xs in lines.items() if what == _TELEMETRY),
        collectives=tuple(x for x in live if x is not None),
        memory=tuple(edges),
        memory_peaks=peaks,
        nccl=tuple(_nccl(p) for p in sorted(folder.glob(f"rank*.{_NCCL}")) if rank_of(p.name) is not None),
        windows=tuple(sorted(p for p in folder.glob("window*") if p.is_dir() and is_later_window(p))),
        lost_lines=lost,
    )


def _objects(path: Path) -> tuple[list[dict[str, Any]], int]:
    try:
        texts = [t for t in path.read_bytes().splitlines() if t.strip()]
    except OSError:
        return [], 1
    found = [json_object(t) if len(t) <= _MAX_LINE else None for t in texts]
    cut = sum(x is None for x in found[:-1])  # a last line that is cut is normal
    return [x for x in found if x is not None], cut


def _is(line: dict[str, Any], kind: str) -> bool:
    return line.get("kind") == kind


def _telemetry(rank: int, lines: list[dict[str, Any]]) -> Telemetry:
    device = next((x for x in lines if _is(x, "device")), {})
    states = sorted((x for x in lines if _is(x, "state")), key=lambda x: _number(x.get("time_ns")) or 0)
    return Telemetry(rank, {k: v for k, v in device.items() if k != "kind"}, tuple(states))


def _descriptions(lines: list[dict[str, Any]]) -> dict[str, str]:
    """Return by name what the header calls each group."""
    groups = lines[0].get("groups") if lines else None
    known = [g for g in groups if isinstance(g, dict)] if isinstance(groups, list) else []
    return {str(g.get("name")): str(g["desc"]) for g in known if g.get("desc")}


def _live(rank: int, line: dict[str, Any], descriptions: dict[str, str]) -> LiveCollective | None:
    op, count = line.get("operation"), _number(line.get("count"))
    if not isinstance(op, str) or count is None:
        return None
    size, group_size = _number(line.get("bytes")), _number(line.get("group_size"))
    return LiveCollective(
        rank=rank,
        op=op,
        group=str(line.get("group") or ""),
        group_desc=descriptions.get(str(line.get("group")), str(line.get("group") or "")),
        group_size=None if group_size is None else int(group_size),
        count=int(count),
        size_bytes=None if size is None else int(size),
        time_ns=ns_of_ms(line.get("time_ms")),
        algbw_gb_per_s=_number(line.get("algbw_gb_per_s")),
        busbw_gb_per_s=_number(line.get("busbw_gb_per_s")),
        best_busbw_gb_per_s=_number(line.get("best_busbw_gb_per_s")),
    )


def _edge(rank: int, line: dict[str, Any]) -> MemoryEdge:
    sizes = {k.removesuffix("_bytes"): _number(v) for k, v in line.items() if k.endswith("_bytes")}
    step = _number(line.get("step"))
    known = {k: int(v) for k, v in sizes.items() if v is not None}
    return MemoryEdge(rank, None if step is None else int(step), str(line.get("label") or ""), known)


def _nccl(path: Path) -> NcclLog:
    rank = rank_of(path.name)
    assert rank is not None
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    version, channels, network = (pattern.search(text) for pattern in (_VERSION, _CHANNELS, _NETWORK))
    return NcclLog(
        rank=rank,
        version=version.group(1) if version else None,
        channels=int(channels.group(1)[:9]) if channels else None,
        transports=dict(Counter(_VIA.findall(text)).most_common()),
        network=network.group(1) if network else None,
        warnings=tuple(dict.fromkeys(m.strip() for m in _WARNING.findall(text)))[:_MAX_NCCL_WARNINGS],
    )


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _MAX_NUMBER else None  # NaN is in no order
