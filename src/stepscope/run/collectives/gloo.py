"""Which collectives did a CPU rank run? Gloo executes them on threads of its own.

The operator on the calling thread (`c10d::allreduce_`) says what was asked for; the span on a gloo thread
(`gloo:all_reduce`) says when it ran. Gloo's threads take operators in the order they were called, so a span belongs
to the first operator still waiting that it can mean and whose size it has. Gloo carries out a reduce-scatter as an
all-reduce: the meaning is the operator's. Which group it was in, only the flight recorder says (`flight.py`); without
its file the group is known where the rank has just one.
"""

import json
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile

import numpy as np

from stepscope.contract.collectives import is_comm_annotation, op_name
from stepscope.run.collectives.flight import FlightCall, calls_of_operators
from stepscope.run.collectives.from_kernels import received_bytes
from stepscope.run.collectives.groups import UNKNOWN_GROUP, Group, header_groups
from stepscope.run.collectives.shapes import element_counts, shape_bytes
from stepscope.run.collectives.table import Collectives, Meaning, collective_table
from stepscope.run.device_work import Rows
from stepscope.run.sources import rank_in_header
from stepscope.run.steps import Steps
from stepscope.trace.classify import EventKind, Kinds, rows_named
from stepscope.trace.table import Trace

# What gloo runs for an operator where the names differ.
_RUNS_AS = {"reduce_scatter": ("reduce_scatter", "all_reduce")}
_BASE = "_base_"
"""operators on one flat buffer (`c10d::_allgather_base_`): what they receive is their first input, what they send the
second"""
_PEER_AT = 2
"""where `c10d::send` and `c10d::recv_` have the other rank among their inputs, counted in the group"""


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
    meanings = [_meaning(trace, span, op, group, calls.get(op)) for span, op in zip(spans, operator_of, strict=True)]
    rows = np.array(spans, np.int64)
    ops = np.array(operator_of, np.int64)
    issue = np.where(ops >= 0, trace["ts_ns"][ops], np.iinfo(np.int64).min)
    start = trace["ts_ns"][rows]
    return collective_table(
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
    """Return the first operator called before the span that has its size, else simply the first, -1 for none."""
    first, began = -1, trace["ts_ns"][span]
    size = element_counts(_text(trace, "input_dims", span))
    for row in takewhile(lambda row: trace["ts_ns"][row] <= began, queue):
        if size & element_counts(_text(trace, "input_dims", row)):
            return row
        first = row if first < 0 else first
    return first


def _meaning(trace: Trace, span: int, operator: int, group: Group, call: FlightCall | None) -> Meaning:
    op = _op(trace, operator if operator >= 0 else span)
    group = call.group if call is not None and call.group is not UNKNOWN_GROUP else group
    sent = _bytes_at(trace, span)
    if sent < 0:
        sent = call.size_bytes if call is not None else _bytes_at(trace, operator)
    received = received_bytes(sent, op=op, ranks=group.size)
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
    """Return the bytes of the first input of an event, -1 where there is none."""
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
    """Return the group when the rank has just one: gloo's events never say which."""
    groups = list(header_groups(trace.header).values())
    return groups[0] if len(groups) == 1 else UNKNOWN_GROUP
