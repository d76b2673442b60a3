"""Which kernels took the device's time, how fast were they on which chip, and what held them back?"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_time import Floats, Mask
from stepscope.analyze.operators import FAMILIES, FAMILY_CODE, PRECISION_CODE, PRECISIONS, CallCosts
from stepscope.cost.chips import Chip, DeviceFacts, Lookup, look_up, nameless
from stepscope.cost.operators import MATMUL_FAMILIES, Family, KernelClass, kernel_class
from stepscope.records import ArrayRecord, Row, dataclass, once_per_record
from stepscope.run.device_work import Rows
from stepscope.run.load import side_by_side
from stepscope.run.rank import CPU, Rank
from stepscope.stats.robust import distinct, distinct_places, median, numbered
from stepscope.trace.table import NO_STRING, EventKind, Int64s, Trace, by_string, of_kinds

if TYPE_CHECKING:
    from stepscope.analyze.nsight_kernels import MeasuredRows

# Which chip did the run compute on, what can it do, and how much of it does a launch use?


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
    return np.array(list(map(_size_of, sizes)), float)[np.searchsorted(known, text)]


def _size_of(text: str) -> int:
    sides = re.findall(r"\d+", text)
    return math.prod(map(int, sides)) if 1 <= len(sides) <= 3 and max(map(len, sides)) <= 10 else 0


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


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


# How much work did each kernel do, in which precision, and for which operator call?
#
# An operator's cost is divided among the kernels it launched, by their time. FLOPs are assigned to those that multiply,
# by name (the sum of a split product's parts does none of them); bytes to all.

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


# What holds each kernel back: arithmetic, memory bandwidth, or the time it takes to start and drain?
#
# Held against the chip's roofline, a kernel needs at least `flops / peak` and `bytes / bandwidth`. The larger of the
# two names its bound. A kernel that is short, or has too few threads to fill the device, and takes more than twice that
# is bound by latency; a matrix product or convolution that takes ten times as long is itself inefficient. Without
# shapes or without a known chip, matrix products are taken as compute-bound, kernels of other families as memory-
# bound, and what holds back a kernel of no known family is unknown.
#
# Where Nsight Compute measured a kernel, what it used of the multiprocessors and of the memory decides instead: the
# larger of the two, and latency where both are below 60 %, as in Nsight Compute's own rule (Speed of Light).

# Kernels below this are short: about what it takes a host to launch the next one.
SHORT_NS = 10_000


# of what a kernel needs at least by its operations and its bytes: one that takes longer is bound by neither
_FAR_SLOWER = 10.0
INEFFICIENT = "inefficient"


class Bound(IntEnum):
    """What holds a kernel back."""

    #: no kernel; communication, bound by the link and by other ranks; or a kernel of unknown family
    NONE = 0
    COMPUTE = 1
    MEMORY = 2
    LATENCY = 3
    #: neither: the kernel is far slower than its operations and its bytes need
    ITSELF = 4

    @property
    def text(self) -> str | None:
        return (None, "compute-bound", "memory-bound", "latency", INEFFICIENT)[self]


# of each row of a rank's work: what holds it back; whether shapes and chip decided that; whether Nsight Compute did
_Bounds = tuple[npt.NDArray[np.uint8], Mask, Mask]


def _kernel_bounds(costs: KernelCosts, *, chip: Chip | None, measured: "MeasuredRows | None") -> _Bounds:
    duration = costs.duration_ns
    compute_ns, memory_ns = _least_ns(costs, chip)
    known = ~np.isnan(compute_ns + memory_ns)
    computes = np.where(known, compute_ns >= memory_ns, costs.is_matmul)
    bound = np.where(computes, np.uint8(Bound.COMPUTE), np.uint8(Bound.MEMORY))
    np.putmask(bound, ~known & (costs.family == FAMILY_CODE[Family.OTHER]), Bound.NONE)
    least_ns = np.where(known, np.maximum(compute_ns, memory_ns), 0.0)
    np.putmask(bound, known & costs.is_matmul & (duration > _FAR_SLOWER * least_ns), Bound.ITSELF)
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
    return bound, known & ~metered, metered


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


def distributions(costs: Sequence[KernelCosts]) -> Row | None:
    """Return how kernels and queues are distributed, as means over ranks, None where nothing ran on a device."""
    known = [one for one in costs if one.rank.has_device]
    if not known:
        return None
    count: dict[str, Floats] = {}
    time_ns: dict[str, Floats] = {}
    for one in known:
        work = one.rank.work
        kernels = np.isin(work.kind, (EventKind.KERNEL, EventKind.COMM_KERNEL))
        bins = np.searchsorted(FIRST_BIN_NS * 2 ** np.arange(NUM_BINS - 1), one.duration_ns, side="right")
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
    return Row(
        families=families,
        # kernels by family and bin of duration, and their time
        count=np.array([count[name] for name in families]),
        time_ns=np.array([time_ns[name] for name in families]),
        # of the time between the first launch and the last start, by bin of the queue's length; sums to 1
        queue_share=np.mean(shares, axis=0),
        # length that half of all launches find or exceed
        queue_median=median(lengths) if lengths else None,
    )


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


# The table of kernels: sums by name over all ranks, and what follows from them.
#
# The sum `x_of_ns` is the time over which `x`, weighted by time, is known. Launches that Nsight Compute measured
# without a trace are rows of the same sums: each was measured alone, with the clocks held, so its time is not that of
# training.

# of a block on any CUDA device; more needs an explicit request
_DEFAULT_SHARED_BYTES = 48 << 10
_KERNELS = (EventKind.KERNEL, EventKind.COMM_KERNEL)
_METRICS = ("sm_pct", "dram_pct", "tensor_pct", "memory_pct")
NO_KERNELS = Row(
    dict.fromkeys(("kernels_per_step", "launches_per_step", "tensor_core_share", "memory_bound_share")),
    kernels=[],
    total_ns=0.0,
    short_count_share=0.0,
    short_time_share=0.0,
    unknown_share=0.0,
)

_Sums = defaultdict[str, float]
# family, use of tensor cores and precision
_Kind = tuple[str, bool | None, str | None]


def kernel_table(
    costs: Sequence[KernelCosts], *, chip: Chip | None, measured: Sequence[Row] = (), jobs: int = 1
) -> Row:
    """Return the kernels of all ranks by time; counts and times are means per rank.

    Without a chip the bound follows from the family alone.
    """
    sums: dict[str, _Sums] = defaultdict(_no_sums)
    kinds: dict[str, _Kind] = {}
    longest: dict[str, int] = defaultdict(int)
    for rows in side_by_side(jobs, lambda one: _sums_of_rank(one, chip, measured), costs):
        for name, kind, max_ns, values in rows:
            kinds.setdefault(name, kind)
            longest[name] = max(longest[name], max_ns)
            _add(sums[name], values)
    every, computing = _no_sums(), _no_sums()
    for name, one in sums.items():
        _add(every, one)
        _add(computing, one if kinds[name][0] != _COMMUNICATION else {})
    num_ranks, steps = max(len(costs), 1), sum(len(one.rank.steps) for one in costs)
    launches = sum(len(distinct(one.rank.work.launch_row[_in_steps(one.rank)])) for one in costs)
    kernels = [
        _kernel(name, kinds[name], one, longest[name], every["total_ns"], num_ranks=num_ranks, num_steps=steps)
        for name, one in sums.items()
    ]
    product_ns = every["on_tensor_cores_ns"] + every["off_tensor_cores_ns"]
    return Row(
        kernels=sorted(kernels, key=lambda k: (-k.total_ns, k.name)),
        total_ns=every["total_ns"] / num_ranks,
        kernels_per_step=every["in_steps"] / steps if steps else None,
        launches_per_step=launches / steps if steps else None,  # a graph launches many kernels by one host call
        short_count_share=_ratio(every, "short", "count") or 0.0,
        short_time_share=_ratio(every, "short_ns", "total_ns") or 0.0,
        # of matrix products; None without any or where no kernel name shows it
        tensor_core_share=every["on_tensor_cores_ns"] / product_ns if product_ns else None,
        # of the time of compute kernels
        memory_bound_share=_ratio(computing, Bound.MEMORY.name, "total_ns"),
        unknown_share=_ratio(computing, Bound.NONE.name, "total_ns") or 0.0,
    )


def measured_kernels(measured: Sequence[Row]) -> list[Row]:
    """Return the measured launches of each name as one kernel: counts and sums over them, means weighted by time.

    Times are NaN where durations were not among the metrics; every launch then counts alike.
    """
    from stepscope.analyze.nsight_kernels import MeasuredRows  # only where kernels were measured

    by_name: dict[str, list[Row]] = defaultdict(list)
    for launch in (launch for one in measured for launch in one.launches):
        by_name[launch.name].append(launch)
    all_ns = sum(launch.duration_ns or 0.0 for launches in by_name.values() for launch in launches)
    found = []
    for name, launches in by_name.items():
        timed, every = all(launch.duration_ns is not None for launch in launches), np.arange(len(launches))
        duration = np.array([(launch.duration_ns or 0.0) if timed else 1.0 for launch in launches])
        weights = _measured_weights(MeasuredRows(every, tuple(launches), 0), every, duration)
        total_ns = float(duration.sum())
        sums = _no_sums() | {"count": len(launches), "total_ns": total_ns, "measured_ns": total_ns}
        _add(sums, {key: float(values.sum()) for key, values in weights})
        memory = _mean(sums, "dram_pct") if _mean(sums, "memory_pct") is None else _mean(sums, "memory_pct")
        use = np.array([[_mean(sums, "sm_pct")], [memory]], float)
        sums[Bound(int(_bounds_of_use(*use)[0])).name] = 1
        kind = kernel_class(name)
        row = _kernel(
            name,
            (kind.family.value, kind.tensor_core, kind.dtype),
            sums,
            float(duration.max()),
            all_ns or math.nan,
            num_ranks=1,
            num_steps=0,
        )
        unknown = {} if timed else dict.fromkeys(("total_ns", "mean_ns", "max_ns", "share"), math.nan)
        found.append(Row(row | unknown))
    return sorted(found, key=lambda k: (0.0 if math.isnan(k.total_ns) else -k.total_ns, k.name))


def _kernel(
    name: str, kind: _Kind, sums: _Sums, max_ns: float, all_ns: float, *, num_ranks: int, num_steps: int
) -> Row:
    """Return all kernels of one name; the columns are described in `tables/schema.py`."""
    bound = max(Bound, key=lambda b: sums[b.name])
    how = "measured" if 2 * sums["measured_ns"] > sums["total_ns"] else "shapes" if sums["from_shapes"] else "family"
    stalls = {key.removeprefix("stall "): ns for key, ns in sums.items() if ns and key.startswith("stall ")}
    stall = max(stalls, key=lambda reason: (stalls[reason], reason), default=None)
    rate, moved, flops = (_mean(sums, key) for key in ("dram_gb_per_s", "bytes", "flops"))
    occupancy, estimated = (_mean(sums, key) for key in ("occupancy_pct", "estimated_occupancy"))
    return Row(
        name=name,
        family=kind[0],
        count=sums["count"] / num_ranks,
        total_ns=sums["total_ns"] / num_ranks,
        mean_ns=sums["total_ns"] / sums["count"],
        max_ns=max_ns,
        share=sums["total_ns"] / all_ns if all_ns else 0.0,
        tensor_core=kind[1],
        precision=kind[2],
        tflops=None if flops is None else flops / 1e3,
        gb_per_s=moved if rate is None else rate,
        bound=bound.text,
        bound_from=how if bound.text else None,
        occupancy_pct=estimated if occupancy is None else occupancy,
        occupancy_from="measured" if occupancy is not None else None if estimated is None else "estimated",
        sm_pct=_mean(sums, "sm_pct"),
        dram_pct=_mean(sums, "dram_pct"),
        tensor_pct=_mean(sums, "tensor_pct"),
        stall=stall,
        stall_share=stalls[stall] / sum(stalls.values()) if stall else None,
        count_per_step=sums["in_steps"] / num_steps if num_steps else None,
        step_ns=sums["in_steps_ns"] / num_steps if num_steps else None,
        measured_share=_ratio(sums, "measured_ns", "total_ns") or 0.0,
    )


def _no_sums() -> _Sums:
    return defaultdict(float)


def _add(sums: _Sums, more: Mapping[str, float]) -> None:
    for key, value in more.items():
        sums[key] += value


def _ratio(sums: _Sums, part: str, whole: str) -> float | None:
    return sums[part] / sums[whole] if sums[whole] else None


def _mean(sums: _Sums, name: str) -> float | None:
    return _ratio(sums, name, f"{name}_of_ns")


def _in_steps(rank: Rank) -> Mask:
    return (rank.work.step >= 0) & of_kinds(rank.work.kind, _KERNELS)


def _sums_of_rank(
    costs: KernelCosts, chip: Chip | None, measured: Sequence[Row]
) -> list[tuple[str, _Kind, int, dict[str, float]]]:
    """Return by name what its kernels are, the longest of them, and their sums."""
    rows = None
    if measured:
        from stepscope.analyze.nsight_kernels import measured_rows  # only where kernels were measured

        rows = measured_rows(costs.rank, measured)
    work, strings = costs.rank.work, costs.rank.trace.strings
    kernels = np.flatnonzero(of_kinds(work.kind, _KERNELS))
    names, group = numbered(work.name[kernels].astype(np.int64))
    columns = _weights(costs, kernels, _kernel_bounds(costs, chip=chip, measured=rows), rows)
    sums = {key: np.bincount(group, values, minlength=len(names)).tolist() for key, values in columns}
    longest, example = np.zeros(len(names), np.int64), np.empty(len(names), np.int64)
    np.maximum.at(longest, group, costs.duration_ns[kernels])
    example[group[::-1]] = kernels[::-1]  # the first of each is written last
    explained = costs.call[kernels] >= 0
    example[group[explained]] = kernels[explained]  # its operator is more specific than the name alone
    by_name = (dict(zip(sums, values, strict=True)) for values in zip(*sums.values(), strict=True))
    texts, kinds = (strings[i] for i in names.tolist()), (_kind(costs, i) for i in example.tolist())
    return list(zip(texts, kinds, longest.tolist(), by_name, strict=True))


def _kind(costs: KernelCosts, i: int) -> _Kind:
    communicates = int(costs.rank.work.kind[i]) == EventKind.COMM_KERNEL
    tells = not costs.is_matmul[i] or costs.tensor_core[i] >= 0  # the name of a product may not
    precision = PRECISIONS[costs.precision[i]] if costs.precision[i] else None
    family = _COMMUNICATION if communicates else FAMILIES[costs.family[i]].value
    return family, bool(costs.tensor_core[i] == 1) if tells else None, precision


def _weights(
    costs: KernelCosts, kernels: Rows, bounds: _Bounds, measured: "MeasuredRows | None"
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    duration, product = costs.duration_ns[kernels].astype(np.float64), costs.precision[kernels] > 0
    in_steps, short = costs.rank.work.step[kernels] >= 0, duration < SHORT_NS
    yield from (("count", np.ones(len(kernels))), ("in_steps", in_steps), ("short", short))
    yield from (("total_ns", duration), ("in_steps_ns", duration * in_steps), ("short_ns", duration * short))
    held_back, from_shapes, metered = (column[kernels] for column in bounds)
    yield from (("from_shapes", from_shapes), ("measured_ns", duration * metered))
    yield from ((bound.name, duration * (held_back == bound)) for bound in Bound)
    for key, used in (("on_tensor_cores_ns", 1), ("off_tensor_cores_ns", 0)):
        yield key, duration * (product & (costs.tensor_core[kernels] == used))
    for key, values in (("flops", costs.flops[kernels]), ("bytes", costs.bytes[kernels])):
        known = values > 0  # NaN is not
        yield from ((key, np.where(known, values, 0.0)), (f"{key}_of_ns", duration * known))
    yield from _weighted("estimated_occupancy", _occupancy(costs, kernels), duration)
    if measured is not None:
        yield from _measured_weights(measured, kernels, duration)


def _measured_weights(measured: "MeasuredRows", rows: Rows, duration: Floats) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for name in (*_METRICS, "occupancy_pct"):
        yield from _weighted(name, measured.values(name)[rows], duration)
    yield from _weighted("dram_gb_per_s", measured.dram_gb_per_s[rows], duration)
    shares = [dict(launch.stalls) for launch in measured.launches]
    for reason in sorted({reason for one in shares for reason in one}):
        of_launch = np.array([*(one.get(reason, 0.0) for one in shares), 0.0])  # in the last place: of no launch
        yield f"stall {reason}", of_launch[measured.launch[rows]] * duration


def _weighted(name: str, values: Floats, duration: Floats) -> Iterator[tuple[str, Floats]]:
    yield name, np.nan_to_num(values) * duration
    yield f"{name}_of_ns", ~np.isnan(values) * duration


def _occupancy(costs: KernelCosts, kernels: Rows) -> Floats:
    """Return the recorded occupancy in percent, NaN where there is none.

    CUPTI's estimate ignores that a kernel may request more shared memory than the default, so no block fits and the
    estimate is 0: most matrix products of Hopper. With less of it 0 is a very small grid.
    """
    trace, rows = costs.rank.trace, costs.rank.work.row[kernels]
    percent = trace.arg("occupancy_pct").at(rows, missing=-1).view(np.float64)  # -1 is a NaN, which no trace holds
    large = trace.arg("shared_bytes").at(rows, missing=0) > _DEFAULT_SHARED_BYTES
    return np.where((percent == 0.0) & large, np.nan, percent)
