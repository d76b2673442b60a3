"""How much work did each operator call do, by its recorded shapes, and was it done before?

Each piece of work counts once: composites have no cost, of costed calls within each other the outermost counts, and
a tensor subclass that repeats its own operator on its local part (DTensor) is a wrapper, so the local one counts.

Recomputed work is forward work run again in the backward pass (activation checkpointing). Backward's own operators
run with gradients off. A recomputed forward runs with gradients on, which the profiler shows as a sequence number
without a forward thread, and it repeats an operator that also ran outside of backward.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.calls import Floats, HostCalls, Mask, Places, host_calls
from stepscope.analyze.step.regions import graph_builders
from stepscope.contract.precisions import PEAK_PRECISIONS
from stepscope.contract.regions import EVALUATE
from stepscope.cost.operators.families import Family, OpCost
from stepscope.cost.operators.operators import counted_once, may_cost, operator_cost
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.device_work import numbered
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind
from stepscope.trace.schema import NO_STRING
from stepscope.trace.table import Int64s, Trace

_IMPOSSIBLE = 10**30
"""FLOPs or bytes that no operator has: a damaged or hostile trace"""

_MAY_COST, _BACKWARD = 1, 2
"""what names tell: calls that may have a cost, and nodes of the backward pass"""

FAMILIES = tuple(Family)
FAMILY_CODE = {family: code for code, family in enumerate(FAMILIES)}

PRECISIONS = ("unknown", *PEAK_PRECISIONS)
PRECISION_CODE = {name: code for code, name in enumerate(PRECISIONS)}


@dataclass(frozen=True, eq=False, repr=False)
class CallCosts(ArrayRecord):
    """The work of each call of `calls`. Where `counted` is False there is none of its own, or it is unknown.

    Calls are many and their variants few, so the work is kept by variant.
    """

    rank: Rank
    calls: HostCalls
    variant: npt.NDArray[np.int32]
    """of each call; 0 where it is not counted"""
    costs: tuple[OpCost, ...]
    """of each variant from 1 on"""
    recomputed: Mask
    """in a forward pass that backward ran again; also set for calls without a cost"""

    @property
    def counted(self) -> Mask:
        """Return which calls have work that counts."""
        return self.variant > 0

    @property
    def flops(self) -> Floats:
        """Return the FLOPs of each call."""
        return self._of_calls(0.0, lambda cost: cost.flops)

    @property
    def bytes(self) -> Floats:
        """Return the least that each call must move."""
        return self._of_calls(0.0, lambda cost: cost.total_bytes)

    @property
    def family(self) -> npt.NDArray[np.uint8]:
        """Return the code in FAMILIES of each call."""
        return self._of_calls(np.uint8(FAMILY_CODE[Family.OTHER]), lambda cost: FAMILY_CODE[cost.family])

    @property
    def operand(self) -> npt.NDArray[np.uint8]:
        """Return the element type of each matrix product, code in PRECISIONS."""
        return self._of_calls(np.uint8(0), lambda cost: PRECISION_CODE.get(cost.dtype or "", 0))

    @property
    def lower_bound(self) -> Mask:
        """Return which calls may have done more."""
        return self._of_calls(False, lambda cost: cost.lower_bound)

    def _of_calls(self, otherwise: Any, number: Callable[[OpCost], float]) -> npt.NDArray[Any]:
        dtype = np.asarray(otherwise).dtype
        return np.array([otherwise, *map(number, self.costs)], dtype).take(self.variant)

    @cached_property
    def step(self) -> npt.NDArray[np.int32]:
        """Return the step that made each call, -1 for none."""
        return self.rank.steps.of(self.calls.start_ns)


def call_costs(rank: Rank) -> CallCosts:
    """Return the work of every operator call of a rank."""
    calls = host_calls(rank)
    role = rank.codes_of_names(_role, EventKind.HOST_OP).take(calls.name)
    may_count = np.flatnonzero(role == _MAY_COST)
    variant, costs = _distinct_costs(rank.trace, calls, may_count)
    costed = np.zeros(len(calls), bool)
    costed[may_count] = np.array([cost is not None for cost in costs], bool)[variant]
    _, wrappers = calls.inside_of_same(calls.name, only=costed)
    costed[wrappers] = False
    counted = counted_once(costed, parents=calls.parent)
    known = [i for i, cost in enumerate(costs) if cost is not None]
    number = np.zeros(len(costs), np.int32)
    number[known] = np.arange(1, len(known) + 1)
    of_call = np.zeros(len(calls), np.int32)
    of_call[may_count] = np.where(counted[may_count], number[variant], 0)
    return CallCosts(
        rank=rank,
        calls=calls,
        variant=of_call,
        costs=tuple(cost for cost in costs if cost is not None),
        recomputed=_recomputed(rank, calls, role == _BACKWARD),
    )


def _role(name: str) -> int:
    if name.startswith(EVALUATE):
        return _BACKWARD
    return _MAY_COST if may_cost(name) else 0


def _distinct_costs(trace: Trace, calls: HostCalls, some: Int64s) -> tuple[Int64s, list[OpCost | None]]:
    """Return the variant (name, shapes, types, values) of some of the calls and what a call of each variant costs."""
    names, rows = calls.name[some], calls.row[some]
    columns = _inputs(trace, rows)
    variant = names.astype(np.int64)
    for column in columns:
        variant = numbered(variant * (len(trace.strings) + 1) + column + 1)
    first = np.zeros(int(variant.max(initial=-1)) + 1, np.int64)
    first[variant[::-1]] = np.arange(len(variant))[::-1]  # the first of each is written last
    costs = []
    for name, *texts in zip(names[first].tolist(), *(column[first].tolist() for column in columns), strict=True):
        dims, types, concrete = map(trace.text, texts)
        cost = operator_cost(trace.strings[name], dims=dims, types=types, concrete=concrete)
        costs.append(cost if cost and max(cost.flops, cost.total_bytes) < _IMPOSSIBLE else None)
    return variant, costs


def _inputs(trace: Trace, rows: Places) -> list[Int64s]:
    """Return the numbers of the texts that event rows have for shapes, types and values.

    The profiler records all of them or none, so as a rule one look-up does for all.
    """
    columns = [trace.arg(name) for name in ("input_dims", "input_types", "concrete")]
    known = columns[0].rows
    if not len(known) or not all(np.array_equal(known, column.rows) for column in columns):
        return [column.at(rows, missing=NO_STRING) for column in columns]
    place = np.zeros(max(int(known[-1]), int(rows.max(initial=0))) + 1, np.int32)  # 0 for a row without
    place[known.astype(np.intp)] = np.arange(1, len(known) + 1, dtype=np.int32)
    at = place.take(rows)
    there = at > 0
    at -= 1
    return [np.where(there, column.values.take(at), NO_STRING).astype(np.int64) for column in columns]


def _recomputed(rank: Rank, calls: HostCalls, node: Mask) -> Mask:
    """Return which calls belong to a forward pass that backward ran again; `node` are those of the backward pass."""
    again = _with_gradients(rank, calls, node)
    if len(again):
        again = again[_also_outside(rank.trace, calls, node, again)]
    repeats = np.zeros(len(calls), bool)
    repeats[again] = True
    return calls.nearest(repeats) >= 0 if len(again) else repeats


def _with_gradients(rank: Rank, calls: HostCalls, node: Mask) -> Int64s:
    """Return the calls within backward's nodes that ran with gradients on."""
    if not node.any():
        return np.empty(0, np.int64)
    call = calls.at_rows(graph_builders(rank))
    call = call[~node[call]]
    return call[calls.nearest_to(call, node) >= 0]


def _also_outside(trace: Trace, calls: HostCalls, node: Mask, again: Int64s) -> Mask:
    """Return which of the calls within backward repeat one (name and shapes) outside of it."""
    is_meant = np.zeros(len(trace.strings) + 1, bool)
    is_meant[calls.name[again]] = True
    alike = np.flatnonzero(is_meant.take(calls.name))
    outside = alike[calls.nearest_to(alike, node) < 0]
    call = np.concatenate((outside, again))
    shape = trace.arg("input_dims").at(calls.row[call], missing=NO_STRING)
    variant = numbered(calls.name[call].astype(np.int64) * (len(trace.strings) + 1) + shape + 1)
    known = np.zeros(int(variant.max(initial=-1)) + 1, bool)
    known[variant[: len(outside)]] = True
    return known[variant[len(outside) :]]
