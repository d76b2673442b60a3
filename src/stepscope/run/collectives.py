"""Which collectives did this rank run, when, in which group, and with how many bytes?

On devices the kernel has the time and the host has the meaning:

    kernel --launch--> inside record_param_comms           one record around the launch
                  `--> inside nccl:coalesced               the records since the group's previous launch

Newer versions write the arguments of the record on the kernel too, which tells what was launched before the window.
Traces without arguments (old versions) still name the operation in the range around the launch and its tensor in
`Input Dims`. Next to all kernels of a job repeat what others said, so each distinct combination is looked at once. On
gloo the operator (`c10d::`) has the meaning and the `gloo:` span the time (see `gloo.py`).
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.contract.collectives import OP_CODE, element_bytes, is_comm_annotation, op_name
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.device_work import DeviceWork, Rows, enclosing, lookup
from stepscope.run.flight_recorder import FlightCall, calls_of_operators, element_counts, shape_bytes
from stepscope.run.groups import UNKNOWN_GROUP, Group, group_of_record, header_groups
from stepscope.run.sources import rank_in_header
from stepscope.run.steps import Steps
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind, Kinds, by_string, coded_rows, rows_named
from stepscope.trace.table import NO_STRING, Int64s, Trace

# The communication operations of one rank as a table: one row per kernel or gloo span, and one per message.

_MAX_RANKS = 1 << 30


@dataclass(frozen=True, eq=False, repr=False)
class Collectives(ArrayRecord):
    """Communication operations of one rank, by start: one row per communication kernel or gloo span."""

    start_ns: Int64s
    end_ns: Int64s
    #: when the host asked for it; NONE_NS where that was before the window
    issue_ns: Int64s
    #: code in `collective_names.OPS`
    op: npt.NDArray[np.uint8]
    #: index into `groups`
    group: npt.NDArray[np.int32]
    #: sent by this rank, -1 unknown
    in_bytes: Int64s
    #: received by this rank, -1 unknown
    out_bytes: Int64s
    #: other rank of a point-to-point operation, -1 otherwise
    peer: npt.NDArray[np.int32]
    #: index of the step that issued it, -1 for before the window
    step: npt.NDArray[np.int32]
    #: row in the rank's DeviceWork, -1 on gloo
    device_index: Rows
    #: event row of its record or operator, -1 where none was found
    record_row: Rows
    groups: tuple[Group, ...]
    #: sends and receives, one row per message; a coalesced operation has several
    messages: "Messages"
    #: operators of a CPU rank whose execution is not in the trace
    unanswered: int = 0

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def full_bytes(self) -> Int64s:
        """Return the full buffer of each operation: what a gather receives, what a scatter sends. -1 unknown."""
        gathers = (self.op == OP_CODE["all_gather"]) | (self.op == OP_CODE["gather"])
        scatters = (self.op == OP_CODE["reduce_scatter"]) | (self.op == OP_CODE["scatter"])
        larger = np.maximum(self.in_bytes, self.out_bytes)
        return np.where(gathers, self.out_bytes, np.where(scatters, self.in_bytes, larger))

    @property
    def unjoined(self) -> int:
        return int(((self.record_row < 0) & (self.step >= 0)).sum())


@dataclass(frozen=True, eq=False, repr=False)
class Messages(ArrayRecord):
    """Point-to-point messages of one rank, in the order they were issued."""

    #: row in Collectives
    collective: npt.NDArray[np.int64]
    is_send: npt.NDArray[np.bool_]
    peer: npt.NDArray[np.int32]
    size_bytes: Int64s

    def __len__(self) -> int:
        return len(self.collective)


@dataclass(frozen=True)
class Meaning:
    """What a communication kernel turned out to be."""

    op: str
    group: Group
    in_bytes: int = -1
    out_bytes: int = -1
    peer: int = -1
    #: `(is_send, peer, bytes)` of each point-to-point message it carries
    messages: tuple[tuple[bool, int, int], ...] = ()


def _collective_table(
    meanings: list[Meaning],
    meaning: Int64s,
    *,
    start_ns: Int64s,
    end_ns: Int64s,
    issue_ns: Int64s,
    step: npt.NDArray[np.int32],
    device_index: Rows,
    record_row: Rows,
    unanswered: int = 0,
) -> Collectives:
    groups: dict[Group, int] = {}
    group = np.array([groups.setdefault(m.group, len(groups)) for m in meanings], np.int32)
    messages = [(i, *message) for i, number in enumerate(meaning.tolist()) for message in meanings[number].messages]
    return Collectives(
        start_ns=start_ns,
        end_ns=end_ns,
        issue_ns=issue_ns,
        op=np.array([OP_CODE[m.op] for m in meanings], np.uint8)[meaning],
        group=group[meaning],
        in_bytes=_known(m.in_bytes for m in meanings)[meaning],
        out_bytes=_known(m.out_bytes for m in meanings)[meaning],
        peer=_known((m.peer for m in meanings), most=_MAX_RANKS).astype(np.int32)[meaning],
        step=step,
        device_index=device_index,
        record_row=record_row,
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
    return np.array([value if value <= most else -1 for value in values], np.int64)


RECORD = "record_param_comms"
_IS_RECORD = 2

# the values of a `_Record` or a `_Range`, which is what they are made into once they differ from all before
_Said = tuple[int, ...]
# records, range and name of a kernel; several records are a coalesced group
_SaidOfKernel = tuple[tuple[_Said, ...], _Said, int]


class _Record(NamedTuple):
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
    return _collective_table(
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
    rows, code = coded_rows(trace, _code, (EventKind.HOST_OP, EventKind.ANNOTATION))
    records, ranges = rows[code == _IS_RECORD], rows[code != _IS_RECORD]
    waits = by_string(trace, trace.arg("collective").at(records, missing=NO_STRING), lambda s: s == "wait")
    return records[waits == 0], ranges


def _code(name: str) -> int:
    return _IS_RECORD if name == RECORD else is_comm_annotation(name)


def _coalesced(trace: Trace, records: Rows, launches: Rows, inside: Rows) -> dict[int, list[int]]:
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
    said = zip(rows.tolist(), _said_by_records(trace, rows), strict=True)
    return [(one,) if row >= 0 else () for row, one in said]


def _said_by_records(trace: Trace, rows: Rows) -> list[_Said]:
    return list(zip(*(trace.arg(name).at(rows, missing=-1).tolist() for name in _Record._fields), strict=True))


def _said_by_ranges(trace: Trace, rows: Rows) -> list[_Said]:
    names = np.where(rows >= 0, trace["name"][rows], NO_STRING).tolist()
    shapes = (trace.arg(name).at(rows, missing=NO_STRING).tolist() for name in ("input_dims", "input_types"))
    return list(zip(names, *shapes, strict=True))


def _distinct_meanings(trace: Trace, kernels: Iterable[_SaidOfKernel]) -> tuple[list[Meaning], Int64s]:
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
    size = element_bytes(trace.text(record.dtype))
    if size and record.in_elems >= 0 and record.out_elems >= 0:
        sent, received = record.in_elems * size, record.out_elems * size
    else:
        sent = _shape_bytes(trace, record)
        sent = _shape_bytes(trace, wrapper) if sent < 0 else sent
        received = _received_bytes(sent, op=op, ranks=group.size)
    if op in ("send", "recv"):
        return (sent, 0) if op == "send" else (0, received)
    return sent, received


def _received_bytes(sent: int, *, op: str, ranks: int | None) -> int:
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
    return sum(sizes) if all(s >= 0 for s in sizes) else -1


# Which collectives did a CPU rank run? Gloo executes them on threads of its own.
#
# The operator on the calling thread (`c10d::allreduce_`) says what was asked for; the span on a gloo thread
# (`gloo:all_reduce`) says when it ran. Gloo's threads take operators in the order they were called, so a span belongs
# to the first operator still waiting that it can mean and whose size it has. Gloo carries out a reduce-scatter as an
# all-reduce: the meaning is the operator's. Which group it was in, only the flight recorder says (`flight.py`);
# without
# its file the group is known where the rank has just one.

# What gloo runs for an operator where the names differ.
_RUNS_AS = {"reduce_scatter": ("reduce_scatter", "all_reduce")}
# operators on one flat buffer (`c10d::_allgather_base_`): what they receive is their first input, what they send the
# second
_BASE = "_base_"
# where `c10d::send` and `c10d::recv_` have the other rank among their inputs, counted in the group
_PEER_AT = 2


def gloo_collectives(trace: Trace, kinds: Kinds, steps: Steps, *, flight: Sequence[FlightCall] = ()) -> Collectives:
    """Return the gloo spans of a rank with the operators that asked for them, and what the flight recorder noted."""
    spans = span_rows(trace, kinds)
    asked = _by_start(
        trace, rows_named(trace, _host(kinds), lambda s: s.startswith("c10d::") and is_comm_annotation(s))
    )
    operator_of = _match(trace, spans, asked)
    called = trace["ts_ns"][np.array(asked, np.int64)]
    calls = dict(zip(asked, calls_of_operators(flight, [_op(trace, row) for row in asked], called), strict=True))
    group = _only_group(trace)
    meanings = [
        _gloo_meaning(trace, span, op, group, calls.get(op)) for span, op in zip(spans, operator_of, strict=True)
    ]
    rows = np.array(spans, np.int64)
    ops = np.array(operator_of, np.int64)
    issue = np.where(ops >= 0, trace["ts_ns"][ops], np.iinfo(np.int64).min)
    start = trace["ts_ns"][rows]
    return _collective_table(
        meanings,
        np.arange(len(meanings)),
        start_ns=start,
        end_ns=start + trace["dur_ns"][rows],
        issue_ns=issue,
        step=steps.of(np.where(ops >= 0, issue, start)),
        device_index=np.full(len(rows), -1, np.int64),
        record_row=ops,
        unanswered=len(set(asked) - set(operator_of)),
    )


def span_rows(trace: Trace, kinds: Kinds) -> list[int]:
    """Return the event row of each gloo collective, in the order of `gloo_collectives`."""
    return _by_start(trace, rows_named(trace, _host(kinds), lambda s: s.startswith("gloo:")))


def _host(kinds: Kinds) -> Rows:
    return np.flatnonzero((kinds == EventKind.HOST_OP) | (kinds == EventKind.ANNOTATION))


def _by_start(trace: Trace, rows: np.ndarray) -> list[int]:
    return rows[np.argsort(trace["ts_ns"][rows], kind="stable")].tolist()


def _match(trace: Trace, spans: list[int], asked: list[int]) -> list[int]:
    """Return the operator row of each span, -1 where the operator was called before the window.

    A trace that was cut off may have lost the spans of a whole thread. Where it holds fewer than were asked for,
    nobody can tell which are left: none is joined.
    """
    waiting: dict[str, deque[int]] = {}
    for row in asked:
        for runs_as in _RUNS_AS.get(op := _op(trace, row), (op,)):
            waiting.setdefault(runs_as, deque()).append(row)
    if trace.quality.truncated:
        held = [_op(trace, span) for span in spans]
        waiting = {op: queue for op, queue in waiting.items() if len(queue) <= held.count(op)}
    taken: set[int] = set()
    out = []
    for span in spans:
        queue = waiting.get(_op(trace, span), deque())
        while queue and queue[0] in taken:
            queue.popleft()
        out.append(_first_that_fits(trace, span, (row for row in queue if row not in taken)))
        taken.add(out[-1])
    return out


def _first_that_fits(trace: Trace, span: int, queue: Iterable[int]) -> int:
    first, began = -1, trace["ts_ns"][span]
    size = element_counts(_text(trace, "input_dims", span))
    for row in takewhile(lambda row: trace["ts_ns"][row] <= began, queue):
        if size & element_counts(_text(trace, "input_dims", row)):
            return row
        first = row if first < 0 else first
    return first


def _gloo_meaning(trace: Trace, span: int, operator: int, group: Group, call: FlightCall | None) -> Meaning:
    op = _op(trace, operator if operator >= 0 else span)
    group = call.group if call is not None and call.group is not UNKNOWN_GROUP else group
    sent = _bytes_at(trace, span)
    if sent < 0:
        sent = call.size_bytes if call is not None else _bytes_at(trace, operator)
    received = _received_bytes(sent, op=op, ranks=group.size)
    if received < 0 and _BASE in _name(trace, operator):
        received = _bytes_at(trace, operator)
    peer = _peer(trace, operator, group) if op in ("send", "recv") else -1
    return Meaning(
        op=op,
        group=group,
        in_bytes=sent if op != "recv" else 0,
        out_bytes=received if op != "send" else 0,
        peer=peer,
        messages=((op == "send", peer, sent),) if peer >= 0 else (),
    )


def _bytes_at(trace: Trace, row: int) -> int:
    return shape_bytes(_text(trace, "input_dims", row), _text(trace, "input_types", row)) if row >= 0 else -1


def _peer(trace: Trace, operator: int, group: Group) -> int:
    """Return the other rank of a send or receive, -1 where nothing tells.

    Without the values of the inputs it is known in a group of two: the other one.
    """
    said = _text(trace, "concrete", operator) if operator >= 0 else None
    own = rank_in_header(trace.header)
    if said is None and own is not None:
        others = [rank for rank in group.ranks or () if rank != own]
        return others[0] if len(others) == 1 else -1
    try:
        values = json.loads(said or "[]")
        return dict(enumerate(group.ranks or ()))[int(values[_PEER_AT])]
    except (ValueError, LookupError, TypeError, RecursionError):
        return -1


def _name(trace: Trace, row: int) -> str:
    return trace.text(int(trace["name"][row])) or "" if row >= 0 else ""


def _op(trace: Trace, row: int) -> str:
    return op_name(_name(trace, row))


def _text(trace: Trace, column: str, row: int) -> str | None:
    return trace.text(int(trace.arg(column).at(np.array([row], np.int64), missing=-1)[0]))


def _only_group(trace: Trace) -> Group:
    groups = list(header_groups(trace.header).values())
    return groups[0] if len(groups) == 1 else UNKNOWN_GROUP
