"""What did each distinct owner of a rank take per step: of the host, the device, communication, FLOPs and memory?"""

from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.time import blocked_host
from stepscope.analyze.kernels.call_costs import CallCosts
from stepscope.analyze.owners.cost import Cost
from stepscope.analyze.owners.ownership import OwnedWork, Ownership
from stepscope.analyze.ranks.window import host_compute
from stepscope.dataclass import dataclass
from stepscope.intervals import Intervals, covered_ns, subtract, union
from stepscope.records import ArrayRecord
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Pieces = list[tuple[OwnedWork, dict[str, npt.NDArray[Any]]]]
"""things with their owners, and what they take by column"""

_MAX_PACKED = 1 << 62
COLUMNS = tuple(f.name for f in fields(Cost))
FLOPS, MEMORY = COLUMNS.index("flops"), COLUMNS.index("memory_bytes")


@dataclass(frozen=True, eq=False, repr=False)
class OwnerSums(ArrayRecord):
    """What each distinct owner of a rank took per step: rows are owners, columns those of `Cost`."""

    owner: OwnedWork
    amount: Floats
    known: Mask
    """per column: whether it was recorded at all"""


def owner_sums(owned: Ownership, calls: CallCosts) -> OwnerSums:
    """Return what each distinct owner of a rank took per step."""
    rank, steps = owned.rank, max(len(owned.rank.steps), 1)
    host, work, c = owned.host, rank.work, rank.collectives
    blocked = host_waits(rank)
    waited = covered_ns(blocked, host.start_ns, host.end_ns) * host.runs
    took = (host.end_ns - host.start_ns) * host.runs
    launched = work.step >= 0
    is_comm = work.kind == EventKind.COMM_KERNEL
    duration = (work.end_ns - work.start_ns) * launched
    pieces: Pieces = [(host.owner, {"host_ns": took - waited, "blocked_ns": waited})]
    pieces.append((owned.by_work, {"device_ns": duration * ~is_comm}))
    asked = c.step >= 0
    exposed = covered_ns(exposed_comm(rank), c.start_ns, c.end_ns)
    pieces.append((owned.by_collective, {"comm_ns": (c.end_ns - c.start_ns) * asked, "exposed_ns": exposed * asked}))
    counted = calls.counted & (calls.step >= 0)
    pieces.append((owned.of_rows(calls.calls.row[counted]), {"flops": calls.flops[counted]}))
    rows, sizes = _allocations(rank)
    pieces.append((owned.of_rows(rows), {"memory_bytes": sizes}))
    known = np.ones(len(COLUMNS), bool)
    known[FLOPS], known[MEMORY] = bool(counted.any()), bool(len(rows))
    return _summed(pieces, steps, known)


def host_waits(rank: Rank) -> Intervals:
    """Return when the host waited: for the device, or for a collective on a rank without one."""
    if rank.has_device:
        return union(*blocked_host(rank))
    return subtract(union(rank.collectives.start_ns, rank.collectives.end_ns), host_compute(rank))


def exposed_comm(rank: Rank) -> Intervals:
    """Return when communication ran and nothing was computed or copied."""
    if not rank.has_device:
        return host_waits(rank)
    work = rank.work
    computing = work.intervals(EventKind.KERNEL, EventKind.COPY, EventKind.SET)
    return subtract(work.intervals(EventKind.COMM_KERNEL), computing)


def _allocations(rank: Rank) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the events that allocate memory (of the device where there is one) in recorded steps, and how much."""
    rows = np.flatnonzero(rank.kinds == EventKind.MEMORY)
    trace = rank.trace
    size = trace.arg("alloc_bytes").at(rows, missing=0)
    device = trace.arg("alloc_device_type").at(rows, missing=0)
    keep = (size > 0) & (rank.steps.of(trace["ts_ns"][rows]) >= 0) & ((device > 0) == rank.has_device)
    return rows[keep], size[keep].astype(float)


def _summed(pieces: Pieces, steps: int, known: Mask) -> OwnerSums:
    """Return pieces with owners as one row per distinct owner."""
    key = np.concatenate(
        [np.stack((o.stack, o.caller, o.module, o.backward.astype(np.int32)), axis=1) for o, _ in pieces]
    )
    packed = _packed(key)
    _, first, at = np.unique(packed, return_index=True, return_inverse=True)
    amount = np.zeros((len(first), len(COLUMNS)))
    begin = 0
    for owner, columns in pieces:
        where = at[begin : begin + len(owner)]
        begin += len(owner)
        for name, values in columns.items():
            amount[:, COLUMNS.index(name)] += np.bincount(where, np.asarray(values, float), minlength=len(first))
    distinct = key[first]
    owner = OwnedWork(distinct[:, 0], distinct[:, 1], distinct[:, 2], distinct[:, 3].astype(bool))
    return OwnerSums(owner, amount / steps, known)


def _packed(key: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return one number for each row of a few columns of small numbers from -1 on."""
    out, size = np.zeros(len(key), np.int64), 1
    for column in key.T.astype(np.int64):
        base = int(column.max(initial=0)) + 2
        if size * base >= _MAX_PACKED:
            _, out = np.unique(out, return_inverse=True)
            out, size = out.reshape(-1).astype(np.int64), len(key)
        out, size = out * base + column + 1, size * base
    return out
