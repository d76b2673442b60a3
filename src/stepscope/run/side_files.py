"""What lies beside the traces of a run folder: device telemetry, live collectives, memory through a step, NCCL's log.

    rank00000.telemetry.jsonl    a line for the device, then a sample of its state a second       -> `Telemetry`
    rank00000.collectives.jsonl  a header, then a line per operation and group                     -> `LiveCollective`
    rank00000.memory.jsonl       snapshots at the edges of regions, the peak, whose storages       -> `MemoryEdge`
    rank00000.nccl.log           what NCCL itself says; of all ranks at once: `job.nccl.log`        -> `NcclLog`
    *.nccl_inspector.jsonl       what NCCL inspector measured                                      -> `LiveCollective`
    window1/                     the second profiled window, and so on                             -> its name

Files grow while the job runs and may be cut: lines that are no JSON objects are left out and counted.
"""

import re
from collections.abc import Collection
from dataclasses import field
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import rank_of
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.imports.detect import beside, others_in
from stepscope.run.side_lines import KeptLines, kept_lines, name, number, share_of_each, text_lines, whole
from stepscope.run.telemetry import Telemetry, read_telemetry
from stepscope.trace.nccl.said import NcclLog
from stepscope.units import ns_of_ms

_TELEMETRY, _COLLECTIVES, _MEMORY, _NCCL = "telemetry.jsonl", "collectives.jsonl", "memory.jsonl", "nccl.log"
_INSPECTOR = "nccl_inspector.jsonl"
_MAX_JOB_FILES = 1_000
_WINDOW = re.compile(r"^window(\d{1,6})$")
_MAX_NAMES = 32
"""of one line: categories of memory"""
_MAX_GROUPS = 10_000
_MAX_EDGES = 10_000
"""of one rank"""
_MAX_EDGES_OF_ALL = 200_000
_MAX_LIVE = 2_000
"""operations and groups of one rank"""
_MAX_LIVE_OF_ALL = 200_000


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


@dataclass(frozen=True, eq=False, repr=False)
class SideFiles(ArrayRecord):
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
    unread: tuple[str, ...] = ()
    """files that were not read, or not to their end, with the reason"""


def is_later_window(folder: Path) -> bool:
    """Return whether a folder is the second or a later window of the run folder around it."""
    return bool(_WINDOW.match(folder.name))


def window_number(folder: Path) -> int:
    """Return which window lies in a folder: 0 for a run folder, 2 for its `window2`."""
    found = _WINDOW.match(folder.name)
    return int(found.group(1)) if found else 0


def side_files(folder: Path, *, but: Collection[str] = ()) -> SideFiles:
    """Return what a run folder holds beside its traces and step logs; files named in `but` are known to be traces."""
    kinds = (_TELEMETRY, _COLLECTIVES, _MEMORY, _NCCL)
    named = [(rank_of(p.name), p.name.partition(".")[2], p) for p in sorted(folder.glob("rank*"))]
    there = [(rank, what, path) for rank, what, path in named if rank is not None and what in kinds]
    share = share_of_each(len(there))
    unread: list[str] = []
    telemetry: list[Telemetry] = []
    collectives: list[LiveCollective] = []
    edges: list[MemoryEdge] = []
    peaks: dict[int, dict[str, Any]] = {}
    logs: list[NcclLog] = []
    lost = 0
    for rank, what, path in there:
        if what == _NCCL:
            from stepscope.trace.nccl.log import nccl_log  # only where there is one

            logs.append(nccl_log(text_lines(path, max_bytes=share, say=unread.append), rank=rank))
            continue
        found: KeptLines[Any]
        if what == _TELEMETRY:
            device, found = read_telemetry(path, rank=rank, max_bytes=share)
            telemetry.append(device)
        elif what == _COLLECTIVES:
            found = kept_lines(path, _groups_or_operation, max_bytes=share, max_kept=_MAX_LIVE)
            collectives += _live_of(rank, found.lines)[: _MAX_LIVE_OF_ALL - len(collectives)]
        else:
            found = kept_lines(path, _edge_or_peak, max_bytes=share, max_kept=_MAX_EDGES)
            known = [MemoryEdge(rank, **line["edge"]) for line in found.lines if "edge" in line]
            edges += known[: _MAX_EDGES_OF_ALL - len(edges)]
            peaks |= dict([(rank, line["peak"]) for line in found.lines if "peak" in line][-1:])
        lost += found.damaged
        unread += found.unread
    if others_in(folder, but=but):
        logs += _logs_of_all(folder, {log.rank for log in logs}, share, unread, but)
    measured, damaged = _inspected(folder, share, unread)
    collectives += measured[: _MAX_LIVE_OF_ALL - len(collectives)]
    lost += damaged
    return SideFiles(
        telemetry=tuple(telemetry),
        collectives=tuple(collectives),
        memory=tuple(edges),
        memory_peaks=peaks,
        nccl=tuple(logs),
        windows=tuple(sorted(p for p in folder.glob("window*") if is_later_window(p) and p.is_dir())),
        lost_lines=lost,
        unread=tuple(unread),
    )


def _logs_of_all(
    folder: Path, known: set[int], max_bytes: int, unread: list[str], but: Collection[str]
) -> list[NcclLog]:
    """Return what logs of any name say of the ranks that have no log of their own; one may hold several."""
    from stepscope.run.imports.nccl import NCCL_LOG
    from stepscope.trace.nccl.log import nccl_logs

    found = []
    for path in [one.path for one in beside(folder, NCCL_LOG.id, but=but)][:_MAX_JOB_FILES]:
        if rank_of(path.name) is None:
            logs = nccl_logs(text_lines(path, max_bytes=max_bytes, say=unread.append))
            found += [log for log in logs if log.rank not in known]
            known |= {log.rank for log in logs}
    return found


def _inspected(folder: Path, max_bytes: int, unread: list[str]) -> tuple[list[LiveCollective], int]:
    """Return what NCCL inspector measured, as collectives over the whole job, and how many lines were damaged."""
    found: list[LiveCollective] = []
    lost = 0
    for path in sorted(folder.glob(f"*.{_INSPECTOR}"))[:_MAX_JOB_FILES]:
        from stepscope.trace.nccl.inspector import inspected  # only where there is one

        rows, damaged = inspected(text_lines(path, max_bytes=max_bytes, say=unread.append))
        lost += damaged
        found += [
            LiveCollective(
                rank=one.rank,
                op=one.op,
                group=one.group,
                group_desc=one.group,
                group_size=one.num_ranks,
                count=one.count,
                size_bytes=one.size_bytes,
                time_ns=one.time_ns,
                algbw_gb_per_s=one.algbw_gb_per_s,
                busbw_gb_per_s=one.busbw_gb_per_s,
                best_busbw_gb_per_s=one.best_busbw_gb_per_s,
            )
            for one in rows
        ]
    return found, lost


def _groups_or_operation(line: dict[str, Any]) -> dict[str, Any] | None:
    """Return by name what a header calls each group, or what a line says of one operation of one group."""
    groups = line.get("groups")
    if isinstance(groups, list):
        known = [g for g in groups[:_MAX_GROUPS] if isinstance(g, dict)]
        return {"groups": {name(g.get("name")): name(g["desc"]) for g in known if g.get("desc")}}
    op, count = line.get("operation"), whole(line.get("count"))
    if not isinstance(op, str) or count is None:
        return None
    rates = {key: number(line.get(key)) for key in ("algbw_gb_per_s", "busbw_gb_per_s", "best_busbw_gb_per_s")}
    return {
        "op": name(op),
        "group": name(line.get("group")),
        "group_size": whole(line.get("group_size")),
        "count": count,
        "size_bytes": whole(line.get("bytes")),
        "time_ns": ns_of_ms(line.get("time_ms")),
        **rates,
    }


def _live_of(rank: int, lines: tuple[dict[str, Any], ...]) -> list[LiveCollective]:
    called = lines[0].get("groups", {}) if lines else {}
    return [LiveCollective(rank, group_desc=called.get(x["group"], x["group"]), **x) for x in lines if "op" in x]


def _edge_or_peak(line: dict[str, Any]) -> dict[str, Any] | None:
    """Return the memory at the edge of a region, or the highest in a step with what is known of it."""
    if line.get("kind") == "peak":
        known = ((name(key), _plain(value)) for key, value in line.items())
        return {"peak": dict(list(known)[:_MAX_NAMES])}
    if line.get("kind") != "snapshot":
        return None
    sizes = ((key.removesuffix("_bytes"), whole(value)) for key, value in line.items() if key.endswith("_bytes"))
    known_sizes = [(name(key), value) for key, value in sizes if value is not None]
    about = {"step": whole(line.get("step")), "label": name(line.get("label"))}
    return {"edge": {**about, "bytes_by": dict(known_sizes[:_MAX_NAMES])}}


def _plain(value: Any) -> Any:
    """Return a number, a text or a list of texts as it is, None for anything else."""
    if isinstance(value, list):
        return [name(one) for one in value[:_MAX_NAMES]]
    if isinstance(value, str):
        return name(value)
    return value if isinstance(value, bool) or number(value) is not None else None
