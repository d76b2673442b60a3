"""How much work did each operator call do, by its recorded shapes, and was it done before?

Each piece of work counts once: composites have no cost, of costed calls within each other the outermost counts, and
a tensor subclass that repeats its own operator on its local part (DTensor) is a wrapper, so the local one counts.

Recomputed work is forward work run again in the backward pass (activation checkpointing). Backward's own operators
run with gradients off. A recomputed forward runs with gradients on, which the profiler shows as a sequence number
without a forward thread, and it repeats an operator that also ran outside of backward.
"""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.calls import Floats, HostCalls, Mask, host_calls
from stepscope.contract.precisions import PEAK_PRECISIONS
from stepscope.cost.operators.families import Family, OpCost
from stepscope.cost.operators.operators import counted_once, operator_cost
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.device_work import numbered
from stepscope.run.rank import Rank
from stepscope.trace.classify import by_string
from stepscope.trace.schema import NO_STRING
from stepscope.trace.table import Int64s, Trace

_BACKWARD_NODE = "autograd::engine::evaluate_function"

_IMPOSSIBLE = 10**30
"""FLOPs or bytes that no operator has: a damaged or hostile trace"""

FAMILIES = tuple(Family)
FAMILY_CODE = {family: code for code, family in enumerate(FAMILIES)}

PRECISIONS = ("unknown", *PEAK_PRECISIONS)
PRECISION_CODE = {name: code for code, name in enumerate(PRECISIONS)}


@dataclass(frozen=True, eq=False, repr=False)
class CallCosts(ArrayRecord):
    """The work of each call of `calls`. Where `counted` is False there is none of its own, or it is unknown."""

    rank: Rank
    calls: HostCalls
    counted: Mask
    flops: Floats
    bytes: Floats
    """the least that must move"""
    family: npt.NDArray[np.uint8]
    """code in FAMILIES"""
    operand: npt.NDArray[np.uint8]
    """element type of a matrix product, code in PRECISIONS"""
    lower_bound: Mask
    recomputed: Mask
    """in a forward pass that backward ran again; also set for calls without a cost"""
    step: npt.NDArray[np.int32]
    """step that made the call, -1 for none"""


def call_costs(rank: Rank) -> CallCosts:
    """Return the work of every operator call of a rank."""
    calls = host_calls(rank)
    variant, costs = _distinct_costs(rank.trace, calls)
    costed = np.array([cost is not None for cost in costs], bool)[variant]
    _, wrappers = calls.inside_of_same(calls.name, only=costed)
    costed[wrappers] = False
    counted = counted_once(costed, parents=calls.parent)
    return CallCosts(
        rank=rank,
        calls=calls,
        counted=counted,
        flops=np.array([cost.flops if cost else 0 for cost in costs], float)[variant] * counted,
        bytes=np.array([cost.total_bytes if cost else 0 for cost in costs], float)[variant] * counted,
        family=np.array([FAMILY_CODE[cost.family if cost else Family.OTHER] for cost in costs], np.uint8)[variant],
        operand=np.array([_operand(cost) for cost in costs], np.uint8)[variant],
        lower_bound=np.array([cost is not None and cost.lower_bound for cost in costs], bool)[variant] & counted,
        recomputed=_recomputed(rank.trace, calls),
        step=rank.steps.of(calls.start_ns),
    )


def _operand(cost: OpCost | None) -> int:
    return PRECISION_CODE.get(cost.dtype or "", 0) if cost else 0


def _distinct_costs(trace: Trace, calls: HostCalls) -> tuple[Int64s, list[OpCost | None]]:
    """Return each call's variant of (name, shapes, types, values) and what a call of each variant costs."""
    columns = [trace.arg(name).at(calls.row, missing=NO_STRING) for name in ("input_dims", "input_types", "concrete")]
    variant = calls.name.astype(np.int64)
    for column in columns:
        variant = numbered(variant * (len(trace.strings) + 1) + column + 1)
    first = np.zeros(int(variant.max(initial=-1)) + 1, np.int64)
    first[variant[::-1]] = np.arange(len(variant))[::-1]  # the first of each is written last
    costs = []
    for i in first.tolist():
        dims, types, concrete = (trace.text(int(column[i])) for column in columns)
        name = trace.strings[calls.name[i]]
        cost = operator_cost(name, dims=dims, types=types, concrete=concrete)
        costs.append(cost if cost and max(cost.flops, cost.total_bytes) < _IMPOSSIBLE else None)
    return variant, costs


def _recomputed(trace: Trace, calls: HostCalls) -> Mask:
    """Return which calls belong to a forward pass that backward ran again."""
    node = by_string(trace, calls.name, lambda s: s.startswith(_BACKWARD_NODE)).astype(bool)
    in_backward = calls.nearest(node) >= 0
    if not in_backward.any():
        return in_backward
    sequence = trace.arg("sequence").at(calls.row, missing=-1)
    forward_thread = trace.arg("fwd_thread").at(calls.row, missing=-1)
    with_gradients = in_backward & (sequence >= 0) & (forward_thread <= 0) & ~node
    shape = trace.arg("input_dims").at(calls.row, missing=NO_STRING)
    key = calls.name.astype(np.int64) * (len(trace.strings) + 1) + shape + 1
    variant = numbered(key)
    outside = np.zeros(int(variant.max(initial=-1)) + 1, bool)
    outside[variant[~in_backward]] = True
    repeats = with_gradients & outside[variant]
    return in_backward & (calls.nearest(repeats) >= 0)
