"""Guides: what to look at when MFU is low, communication slow, memory short, the device idle, mixed precision
dear or the batch small. Each item is measured and marked pass, fail or not measured, with what to do where it fails.

A guide is shown when its subject applies to the run; a subject that cannot be judged does not apply.
"""

from stepscope.analyze.account import Account
from stepscope.dataclass import dataclass
from stepscope.diagnose import guide_measures as of
from stepscope.diagnose import guide_remedies as remedies
from stepscope.diagnose.checks import Check, Range, checked
from stepscope.diagnose.measurements import (
    Measurement,
    data_loading,
    device_share,
    device_utilisation,
    memory_of_limit,
    part_share,
)

_LOW_MFU = 0.40
_SLOW_COMMUNICATION_PCT = 10.0
_FULL_PCT = 80.0
_BUSY_PCT = 80.0
_SHORT_KERNELS_PCT = 50.0
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
    why: str
    """the number by which it applies"""
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
    return None if mfu is None or mfu >= _LOW_MFU else f"MFU is {100 * mfu:.1f} %; large dense models reach 40 and more"


def _mfu_items(account: Account) -> list[Item]:
    lost = ("exposed_transfer", "wait", "pipeline_bubble")
    return [
        _item("tensor_cores_pct", of.tensor_cores(account), _above(95), remedies.onto_tensor_cores(account)),
        _item("sixteen_bit_pct", of.sixteen_bit(account), _above(90), remedies.sixteen_bit(account)),
        _item(
            "matmul_rate_pct", of.matmul_rate(account), _above(60), "larger matrices, sizes that are multiples of 64"
        ),
        _item("device_utilisation_pct", device_utilisation(account), _above(80), "the guide on device utilisation"),
        _item("communication_pct", part_share(account, *lost), _below(10), "the guide on communication"),
        _item("data_loading_pct", data_loading(account), _below(10), "more loader workers, prefetch, pinned memory"),
        _item(
            "launch_gap_pct", device_share(account, "launch_gap"), _below(5), "torch.compile(mode='reduce-overhead')"
        ),
        _item("softmax_pct", of.softmax_written_out(account), _below(1), "F.scaled_dot_product_attention"),
        _item(
            "memory_bound_pct",
            of.share(account.kernels.memory_bound_share, "of compute-kernel time", "no compute kernels"),
            _below(50),
            "torch.compile, fused norms and activations",
        ),
        _item("recomputed_pct", of.recomputed(account), _below(10), "checkpoint fewer blocks, or selectively"),
    ]


# Slow communication ------------------------------------------------------------------------------------------------


def _slow_communication(account: Account) -> str | None:
    found, step = part_share(account, "exposed_transfer", "wait"), account.step
    if found.value is None or step is None:
        return None
    share = found.value + 100 * step.unmatched_ns / step.step_ns
    if share < _SLOW_COMMUNICATION_PCT:
        return None
    return f"exposed communication takes {share:.0f} % of the {account.whole}"


def _communication_items(account: Account) -> list[Item]:
    return [
        _item("stragglers", of.stragglers(account), _at_most(0), "the late rank first: a faster link does not help it"),
        _item("waiting_pct", of.waiting_in_collectives(account), _below(20), "even out the ranks before the network"),
        _item("overlap_pct", of.overlap(account), _above(80), "DDP buckets, FSDP prefetch: send while computing"),
        _item("message_mb", of.message_mb(account), _above(1), "larger buckets (bucket_cap_mb=25), fewer calls"),
        _item(
            "syncs_per_step", of.syncs_per_step(account), _at_most(1), "model.no_sync() but for the last micro-batch"
        ),
        _item("narrow_pct", of.narrow_messages(account), _above(90), remedies.narrow_messages(account)),
        _item("link_pct", of.link_use(account), _above(50), "NCCL_DEBUG=INFO, nvidia-smi topo -m, stepscope calibrate"),
    ]


# Memory pressure ---------------------------------------------------------------------------------------------------


def _memory_pressure(account: Account) -> str | None:
    full = memory_of_limit(account.memory)
    if full.value is not None and full.value >= _FULL_PCT:
        return f"{full.value:.0f} % of the device's memory is in use: {full.how}"
    calls = of.max_over_ranks(account.memory, lambda r: r.allocator_calls, "calls per step")
    if calls.value is not None and calls.value > 1:
        return f"the device's allocator is called {calls.value:g} times per step"
    grown = of.leak(account.memory, lambda r: r.growth, "allocated memory")
    return f"memory grows by {grown.value:.1f} MB per step" if grown.value else None


def _memory_items(account: Account) -> list[Item]:
    calls = of.max_over_ranks(
        account.memory, lambda r: r.allocator_calls, "calls per step that get or return device memory"
    )
    retries = of.max_over_ranks(
        account.memory, lambda r: r.allocator_retries, "times the cache was emptied", reason="allocator_retries"
    )
    cached = of.max_over_ranks(account.memory, of.cache_pct, "of what is reserved at the peak")
    grown = of.leak(account.memory, lambda r: r.growth, "allocated memory")
    host = of.leak(account.memory, lambda r: r.host_growth, "the host's memory")
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
        _item("short_kernels_pct", of.short_kernels(account), _below(50), "larger batches, fused kernels"),
    ]


# Mixed-precision overhead ------------------------------------------------------------------------------------------


def _mixed_precision(account: Account) -> str | None:
    if not of.sixteen_bit(account).value:
        return None
    scaler, casts = _scaler(account), _casts(account)
    if scaler.value:
        return f"matrix products run in {account.efficiency.precision} with loss scaling"
    return f"casts take {casts.value:.0f} % of all device work" if (casts.value or 0.0) >= _DEAR_CASTS_PCT else None


def _mixed_precision_items(account: Account) -> list[Item]:
    reads = of.calls_per_step(account, "aten::_local_scalar_dense")
    return [
        _item("loss_scaling_pct", _scaler(account), _below(0.5), remedies.without_scaler(account)),
        _item(
            "casts_pct", _casts(account), _below(_DEAR_CASTS_PCT), "parameters in bfloat16, or autocast's cache left on"
        ),
        _item("reads_per_step", reads, _at_most(1), "one .item() per step at most: GradScaler alone needs one"),
    ]


def _casts(account: Account) -> Measurement:
    return of.operators_share(account, lambda name: name == "aten::_to_copy", "casts and copies (aten::_to_copy)")


def _scaler(account: Account) -> Measurement:
    return of.operators_share(account, lambda name: "_amp_" in name, "gradient-scaler operators")


# Small batches -----------------------------------------------------------------------------------------------------


def _small_batches(account: Account) -> str | None:
    short, busy = of.short_kernels(account), device_utilisation(account)
    if short.value is None or busy.value is None or short.value < _SHORT_KERNELS_PCT or busy.value > _BUSY_PCT:
        return None
    return f"{short.value:.0f} % of kernels are shorter than a launch and the device is busy {busy.value:.0f} %"


def _small_batch_items(account: Account) -> list[Item]:
    raise_it = "raise the batch per device: there is room"
    return [
        _item("short_kernels_pct", of.short_kernels(account), _below(50), "raise the batch, or launch as a graph"),
        _item(
            "launch_gap_pct", device_share(account, "launch_gap"), _below(5), "torch.compile(mode='reduce-overhead')"
        ),
        _item("matmul_rate_pct", of.matmul_rate(account), _above(30), "matrices too small to fill the device"),
        _item("occupancy_pct", of.occupancy(account), _above(30), "too few blocks per kernel: raise the batch"),
        _item("memory_pct_of_limit", memory_of_limit(account.memory), _above(50), raise_it),
    ]
