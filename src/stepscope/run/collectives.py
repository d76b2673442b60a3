"""Collectives of one rank: process groups, times and bytes."""

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.contract.operations import OP_CODE, element_bytes, is_comm_annotation, op_name
from stepscope.errors import InputError
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.device_work import DeviceWork, Rows, enclosing, lookup
from stepscope.run.sources import rank_in_header
from stepscope.run.steps import Steps
from stepscope.side_file import parsed_json
from stepscope.stats.robust import among, distinct, median
from stepscope.trace.table import NO_STRING, EventKind, Int64s, Kinds, Trace, by_string, coded_rows, rows_named

# Process groups of a rank, and their members.

# larger groups are not written out
_MAX_RANKS = 1 << 20
MAX_RANK = 1 << 30


@dataclass(frozen=True)
class Group:
    """One process group as one rank names it. `ranks` and `size` are None where the trace does not say."""

    name: str
    desc: str
    ranks: tuple[int, ...] | None
    size: int | None


UNKNOWN_GROUP = Group(name="?", desc="unknown", ranks=None, size=None)


def header_groups(header: dict[str, Any]) -> dict[str, Group]:
    """Return the groups listed in `distributedInfo.pg_config`, by name."""
    info = header.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    groups = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict):
            name, size = str(entry.get("pg_name", "?")), entry.get("pg_size")
            is_size = isinstance(size, int) and not isinstance(size, bool) and 0 < size <= _MAX_RANKS
            desc, ranks = str(entry.get("pg_desc", "")), _rank_tuple(entry.get("ranks"))
            groups[name] = Group(name, desc, ranks, size if is_size else None)
    return groups


def group_of_record(trace: Trace, record: dict[str, int], known: dict[str, Group]) -> Group:
    """Return the group that a `record_param_comms` names; `record` holds its argument values by column.

    Long rank lists are shortened in the trace (`[0, 1, ..., 63]`): then start and stride, or the header, tell.
    """
    name = trace.text(record["group_name"]) or "?"
    listed = known.get(name)
    desc = trace.text(record["group_desc"]) or (listed.desc if listed else "")
    size = record["group_size"] if 0 < record["group_size"] <= _MAX_RANKS else (listed.size if listed else None)
    ranks = _parse_ranks(trace.text(record["group_ranks"]))
    if ranks is None or (size is not None and len(ranks) != size):
        ranks = listed.ranks if listed and listed.ranks else _regular(record, size)
    if name == "?" and ranks is None and size is None:
        return UNKNOWN_GROUP
    return Group(name=name, desc=desc, ranks=ranks, size=size if size is not None else len(ranks or ()) or None)


def _regular(record: dict[str, int], size: int | None) -> tuple[int, ...] | None:
    start, stride = record["group_start"], record["group_stride"]
    if size is None or not 0 < size <= _MAX_RANKS or not 0 <= start <= MAX_RANK or not 0 < stride <= MAX_RANK:
        return None
    return tuple(range(start, start + stride * size, stride))


def _parse_ranks(text: str | None) -> tuple[int, ...] | None:
    try:
        return _rank_tuple(parsed_json(text).value) if text else None
    except ValueError:
        return None


def _rank_tuple(ranks: object) -> tuple[int, ...] | None:
    if (
        isinstance(ranks, list)
        and 0 < len(ranks) <= _MAX_RANKS
        and all((isinstance(r, int) and not isinstance(r, bool) and 0 <= r <= MAX_RANK) for r in ranks)
    ):
        return tuple(ranks)
    return None


def believable_world(said: object) -> int | None:
    """Return a number of ranks that was read somewhere, None where it is none."""
    return said if isinstance(said, int) and not isinstance(said, bool) and 0 < said <= _MAX_RANKS else None


#
# On devices the kernel has the time and the host has the meaning:
#
#     kernel --launch--> inside record_param_comms           one record around the launch
#                   `--> inside nccl:coalesced               the records since the group's previous launch
#
# Newer versions write the arguments of the record on the kernel too, which covers launches before the window. Traces
# without arguments (old versions) still name the operation in the range around the launch and its tensor in
# `Input Dims`. Nearly all kernels of a job repeat, so each distinct combination is parsed once. On gloo the operator
# (`c10d::`) has the meaning and the `gloo:` span the time.

# Input sizes from the shapes and types that the profiler writes.
#
# Shapes are not trusted: a malformed one is unknown, never an error.

# a tensor of more than a petabyte is no tensor
_MAX_ELEMENTS = 1 << 50
_UNKNOWN = -1


def shape_bytes(dims: str | None, types: str | None) -> int:
    """Return the bytes of the first input whose shape and type are recorded, UNKNOWN where there is none.

    >>> shape_bytes("[[6144], []]", '["float", ""]')
    24576
    """
    for shape, kind in zip(_listed(dims), _listed(types), strict=False):
        size = element_bytes(kind if isinstance(kind, str) else None)
        elements = _shape_elements(shape)
        if size and elements is not None:
            return elements * size
    return _UNKNOWN


@lru_cache(maxsize=4096)
def element_counts(dims: str | None) -> frozenset[int]:
    """Return how many elements each of the inputs has, those in lists of tensors too.

    >>> sorted(element_counts("[[[4, 8], [10]], [3], []]"))
    [3, 10, 32]
    """
    counts = set()
    for shape in _listed(dims):
        each = [shape] if _shape_elements(shape) is not None else shape if isinstance(shape, list) else []
        counts |= {n for n in map(_shape_elements, each) if n is not None}
    return frozenset(counts)


def _listed(text: str | None) -> list[Any]:
    try:
        found = parsed_json(text or "[]").value
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _shape_elements(shape: Any) -> int | None:
    if not isinstance(shape, list) or not 0 < len(shape) <= 64:
        return None
    if not all(type(n) is int and n >= 0 for n in shape):
        return None
    elements = math.prod(shape)
    return elements if elements <= _MAX_ELEMENTS else None


FLIGHT_RECORDER = "flight_recorder.jsonl"
# torch records 2,000 by default
_MAX_CALLS = 20_000


def flight_calls(path: Path) -> tuple[Row, ...]:
    """Return the calls of a flight recorder's file, oldest first; none where it is missing or damaged.

    Without a file of the recorder's, an imported dump next to it is read.
    """
    dump = path.parent / path.name.replace(FLIGHT_RECORDER, "flight_recorder.dump")
    if not path.exists() and not dump.is_file():
        return ()
    from stepscope.trace.flight_recorder import read_flight_dump  # only where there is such a file

    try:
        found = read_flight_dump(path if path.exists() else dump)
    except InputError:
        return ()
    groups = {g.name: Group(g.name, g.desc, g.ranks, len(g.ranks) if g.ranks else None) for g in found.groups.values()}
    calls = [
        Row(
            op=e.op,
            created_ns=e.created_ns,
            # of its input, -1 unknown
            size_bytes=_input_bytes(e.input_sizes, e.input_dtypes),
            group=groups.get(e.group) or Group(e.group, e.group_desc, None, None),
        )
        for e in found.entries[-_MAX_CALLS:]
        if e.created_ns is not None
    ]
    return tuple(sorted(calls, key=lambda call: call.created_ns))


def calls_of_operators(calls: Sequence[Row], ops: Sequence[str], called_ns: Int64s) -> list[Row | None]:
    """Return the call that each operator made, None where the recorder no longer holds it.

    `ops` and `called_ns` are the operators in the order they were called. Where they fit in several places, the one
    in which the times between calls agree best is theirs.
    """
    held = np.array([_runs_as(call.op) for call in calls], np.int64)
    wanted = np.array([_runs_as(op) for op in ops], np.int64)
    created = np.array([call.created_ns for call in calls], np.int64)
    fits = [(0, at) for at in _fits(held, wanted)] or [(lost, 0) for lost in _overrun(held, wanted)]
    if not fits:
        return [None] * len(ops)

    def disagreement(fit: tuple[int, int]) -> float:
        lost, at = fit
        apart = created[at : at + len(ops) - lost] - called_ns[lost:]
        return median(np.abs(apart - median(apart)))

    lost, at = min(fits, key=disagreement)
    return [*[None] * lost, *calls[at : at + len(ops) - lost]]


def _fits(held: Int64s, wanted: Int64s) -> list[int]:
    starts = np.flatnonzero(held[: max(len(held) - len(wanted) + 1, 0)] == wanted[0]) if len(wanted) else wanted
    return [at for at in starts.tolist() if np.array_equal(held[at : at + len(wanted)], wanted)]


def _overrun(held: Int64s, wanted: Int64s) -> list[int]:
    most = len(wanted) // 2
    return [
        lost
        for lost in range(max(1, len(wanted) - len(held)), most + 1)
        if np.array_equal(held[: len(wanted) - lost], wanted[lost:])
    ]


def _runs_as(op: str) -> int:
    return OP_CODE["all_reduce" if op == "reduce_scatter" else op]


def _input_bytes(shapes: Sequence[Sequence[int]], types: Sequence[str]) -> int:
    elements = [_shape_elements(list(shape)) if shape else 1 for shape in shapes]
    known = [
        n * size for n, kind in zip(elements, types, strict=False) if n is not None and (size := element_bytes(kind))
    ]
    return sum(known) if known and len(known) == len(shapes) == len(types) else _UNKNOWN


# The communication operations of one rank as a table: one row per kernel or gloo span, and one per message.


@dataclass(frozen=True, eq=False, repr=False)
class Collectives(ArrayRecord):
    """Communication operations of one rank, by start: one row per communication kernel or gloo span."""

    start_ns: Int64s
    end_ns: Int64s
    #: when the host issued it; NONE_NS where that was before the window
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
        in_bytes=_masked_column(m.in_bytes for m in meanings)[meaning],
        out_bytes=_masked_column(m.out_bytes for m in meanings)[meaning],
        peer=_masked_column((m.peer for m in meanings), most=MAX_RANK).astype(np.int32)[meaning],
        step=step,
        device_index=device_index,
        record_row=record_row,
        groups=tuple(groups),
        messages=Messages(
            collective=np.array([m[0] for m in messages], np.int64),
            is_send=np.array([m[1] for m in messages], bool),
            peer=_masked_column((m[2] for m in messages), most=MAX_RANK).astype(np.int32),
            size_bytes=_masked_column(m[3] for m in messages),
        ),
        unanswered=unanswered,
    )


def _masked_column(values: Iterable[int], *, most: int = 1 << 60) -> Int64s:
    return np.array([value if value <= most else -1 for value in values], np.int64)


RECORD = "record_param_comms"

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
    by_records = zip(record.tolist(), _said_by_records(trace, record), strict=True)
    said: list[tuple[_Said, ...]] = [(one,) if row >= 0 else () for row, one in by_records]
    if coalesced:
        said_at = dict(zip(records.tolist(), _said_by_records(trace, records), strict=True))
        for i in np.flatnonzero(among(launch, np.array(list(coalesced), np.int64))).tolist():
            rows = coalesced[int(launch[i])]
            record[i], said[i] = rows[0], tuple(said_at[row] for row in rows)
    range_row = lookup(launches, around, launch)
    range_name = np.where(range_row >= 0, trace["name"][range_row], NO_STRING).tolist()
    shapes = (trace.arg(name).at(range_row, missing=NO_STRING).tolist() for name in ("input_dims", "input_types"))
    named = zip(range_name, *shapes, strict=True)
    numbers: dict[_SaidOfKernel, int] = {}
    kernels = zip(said, named, trace["name"][kernel].tolist(), strict=True)
    meaning = np.array([numbers.setdefault(one, len(numbers)) for one in kernels], np.int64)
    known = header_groups(trace.header)

    @cache
    def group_of(*arguments: int) -> Group:
        return group_of_record(trace, dict(zip(_GROUP_ARGS, arguments, strict=True)), known)

    return _collective_table(
        [_meaning(trace, *one, group_of) for one in numbers],
        meaning,
        start_ns=work.start_ns[index],
        end_ns=work.end_ns[index],
        issue_ns=np.where(launch >= 0, trace["ts_ns"][launch], np.iinfo(np.int64).min),
        step=work.step[index],
        device_index=index,
        record_row=record,
    )


def _records_and_ranges(trace: Trace) -> tuple[Rows, Rows]:
    rows, code = coded_rows(
        trace, lambda s: 2 if s == RECORD else is_comm_annotation(s), (EventKind.HOST_OP, EventKind.ANNOTATION)
    )
    records, ranges = rows[code == 2], rows[code != 2]
    waits = by_string(trace, trace.arg("collective").at(records, missing=NO_STRING), lambda s: s == "wait")
    return records[waits == 0], ranges


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
        elif pending.pop(thread) and row in bare:
            out[row] = mine
    return out


def _said_by_records(trace: Trace, rows: Rows) -> list[_Said]:
    return list(zip(*(trace.arg(name).at(rows, missing=-1).tolist() for name in _Record._fields), strict=True))


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


# Collectives of a CPU rank: gloo executes them on its own threads.
#
# The operator on the calling thread (`c10d::allreduce_`) is the request; the span on a gloo thread
# (`gloo:all_reduce`) has the times. Gloo's threads take operators in call order, so a span belongs to the first
# pending operator of a fitting kind and size. Gloo carries out a reduce-scatter as an all-reduce: the meaning is the
# operator's. Only the flight recorder has the group; without its file the group is known where the rank
# has just one.

# operators on one flat buffer (`c10d::_allgather_base_`): what they receive is their first input, what they send the
# second
_BASE = "_base_"
# where `c10d::send` and `c10d::recv_` have the other rank among their inputs, counted in the group
_PEER_AT = 2


def gloo_collectives(trace: Trace, kinds: Kinds, steps: Steps, *, flight: Sequence[Row] = ()) -> Collectives:
    """Return the gloo spans of a rank with the operators that issued them, and the flight recorder's groups."""
    spans = span_rows(trace, kinds)
    asked = _by_start(
        trace, rows_named(trace, _host(kinds), lambda s: s.startswith("c10d::") and is_comm_annotation(s))
    )
    operator_of = _match(trace, spans, asked)
    called = trace["ts_ns"][np.array(asked, np.int64)]
    calls = dict(zip(asked, calls_of_operators(flight, [_op(trace, row) for row in asked], called), strict=True))
    groups = list(header_groups(trace.header).values())
    group = groups[0] if len(groups) == 1 else UNKNOWN_GROUP
    meanings = [
        _gloo_meaning(trace, span, op, group, calls.get(op)) for span, op in zip(spans, operator_of, strict=True)
    ]
    rows, ops = np.array(spans, np.int64), np.array(operator_of, np.int64)
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

    A truncated trace may have lost the spans of a whole thread. Where it holds fewer spans than operators, it is
    unknown which are left: none is joined.
    """
    waiting: dict[str, deque[int]] = {}
    for row in asked:
        op = _op(trace, row)
        for runs_as in (op, "all_reduce") if op == "reduce_scatter" else (op,):
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


def _gloo_meaning(trace: Trace, span: int, operator: int, group: Group, call: Row | None) -> Meaning:
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
    """Return the other rank of a send or receive, -1 where unknown.

    Without the values of the inputs it is known in a group of two: the other one.
    """
    said = _text(trace, "concrete", operator) if operator >= 0 else None
    own = rank_in_header(trace.header)
    if said is None and own is not None:
        others = [rank for rank in group.ranks or () if rank != own]
        return others[0] if len(others) == 1 else -1
    try:
        return dict(enumerate(group.ranks or ()))[int(json.loads(said or "[]")[_PEER_AT])]
    except (ValueError, LookupError, TypeError, RecursionError):
        return -1


def _name(trace: Trace, row: int) -> str:
    return trace.text(int(trace["name"][row])) or "" if row >= 0 else ""


def _op(trace: Trace, row: int) -> str:
    return op_name(_name(trace, row))


def _text(trace: Trace, column: str, row: int) -> str | None:
    return trace.text(int(trace.arg(column).at(np.array([row], np.int64), missing=-1)[0]))
