"""`host-stall`: autograd's anomaly detection was left on.

It keeps a Python stack for every node of the graph, inside the operators of forward, which only the step log shows
(`record/hooks/anomaly.py`), and looks for NaN in whatever a node returns, which the trace shows: operators directly
inside the nodes that autograd evaluates.
"""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.host.calls import host_calls
from stepscope.analyze.replay.owners.removal import Part, taken_out
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.step.regions import loop_in
from stepscope.contract.regions import EVALUATE, Region
from stepscope.contract.step_line import ANOMALY_DETECTION
from stepscope.dataclass import dataclass
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import host_ms
from stepscope.intervals import EMPTY, Intervals, covered_ns, union, union_of
from stepscope.records import ArrayRecord
from stepscope.run.rank import Rank
from stepscope.run.step_log import StepLog
from stepscope.trace.classify import EventKind, by_string
from stepscope.units import ms

_LOOKS = "aten::isnan"
_CHECK = frozenset((_LOOKS, "aten::_is_any_true", "aten::any", "aten::item", "aten::is_nonzero"))
_MIN_CHECKED = 0.5
"""of the nodes hold a look for NaN; a job's own hooks may look in some"""
_MAX_SHARE = 0.95
"""of forward goes with the stacks at most"""
_PIECE_NS = 100_000
_MIN_SHARE = 0.01
"""of the step: less is not said"""


@dataclass(frozen=True, eq=False, repr=False)
class Looks(ArrayRecord):
    """When one rank looked for NaN in what nodes returned."""

    host: Intervals
    number: float
    """per step"""
    ns: float
    """per step"""


def anomaly_detection(account: Account) -> list[Candidate]:
    """Return that the detection is on, where the step log or most nodes of backward show it."""
    ranks, step = account.run.ranks, account.step
    if step is None or not ranks:
        return []
    logged = {log.rank: _kept_ns(log) for log in account.run.logs}
    looks = [_looks(rank) for rank in ranks]
    stacks_ns = float(np.mean([logged.get(rank.rank, 0.0) for rank in ranks]))
    looks_ns = float(np.mean([one.ns for one in looks]))
    if stacks_ns + looks_ns < _MIN_SHARE * step.step_ns:
        return []
    return [
        Candidate(
            id="host-stall",
            title="Autograd's anomaly detection is on",
            cause=f"it keeps a stack for every node of the graph ({ms(stacks_ns):.1f} ms per step, inside the operators "
            f"of forward) and looks for NaN in what every node of backward returns ({ms(looks_ns):.1f} ms)",
            remedy="torch.autograd.set_detect_anomaly(False), or take detect_anomaly() out of the loop: it is there to "
            "find a NaN, not to train with.",
            change=lambda replay: _without(replay, ranks, looks, stacks_ns),
            cost_ns=stacks_ns + looks_ns,
            evidence=(
                Evidence("stacks kept per step, by the step log", host_ms(stacks_ns), "ms", "in forward"),
                Evidence("looks for NaN per step", host_ms(looks_ns), "ms", "in backward"),
                Evidence("looks for NaN per step", float(np.mean([one.number for one in looks])), "", "in backward"),
            ),
            sureness=0.95,
            doubt=0.3,  # what torch does around each stack is not recorded
            claim=ANOMALY_DETECTION,
            what_if=(),
            subject="anomaly detection",
        )
    ]


def _without(replay: Replay, ranks: Sequence[Rank], looks: Sequence[Looks], stacks_ns: float) -> Replay:
    """Return the run without the looks, and with so much less in forward as keeping stacks took there by the log."""
    forward = [loop_in(rank, Region.FORWARD) for rank in ranks]
    steps = max(sum(len(rank.steps) for rank in ranks), 1)
    took_ns = replay.host_factor * sum(int((spans.end - spans.start).sum()) for spans in forward) / steps
    share = min(stacks_ns / took_ns, _MAX_SHARE) if took_ns else 0.0
    gone = [union_of(one.host, _part_of_each(spans, share)) for one, spans in zip(looks, forward, strict=True)]
    return taken_out(replay, [_part(rank, host) for rank, host in zip(ranks, gone, strict=True)])


def _part_of_each(spans: Intervals, share: float) -> Intervals:
    """Return a share of every piece of some spans, evenly over them."""
    starts = [np.arange(start, end, _PIECE_NS) for start, end in zip(spans.start, spans.end, strict=True)]
    start = np.concatenate([*starts, np.empty(0, np.int64)]).astype(np.int64)
    end = np.minimum(start + _PIECE_NS, np.repeat(spans.end, [len(one) for one in starts]))
    return union(start, start + np.rint(share * (end - start)).astype(np.int64))


def _part(rank: Rank, host: Intervals) -> Part:
    """Return the host's time in some intervals, and the calls into the device's runtime there."""
    calls = np.flatnonzero(rank.kinds == EventKind.RUNTIME)
    start = rank.trace["ts_ns"][calls]
    inside = covered_ns(host, start, start + 1) > 0
    return Part(host, EMPTY, np.zeros(len(rank.work), bool), np.zeros(len(rank.collectives), bool), calls[inside])


def _kept_ns(log: StepLog) -> float:
    """Return what a rank's unprofiled steps take on average to keep stacks."""
    stacks = np.nan_to_num(log.column(f"regions.{ANOMALY_DETECTION}.ns"))[log.unprofiled]
    return float(stacks.mean()) if len(stacks) else 0.0


def _looks(rank: Rank) -> Looks:
    """Return the operators by which most nodes are looked through, none where only some are."""
    trace = rank.trace
    if not len(rank.rows_named(lambda name: name == _LOOKS, EventKind.HOST_OP)):  # as in most jobs
        return Looks(EMPTY, 0.0, 0.0)
    calls = host_calls(rank)
    is_look = by_string(trace, calls.name, lambda name: name == _LOOKS).astype(bool)
    is_node = by_string(trace, calls.name, lambda name: name.startswith(EVALUATE)).astype(bool)
    is_check = by_string(trace, calls.name, lambda name: name in _CHECK).astype(bool)
    direct = is_check & (calls.parent >= 0) & is_node[calls.parent]
    looked = np.zeros(len(calls), bool)
    looked[calls.parent[direct & is_look]] = True
    if not looked.any() or looked.sum() < _MIN_CHECKED * is_node.sum():
        return Looks(EMPTY, 0.0, 0.0)
    chosen = direct & looked[calls.parent]
    inside = chosen & (rank.steps.of(calls.start_ns) >= 0)
    steps = max(len(rank.steps), 1)
    took = float((calls.end_ns - calls.start_ns)[inside].sum()) / steps
    host = union(calls.start_ns[chosen], calls.end_ns[chosen])
    return Looks(host, float((inside & is_look).sum()) / steps, took)
