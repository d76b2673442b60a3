"""Which kernels took the device's time, how fast were they, and what held them back?"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_time import Floats, HostCalls, Mask, Places, host_calls, sum_by
from stepscope.analyze.phases import graph_builders
from stepscope.contract.flops import PEAK_PRECISIONS
from stepscope.contract.step_line import EVALUATE
from stepscope.cost.chips import Chip, DeviceFacts, Lookup, look_up, nameless
from stepscope.cost.operators import (
    MATMUL_FAMILIES,
    Family,
    KernelClass,
    OpCost,
    counted_once,
    kernel_class,
    may_cost,
    operator_cost,
)
from stepscope.records import ArrayRecord, dataclass, once_per_record
from stepscope.run.formats import MeasuredLaunches
from stepscope.run.load import Run, side_by_side
from stepscope.run.rank import CPU, Rank, Rows
from stepscope.stats.robust import distinct, distinct_places, median, numbered
from stepscope.trace.ncu import KernelMetrics
from stepscope.trace.table import NO_STRING, EventKind, Int64s, Trace, by_string, of_kinds

# Which operators took the time and the memory, on the host and on the device?
#
# Self is what an operator did itself; total includes the operators it called. Totals count each stretch of time once:
# an operator that calls itself (`aten::to` within `aten::to`) has the outer call's time, not both. Device time belongs
# to the innermost operator around the launch. Memory is what an operator itself allocated minus what it freed.

# slots for each key up to which a table of all possible keys is quicker than sorting them
_MAX_SPREAD = 32


@dataclass(frozen=True)
class Operator:
    """One operator over the whole window: means per rank, so that 8 ranks read like one."""

    name: str
    #: input shapes as recorded: of all its calls when grouped by shape, else of the most expensive one
    shapes: str | None
    calls: float
    host_self_ns: float
    host_total_ns: float
    device_self_ns: float
    device_total_ns: float
    #: allocated minus freed; None where memory was not recorded
    host_memory_bytes: float | None
    device_memory_bytes: float | None


@dataclass(frozen=True)
class OperatorTable:
    """All operators of a run, by device time, then host time. Times are means per rank."""

    operators: tuple[Operator, ...]
    #: duration of all device work, streams added
    device_busy_ns: float

    def top(self, count: int) -> tuple[Operator, ...]:
        return self.operators[:count]


def operator_table(
    ranks: Sequence[Rank], *, calls_of: Sequence[HostCalls] | None = None, jobs: int = 1
) -> OperatorTable:
    """Return the operators of all ranks, `jobs` ranks at a time; `calls_of` are their calls where known already."""
    sums: dict[str, dict[str, float]] = {}
    costliest: dict[str, tuple[tuple[float, float], str | None]] = {}
    for groups in side_by_side(jobs, _of_rank, ranks, calls_of or [host_calls(rank) for rank in ranks]):
        for name, numbers, cost, shapes in groups:
            mine = sums.setdefault(name, {})
            for key, value in numbers.items():
                mine[key] = mine.get(key, 0.0) + value
            if name not in costliest or cost > costliest[name][0]:
                costliest[name] = cost, shapes
    rows = []
    for name, mine in sums.items():
        means = {"host_memory_bytes": None, "device_memory_bytes": None} | {k: v / len(ranks) for k, v in mine.items()}
        rows.append(Operator(name=name, shapes=costliest[name][1], **means))  # type: ignore[arg-type]
    rows.sort(key=lambda o: (-o.device_self_ns, -o.host_self_ns, o.name))
    busy_ns = sum(float((rank.work.end_ns - rank.work.start_ns).sum()) for rank in ranks)
    return OperatorTable(tuple(rows), busy_ns / max(len(ranks), 1))


# an operator with its sums, what its costliest call took on device and host, and that call's shapes
_GroupSums = tuple[str, dict[str, float], tuple[float, float], str | None]


def _of_rank(rank: Rank, calls: HostCalls) -> list[_GroupSums]:
    keys, group, count = _grouped(calls.name.astype(np.int64))
    totals = {"calls": count.astype(float), "host_self_ns": np.bincount(group, calls.self_ns(), minlength=len(keys))}
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
    for name, values in costly.items():
        values[nested] = 0
        totals[name] = np.bincount(group, values, minlength=len(keys))
    for name, values in _memory(rank, calls).items():
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


def _grouped(key: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return each key once, ascending, the place of every one among them, and how often each is there.

    >>> [values.tolist() for values in _grouped(np.array([7, -1, 7, 9]))]
    [[-1, 7, 9], [1, 0, 1, 2], [1, 2, 1]]
    """
    low, high = int(key.min(initial=0)), int(key.max(initial=0))
    if high - low > _MAX_SPREAD * len(key):
        keys, place = distinct_places(key)
        return keys, place, np.bincount(place, minlength=len(keys))
    place = key - low
    count = np.bincount(place)
    there = np.flatnonzero(count)
    return there + low, (np.cumsum(count > 0) - 1).take(place), count[there]


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


# How much work did each kernel do, in which precision, and for which operator call?
#
# An operator's cost is divided among the kernels it launched, by their time. FLOPs are assigned to those that multiply,
# by name (the sum of a split product's parts does none of them); bytes to all.

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


# Which chip did the run compute on?


def run_chip(ranks: Sequence[Rank], *, extra: Sequence[Chip] = ()) -> Lookup:
    """Return the chip that all ranks have, or why it is unknown. Rows in `extra` (a user's own) go first."""
    found = [_rank_chip(rank, extra) for rank in ranks]
    names = {one.chip.name for one in found if one.chip}
    if len(names) > 1:
        return Lookup(None, f"ranks have different chips ({', '.join(sorted(names))}): no single peak holds for all")
    unknown = next((one for one in found if one.chip is None), None)
    return unknown or (found[0] if found else Lookup(None, "no rank was read"))


def device_in_words(rank: Rank, found: Lookup) -> str | None:
    """Return a device's name as the driver gave it; where it gave none, the chip it was taken for, else what kernels
    or metadata say of it.
    """
    if rank.device.source != "properties" and found.chip is not None and rank.device.name != CPU:
        return found.chip.name
    return rank.device.name


def _rank_chip(rank: Rank, extra: Sequence[Chip]) -> Lookup:
    device, facts = rank.device, _device_facts(rank)
    if device.name is not None:
        found = look_up(device.name, memory_bytes=facts.memory_bytes, extra=extra)
        if found.chip is not None or device.source == "properties" or device.name == CPU:
            return found
    if device.properties:
        return nameless(facts)
    if device.name is not None:
        return Lookup(None, f"the trace of rank {rank.rank} only names its device as {device.name}; give its peak")
    return Lookup(None, f"the trace of rank {rank.rank} does not name its device; give its peak")


def _device_facts(rank: Rank) -> DeviceFacts:
    of = rank.device.properties
    major, minor = of.get("computeMajor"), of.get("computeMinor")
    known = isinstance(major, int) and isinstance(minor, int)
    return DeviceFacts(
        memory_bytes=_whole(of.get("totalGlobalMem")),
        compute=f"{major}.{minor}" if known else None,
        multiprocessors=_whole(of.get("numSms")),
    )


_WARP, _SCHEDULERS = 32, 4
#: of a device's lanes: launches that can use less leave most of it without work, whatever they compute
FILLS_LITTLE = 0.25


@once_per_record
def launch_sizes(rank: Rank) -> tuple[Floats, Floats]:
    """Return by row of work how many blocks a kernel was launched with and how many threads each has, 0 if unknown."""
    trace, row = rank.trace, rank.work.row
    grid, block = (_sizes_of(trace, trace.arg(name).at(row, missing=NO_STRING)) for name in ("grid", "block"))
    return grid, block


def filled_share(rank: Rank) -> Floats:
    """Return by row of work which share of the device's lanes a launch can use, 1 where that is unknown.

    A multiprocessor of NVIDIA's has four schedulers, each runs a warp of 32 lanes, and a block stays on its
    multiprocessor.
    """
    facts, (grid, block) = _device_facts(rank), launch_sizes(rank)
    if facts.compute is None or not facts.multiprocessors:
        return np.ones(len(grid))
    warps = np.ceil(block / _WARP)
    spread = np.minimum(grid, grid * warps / _SCHEDULERS) / facts.multiprocessors
    return np.where((grid > 0) & (block > 0), np.minimum(spread, 1.0) * block / np.maximum(warps * _WARP, 1), 1.0)


def _sizes_of(trace: Trace, text: Int64s) -> Floats:
    known = distinct(text)
    sizes = [trace.strings[one] if one != NO_STRING else "" for one in known.tolist()]
    return np.array([math.prod(map(int, re.findall(r"\d{1,10}", one))) if one else 0 for one in sizes], float)[
        np.searchsorted(known, text)
    ]


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# in `tensor_core`
_UNKNOWN = -1

# by code of the family
_IS_MATMUL = np.array([family in MATMUL_FAMILIES for family in FAMILIES])
_FP32, _TF32 = PRECISION_CODE["fp32"], PRECISION_CODE["tf32"]
# Devices whose matrix cores take single precision as it is; NVIDIA's round it to TF32.
_QUANTISED = re.compile(r"marlin|machete|gptq|awq|wna16|w[48]a(8|16)|int4|uint4", re.IGNORECASE)
_FULL_FP32 = re.compile(r"AMD|Radeon|Instinct|^MI\d")
_NO_CLASS = KernelClass(Family.OTHER, tensor_core=False, dtype=None)


@dataclass(frozen=True, eq=False, repr=False)
class KernelCosts(ArrayRecord):
    """The work of each row of `rank.work`."""

    calls: CallCosts
    #: operator call it worked for, index into `calls`; -1 where no costed one launched it
    call: Int64s
    #: code in FAMILIES; OTHER for communication, copies and sets
    family: npt.NDArray[np.uint8]
    #: 1 yes, 0 no, UNKNOWN
    tensor_core: npt.NDArray[np.int8]
    #: of a matrix product, code in PRECISIONS
    precision: npt.NDArray[np.uint8]
    #: NaN unknown
    flops: Floats
    #: NaN unknown
    bytes: Floats
    recomputed: Mask

    @property
    def rank(self) -> Rank:
        return self.calls.rank

    @cached_property
    def duration_ns(self) -> Int64s:
        return self.rank.work.end_ns - self.rank.work.start_ns

    @cached_property
    def is_matmul(self) -> Mask:
        """Return which rows are kernels of matrix products, with those that only serve a product."""
        return _IS_MATMUL.take(self.family)


def kernel_costs(calls: CallCosts) -> KernelCosts:
    """Return the work of every kernel of a rank."""
    work = calls.rank.work
    launcher = calls.calls.at_rows(work.op_row)
    call = calls.calls.nearest_to(launcher, calls.counted)
    named, tensor_core, operand, serves = _classes(calls.rank)
    ask = (named == FAMILY_CODE[Family.OTHER]) & (call >= 0) & (calls.rank.work.kind == EventKind.KERNEL)
    out = named.copy()
    out[ask] = calls.family[call[ask]]
    family = out
    multiplies = _IS_MATMUL.take(family) & ~serves
    tensor_core[multiplies & (named != family)] = _UNKNOWN
    mine = np.flatnonzero(call >= 0)
    owner, duration = call[mine], (work.end_ns - work.start_ns)[mine].astype(float)
    _, sharing = distinct_places(owner)
    flops, size = np.full(len(work), np.nan), np.full(len(work), np.nan)
    flops[mine] = _shared_out(calls.flops[owner], sharing, _multiplying(duration, multiplies[mine], sharing))
    size[mine] = _shared_out(calls.bytes[owner], sharing, duration)
    return KernelCosts(
        calls=calls,
        call=call,
        family=family,
        tensor_core=tensor_core,
        precision=_precision(operand, tensor_core, multiplies, call, calls),
        flops=flops,
        bytes=size,
        recomputed=(launcher >= 0) & calls.recomputed[launcher] if len(calls.calls) else np.zeros(len(work), bool),
    )


def _classes(rank: Rank) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int8], npt.NDArray[np.uint8], Mask]:
    work = rank.work
    name = np.where(work.kind == EventKind.KERNEL, work.name, NO_STRING).astype(np.int64)
    names, at = numbered(name)
    found = [_NO_CLASS if i == NO_STRING else kernel_class(rank.trace.strings[i]) for i in names.tolist()]
    family = np.array([FAMILY_CODE[c.family] for c in found], np.uint8)
    tensor_core = np.array([_UNKNOWN if c.tensor_core is None else c.tensor_core for c in found], np.int8)
    operand = np.array([PRECISION_CODE.get(c.dtype or "", 0) for c in found], np.uint8)
    # A product's kernel that is known to be off the tensor cores and has no operand type does not multiply.
    serves = _IS_MATMUL[family] & (tensor_core == 0) & (operand == 0)
    return family[at], tensor_core[at], operand[at], serves[at]


def _precision(
    named: npt.NDArray[np.uint8], tensor_core: npt.NDArray[np.int8], multiplies: Mask, call: Int64s, calls: CallCosts
) -> npt.NDArray[np.uint8]:
    operand = np.where(call >= 0, calls.operand[call], 0) if len(calls.calls) else np.zeros_like(named)
    # Quantised weights are unpacked inside the product: the type of an operand is not what it computes in.
    trace, work = calls.rank.trace, calls.rank.work
    quantised = by_string(trace, work.name, lambda s: bool(_QUANTISED.search(s))).astype(bool)
    known = np.where((operand > 0) & ~quantised, operand, np.where(quantised & (named == _FP32), 0, named))
    rounds = (named == _TF32) | ((tensor_core == 1) & (not _FULL_FP32.search(calls.rank.device_name or "")))
    known = np.where((known == _FP32) & rounds, _TF32, known)
    return np.where(multiplies, known, 0).astype(np.uint8)


def _multiplying(duration: Floats, multiplies: Mask, sharing: Int64s) -> Floats:
    weight = np.where(multiplies, duration, 0.0)
    none = np.bincount(sharing, weight) == 0
    return np.where(none[sharing], duration, weight)


def _shared_out(amount: Floats, sharing: Int64s, weight: Floats) -> Floats:
    total = np.bincount(sharing, weight)[sharing]
    return amount * np.divide(weight, total, out=np.zeros(len(weight)), where=total > 0)


# What does the run's chip support? bfloat16 and TF32 begin with Ampere, fp8 with Ada.
#
# From the hardware table; for other chips from the compute capability in the header, or the architecture in kernel
# names.

_NVIDIA_WARP = 32
_BF16_SINCE, _FP8_SINCE = (8, 0), (8, 9)
_AMD_TF32 = ("9.4",)
_NO_GRAPHS = re.compile(r"gaudi|^hl-|mtia|artemis|ascend|tpu|^cpu$", re.IGNORECASE)
_GENERATIONS = {"volta": "7.0", "turing": "7.5", "ampere": "8.0", "hopper": "9.0", "blackwell": "10.0"}


@dataclass(frozen=True)
class Abilities:
    """What a chip has units or a mode for; None where unknown."""

    bf16: bool | None = None
    tf32: bool | None = None
    fp8: bool | None = None
    #: whether PyTorch captures CUDA or HIP graphs on it
    graphs: bool | None = None

    @property
    def narrow(self) -> str:
        """Return the 16-bit type to advise: bfloat16 unless the chip has none."""
        return "float16" if self.bf16 is False else "bfloat16"


def abilities(ranks: Sequence[Rank], chip: Chip | None) -> Abilities:
    """Return what the device of a run can do."""
    name = next((rank.device_name for rank in ranks if rank.device_name), "") or ""
    graphs = not _NO_GRAPHS.search(name) if name else None
    if chip is not None:
        has = chip.tflops
        return Abilities("bf16" in has, "tf32" in has, "fp8" in has, graphs)
    for rank in ranks:
        compute = _device_facts(rank).compute or _by_kernels(name)
        if compute is not None:
            return _by_capability(
                compute,
                nvidia=rank.device.properties.get("warpSize", _NVIDIA_WARP) == _NVIDIA_WARP
                and not name.startswith("AMD"),
                graphs=graphs,
            )
    return Abilities(graphs=graphs)


def _by_kernels(name: str) -> str | None:
    number = re.search(r"compute capability (\d+\.\d)", name)
    if number:
        return number.group(1)
    return next((c for word, c in _GENERATIONS.items() if word in name.lower()), None)


def _by_capability(compute: str, *, nvidia: bool, graphs: bool | None) -> Abilities:
    if not nvidia:  # AMD's 9.0 is MI100 and MI200, all with bf16 units
        return Abilities(bf16=compute.startswith("9.") or None, tf32=compute in _AMD_TF32, fp8=None, graphs=graphs)
    major, minor = (int(part) for part in compute.split("."))
    ampere = (major, minor) >= _BF16_SINCE
    return Abilities(bf16=ampere, tf32=ampere, fp8=(major, minor) >= _FP8_SINCE, graphs=graphs)


# Kernels measured by Nsight Compute.

# Which kernel of a trace is the one that Nsight Compute calls by another spelling of its name?
#
#     trace   void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(int, ...)
#     ncu     void at::vectorized_elementwise_kernel<(int)4, at::CUDAFunctor_add<float>, ...>(int, T2, T3)
#
# Equal functions are candidates. Where several differ only in what is in their brackets, the one with the most words in
# common is meant; where two have as many, none is.

_CAST = re.compile(r"\((?:unsigned |signed )?(?:int|long|short|char|bool|long long)\)(?=[-\w])")
_NO_NAME = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}")
_WORD = re.compile(r"[A-Za-z_]\w+|\d+")
# words that one spelling has and another leaves out
_FILLERS = frozenset(
    {
        *("void", "int", "char", "unsigned", "long", "const", "operator", "lambda", "instance"),
        *("at", "native", "std", "array"),
    }
)
_TYPE_NUMBER = re.compile(r"^T\d+$|^\d+ul$|^ul$")


def kernels_named(names: Iterable[str], kernels: Iterable[str]) -> dict[str, str]:
    """Return the kernel of a trace for each name; ambiguous names are left out."""
    by_function: dict[str, list[str]] = {}
    for kernel in sorted(set(kernels)):
        by_function.setdefault(function_of(kernel), []).append(kernel)
    words = {kernel: _words(kernel) for kernels in by_function.values() for kernel in kernels}
    out = {}
    for name in set(names):
        found = _meant(name, by_function.get(function_of(name), []), words)
        if found is not None:
            out[name] = found
    return out


def function_of(name: str) -> str:
    """Return the name of the function alone, without return type, namespaces, brackets and parameters.

    >>> function_of("void at::native::(anonymous namespace)::softmax_warp_forward<float, 11>(float*)")
    'softmax_warp_forward'
    """
    head = re.split(r"[<(]", _NO_NAME.sub("anonymous", name), maxsplit=1)[0].strip()
    return head.rsplit(" ", 1)[-1].rsplit("::", 1)[-1]


def _meant(name: str, candidates: list[str], words: dict[str, frozenset[str]]) -> str | None:
    if name in candidates:
        return name
    if "<" not in name:  # the function alone was written, or it has no arguments
        return candidates[0] if len(candidates) == 1 else None
    mine = _words(name)
    alike = sorted(((_share(mine, words[kernel]), kernel) for kernel in candidates), reverse=True)
    best, kernel = alike[0] if alike else (0.0, "")
    is_clear = len(alike) < 2 or best > alike[1][0]
    return kernel if is_clear and best >= 0.3 else None


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / max(len(one | other), 1)


def _words(name: str) -> frozenset[str]:
    plain = _CAST.sub("", _NO_NAME.sub("", name))
    return frozenset(w for w in _WORD.findall(plain) if w not in _FILLERS and not _TYPE_NUMBER.match(w))


# name, grid and block
_Class = tuple[str, str | None, str | None]


@dataclass(frozen=True, eq=False, repr=False)
class MeasuredRows(ArrayRecord):
    """The Nsight Compute launch that represents each row of a rank's work."""

    #: index into `launches`, -1 where none was measured
    launch: Int64s
    launches: tuple[KernelMetrics, ...]
    #: measured launches that no kernel of the rank is
    unjoined: int

    def values(self, metric: str) -> Floats:
        by_launch = [getattr(launch, metric) for launch in self.launches]
        known = np.array([np.nan if value is None else value for value in by_launch] + [np.nan], np.float64)
        return known[self.launch]

    @cached_property
    def dram_gb_per_s(self) -> Floats:
        return self.values("dram_bytes") / self.values("duration_ns")


def measured_rows(rank: Rank, measured: Sequence[MeasuredLaunches]) -> MeasuredRows | None:
    """Return what was measured of a rank's kernels, None where nothing was."""
    launches = [launch for one in measured if one.rank in (None, rank.rank) for launch in one.launches]
    if not launches:
        return None
    work = rank.work
    classes = _kernels_classes(rank, np.flatnonzero(np.isin(work.kind, (EventKind.KERNEL, EventKind.COMM_KERNEL))))
    meant = kernels_named((launch.name for launch in launches), (name for name, _, _ in classes))
    of_class: dict[_Class, list[int]] = {}
    for i, launch in enumerate(launches):
        if launch.name in meant:
            found = _class_of(meant[launch.name], launch, classes)
            if found is not None:
                of_class.setdefault(found, []).append(i)
    out = np.full(len(work), -1, np.int64)
    for kind, mine in of_class.items():
        at = classes[kind]
        out[at] = np.array(mine, np.int64)[np.arange(len(at)) % len(mine)]
    return MeasuredRows(out, tuple(launches), len(launches) - sum(map(len, of_class.values())))


def measured_warnings(run: Run) -> list[str]:
    """Return a line where Nsight Compute measured launches that are no kernels of the run."""
    found = [rows for rank in run.ranks if (rows := measured_rows(rank, run.measured)) is not None]
    total = sum(len(one.launches) for one in run.measured)
    lost = min((rows.unjoined for rows in found), default=total)
    if not lost:
        return []
    return [
        f"{lost:,} of {total:,} launches that Nsight Compute measured are no kernels of this run (name, grid, block): "
        "they were of another job, other sizes or steps that are not in the traces"
    ]


def _kernels_classes(rank: Rank, rows: Int64s) -> dict[_Class, Int64s]:
    trace, work = rank.trace, rank.work
    grid, block = (trace.arg(name).at(work.row[rows], missing=NO_STRING) for name in ("grid", "block"))
    keys = np.stack((work.name[rows].astype(np.int64), grid, block), axis=1)
    unique, back = np.unique(keys, axis=0, return_inverse=True)
    back = back.reshape(-1)
    order = np.argsort(back, kind="stable")
    cuts = np.searchsorted(back[order], np.arange(len(unique) + 1))
    return {
        (trace.text(name) or "", trace.text(g), trace.text(b)): rows[order[cuts[i] : cuts[i + 1]]]
        for i, (name, g, b) in enumerate(unique.tolist())
    }


def _class_of(name: str, launch: KernelMetrics, classes: dict[_Class, Int64s]) -> _Class | None:
    exact = name, _text(launch.grid), _text(launch.block)
    if exact in classes:
        return exact
    unknown = name, None, None
    if unknown in classes:
        return unknown
    named = [kind for kind in classes if kind[0] == name] if launch.grid is None else []
    return named[0] if len(named) == 1 else None


def _text(sizes: tuple[int, ...] | None) -> str | None:
    return None if sizes is None else str(list(sizes))


# What holds each kernel back: arithmetic, memory bandwidth, or the time it takes to start and drain?
#
# Held against the chip's roofline, a kernel needs at least `flops / peak` and `bytes / bandwidth`. The larger of the
# two names its bound. A kernel that is short, or has too few threads to fill the device, and takes more than twice that
# is bound by latency. Without shapes or without a known chip, matrix products are taken as compute-bound, kernels of
# other families as memory-bound, and what holds back a kernel of no known family is unknown.
#
# Where Nsight Compute measured a kernel, what it used of the multiprocessors and of the memory decides instead: the
# larger of the two, and latency where both are below 60 %, as in Nsight Compute's own rule (Speed of Light).

# Kernels below this are short: about what it takes a host to launch the next one.
SHORT_NS = 10_000


class Bound(IntEnum):
    """What holds a kernel back."""

    #: no kernel; communication, bound by the link and by other ranks; or a kernel of unknown family
    NONE = 0
    COMPUTE = 1
    MEMORY = 2
    LATENCY = 3

    @property
    def text(self) -> str | None:
        return (None, "compute-bound", "memory-bound", "latency")[self]


@dataclass(frozen=True, eq=False, repr=False)
class KernelBounds(ArrayRecord):
    """What holds each row of a rank's work back, and how that is known."""

    bound: npt.NDArray[np.uint8]
    #: shapes and chip decided it
    from_shapes: Mask
    #: what Nsight Compute measured decided it
    measured: Mask


def _kernel_bounds(costs: KernelCosts, *, chip: Chip | None, measured: MeasuredRows | None = None) -> KernelBounds:
    duration = costs.duration_ns
    compute_ns, memory_ns = _least_ns(costs, chip)
    known = ~np.isnan(compute_ns + memory_ns)
    computes = np.where(known, compute_ns >= memory_ns, costs.is_matmul)
    bound = np.where(computes, np.uint8(Bound.COMPUTE), np.uint8(Bound.MEMORY))
    np.putmask(bound, ~known & (costs.family == FAMILY_CODE[Family.OTHER]), Bound.NONE)
    least_ns = np.where(known, np.maximum(compute_ns, memory_ns), 0.0)
    waits = (duration < SHORT_NS) | (filled_share(costs.rank) < FILLS_LITTLE)
    np.putmask(bound, waits & (duration > 2.0 * least_ns), Bound.LATENCY)
    metered = np.zeros(len(bound), bool)
    if measured is not None:
        compute, memory = measured.values("sm_pct"), measured.values("memory_pct")
        memory = np.where(np.isnan(memory), measured.values("dram_pct"), memory)
        by_meter = _bounds_of_use(compute, memory)
        metered = by_meter != Bound.NONE
        bound[metered] = by_meter[metered]
    np.putmask(bound, costs.rank.work.kind != int(EventKind.KERNEL), Bound.NONE)
    return KernelBounds(bound, known & ~metered, metered)


def _bounds_of_use(compute_pct: Floats, memory_pct: Floats) -> npt.NDArray[np.int64]:
    bound = np.where(compute_pct >= memory_pct, Bound.COMPUTE, Bound.MEMORY)
    bound[np.fmax(compute_pct, memory_pct) < 60.0] = Bound.LATENCY
    bound[np.isnan(compute_pct + memory_pct)] = Bound.NONE
    return bound.astype(np.int64)


def _least_ns(costs: KernelCosts, chip: Chip | None) -> tuple[Floats, Floats]:
    peaks = np.array([(chip.peak_flops(precision) if chip else None) or np.nan for precision in PRECISIONS])
    bandwidth = (chip.memory_gb_per_s if chip else None) or np.nan
    compute = np.where(costs.flops == 0, 0.0, costs.flops / peaks.take(costs.precision) * 1e9)
    return compute, costs.bytes / bandwidth  # bytes / (GB/s) is ns


# How long are kernels, and how many are queued on the device?
#
# Durations in bins that double (below 2 µs, 2 to 4 µs, ...), by what kernels are. The queue is what the host has
# launched and the device has not begun: at 0 the device waits for the host.

FIRST_BIN_NS = 2_000
NUM_BINS = 16
# the least length of each bin
QUEUE_EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_COMMUNICATION = "communication"


@dataclass(frozen=True, eq=False, repr=False)
class Distributions(ArrayRecord):
    """Means over ranks, per rank."""

    families: tuple[str, ...]
    #: kernels by family and bin of duration
    count: Floats
    #: the same by their time
    time_ns: Floats
    #: of the time between the first launch and the last start, by bin of the queue's length; sums to 1
    queue_share: Floats
    #: length that half of all launches find or exceed
    queue_median: float | None


def distributions(costs: Sequence[KernelCosts]) -> Distributions | None:
    """Return how kernels and queues are distributed, None where nothing ran on a device."""
    known = [one for one in costs if one.rank.has_device]
    if not known:
        return None
    count: dict[str, Floats] = {}
    time_ns: dict[str, Floats] = {}
    for one in known:
        work = one.rank.work
        kernels = np.isin(work.kind, (EventKind.KERNEL, EventKind.COMM_KERNEL))
        bins = _duration_bins(one.duration_ns)
        names = np.where(work.kind == EventKind.COMM_KERNEL, len(FAMILIES), one.family)
        for code in distinct(names[kernels]).tolist():
            mine = kernels & (names == code)
            name = _COMMUNICATION if code == len(FAMILIES) else FAMILIES[code].value
            count[name] = count.get(name, 0) + np.bincount(bins[mine], minlength=NUM_BINS) / len(known)
            spent = np.bincount(bins[mine], one.duration_ns[mine], minlength=NUM_BINS)
            time_ns[name] = time_ns.get(name, 0) + spent / len(known)
    if not count:
        return None
    families = tuple(sorted(count, key=lambda name: -float(time_ns[name].sum())))
    shares, medians = zip(*(_queue(one.rank) for one in known), strict=True)
    lengths = [m for m in medians if m is not None]
    return Distributions(
        families=families,
        count=np.array([count[name] for name in families]),
        time_ns=np.array([time_ns[name] for name in families]),
        queue_share=np.mean(shares, axis=0),
        queue_median=median(lengths) if lengths else None,
    )


def _duration_bins(duration_ns: Int64s) -> Int64s:
    """Return the bin of each duration.

    >>> duration_bins(np.array([900, 2_000, 5_000])).tolist()
    [0, 1, 2]
    """
    return np.searchsorted(FIRST_BIN_NS * 2 ** np.arange(NUM_BINS - 1), duration_ns, side="right")


def _queue(rank: Rank) -> tuple[Floats, float | None]:
    work = rank.work
    launched = work.launch_row >= 0
    share = np.zeros(len(QUEUE_EDGES))
    if launched.sum() < 2:
        return share, None
    asked, begun = np.sort(rank.trace["ts_ns"][work.launch_row[launched]]), np.sort(work.start_ns[launched])
    moments = np.concatenate((asked, begun))
    order = np.argsort(moments, kind="stable")
    length = np.cumsum(np.repeat((1, -1), (len(asked), len(begun)))[order])
    lasts = np.diff(moments[order])
    bins = np.searchsorted(QUEUE_EDGES, np.maximum(length[:-1], 0), side="right") - 1
    spent = np.bincount(bins, lasts, minlength=len(QUEUE_EDGES))
    whole = spent.sum()
    found = np.arange(len(asked)) - np.searchsorted(begun, asked)
    return (spent / whole if whole else share), median(np.maximum(found, 0))


# of a block on any CUDA device; more needs an explicit request
_DEFAULT_SHARED_BYTES = 48 << 10
_KERNELS = (EventKind.KERNEL, EventKind.COMM_KERNEL)
# what the time of each bound is called among the sums
_TIME_BOUND = {bound: f"{bound.name.lower()}_bound_ns" for bound in Bound}


@dataclass(frozen=True)
class Kernel:
    """All kernels of one name over the whole window; count and total are means per rank."""

    name: str
    family: str
    count: float
    total_ns: float
    mean_ns: float
    max_ns: float
    #: of the time of all kernels
    share: float
    #: None where the name of a matrix product does not show it
    tensor_core: bool | None
    #: operand type of a matrix product
    precision: str | None
    #: achieved, over those of its kernels whose shapes are known; None without FLOPs or shapes
    tflops: float | None
    #: achieved: of the device's memory as measured, else counting the least that must move
    gb_per_s: float | None
    #: what holds most of its time back: `compute-bound`, `memory-bound`, `latency`; None for communication and unknown
    bound: str | None
    #: `measured` where Nsight Compute's metrics decided, `shapes` where the roofline did, `family` where the name
    bound_from: str | None
    #: achieved, as measured; else the profiler's estimate
    occupancy_pct: float | None
    #: `measured` or `estimated`
    occupancy_from: str | None = None
    #: of the multiprocessors' peak, as measured
    sm_pct: float | None = None
    #: of the memory's peak, as measured
    dram_pct: float | None = None
    #: of the tensor pipe's peak, as measured
    tensor_pct: float | None = None
    #: what its warps waited for most, as measured
    stall: str | None = None
    #: of all their waiting
    stall_share: float | None = None
    #: launched in recorded steps, mean over them; None without any
    count_per_step: float | None = None
    #: the time of those
    step_ns: float | None = None
    #: of its time in launches that were measured, or are alike to one that was
    measured_share: float = 0.0


@dataclass(frozen=True)
class KernelTable:
    """All kernels of a run, by time. Counts and times are means per rank."""

    kernels: tuple[Kernel, ...]
    total_ns: float
    #: None without recorded steps
    kernels_per_step: float | None
    #: host calls that launched them; a graph launches many kernels by one
    launches_per_step: float | None
    #: share of kernels below SHORT_NS
    short_count_share: float
    short_time_share: float
    #: share of matrix-product time on tensor cores; None without products or where no kernel name shows it
    tensor_core_share: float | None
    #: share of compute-kernel time that is memory-bound; None without compute kernels
    memory_bound_share: float | None
    #: share of compute-kernel time in kernels of unknown family and unknown work
    unknown_share: float

    def top(self, count: int) -> tuple[Kernel, ...]:
        return self.kernels[:count]


def kernel_table(
    costs: Sequence[KernelCosts], *, chip: Chip | None, measured: Sequence[MeasuredLaunches] = (), jobs: int = 1
) -> KernelTable:
    """Return the kernels of all ranks in one table. Without a chip the bound follows from the family alone."""
    sums: dict[str, _Sums] = {}
    metered = [_measured_rows(one, measured) if measured else None for one in costs]
    found = side_by_side(jobs, lambda one, rows: _kernels_of_rank(one, chip, rows), costs, metered)
    for one, rows, named in zip(costs, metered, found, strict=True):
        _add(sums, one, named, rows)
    n = max(len(costs), 1)
    total, count = _sum(sums.values(), "total_ns"), _sum(sums.values(), "count")
    steps = sum(len(one.rank.steps) for one in costs)
    kernels = [one.kernel(name, n, total, steps) for name, one in sums.items()]
    per_step, launches = _launches(costs)
    return KernelTable(
        kernels=tuple(sorted(kernels, key=lambda k: (-k.total_ns, k.name))),
        total_ns=total / n,
        kernels_per_step=per_step,
        launches_per_step=launches,
        short_count_share=_sum(sums.values(), "short") / count if count else 0.0,
        short_time_share=_sum(sums.values(), "short_ns") / total if total else 0.0,
        tensor_core_share=_tensor_core_share(costs),
        memory_bound_share=_bound_share(sums.values(), Bound.MEMORY),
        unknown_share=_bound_share(sums.values(), Bound.NONE) or 0.0,
    )


def _measured_rows(costs: KernelCosts, measured: Sequence[MeasuredLaunches]) -> MeasuredRows | None:

    return measured_rows(costs.rank, measured)


@dataclass
class _Sums:
    family: str
    tensor_core: bool | None
    precision: str | None
    max_ns: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    #: time by what warps waited for
    stalls: dict[str, float] = field(default_factory=dict)

    def kernel(self, name: str, num_ranks: int, all_ns: float, num_steps: int) -> Kernel:
        n = self.numbers
        bound = max(_TIME_BOUND, key=lambda b: n[_TIME_BOUND[b]])
        metered = 2 * n["measured_ns"] > n["total_ns"]
        stall = max(self.stalls, key=lambda reason: (self.stalls[reason], reason), default=None)
        occupancy = _mean(n, "measured_occupancy")
        return Kernel(
            name=name,
            family=self.family,
            count=n["count"] / num_ranks,
            total_ns=n["total_ns"] / num_ranks,
            mean_ns=n["total_ns"] / n["count"],
            max_ns=self.max_ns,
            share=n["total_ns"] / all_ns if all_ns else 0.0,
            tensor_core=self.tensor_core,
            precision=self.precision,
            tflops=n["flops"] / n["flops_ns"] / 1e3 if n["flops_ns"] else None,
            gb_per_s=_first(_mean(n, "dram_gb_per_s"), n["bytes"] / n["bytes_ns"] if n["bytes_ns"] else None),
            bound=bound.text,
            bound_from=None
            if bound is Bound.NONE
            else "measured"
            if metered
            else "shapes"
            if n["from_shapes"]
            else "family",
            occupancy_pct=_first(occupancy, _mean(n, "occupancy")),
            occupancy_from="measured" if occupancy is not None else "estimated" if n["occupancy_ns"] else None,
            sm_pct=_mean(n, "sm_pct"),
            dram_pct=_mean(n, "dram_pct"),
            tensor_pct=_mean(n, "tensor_pct"),
            stall=stall,
            stall_share=self.stalls[stall] / sum(self.stalls.values()) if stall else None,
            count_per_step=n["in_steps"] / num_steps if num_steps else None,
            step_ns=n["in_steps_ns"] / num_steps if num_steps else None,
            measured_share=n["measured_ns"] / n["total_ns"] if n["total_ns"] else 0.0,
        )


def _mean(numbers: dict[str, float], name: str) -> float | None:
    return numbers[name] / numbers[f"{name}_ns"] if numbers.get(f"{name}_ns") else None


def _first(value: float | None, otherwise: float | None) -> float | None:
    return otherwise if value is None else value


# by name: the most informative row, the longest duration in ns, and their sums
NamedKernels = list[tuple[int, int, dict[str, float]]]


def _kernels_of_rank(costs: KernelCosts, chip: Chip | None, measured: MeasuredRows | None) -> NamedKernels:
    work = costs.rank.work
    kernels = np.flatnonzero(of_kinds(work.kind, _KERNELS))
    group = numbered(work.name[kernels].astype(np.int64))[1]
    example = np.empty(int(group.max(initial=-1)) + 1, np.int64)
    example[group[::-1]] = np.arange(len(group))[::-1]  # the first of each is written last
    explained = np.flatnonzero(costs.call[kernels] >= 0)
    example[group[explained]] = explained  # its operator is more specific than the name alone
    bounds, duration = _kernel_bounds(costs, chip=chip, measured=measured), costs.duration_ns[kernels]
    weights = _weights(costs, kernels, duration.astype(np.float64), bounds, measured)
    totals = {name: np.bincount(group, values, minlength=len(example)).tolist() for name, values in weights}
    held_back = group * len(Bound) + bounds.bound[kernels]
    by_bound = np.bincount(held_back, duration, minlength=len(example) * len(Bound)).reshape(-1, len(Bound))
    totals |= {name: by_bound[:, bound].tolist() for bound, name in _TIME_BOUND.items()}
    longest = np.zeros(len(example), np.int64)
    np.maximum.at(longest, group, duration)
    rows = (dict(zip(totals, row, strict=True)) for row in zip(*totals.values(), strict=True))
    return list(zip(kernels[example].tolist(), longest.tolist(), rows, strict=True))


def _add(sums: dict[str, _Sums], costs: KernelCosts, named: NamedKernels, measured: MeasuredRows | None) -> None:
    work = costs.rank.work
    for i, longest_ns, numbers in named:
        text = costs.rank.trace.strings[work.name[i]]
        if text not in sums:
            communicates = int(costs.rank.work.kind[i]) == EventKind.COMM_KERNEL
            tells = not costs.is_matmul[i] or costs.tensor_core[i] >= 0
            sums[text] = _Sums(
                family=_COMMUNICATION if communicates else FAMILIES[costs.family[i]].value,
                tensor_core=bool(costs.tensor_core[i] == 1) if tells else None,
                precision=PRECISIONS[costs.precision[i]] if costs.precision[i] else None,
            )
        mine = sums[text]
        mine.max_ns = max(mine.max_ns, longest_ns)
        known = mine.numbers.get
        mine.numbers = {key: known(key, 0.0) + value for key, value in numbers.items()}
    if measured is not None:
        _add_stalls(sums, costs, measured)


def _add_stalls(sums: dict[str, _Sums], costs: KernelCosts, measured: MeasuredRows) -> None:
    kernels = np.flatnonzero(of_kinds(costs.rank.work.kind, _KERNELS))
    launch, name = measured.launch[kernels], costs.rank.work.name[kernels]
    both, back = np.unique(np.stack((launch, name), axis=1)[launch >= 0], axis=0, return_inverse=True)
    spent = sum_by(back.reshape(-1), costs.duration_ns[kernels][launch >= 0].astype(np.float64), len(both))
    for (i, named), time_ns in zip(both.tolist(), spent.tolist(), strict=True):
        stalls = sums[costs.rank.trace.strings[named]].stalls
        for reason, share in measured.launches[i].stalls:
            stalls[reason] = stalls.get(reason, 0.0) + share * time_ns


def _weights(
    costs: KernelCosts, kernels: Rows, duration: Floats, bounds: KernelBounds, measured: MeasuredRows | None
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    yield "count", np.ones(len(kernels))
    yield "total_ns", duration
    in_steps = costs.rank.work.step[kernels] >= 0
    yield "in_steps", in_steps
    yield "in_steps_ns", duration * in_steps
    short = duration < SHORT_NS
    yield "short", short
    yield "short_ns", duration * short
    for name, values in (("flops", costs.flops[kernels]), ("bytes", costs.bytes[kernels])):
        known = values > 0  # NaN is not
        yield name, np.where(known, values, 0.0)
        yield f"{name}_ns", duration * known
    occupancy, has_occupancy = _occupancy(costs, kernels)
    yield "occupancy", occupancy * duration
    yield "occupancy_ns", duration * has_occupancy
    yield "from_shapes", bounds.from_shapes[kernels]
    yield "measured_ns", duration * bounds.measured[kernels]
    if measured is not None:
        yield from _measured_weights(measured, kernels, duration).items()


def _measured_weights(measured: MeasuredRows, kernels: Rows, duration: Floats) -> dict[str, Floats]:
    columns = {name: measured.values(name)[kernels] for name in ("sm_pct", "dram_pct", "tensor_pct")}
    columns["measured_occupancy"] = measured.values("occupancy_pct")[kernels]
    columns["dram_gb_per_s"] = measured.dram_gb_per_s[kernels]
    out = {}
    for name, values in columns.items():
        out[name] = np.nan_to_num(values) * duration
        out[f"{name}_ns"] = duration * ~np.isnan(values)
    return out


def _occupancy(costs: KernelCosts, kernels: Rows) -> tuple[Floats, Floats]:
    """Return the recorded occupancy in percent, and 1 where there is one.

    CUPTI's estimate ignores that a kernel may request more shared memory than the default, so no block fits and the
    estimate is 0: most matrix products of Hopper. With less of it 0 is a very small grid.
    """
    missing = -1  # as float64 bits that is a NaN, which no trace holds
    trace, rows = costs.rank.trace, costs.rank.work.row[kernels]
    bits = trace.arg("occupancy_pct").at(rows, missing=missing)
    has = bits != missing
    percent = np.where(has, bits.view(np.float64), 0.0)
    has &= (percent != 0.0) | (trace.arg("shared_bytes").at(rows, missing=0) <= _DEFAULT_SHARED_BYTES)
    return percent, has.astype(np.float64)


def _launches(costs: Sequence[KernelCosts]) -> tuple[float | None, float | None]:
    steps = sum(len(one.rank.steps) for one in costs)
    kernels = launches = 0
    for one in costs:
        work = one.rank.work
        mine = (work.step >= 0) & of_kinds(work.kind, _KERNELS)
        kernels += int(mine.sum())
        launches += len(distinct(work.launch_row[mine]))
    return (kernels / steps, launches / steps) if steps else (None, None)


def _tensor_core_share(costs: Sequence[KernelCosts]) -> float | None:
    on = off = 0
    for one in costs:
        product = one.precision > 0
        on += int(one.duration_ns[product & (one.tensor_core == 1)].sum())
        off += int(one.duration_ns[product & (one.tensor_core == 0)].sum())
    return on / (on + off) if on + off else None


def _bound_share(sums: Iterable[_Sums], bound: Bound) -> float | None:
    computing = [one for one in sums if one.family != _COMMUNICATION]
    total = _sum(computing, "total_ns")
    return _sum(computing, _TIME_BOUND[bound]) / total if total else None


def _sum(sums: Iterable[_Sums], key: str) -> float:
    return sum(one.numbers[key] for one in sums)


# Measurements of Nsight Compute without a trace: its launches by name, the longest first.


def measured_kernels(measured: Sequence[MeasuredLaunches]) -> tuple[Kernel, ...]:
    """Return the measured launches of each name as one kernel: counts and sums over them, means weighted by time.

    A launch is measured alone, with the clocks held, so its time is not that of training. Times are NaN where durations
    were not among the metrics; every launch then counts alike.
    """
    by_name: dict[str, list[KernelMetrics]] = {}
    for one in measured:
        for launch in one.launches:
            by_name.setdefault(launch.name, []).append(launch)
    all_ns = sum(launch.duration_ns or 0.0 for launches in by_name.values() for launch in launches)
    kernels = [_kernel(name, launches, all_ns) for name, launches in by_name.items()]
    return tuple(sorted(kernels, key=lambda k: (0.0 if math.isnan(k.total_ns) else -k.total_ns, k.name)))


def _kernel(name: str, launches: Sequence[KernelMetrics], all_ns: float) -> Kernel:
    took_ns = [launch.duration_ns for launch in launches if launch.duration_ns is not None]
    timed = len(took_ns) == len(launches)
    took_ns = took_ns if timed else [1.0] * len(launches)
    total_ns = sum(took_ns) if timed else math.nan
    kind = kernel_class(name)

    def mean(metric: str) -> float | None:
        values = [(getattr(launch, metric), ns) for launch, ns in zip(launches, took_ns, strict=True)]
        return _weighted((value, ns) for value, ns in values if value is not None)

    sm_pct, memory_pct, dram_pct = mean("sm_pct"), mean("memory_pct"), mean("dram_pct")
    used = [math.nan if pct is None else pct for pct in (sm_pct, dram_pct if memory_pct is None else memory_pct)]
    bound = Bound(int(_bounds_of_use(np.array(used[:1]), np.array(used[1:]))[0]))
    stall, share = _longest_stall(launches, took_ns)
    moved = [(launch.dram_bytes, launch.duration_ns) for launch in launches if launch.dram_bytes and launch.duration_ns]
    occupancy_pct = mean("occupancy_pct")
    return Kernel(
        name=name,
        family=kind.family.value,
        count=float(len(launches)),
        total_ns=total_ns,
        mean_ns=total_ns / len(launches),
        max_ns=max(took_ns) if timed else math.nan,
        share=total_ns / all_ns if all_ns else math.nan,
        tensor_core=kind.tensor_core,
        precision=kind.dtype,
        tflops=None,
        gb_per_s=sum(size for size, _ in moved) / sum(ns for _, ns in moved) if moved else None,
        bound=bound.text,
        bound_from=None if bound == Bound.NONE else "measured",
        occupancy_pct=occupancy_pct,
        occupancy_from=None if occupancy_pct is None else "measured",
        sm_pct=sm_pct,
        dram_pct=dram_pct,
        tensor_pct=mean("tensor_pct"),
        stall=stall,
        stall_share=share,
        measured_share=1.0,
    )


def _longest_stall(launches: Sequence[KernelMetrics], took_ns: Sequence[float]) -> tuple[str | None, float | None]:
    waited: dict[str, float] = {}
    for launch, ns in zip(launches, took_ns, strict=True):
        for reason, share in launch.stalls:
            waited[reason] = waited.get(reason, 0.0) + share * ns
    total = sum(waited.values())
    if not total:
        return None, None
    reason = max(waited, key=lambda name: waited[name])
    return reason, waited[reason] / total


def _weighted(values: Iterable[tuple[float, float]]) -> float | None:
    pairs = list(values)
    weight = sum(ns for _, ns in pairs)
    return sum(value * ns for value, ns in pairs) / weight if weight else None
