"""Which collectives did this rank run, when, in which group, and with how many bytes?

On devices the kernel has the time and the host has the meaning:

    kernel --launch--> inside record_param_comms           one record around the launch
                  `--> inside nccl:coalesced               the records since the group's previous launch

Traces without arguments (old versions) still name the operation in the range around the launch and its tensor in
`Input Dims`. On gloo the operator (`c10d::`) has the meaning and the `gloo:` span the time (see `gloo.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.contract.collectives import OP_CODE, element_bytes, is_comm_annotation, op_name
from stepscope.records import ArrayRecord
from stepscope.run.collectives.groups import UNKNOWN_GROUP, Group, group_of_record, header_groups
from stepscope.run.collectives.shapes import shape_bytes
from stepscope.run.device_work import DeviceWork, Rows, enclosing
from stepscope.trace.classify import EventKind, Kinds, rows_named
from stepscope.trace.table import Int64s, Trace

RECORD = "record_param_comms"
_RECORD_ARGS = (
    "collective", "in_elems", "out_elems", "dtype", "group_size", "group_name", "group_desc", "group_ranks",
    "group_start", "group_stride", "src_rank", "dst_rank", "comm_seq",
)  # fmt: skip
_GROUP_ARGS = tuple(name for name in _RECORD_ARGS if name.startswith("group_"))
_MAX_RANKS = 1 << 30


@dataclass(frozen=True, eq=False, repr=False)
class Collectives(ArrayRecord):
    """Communication operations of one rank, by start: one row per communication kernel or gloo span."""

    start_ns: Int64s
    end_ns: Int64s
    issue_ns: Int64s
    """when the host asked for it; NONE_NS where that was before the window"""
    op: npt.NDArray[np.uint8]
    """code in `collective_names.OPS`"""
    group: npt.NDArray[np.int32]
    """index into `groups`"""
    in_bytes: Int64s
    """sent by this rank, -1 unknown"""
    out_bytes: Int64s
    """received by this rank, -1 unknown"""
    peer: npt.NDArray[np.int32]
    """other rank of a point-to-point operation, -1 otherwise"""
    step: npt.NDArray[np.int32]
    """index of the step that issued it, -1 for before the window"""
    device_index: Rows
    """row in the rank's DeviceWork, -1 on gloo"""
    record_row: Rows
    """event row of its record or operator, -1 where none was found"""
    groups: tuple[Group, ...]
    messages: "Messages"
    """sends and receives, one row per message; a coalesced operation has several"""
    unanswered: int = 0
    """operators of a CPU rank whose execution is not in the trace"""

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def full_bytes(self) -> Int64s:
        """Return the full buffer of each operation: what a gather receives, what a scatter sends. -1 unknown."""
        gathers = np.isin(self.op, [OP_CODE["all_gather"], OP_CODE["gather"]])
        scatters = np.isin(self.op, [OP_CODE["reduce_scatter"], OP_CODE["scatter"]])
        larger = np.maximum(self.in_bytes, self.out_bytes)
        return np.where(gathers, self.out_bytes, np.where(scatters, self.in_bytes, larger))

    @property
    def unjoined(self) -> int:
        """Return how many operations were launched in the window and still have no record."""
        return int(((self.record_row < 0) & (self.step >= 0)).sum())


@dataclass(frozen=True, eq=False, repr=False)
class Messages(ArrayRecord):
    """Point-to-point messages of one rank, in the order they were issued."""

    collective: npt.NDArray[np.int64]
    """row in Collectives"""
    is_send: npt.NDArray[np.bool_]
    peer: npt.NDArray[np.int32]
    size_bytes: Int64s

    def __len__(self) -> int:
        return len(self.collective)


@dataclass(frozen=True)
class Meaning:
    """What one communication kernel turned out to be."""

    op: str
    group: Group
    in_bytes: int = -1
    out_bytes: int = -1
    peer: int = -1
    record_row: int = -1
    messages: tuple[tuple[bool, int, int], ...] = ()
    """`(is_send, peer, bytes)` of each point-to-point message it carries"""


def device_collectives(trace: Trace, kinds: Kinds, work: DeviceWork) -> Collectives:
    """Return the communication kernels of a rank with their meaning."""
    index = np.flatnonzero(work.kind == EventKind.COMM_KERNEL)
    launch = work.launch_row[index]
    meanings = _meanings(trace, kinds, work.row[index], launch)
    issue = np.where(launch >= 0, trace["ts_ns"][launch], np.iinfo(np.int64).min)
    return collective_table(
        meanings,
        start_ns=work.start_ns[index],
        end_ns=work.end_ns[index],
        issue_ns=issue,
        step=work.step[index],
        device_index=index,
    )


def collective_table(
    meanings: list[Meaning],
    *,
    start_ns: Int64s,
    end_ns: Int64s,
    issue_ns: Int64s,
    step: npt.NDArray[np.int32],
    device_index: Rows,
    unanswered: int = 0,
) -> Collectives:
    """Return meanings and times as one table."""
    groups: dict[Group, int] = {}
    group = np.array([groups.setdefault(m.group, len(groups)) for m in meanings], np.int32)
    messages = [(i, *message) for i, m in enumerate(meanings) for message in m.messages]
    return Collectives(
        start_ns=start_ns,
        end_ns=end_ns,
        issue_ns=issue_ns,
        op=np.array([OP_CODE[m.op] for m in meanings], np.uint8),
        group=group,
        in_bytes=_known(m.in_bytes for m in meanings),
        out_bytes=_known(m.out_bytes for m in meanings),
        peer=_known((m.peer for m in meanings), most=_MAX_RANKS).astype(np.int32),
        step=step,
        device_index=device_index,
        record_row=np.array([m.record_row for m in meanings], np.int64),
        groups=tuple(groups),
        messages=Messages(
            collective=np.array([m[0] for m in messages], np.int64),
            is_send=np.array([m[1] for m in messages], bool),
            peer=_known((m[2] for m in messages), most=_MAX_RANKS).astype(np.int32),
            size_bytes=_known(m[3] for m in messages),
        ),
        unanswered=unanswered,
    )


def _known(values: Iterable[int], *, most: int = 1 << 60) -> Int64s:
    """Return the values as a column; numbers that no job has are unknown."""
    return np.array([value if value <= most else -1 for value in values], np.int64)


def _meanings(trace: Trace, kinds: Kinds, kernel_rows: Rows, launch_rows: Rows) -> list[Meaning]:
    """Return one meaning per communication kernel."""
    host = np.flatnonzero((kinds == EventKind.HOST_OP) | (kinds == EventKind.ANNOTATION))
    records = _records(trace, host)
    ranges = rows_named(trace, host, is_comm_annotation)
    by_launch = _by_launch(trace, records, ranges, launch_rows[launch_rows >= 0])
    from_kernel = _arguments(trace, kernel_rows)  # newer versions write them on the kernel itself
    known = header_groups(trace.header)
    cache: dict[tuple[int, ...], Group] = {}
    out = []
    for kernel, launch, own in zip(kernel_rows.tolist(), launch_rows.tolist(), from_kernel, strict=True):
        rows, wrapper = by_launch.get(launch, ((), -1))
        kernel_name = trace.text(int(trace["name"][kernel])) or ""
        if rows:
            out.append(_of_records(trace, [records[r] for r in rows], wrapper, kernel_name, known, cache))
        elif own["collective"] >= 0:
            out.append(_of_records(trace, [own], wrapper, kernel_name, known, cache))
        else:
            wrapper_name = trace.text(int(trace["name"][wrapper])) if wrapper >= 0 else None
            out.append(Meaning(op=op_name(wrapper_name or kernel_name), group=UNKNOWN_GROUP))
    return out


def _records(trace: Trace, host: Rows) -> dict[int, dict[str, int]]:
    """Return the arguments of every record that stands for communication (waits do not), by row."""
    rows = rows_named(trace, host, lambda s: s == RECORD)
    records = _arguments(trace, rows)
    return {
        row: record
        for row, record in zip(rows.tolist(), records, strict=True)
        if trace.text(record["collective"]) != "wait"
    }


def _arguments(trace: Trace, rows: Rows) -> list[dict[str, int]]:
    """Return the record arguments at these rows; -1 for what is not there."""
    columns = {name: trace.arg(name).at(rows, missing=-1).tolist() for name in _RECORD_ARGS}
    return [
        {"row": row, **{name: values[i] for name, values in columns.items()}} for i, row in enumerate(rows.tolist())
    ]


def _by_launch(
    trace: Trace, records: dict[int, dict[str, int]], ranges: Rows, launches: Rows
) -> dict[int, tuple[tuple[int, ...], int]]:
    """Return for each launch the records it carries out, and the innermost communication range around it."""
    launches = np.unique(launches)
    record_rows = np.array(sorted(records), np.int64)
    inside = enclosing(trace, record_rows, launches) if len(record_rows) else np.full(len(launches), -1)
    wrapper = enclosing(trace, ranges, launches) if len(ranges) else np.full(len(launches), -1)
    found: dict[int, tuple[tuple[int, ...], int]] = {
        launch: (((record,) if record >= 0 else ()), around)
        for launch, record, around in zip(launches.tolist(), inside.tolist(), wrapper.tolist(), strict=True)
    }
    found.update(_coalesced(trace, records, found))
    return found


def _coalesced(
    trace: Trace, records: dict[int, dict[str, int]], found: dict[int, tuple[tuple[int, ...], int]]
) -> dict[int, tuple[tuple[int, ...], int]]:
    """Return the records of group launches: those on the same thread since its previous launch."""
    ts, tid = trace["ts_ns"], trace["tid"]
    claimed = {record for rows, _ in found.values() for record in rows}
    pending: dict[int, list[int]] = {}
    out: dict[int, tuple[tuple[int, ...], int]] = {}
    for row in sorted([*(set(records) - claimed), *found], key=lambda row: int(ts[row])):
        mine = pending.setdefault(int(tid[row]), [])
        if row not in found:
            mine.append(row)
            continue
        if mine and not found[row][0]:
            out[row] = (tuple(mine), found[row][1])
        mine.clear()
    return out


def _of_records(
    trace: Trace,
    records: list[dict[str, int]],
    wrapper: int,
    kernel_name: str,
    known: dict[str, Group],
    cache: dict[tuple[int, ...], Group],
) -> Meaning:
    """Return what one or several records (a coalesced group) say about a kernel."""
    first = records[0]
    key = tuple(first[name] for name in _GROUP_ARGS)
    if key not in cache:
        cache[key] = group_of_record(trace, first, known)
    ops = [op_name(_record_name(trace, r, wrapper, kernel_name)) for r in records]
    sizes = [_bytes(trace, r, wrapper, op=op, group=cache[key]) for r, op in zip(records, ops, strict=True)]
    messages = tuple(
        (op == "send", r["dst_rank"] if op == "send" else r["src_rank"], max(size))
        for r, op, size in zip(records, ops, sizes, strict=True)
        if op in ("send", "recv")
    )
    names, peers = set(ops), {peer for _, peer, _ in messages}
    return Meaning(
        op=ops[0] if len(names) == 1 else "send_recv" if names <= {"send", "recv"} else "unknown",
        group=cache[key],
        in_bytes=_sum([size[0] for size in sizes]),
        out_bytes=_sum([size[1] for size in sizes]),
        peer=peers.pop() if len(peers) == 1 else -1,
        record_row=first["row"],
        messages=messages,
    )


def _record_name(trace: Trace, record: dict[str, int], wrapper: int, kernel_name: str) -> str:
    named = trace.text(record["collective"])
    return named or (trace.text(int(trace["name"][wrapper])) if wrapper >= 0 else None) or kernel_name


def _bytes(trace: Trace, record: dict[str, int], wrapper: int, *, op: str, group: Group) -> tuple[int, int]:
    """Return bytes sent and received, from the element counts or else from the recorded shapes; -1 unknown."""
    size = element_bytes(trace.text(record["dtype"]))
    if size and record["in_elems"] >= 0 and record["out_elems"] >= 0:
        sent, received = record["in_elems"] * size, record["out_elems"] * size
    else:
        sent = _shape_bytes_at(trace, record["row"])
        sent = _shape_bytes_at(trace, wrapper) if sent < 0 and wrapper >= 0 else sent
        received = received_bytes(sent, op=op, ranks=group.size)
    if op in ("send", "recv"):
        return (sent, 0) if op == "send" else (0, received)
    return sent, received


def received_bytes(sent: int, *, op: str, ranks: int | None) -> int:
    """Return what a rank that sends its `sent` bytes receives; -1 where that takes the group's size.

    >>> received_bytes(100, op="all_gather", ranks=4), received_bytes(100, op="reduce_scatter", ranks=4)
    (400, 25)
    """
    if sent < 0 or (op in ("all_gather", "reduce_scatter") and not ranks):
        return -1
    if op == "all_gather":
        return sent * (ranks or 1)
    return sent // (ranks or 1) if op == "reduce_scatter" else sent


def _shape_bytes_at(trace: Trace, row: int) -> int:
    rows = np.array([row], np.int64)
    dims = int(trace.arg("input_dims").at(rows, missing=-1)[0])
    types = int(trace.arg("input_types").at(rows, missing=-1)[0])
    return shape_bytes(trace.text(dims), trace.text(types))


def _sum(sizes: list[int]) -> int:
    """Return the sum, -1 where any part is unknown."""
    return sum(sizes) if all(s >= 0 for s in sizes) else -1
