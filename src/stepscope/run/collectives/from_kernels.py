"""Which collectives did this rank run, when, in which group, and with how many bytes?

On devices the kernel has the time and the host has the meaning:

    kernel --launch--> inside record_param_comms           one record around the launch
                  `--> inside nccl:coalesced               the records since the group's previous launch

Newer versions write the arguments of the record on the kernel too, which tells what was launched before the window.
Traces without arguments (old versions) still name the operation in the range around the launch and its tensor in
`Input Dims`. Next to all kernels of a job repeat what others said, so each distinct combination is looked at once. On
gloo the operator (`c10d::`) has the meaning and the `gloo:` span the time (see `gloo.py`).
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from stepscope.contract.collectives import element_bytes, is_comm_annotation, op_name
from stepscope.run.collectives.groups import UNKNOWN_GROUP, Group, group_of_record, header_groups
from stepscope.run.collectives.shapes import shape_bytes
from stepscope.run.collectives.table import Collectives, Meaning, collective_table
from stepscope.run.device_work import DeviceWork, Rows, enclosing, lookup
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind, by_string, coded_rows
from stepscope.trace.schema import NO_STRING
from stepscope.trace.table import Int64s, Trace

RECORD = "record_param_comms"
_IS_RECORD = 2

_Said = tuple[int, ...]
"""the values of a `_Record` or a `_Range`, which is what they are made into once they differ from all before"""
_SaidOfKernel = tuple[tuple[_Said, ...], _Said, int]
"""records, range and name of a kernel; several records are a coalesced group"""


class _Record(NamedTuple):
    """The arguments of a record, or of a kernel itself; -1 for what is not there."""

    collective: int
    in_elems: int
    out_elems: int
    dtype: int
    group_size: int
    group_name: int
    group_desc: int
    group_ranks: int
    group_start: int
    group_stride: int
    src_rank: int
    dst_rank: int
    input_dims: int
    input_types: int


class _Range(NamedTuple):
    """The name and shapes of a communication range; -1 for what is not there, all of it where there is no range."""

    name: int
    input_dims: int
    input_types: int


_GROUP_ARGS = tuple(name for name in _Record._fields if name.startswith("group_"))


def device_collectives(trace: Trace, work: DeviceWork) -> Collectives:
    """Return the communication kernels of a rank with their meaning."""
    index = np.flatnonzero(work.kind == int(EventKind.COMM_KERNEL))
    kernel, launch = work.row[index], work.launch_row[index]
    launches = distinct(launch[launch >= 0])
    records, ranges = _records_and_ranges(trace)
    inside, around = enclosing(trace, records, launches), enclosing(trace, ranges, launches)
    coalesced = _coalesced(trace, records, launches, inside)
    record = lookup(launches, inside, launch)
    own = trace.arg("collective").at(kernel, missing=NO_STRING) != NO_STRING
    record = np.where((record < 0) & own, kernel, record)
    said = _said_by_kernels(trace, record)
    if coalesced:
        said_at = dict(zip(records.tolist(), _said_by_records(trace, records), strict=True))
        for i in np.flatnonzero(among(launch, np.array(list(coalesced), np.int64))).tolist():
            rows = coalesced[int(launch[i])]
            record[i], said[i] = rows[0], tuple(said_at[row] for row in rows)
    named = _said_by_ranges(trace, lookup(launches, around, launch))
    meanings, meaning = _distinct_meanings(trace, zip(said, named, trace["name"][kernel].tolist(), strict=True))
    return collective_table(
        meanings,
        meaning,
        start_ns=work.start_ns[index],
        end_ns=work.end_ns[index],
        issue_ns=np.where(launch >= 0, trace["ts_ns"][launch], np.iinfo(np.int64).min),
        step=work.step[index],
        device_index=index,
        record_row=record,
    )


def _records_and_ranges(trace: Trace) -> tuple[Rows, Rows]:
    """Return the rows of records that stand for communication (waits do not), and of the ranges around such calls."""
    rows, code = coded_rows(trace, _code, (EventKind.HOST_OP, EventKind.ANNOTATION))
    records, ranges = rows[code == _IS_RECORD], rows[code != _IS_RECORD]
    waits = by_string(trace, trace.arg("collective").at(records, missing=NO_STRING), lambda s: s == "wait")
    return records[waits == 0], ranges


def _code(name: str) -> int:
    return _IS_RECORD if name == RECORD else is_comm_annotation(name)


def _coalesced(trace: Trace, records: Rows, launches: Rows, inside: Rows) -> dict[int, list[int]]:
    """Return the records of group launches: those on the same thread since its previous launch."""
    bare = set(launches[inside < 0].tolist())
    waiting = records[~among(records, inside)]
    if not bare or not len(waiting):
        return {}
    rows = np.concatenate((waiting, launches))
    rows = rows[np.argsort(trace["ts_ns"][rows], kind="stable")]
    launching = set(launches.tolist())
    pending: dict[int, list[int]] = {}
    out = {}
    for row, thread in zip(rows.tolist(), trace["tid"][rows].tolist(), strict=True):
        mine = pending.setdefault(thread, [])
        if row not in launching:
            mine.append(row)
            continue
        if mine and row in bare:
            out[row] = list(mine)
        mine.clear()
    return out


def _said_by_kernels(trace: Trace, rows: Rows) -> list[tuple[_Said, ...]]:
    """Return what the one record of each kernel says, nothing where its row is -1."""
    said = zip(rows.tolist(), _said_by_records(trace, rows), strict=True)
    return [(one,) if row >= 0 else () for row, one in said]


def _said_by_records(trace: Trace, rows: Rows) -> list[_Said]:
    """Return the arguments at the rows of records or kernels."""
    return list(zip(*(trace.arg(name).at(rows, missing=-1).tolist() for name in _Record._fields), strict=True))


def _said_by_ranges(trace: Trace, rows: Rows) -> list[_Said]:
    """Return the names and shapes at the rows of ranges, of which -1 is none."""
    names = np.where(rows >= 0, trace["name"][rows], NO_STRING).tolist()
    shapes = (trace.arg(name).at(rows, missing=NO_STRING).tolist() for name in ("input_dims", "input_types"))
    return list(zip(names, *shapes, strict=True))


def _distinct_meanings(trace: Trace, kernels: Iterable[_SaidOfKernel]) -> tuple[list[Meaning], Int64s]:
    """Return what kernels can mean after what is said of them, and which of that each of them does."""
    known = header_groups(trace.header)

    @cache
    def group_of(*arguments: int) -> Group:
        return group_of_record(trace, dict(zip(_GROUP_ARGS, arguments, strict=True)), known)

    numbers: dict[_SaidOfKernel, int] = {}
    meaning = np.array([numbers.setdefault(said, len(numbers)) for said in kernels], np.int64)
    return [_meaning(trace, *said, group_of) for said in numbers], meaning


def _meaning(
    trace: Trace, said: tuple[_Said, ...], around: _Said, name: int, group_of: Callable[..., Group]
) -> Meaning:
    wrapper = _Range(*around)
    kernel_name = trace.text(wrapper.name) or trace.text(name) or ""
    if not said:
        return Meaning(op=op_name(kernel_name), group=UNKNOWN_GROUP)
    records = [_Record(*record) for record in said]
    group = group_of(*(getattr(records[0], argument) for argument in _GROUP_ARGS))
    ops = [op_name(trace.text(r.collective) or kernel_name) for r in records]
    sizes = [_bytes(trace, r, wrapper, op=op, group=group) for r, op in zip(records, ops, strict=True)]
    messages = tuple(
        (op == "send", r.dst_rank if op == "send" else r.src_rank, max(size))
        for r, op, size in zip(records, ops, sizes, strict=True)
        if op in ("send", "recv")
    )
    names, peers = set(ops), {peer for _, peer, _ in messages}
    return Meaning(
        op=ops[0] if len(names) == 1 else "send_recv" if names <= {"send", "recv"} else "unknown",
        group=group,
        in_bytes=_sum([size[0] for size in sizes]),
        out_bytes=_sum([size[1] for size in sizes]),
        peer=peers.pop() if len(peers) == 1 else -1,
        messages=messages,
    )


def _bytes(trace: Trace, record: _Record, wrapper: _Range, *, op: str, group: Group) -> tuple[int, int]:
    """Return bytes sent and received, from the element counts or else from the recorded shapes; -1 unknown."""
    size = element_bytes(trace.text(record.dtype))
    if size and record.in_elems >= 0 and record.out_elems >= 0:
        sent, received = record.in_elems * size, record.out_elems * size
    else:
        sent = _shape_bytes(trace, record)
        sent = _shape_bytes(trace, wrapper) if sent < 0 else sent
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


def _shape_bytes(trace: Trace, said: _Record | _Range) -> int:
    return shape_bytes(trace.text(said.input_dims), trace.text(said.input_types))


def _sum(sizes: list[int]) -> int:
    """Return the sum, -1 where any part is unknown."""
    return sum(sizes) if all(s >= 0 for s in sizes) else -1
