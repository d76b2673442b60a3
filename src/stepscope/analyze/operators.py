"""Which operators took the time and the memory, and how much work did each call of one do?"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_time import Floats, HostCalls, Mask, Places, host_calls, sum_by
from stepscope.analyze.phases import graph_builders
from stepscope.contract.operations import PEAK_PRECISIONS
from stepscope.contract.step_line import EVALUATE
from stepscope.cost.operators import Family, OpCost, counted_once, may_cost, operator_cost
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.load import side_by_side
from stepscope.run.rank import Rank
from stepscope.stats.robust import distinct, numbered
from stepscope.trace.table import NO_STRING, EventKind, Int64s, Trace, of_kinds

# Which operators took the time and the memory, on the host and on the device?
#
# Self is what an operator did itself; total includes the operators it called. Totals count each stretch of time once:
# an operator that calls itself (`aten::to` within `aten::to`) has the outer call's time, not both. Device time belongs
# to the innermost operator around the launch. Memory is what an operator itself allocated minus what it freed.

# an operator with its sums, what its costliest call took on device and host, and that call's shapes
_GroupSums = tuple[str, dict[str, float], tuple[float, float], str | None]
NO_OPERATORS = Row(operators=[], device_busy_ns=0.0)


def operator_table(ranks: Sequence[Rank], *, calls_of: Sequence[HostCalls] | None = None, jobs: int = 1) -> Row:
    """Return the operators over the whole window, by device time, then host time, as means per rank.

    `jobs` ranks at a time; `calls_of` are their calls where known already.
    """
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    costliest: dict[str, tuple[tuple[float, float], str | None]] = {}
    for groups in side_by_side(jobs, _of_rank, ranks, calls_of or [host_calls(rank) for rank in ranks]):
        for name, numbers, cost, shapes in groups:
            for key, value in numbers.items():
                sums[name][key] += value
            if name not in costliest or cost > costliest[name][0]:
                costliest[name] = cost, shapes
    unknown = dict.fromkeys(("host_memory_bytes", "device_memory_bytes"))  # allocated minus freed, where recorded
    rows = [
        Row(name=name, shapes=costliest[name][1], **unknown | {key: value / len(ranks) for key, value in mine.items()})
        for name, mine in sums.items()
    ]
    busy_ns = sum(float((rank.work.end_ns - rank.work.start_ns).sum()) for rank in ranks)
    return Row(
        operators=sorted(rows, key=lambda o: (-o.device_self_ns, -o.host_self_ns, o.name)),
        device_busy_ns=busy_ns / max(len(ranks), 1),  # of all device work, streams added
    )


def _of_rank(rank: Rank, calls: HostCalls) -> list[_GroupSums]:
    keys, group = numbered(calls.name.astype(np.int64))
    count = np.bincount(group, minlength=len(keys)).astype(float)
    totals = {"calls": count, "host_self_ns": np.bincount(group, calls.self_ns(), minlength=len(keys))}
    duration = (rank.work.end_ns - rank.work.start_ns).astype(float)
    device_self = sum_by(calls.at_rows(rank.work.op_row), duration, len(calls))
    totals["device_self_ns"] = np.bincount(group, device_self, minlength=len(keys))
    costly = {
        "device_total_ns": calls.with_called(device_self),
        "host_total_ns": (calls.end_ns - calls.start_ns).astype(float),
    }
    costliest = _costliest(group, costly["device_total_ns"], costly["host_total_ns"], len(keys))
    worst = list(zip(*(values[costliest].tolist() for values in costly.values()), strict=True))
    nested, _ = calls.inside_of_same(group, only=_may_nest(calls, group, len(keys)).take(group))
    for values in costly.values():
        values[nested] = 0
    for name, values in (costly | _memory(rank, calls)).items():
        totals[name] = np.bincount(group, values, minlength=len(keys))
    trace = rank.trace
    dims = trace.arg("input_dims").at(calls.row[costliest], missing=NO_STRING).tolist()
    rows = zip(*(values.tolist() for values in totals.values()), strict=True)
    return [
        (trace.strings[key], dict(zip(totals, row, strict=True)), cost, trace.text(shapes))
        for key, shapes, cost, row in zip(keys.tolist(), dims, worst, rows, strict=True)
    ]


def _memory(rank: Rank, calls: HostCalls) -> dict[str, Floats]:
    trace = rank.trace
    events = np.flatnonzero(of_kinds(rank.kinds, (EventKind.MEMORY,)))
    if not len(events):
        return {}
    at = calls.innermost_at(trace["tid"][events], trace["ts_ns"][events])
    size = trace.arg("alloc_bytes").at(events, missing=0).astype(float)
    on_host = trace.arg("alloc_device_type").at(events, missing=0) == 0  # CPU
    return {
        name: sum_by(np.where(mine, at, -1), size, len(calls))
        for name, mine in (("host_memory_bytes", on_host), ("device_memory_bytes", ~on_host))
    }


def _may_nest(calls: HostCalls, group: Int64s, num_groups: int) -> Mask:
    """Return which groups may have calls inside calls of their own: those that stay when groups that call none, or that
    none calls, are left out again and again.
    """
    pairs = np.append(group, num_groups).take(calls.parent)  # in the last place: of no caller
    pairs *= num_groups
    pairs += group
    caller, called = np.divmod(distinct(pairs), max(num_groups, 1))
    stays = caller < num_groups
    while True:
        caller, called = caller[stays], called[stays]
        calls_some, is_called = np.zeros(num_groups, bool), np.zeros(num_groups, bool)
        calls_some[caller], is_called[called] = True, True
        may = calls_some & is_called
        stays = may[caller] & may[called]
        if stays.all():
            return may


def _costliest(group: Int64s, device: Floats, host: Floats, num_groups: int) -> Int64s:
    on_device = np.flatnonzero(device > 0)
    of, values = group.take(on_device), device.take(on_device)
    most_device = np.zeros(num_groups)
    np.maximum.at(most_device, of, values)
    out = np.empty(num_groups, np.int64)
    for calls in (None, on_device[values == most_device.take(of)]):  # of all first, then of those with a device's time
        of, values = (group, host) if calls is None else (group.take(calls), host.take(calls))
        most_host = np.zeros(num_groups)
        np.maximum.at(most_host, of, values)
        kept = np.flatnonzero(values == most_host.take(of))
        out[of.take(kept)] = kept if calls is None else calls.take(kept)
    return out


# How much work did each operator call do, by its recorded shapes, and was it done before?
#
# Each piece of work counts once: composites have no cost, of costed calls within each other the outermost counts, and
# a tensor subclass that repeats its own operator on its local part (DTensor) is a wrapper, so the local one counts.
#
# Recomputed work is forward work run again in the backward pass (activation checkpointing). Backward's own operators
# run with gradients off. A recomputed forward runs with gradients on, which the profiler shows as a sequence number
# without a forward thread, and it repeats an operator that also ran outside of backward.

# FLOPs or bytes that no operator has: a damaged or hostile trace
_IMPOSSIBLE = 10**30

# by name: calls that may have a cost, and nodes of the backward pass
_MAY_COST, _BACKWARD = 1, 2

FAMILIES = tuple(Family)
FAMILY_CODE = {family: code for code, family in enumerate(FAMILIES)}

PRECISIONS = ("unknown", *PEAK_PRECISIONS)
PRECISION_CODE = {name: code for code, name in enumerate(PRECISIONS)}


@dataclass(frozen=True, eq=False, repr=False)
class CallCosts(ArrayRecord):
    """The work of each call of `calls`, stored by variant; none or unknown where `counted` is False."""

    rank: Rank
    calls: HostCalls
    #: of each call; 0 where it is not counted
    variant: npt.NDArray[np.int32]
    #: of each variant from 1 on
    costs: tuple[OpCost, ...]
    #: in a forward pass that backward ran again; also set for calls without a cost
    recomputed: Mask

    @property
    def counted(self) -> Mask:
        return self.variant > 0

    @property
    def flops(self) -> Floats:
        return self._of_calls(0.0, lambda cost: cost.flops)

    @property
    def bytes(self) -> Floats:
        return self._of_calls(0.0, lambda cost: cost.total_bytes)

    @property
    def family(self) -> npt.NDArray[np.uint8]:
        return self._of_calls(np.uint8(FAMILY_CODE[Family.OTHER]), lambda cost: FAMILY_CODE[cost.family])

    @property
    def operand(self) -> npt.NDArray[np.uint8]:
        return self._of_calls(np.uint8(0), lambda cost: PRECISION_CODE.get(cost.dtype or "", 0))

    @property
    def lower_bound(self) -> Mask:
        return self._of_calls(False, lambda cost: cost.lower_bound)

    def _of_calls(self, otherwise: Any, number: Callable[[OpCost], float]) -> npt.NDArray[Any]:
        return np.array([otherwise, *map(number, self.costs)], np.asarray(otherwise).dtype).take(self.variant)

    @cached_property
    def step(self) -> npt.NDArray[np.int32]:
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
    names, rows = calls.name[some], calls.row[some]
    columns = _inputs(trace, rows)
    variant = names.astype(np.int64)
    for column in columns:
        variant = numbered(variant * (len(trace.strings) + 1) + column + 1)[1]
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
    again = _with_gradients(rank, calls, node)
    if len(again):
        again = again[_also_outside(rank.trace, calls, node, again)]
    repeats = np.zeros(len(calls), bool)
    repeats[again] = True
    return calls.nearest(repeats) >= 0 if len(again) else repeats


def _with_gradients(rank: Rank, calls: HostCalls, node: Mask) -> Int64s:
    if not node.any():
        return np.empty(0, np.int64)
    call = calls.at_rows(graph_builders(rank))
    call = call[~node[call]]
    return call[calls.nearest_to(call, node) >= 0]


def _also_outside(trace: Trace, calls: HostCalls, node: Mask, again: Int64s) -> Mask:
    is_meant = np.zeros(len(trace.strings) + 1, bool)
    is_meant[calls.name[again]] = True
    alike = np.flatnonzero(is_meant.take(calls.name))
    outside = alike[calls.nearest_to(alike, node) < 0]
    call = np.concatenate((outside, again))
    shape = trace.arg("input_dims").at(calls.row[call], missing=NO_STRING)
    variant = numbered(calls.name[call].astype(np.int64) * (len(trace.strings) + 1) + shape + 1)[1]
    known = np.zeros(int(variant.max(initial=-1)) + 1, bool)
    known[variant[: len(outside)]] = True
    return known[variant[len(outside) :]]
