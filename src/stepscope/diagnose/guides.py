"""Guides: what to look at when MFU is low, communication slow, memory short, the device idle, mixed precision
dear or the batch small. Each item is measured and marked pass, fail or not measured, with what to do where it fails.

A guide is shown when its subject applies to the run; a subject that cannot be judged does not apply.
"""

from collections.abc import Callable, Sequence

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.efficiency import precision_shares
from stepscope.analyze.kernel_costs import Abilities, abilities
from stepscope.analyze.memory import Growth, MemoryView, RankMemory
from stepscope.contract.collectives import element_bytes
from stepscope.dataclass import dataclass
from stepscope.diagnose.checks import (
    NO_DEVICE,
    Check,
    Measurement,
    Range,
    checked,
    data_loading,
    device_share,
    device_utilisation,
    memory_of_limit,
    on_device,
    part_share,
)
from stepscope.records import once_per_record
from stepscope.run.matching import POINT_TO_POINT
from stepscope.stats.distinct import among, distinct
from stepscope.units import readable_bytes

# Numbers that only the guides ask for, each with how it was measured or why it could not be.

_NARROW = ("fp16", "bf16", "fp8")
_SOFTMAX = ("aten::_softmax", "aten::_softmax_backward_data", "aten::_safe_softmax")
_NO_SHAPES = "no kernel of a matrix product has recorded shapes (record with --shapes)"
_NO_MEMORY = "no memory was recorded: record with --memory"
_MB = 1e6


def _share(value: float | None, how: str, why_not: str) -> Measurement:
    return Measurement(None, why_not) if value is None else Measurement(100 * value, how)


def _tensor_cores(account: Account) -> Measurement:
    found = account.kernels.tensor_core_share
    return _share(found, "of the time of matrix products, by kernel names", "no kernel name tells of a matrix product")


def _sixteen_bit(account: Account) -> Measurement:
    shares = _precision_shares(account)
    if not shares:
        return Measurement(None, "the operand types of matrix products are not known")
    said = ", ".join(f"{name} {100 * part:.0f} %" for name, part in shares.items())
    return Measurement(100 * sum(shares.get(name, 0.0) for name in _NARROW), said)


@once_per_record
def _precision_shares(account: Account) -> dict[str, float]:
    return precision_shares([view.costs for view in account.ranks])


def _matmul_rate(account: Account) -> Measurement:
    peak = account.efficiency.peak_tflops
    if peak is None:
        return Measurement(None, "the peak of the device is not known (--peak-tflops)")
    flops = time_ns = 0.0
    for c in (view.costs for view in account.ranks):
        known = np.flatnonzero(c.is_matmul & (c.flops > 0))  # NaN is not above 0
        flops, time_ns = flops + float(c.flops[known].sum()), time_ns + float(c.duration_ns[known].sum())
    if not time_ns:
        return Measurement(None, _NO_SHAPES)
    reached = flops / time_ns / 1e3
    return Measurement(100 * reached / peak, f"{reached:.0f} of {peak:.0f} TFLOP/s while they run")


def _recomputed(account: Account) -> Measurement:
    used = account.efficiency
    if not used.flops_per_step or used.recomputed_flops_per_step is None:
        return Measurement(None, "FLOPs per step, or how many are repeated, are not known")
    return Measurement(100 * used.recomputed_flops_per_step / used.flops_per_step, "of the model's FLOPs")


def _operators_share(account: Account, chosen: Callable[[str], bool], what: str) -> Measurement:
    table = account.operators
    if not on_device(account) or not table.device_busy_ns:
        return Measurement(None, NO_DEVICE)
    if not table.operators:
        return Measurement(None, "no operators were recorded")
    time_ns = sum(o.device_total_ns for o in table.operators if chosen(o.name))
    return Measurement(100 * time_ns / table.device_busy_ns, f"device time of {what} against all device work")


def _softmax_written_out(account: Account) -> Measurement:
    return _operators_share(account, lambda name: name in _SOFTMAX, "softmax operators")


def _calls_per_step(account: Account, name: str) -> Measurement:
    if not account.num_steps or not account.operators.operators:
        return Measurement(None, "no steps or no operators were recorded")
    calls = sum(o.calls for o in account.operators.operators if o.name == name)
    return Measurement(calls / account.num_steps, f"calls of {name}, mean rank")


def _overlap(account: Account) -> Measurement:
    found = account.overlap_efficiency
    return _share(found, "compute and communication together / the smaller of both", "no communication next to compute")


def _waiting_in_collectives(account: Account) -> Measurement:
    waits = [view.wait for view in account.ranks]
    known = [w for w in waits if w is not None and w.wait_ns is not None and w.transfer_ns is not None]
    total = sum((w.wait_ns or 0) + (w.transfer_ns or 0) for w in known)
    if not total:
        return Measurement(None, "no collectives could be matched across ranks")
    return Measurement(100 * sum(w.wait_ns or 0 for w in known) / total, "of the time in matched collectives")


def _message_mb(account: Account) -> Measurement:
    sizes = np.concatenate([_sizes(account, i) for i in range(len(account.run.ranks))] or [np.empty(0)])
    if not len(sizes):
        return Measurement(None, "the sizes of collectives were not recorded")
    ordered = np.sort(sizes)
    half = ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)]
    return Measurement(float(half) / _MB, f"half of the bytes travel in smaller ones; {len(sizes)} calls in the window")


def _sizes(account: Account, index: int) -> np.ndarray:
    c = account.run.ranks[index].collectives
    size = c.full_bytes[(c.step >= 0) & ~among(c.op, POINT_TO_POINT)]
    return size[size > 0].astype(float)


def _narrow_messages(account: Account) -> Measurement:
    narrow = known = 0.0
    for rank in account.run.ranks:
        c = rank.collectives
        rows = np.flatnonzero((c.step >= 0) & (c.record_row >= 0) & (c.full_bytes > 0))
        types = rank.trace.arg("dtype").at(c.record_row[rows], missing=-1)
        for code in distinct(types[types >= 0]):
            width = element_bytes(rank.trace.text(int(code)))
            if width is not None:
                size = float(c.full_bytes[rows][types == code].sum())
                known, narrow = known + size, narrow + size * (width <= 2)
    if not known:
        return Measurement(None, "the element types of collectives were not recorded")
    return Measurement(100 * narrow / known, "of the bytes whose type was recorded")


def _syncs_per_step(account: Account) -> Measurement:
    view = account.views.buckets
    if view is None:
        return Measurement(None, "no gradient all-reduces were found")
    most = max(r.syncs for r in view.ranks)
    return Measurement(most, f"of {max(r.backward_passes for r in view.ranks):g} backward passes per step")


def _link_use(account: Account) -> Measurement:
    chip = account.chip.chip
    rates = [row.busbw_gb_per_s for row in account.collectives if row.busbw_gb_per_s is not None]
    if chip is None or chip.link_gb_per_s is None:
        return Measurement(
            None, "the links of the device are not in the hardware table; stepscope calibrate measures them"
        )
    if not rates:
        return Measurement(None, "no collective has a measured bandwidth")
    said = f"best collective {max(rates):.1f} of {chip.link_gb_per_s:g} GB/s of {chip.link or 'the chip'}"
    return Measurement(100 * max(rates) / chip.link_gb_per_s, f"{said}; another network between the ranks has less")


def stragglers(account: Account) -> Measurement:
    """Return how many ranks are late."""
    if len(account.run.ranks) < 2:
        return Measurement(None, "one rank alone cannot be late")
    named = ", ".join(f"rank {s.rank} by {s.cause}" for s in account.stragglers)
    return Measurement(float(len(account.stragglers)), named or "no rank is late")


def _short_kernels(account: Account) -> Measurement:
    if not account.kernels.kernels:
        return Measurement(None, NO_DEVICE)
    return Measurement(100 * account.kernels.short_count_share, "of all kernels take less than 10 us")


def _occupancy(account: Account) -> Measurement:
    known = [k for k in account.kernels.kernels if k.occupancy_pct is not None and k.family != "communication"]
    total = sum(k.total_ns for k in known)
    if not total:
        return Measurement(None, "the trace holds no occupancy")
    return Measurement(
        sum((k.occupancy_pct or 0.0) * k.total_ns for k in known) / total, "as the profiler estimates it"
    )


def _max_over_ranks(
    memory: MemoryView | None, number: Callable[[RankMemory], float | None], what: str, *, reason: str = ""
) -> Measurement:
    if memory is None:
        return Measurement(None, _NO_MEMORY)
    values = [v for v in map(number, memory.ranks) if v is not None]
    reasons = [rank.reasons[reason] for rank in memory.ranks if reason in rank.reasons]
    return (
        Measurement(max(values), what)
        if values
        else Measurement(None, reasons[0] if reasons else "it was not recorded")
    )


def _cache_pct(rank: RankMemory) -> float | None:
    if rank.cache_bytes is None or not rank.peak_reserved_bytes:
        return None
    return 100 * rank.cache_bytes / rank.peak_reserved_bytes


def _leak(memory: MemoryView | None, grown: Callable[[RankMemory], Growth | None], where: str) -> Measurement:
    if memory is None:
        return Measurement(None, _NO_MEMORY)
    found: Sequence[Growth] = [g for g in map(grown, memory.ranks) if g is not None]
    if not found:
        return Measurement(None, "fewer than eight steps with a memory sample: step logs have them")
    worst = max(found, key=lambda g: g.bytes_per_step if g.leaks else 0.0)
    if not worst.leaks:
        return Measurement(0.0, f"{where} does not grow over {worst.num_steps} steps")
    return Measurement(worst.bytes_per_step / _MB, f"{readable_bytes(worst.total_bytes)} over {worst.num_steps} steps")


# What a guide tells to do where it depends on the chip: no bfloat16 or TF32 is advised to a chip that has none.


def _can(account: Account) -> Abilities:
    return abilities(account.run.ranks, account.chip.chip)


def _onto_tensor_cores(account: Account) -> str:
    return (
        _guide_remedies_sixteen_bit(account)
        if _can(account).tf32 is False
        else "torch.set_float32_matmul_precision('high')"
    )


def _guide_remedies_sixteen_bit(account: Account) -> str:
    return f"torch.autocast('cuda', torch.{_can(account).narrow})"


def _guide_remedies_narrow_messages(account: Account) -> str:
    narrow = _can(account).narrow
    return f"{'fp16' if narrow == 'float16' else 'bf16'}_compress_hook, reduce_dtype=torch.{narrow}"


def _without_scaler(account: Account) -> str:
    if _can(account).bf16 is False:
        return "none on this chip: float16 needs the scaler, and it has no bfloat16"
    return "train in bfloat16 without GradScaler"


_BUSY_PCT = 80.0
_DEAR_CASTS_PCT = 5.0


@dataclass(frozen=True)
class Item:
    """One thing to look at."""

    check: Check
    remedy: str


@dataclass(frozen=True)
class Guide:
    """A check list for one subject."""

    id: str
    title: str
    #: the number by which it applies
    why: str
    items: tuple[Item, ...]


def guides_of(account: Account) -> list[Guide]:
    """Return the guides whose subject applies to the run."""
    found = []
    for name, title, applies, items in (
        ("low-mfu", "Low MFU", _low_mfu, _mfu_items),
        ("slow-communication", "Slow communication", _slow_communication, _communication_items),
        ("memory-pressure", "Memory pressure", _memory_pressure, _memory_items),
        ("low-device-utilisation", "Low device utilisation", _low_utilisation, _utilisation_items),
        ("mixed-precision-overhead", "Mixed-precision overhead", _mixed_precision, _mixed_precision_items),
        ("small-batches", "Small batches", _small_batches, _small_batch_items),
    ):
        why = applies(account)
        if why is not None:
            found.append(Guide(name, title, why, tuple(items(account))))
    return found


def _item(name: str, found: Measurement, good: Range, remedy: str) -> Item:
    return Item(checked(name, found, good=good), remedy)


def _below(limit: float) -> Range:
    return Range(high=limit)


def _above(limit: float) -> Range:
    return Range(low=limit)


def _at_most(limit: float) -> Range:
    return Range(high=limit, open=False)


# Low MFU -----------------------------------------------------------------------------------------------------------


def _low_mfu(account: Account) -> str | None:
    mfu = account.efficiency.mfu
    return None if mfu is None or mfu >= 0.40 else f"MFU is {100 * mfu:.1f} %; large dense models reach 40 and more"


def _mfu_items(account: Account) -> list[Item]:
    lost = ("exposed_transfer", "wait", "pipeline_bubble")
    return [
        _item("tensor_cores_pct", _tensor_cores(account), _above(95), _onto_tensor_cores(account)),
        _item("sixteen_bit_pct", _sixteen_bit(account), _above(90), _guide_remedies_sixteen_bit(account)),
        _item("matmul_rate_pct", _matmul_rate(account), _above(60), "larger matrices, sizes that are multiples of 64"),
        _item("device_utilisation_pct", device_utilisation(account), _above(80), "the guide on device utilisation"),
        _item("communication_pct", part_share(account, *lost), _below(10), "the guide on communication"),
        _item("data_loading_pct", data_loading(account), _below(10), "more loader workers, prefetch, pinned memory"),
        _item(
            "launch_gap_pct", device_share(account, "launch_gap"), _below(5), "torch.compile(mode='reduce-overhead')"
        ),
        _item("softmax_pct", _softmax_written_out(account), _below(1), "F.scaled_dot_product_attention"),
        _item(
            "memory_bound_pct",
            _share(account.kernels.memory_bound_share, "of compute-kernel time", "no compute kernels"),
            _below(50),
            "torch.compile, fused norms and activations",
        ),
        _item("recomputed_pct", _recomputed(account), _below(10), "checkpoint fewer blocks, or selectively"),
    ]


# Slow communication ------------------------------------------------------------------------------------------------


def _slow_communication(account: Account) -> str | None:
    found, step = part_share(account, "exposed_transfer", "wait"), account.step
    if found.value is None or step is None:
        return None
    share = found.value + 100 * step.unmatched_ns / step.step_ns
    if share < 10.0:
        return None
    return f"exposed communication takes {share:.0f} % of the {account.whole}"


def _communication_items(account: Account) -> list[Item]:
    return [
        _item("stragglers", stragglers(account), _at_most(0), "the late rank first: a faster link does not help it"),
        _item("waiting_pct", _waiting_in_collectives(account), _below(20), "even out the ranks before the network"),
        _item("overlap_pct", _overlap(account), _above(80), "DDP buckets, FSDP prefetch: send while computing"),
        _item("message_mb", _message_mb(account), _above(1), "larger buckets (bucket_cap_mb=25), fewer calls"),
        _item("syncs_per_step", _syncs_per_step(account), _at_most(1), "model.no_sync() but for the last micro-batch"),
        _item("narrow_pct", _narrow_messages(account), _above(90), _guide_remedies_narrow_messages(account)),
        _item("link_pct", _link_use(account), _above(50), "NCCL_DEBUG=INFO, nvidia-smi topo -m, stepscope calibrate"),
    ]


# Memory pressure ---------------------------------------------------------------------------------------------------


def _memory_pressure(account: Account) -> str | None:
    full = memory_of_limit(account.memory)
    if full.value is not None and full.value >= 80.0:
        return f"{full.value:.0f} % of the device's memory is in use: {full.how}"
    calls = _max_over_ranks(account.memory, lambda r: r.allocator_calls, "calls per step")
    if calls.value is not None and calls.value > 1:
        return f"the device's allocator is called {calls.value:g} times per step"
    grown = _leak(account.memory, lambda r: r.growth, "allocated memory")
    return f"memory grows by {grown.value:.1f} MB per step" if grown.value else None


def _memory_items(account: Account) -> list[Item]:
    calls = _max_over_ranks(
        account.memory, lambda r: r.allocator_calls, "calls per step that get or return device memory"
    )
    retries = _max_over_ranks(
        account.memory, lambda r: r.allocator_retries, "times the cache was emptied", reason="allocator_retries"
    )
    cached = _max_over_ranks(account.memory, _cache_pct, "of what is reserved at the peak")
    grown = _leak(account.memory, lambda r: r.growth, "allocated memory")
    host = _leak(account.memory, lambda r: r.host_growth, "the host's memory")
    fragments = Measurement(None, "totals do not tell how free memory is cut up; a memory snapshot does")
    return [
        _item(
            "memory_pct_of_limit",
            memory_of_limit(account.memory),
            _below(95),
            "smaller micro-batches, checkpointing, FSDP",
        ),
        _item("allocator_calls", calls, _at_most(1), "no empty_cache() in the loop; expandable_segments:True"),
        _item("allocator_retries", retries, _at_most(0), "lower the peak: a retry empties the cache"),
        _item("cache_pct", cached, _below(20), "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        _item("growth_mb_per_step", grown, _at_most(0), "loss.item() in logs, no lists of tensors with graphs"),
        _item("host_growth_mb_per_step", host, _at_most(0), "loader workers that keep Python objects"),
        _item("fragmentation_pct", fragments, _below(10), "record with --memory and look at the snapshot"),
    ]


# Low device utilisation --------------------------------------------------------------------------------------------


def _low_utilisation(account: Account) -> str | None:
    found = device_utilisation(account)
    return (
        None
        if found.value is None or found.value > _BUSY_PCT
        else f"the device is busy {found.value:.0f} % of the {account.whole}"
    )


def _utilisation_items(account: Account) -> list[Item]:
    return [
        _item("data_loading_pct", data_loading(account), _below(10), "DataLoader(num_workers=4, pin_memory=True)"),
        _item(
            "launch_gap_pct", device_share(account, "launch_gap"), _below(5), "torch.compile(mode='reduce-overhead')"
        ),
        _item(
            "host_sync_pct", device_share(account, "host_sync"), _below(5), "no .item(), .cpu() or print in the step"
        ),
        _item("host_stall_pct", device_share(account, "host_stall"), _below(5), "gc.freeze(), checkpoints in a thread"),
        _item("allocator_pct", device_share(account, "allocator"), _below(1), "no empty_cache(), constant shapes"),
        _item("copies_pct", device_share(account, "copy"), _below(5), "pinned memory, non_blocking=True"),
        _item("unknown_pct", device_share(account, "unknown"), _below(5), "other processes on the device: nvidia-smi"),
        _item("short_kernels_pct", _short_kernels(account), _below(50), "larger batches, fused kernels"),
    ]


# Mixed-precision overhead ------------------------------------------------------------------------------------------


def _mixed_precision(account: Account) -> str | None:
    if not _sixteen_bit(account).value:
        return None
    scaler, casts = _scaler(account), _casts(account)
    if scaler.value:
        return f"matrix products run in {account.efficiency.precision} with loss scaling"
    return f"casts take {casts.value:.0f} % of all device work" if (casts.value or 0.0) >= _DEAR_CASTS_PCT else None


def _mixed_precision_items(account: Account) -> list[Item]:
    reads = _calls_per_step(account, "aten::_local_scalar_dense")
    return [
        _item("loss_scaling_pct", _scaler(account), _below(0.5), _without_scaler(account)),
        _item(
            "casts_pct", _casts(account), _below(_DEAR_CASTS_PCT), "parameters in bfloat16, or autocast's cache left on"
        ),
        _item("reads_per_step", reads, _at_most(1), "one .item() per step at most: GradScaler alone needs one"),
    ]


def _casts(account: Account) -> Measurement:
    return _operators_share(account, lambda name: name == "aten::_to_copy", "casts and copies (aten::_to_copy)")


def _scaler(account: Account) -> Measurement:
    return _operators_share(account, lambda name: "_amp_" in name, "gradient-scaler operators")


# Small batches -----------------------------------------------------------------------------------------------------


def _small_batches(account: Account) -> str | None:
    short, busy = _short_kernels(account), device_utilisation(account)
    if short.value is None or busy.value is None or short.value < 50.0 or busy.value > _BUSY_PCT:
        return None
    return f"{short.value:.0f} % of kernels are shorter than a launch and the device is busy {busy.value:.0f} %"


def _small_batch_items(account: Account) -> list[Item]:
    raise_it = "raise the batch per device: there is room"
    return [
        _item("short_kernels_pct", _short_kernels(account), _below(50), "raise the batch, or launch as a graph"),
        _item(
            "launch_gap_pct", device_share(account, "launch_gap"), _below(5), "torch.compile(mode='reduce-overhead')"
        ),
        _item("matmul_rate_pct", _matmul_rate(account), _above(30), "matrices too small to fill the device"),
        _item("occupancy_pct", _occupancy(account), _above(30), "too few blocks per kernel: raise the batch"),
        _item("memory_pct_of_limit", memory_of_limit(account.memory), _above(50), raise_it),
    ]
