"""Numbers that only the guides ask for, each with how it was measured or why it could not be."""

from collections.abc import Callable, Sequence

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.flops_in_trace import precision_shares
from stepscope.analyze.memory.growth import Growth
from stepscope.analyze.memory.usage import MemoryView, RankMemory
from stepscope.contract.collectives import element_bytes
from stepscope.diagnose.measurements import NO_DEVICE, Measurement, on_device
from stepscope.records import once_per_record
from stepscope.run.matching.match import POINT_TO_POINT
from stepscope.stats.distinct import among, distinct
from stepscope.units import readable_bytes

_NARROW = ("fp16", "bf16", "fp8")
_SOFTMAX = ("aten::_softmax", "aten::_softmax_backward_data", "aten::_safe_softmax")
_NO_SHAPES = "no kernel of a matrix product has recorded shapes (record with --shapes)"
_NO_MEMORY = "no memory was recorded: record with --memory"
_MB = 1e6


def share(value: float | None, how: str, why_not: str) -> Measurement:
    """Return a share as a percentage, or why it is not known."""
    return Measurement(None, why_not) if value is None else Measurement(100 * value, how)


def tensor_cores(account: Account) -> Measurement:
    """Return the percentage of matrix-product time on tensor cores."""
    found = account.kernels.tensor_core_share
    return share(found, "of the time of matrix products, by kernel names", "no kernel name tells of a matrix product")


def sixteen_bit(account: Account) -> Measurement:
    """Return the percentage of matrix products with operands of 16 bits or fewer."""
    shares = _precision_shares(account)
    if not shares:
        return Measurement(None, "the operand types of matrix products are not known")
    said = ", ".join(f"{name} {100 * part:.0f} %" for name, part in shares.items())
    return Measurement(100 * sum(shares.get(name, 0.0) for name in _NARROW), said)


@once_per_record
def _precision_shares(account: Account) -> dict[str, float]:
    return precision_shares([view.costs for view in account.ranks])


def matmul_rate(account: Account) -> Measurement:
    """Return how near matrix products come to the chip's peak while they run, in percent."""
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


def recomputed(account: Account) -> Measurement:
    """Return recomputed FLOPs against the model's, in percent."""
    used = account.efficiency
    if not used.flops_per_step or used.recomputed_flops_per_step is None:
        return Measurement(None, "FLOPs per step, or how many are repeated, are not known")
    return Measurement(100 * used.recomputed_flops_per_step / used.flops_per_step, "of the model's FLOPs")


def operators_share(account: Account, chosen: Callable[[str], bool], what: str) -> Measurement:
    """Return the device time of some operators against all device work, in percent."""
    table = account.operators
    if not on_device(account) or not table.device_busy_ns:
        return Measurement(None, NO_DEVICE)
    if not table.operators:
        return Measurement(None, "no operators were recorded")
    time_ns = sum(o.device_total_ns for o in table.operators if chosen(o.name))
    return Measurement(100 * time_ns / table.device_busy_ns, f"device time of {what} against all device work")


def softmax_written_out(account: Account) -> Measurement:
    """Return the device time of softmax kernels of their own: attention that is not fused."""
    return operators_share(account, lambda name: name in _SOFTMAX, "softmax operators")


def calls_per_step(account: Account, name: str) -> Measurement:
    """Return how often an operator is called per step by the mean rank."""
    if not account.num_steps or not account.operators.operators:
        return Measurement(None, "no steps or no operators were recorded")
    calls = sum(o.calls for o in account.operators.operators if o.name == name)
    return Measurement(calls / account.num_steps, f"calls of {name}, mean rank")


def overlap(account: Account) -> Measurement:
    """Return the overlap efficiency in percent."""
    found = account.overlap_efficiency
    return share(found, "compute and communication together / the smaller of both", "no communication next to compute")


def waiting_in_collectives(account: Account) -> Measurement:
    """Return the percentage of communication time in which ranks wait for each other."""
    waits = [view.wait for view in account.ranks]
    known = [w for w in waits if w is not None and w.wait_ns is not None and w.transfer_ns is not None]
    total = sum((w.wait_ns or 0) + (w.transfer_ns or 0) for w in known)
    if not total:
        return Measurement(None, "no collectives could be matched across ranks")
    return Measurement(100 * sum(w.wait_ns or 0 for w in known) / total, "of the time in matched collectives")


def message_mb(account: Account) -> Measurement:
    """Return the size below which half of the bytes travel, in MB."""
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


def narrow_messages(account: Account) -> Measurement:
    """Return the percentage of bytes sent in types of 16 bits or fewer."""
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


def syncs_per_step(account: Account) -> Measurement:
    """Return how many backward passes of a step synchronise gradients."""
    view = account.views.buckets
    if view is None:
        return Measurement(None, "no gradient all-reduces were found")
    most = max(r.syncs for r in view.ranks)
    return Measurement(most, f"of {max(r.backward_passes for r in view.ranks):g} backward passes per step")


def link_use(account: Account) -> Measurement:
    """Return the best bus bandwidth of a collective against the chip's own links, in percent."""
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


def short_kernels(account: Account) -> Measurement:
    """Return the percentage of kernels that end before the host could launch the next."""
    if not account.kernels.kernels:
        return Measurement(None, NO_DEVICE)
    return Measurement(100 * account.kernels.short_count_share, "of all kernels take less than 10 us")


def occupancy(account: Account) -> Measurement:
    """Return the estimated occupancy of compute kernels, weighted by time, in percent."""
    known = [k for k in account.kernels.kernels if k.occupancy_pct is not None and k.family != "communication"]
    total = sum(k.total_ns for k in known)
    if not total:
        return Measurement(None, "the trace holds no occupancy")
    return Measurement(
        sum((k.occupancy_pct or 0.0) * k.total_ns for k in known) / total, "as the profiler estimates it"
    )


def max_over_ranks(
    memory: MemoryView | None, number: Callable[[RankMemory], float | None], what: str, *, reason: str = ""
) -> Measurement:
    """Return the largest value of a rank's number; `reason` is the key under which ranks say why they have none."""
    if memory is None:
        return Measurement(None, _NO_MEMORY)
    values = [v for v in map(number, memory.ranks) if v is not None]
    reasons = [rank.reasons[reason] for rank in memory.ranks if reason in rank.reasons]
    return (
        Measurement(max(values), what)
        if values
        else Measurement(None, reasons[0] if reasons else "it was not recorded")
    )


def cache_pct(rank: RankMemory) -> float | None:
    """Return memory that is reserved and held by no tensor at the peak, in percent of what is reserved."""
    if rank.cache_bytes is None or not rank.peak_reserved_bytes:
        return None
    return 100 * rank.cache_bytes / rank.peak_reserved_bytes


def leak(memory: MemoryView | None, grown: Callable[[RankMemory], Growth | None], where: str) -> Measurement:
    """Return how much memory grows per step, in MB; 0 where chance alone gives as much."""
    if memory is None:
        return Measurement(None, _NO_MEMORY)
    found: Sequence[Growth] = [g for g in map(grown, memory.ranks) if g is not None]
    if not found:
        return Measurement(None, "fewer than eight steps with a memory sample: step logs have them")
    worst = max(found, key=lambda g: g.bytes_per_step if g.leaks else 0.0)
    if not worst.leaks:
        return Measurement(0.0, f"{where} does not grow over {worst.num_steps} steps")
    return Measurement(worst.bytes_per_step / _MB, f"{readable_bytes(worst.total_bytes)} over {worst.num_steps} steps")
