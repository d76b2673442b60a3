"""How much work did each kernel do, in which precision, and for which operator call?

An operator's cost is shared out among the kernels it launched, by their time. FLOPs go to those that multiply, where
the names tell (the sum of a split product's parts does none of them); bytes go to all.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_calls import Floats, HostCalls, Mask, Places, host_calls
from stepscope.analyze.phases import graph_builders
from stepscope.contract.flops import PEAK_PRECISIONS
from stepscope.contract.step_line import EVALUATE
from stepscope.cost.chips import Chip, DeviceFacts, Lookup, look_up, nameless
from stepscope.cost.kernel_names import MATMUL_FAMILIES, Family, KernelClass, OpCost, kernel_class
from stepscope.cost.operators import counted_once, may_cost, operator_cost
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.device_work import numbered
from stepscope.run.rank import CPU, Rank
from stepscope.stats.distinct import distinct, distinct_places
from stepscope.trace.classify import EventKind
from stepscope.trace.table import NO_STRING, Int64s, Trace

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

# what names tell: calls that may have a cost, and nodes of the backward pass
_MAY_COST, _BACKWARD = 1, 2

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
    variant = numbered(calls.name[call].astype(np.int64) * (len(trace.strings) + 1) + shape + 1)
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
        return Lookup(
            None, f"the trace of rank {rank.rank} says no more of its device than {device.name}; give its peak"
        )
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


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# in `tensor_core`
_UNKNOWN = -1

# by code of the family
_IS_MATMUL = np.array([family in MATMUL_FAMILIES for family in FAMILIES])
_FP32, _TF32 = PRECISION_CODE["fp32"], PRECISION_CODE["tf32"]
# Devices whose matrix cores take single precision as it is; NVIDIA's round it to TF32.
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
    names, at = distinct(name), numbered(name)
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
    known = np.where(operand > 0, operand, named)
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


# What can the run's chip do? Advice that it cannot follow is none: bfloat16 and TF32 begin with Ampere, fp8 with Ada.
#
# The hardware table tells for chips in it; else the compute capability in the header, or the architecture that kernels
# are named after. None: nothing tells.

_NVIDIA_WARP = 32
_BF16_SINCE, _FP8_SINCE = (8, 0), (8, 9)
_AMD_TF32 = ("9.4",)
_NO_GRAPHS = re.compile(r"gaudi|^hl-|mtia|artemis|ascend|tpu|^cpu$", re.IGNORECASE)
_GENERATIONS = {"volta": "7.0", "turing": "7.5", "ampere": "8.0", "hopper": "9.0", "blackwell": "10.0"}


@dataclass(frozen=True)
class Abilities:
    """What a chip has units or a mode for; None where nothing tells."""

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
