"""Which collectives did a CPU rank run? Gloo executes them on threads of its own.

The operator on the calling thread (`c10d::allreduce_`) says what was asked for; the span on a gloo thread
(`gloo:all_reduce`) says when it ran. Spans start in the order in which operators were called, so the k-th
operator of a kind belongs to the k-th span that it can mean. Gloo carries out a reduce-scatter as an all-reduce:
the meaning is the operator's.
"""

import numpy as np

from stepscope.run.collective_names import OP_CODE, OPS, is_comm_annotation, op_name
from stepscope.run.collectives import Collectives, Meaning, collective_table, shape_bytes
from stepscope.run.groups import UNKNOWN_GROUP, Group, header_groups
from stepscope.run.steps import Steps
from stepscope.trace.classify import EventKind, Kinds, rows_named
from stepscope.trace.table import Trace

# What gloo runs for an operator where the names differ.
_RUNS_AS = {"reduce_scatter": ("reduce_scatter", "all_reduce"), "all_gather": ("all_gather",)}


def gloo_collectives(trace: Trace, kinds: Kinds, steps: Steps) -> Collectives:
    """Return the gloo spans of a rank with the operators that asked for them."""
    host = np.flatnonzero((kinds == EventKind.HOST_OP) | (kinds == EventKind.ANNOTATION))
    spans = _by_start(trace, rows_named(trace, host, lambda s: s.startswith("gloo:")))
    asked = _by_start(trace, rows_named(trace, host, lambda s: s.startswith("c10d::") and is_comm_annotation(s)))
    operator_of = _match(trace, spans, asked)
    meanings = [_meaning(trace, span, op, _only_group(trace)) for span, op in zip(spans, operator_of, strict=True)]
    rows = np.array(spans, np.int64)
    ops = np.array(operator_of, np.int64)
    issue = np.where(ops >= 0, trace["ts_ns"][ops], np.iinfo(np.int64).min)
    start = trace["ts_ns"][rows]
    return collective_table(
        meanings,
        start_ns=start,
        end_ns=start + trace["dur_ns"][rows],
        issue_ns=issue,
        step=steps.of(np.where(ops >= 0, issue, start)),
        device_index=np.full(len(rows), -1, np.int64),
    )


def _by_start(trace: Trace, rows: np.ndarray) -> list[int]:
    return rows[np.argsort(trace["ts_ns"][rows], kind="stable")].tolist()


def _match(trace: Trace, spans: list[int], asked: list[int]) -> list[int]:
    """Return the operator row of each span, -1 where the operator was called before the window."""
    waiting: dict[str, list[int]] = {}
    for row in reversed(asked):
        op = op_name(trace.text(int(trace["name"][row])) or "")
        for runs_as in _RUNS_AS.get(op, (op,)):
            waiting.setdefault(runs_as, []).append(row)
    taken: set[int] = set()
    out = []
    for span in spans:
        queue = waiting.get(op_name(trace.text(int(trace["name"][span])) or ""), [])
        while queue and queue[-1] in taken:
            queue.pop()
        if queue and trace["ts_ns"][queue[-1]] <= trace["ts_ns"][span]:
            taken.add(queue[-1])
            out.append(queue.pop())
        else:
            out.append(-1)
    return out


def _meaning(trace: Trace, span: int, operator: int, group: Group) -> Meaning:
    named = trace.text(int(trace["name"][operator if operator >= 0 else span])) or ""
    op = op_name(named)
    rows = np.array([span, operator], np.int64)
    dims = trace.arg("input_dims").at(rows, missing=-1).tolist()
    types = trace.arg("input_types").at(rows, missing=-1).tolist()
    size = shape_bytes(trace.text(dims[0]), trace.text(types[0]))
    if size < 0 and operator >= 0:
        size = shape_bytes(trace.text(dims[1]), trace.text(types[1]))
    return Meaning(op=OPS[OP_CODE[op]], group=group, in_bytes=size, out_bytes=size, record_row=operator)


def _only_group(trace: Trace) -> Group:
    """Return the group when the rank has just one: gloo events never say which."""
    groups = list(header_groups(trace.header).values())
    return groups[0] if len(groups) == 1 else UNKNOWN_GROUP
