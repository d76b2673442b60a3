"""How much of what the chips could do did the job use: MFU, HFU, and how many samples and tokens per second?

    MFU = model FLOPs per step / (peak of one device x devices x step time)
    HFU = (model FLOPs + recomputed FLOPs) / the same

FLOPs and tokens are those of the whole job. The step is the unprofiled one where that is known: the profiler's own
cost is no loss of the job.
"""

from collections.abc import Sequence
from typing import cast

from stepscope.analyze.kernels.flops_in_trace import RecordedFlops, precision_shares, recorded_flops
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.cost.chips.hardware import Lookup, Peak, mfu_peak
from stepscope.dataclass import dataclass
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.side_file import is_number
from stepscope.stats.distinct import distinct
from stepscope.units import NS_PER_S

ATTENTION_COUNTED = "attention counted in full, not halved for causality"
"""To be said next to FLOPs."""


@dataclass(frozen=True)
class GivenValues:
    """What the user says of the job; it goes before what is found. Whole job, per step; peak of one device."""

    flops_per_step: float | None = None
    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    peak_tflops: float | None = None


@dataclass(frozen=True)
class Efficiency:
    """How well the job used its devices. What is None has its reason in `notes`."""

    mfu: float | None
    hfu: float | None
    flops_per_step: float | None
    """model FLOPs of the whole job"""
    flops_source: str | None
    """`given`, `run.json` or `recorded shapes`"""
    recomputed_flops_per_step: float | None
    peak_tflops: float | None
    """of one device"""
    peak_source: str | None
    peak_precision: str | None
    """operand type that the peak is of; None where it was given"""
    precision: str | None
    """operand type of most matrix products"""
    num_ranks: int
    """of the job, recorded or not"""
    num_devices: int
    samples_per_s: float | None
    tokens_per_s: float | None
    notes: tuple[str, ...]


def efficiency(
    run: Run, costs: Sequence[KernelCosts], *, chip: Lookup, step_ns: float | None, given: GivenValues | None = None
) -> Efficiency:
    """Return the job's efficiency. `step_ns` is the unprofiled step where known, else the profiled one."""
    said = given or GivenValues()
    recorded = recorded_flops(costs, world_size=run.world_size)
    shares = precision_shares(costs)
    flops, flops_source = _flops(run, said, recorded)
    recomputed = _recomputed(run, recorded)
    peak, peak_reason = _peak(chip, said, shares)
    devices = num_devices(run)
    available = peak.flops_per_s * devices * step_ns / NS_PER_S if peak and step_ns else None
    mfu = flops / available if flops and available else None
    return Efficiency(
        mfu=mfu,
        hfu=(flops + recomputed) / available if flops and available and recomputed is not None else None,
        flops_per_step=flops,
        flops_source=flops_source,
        recomputed_flops_per_step=recomputed,
        peak_tflops=peak.flops_per_s / 1e12 if peak else None,
        peak_source=peak.source if peak else None,
        peak_precision=peak.precision if peak and said.peak_tflops is None else None,
        precision=next(iter(shares), None),
        num_ranks=num_ranks(run),
        num_devices=devices,
        samples_per_s=_per_second(_first(said.samples_per_step, run.description.get("samples_per_step")), step_ns),
        tokens_per_s=_per_second(_first(said.tokens_per_step, run.description.get("tokens_per_step")), step_ns),
        notes=_notes(recorded, flops_source, peak_reason, step_ns=step_ns, mfu=mfu, recomputed=recomputed),
    )


def num_ranks(run: Run) -> int:
    """Return how many ranks the job had: as a file says it, at least those that were read."""
    return max(run.world_size or 0, len(run.ranks), 1)


def num_devices(run: Run) -> int:
    """Return how many devices the job used: those of a recorded rank, times the ranks of the job."""
    return max((_devices_of(rank) for rank in run.ranks), default=1) * num_ranks(run)


def _devices_of(rank: Rank) -> int:
    return max(len(distinct(rank.work.device)), 1)


def _flops(run: Run, given: GivenValues, recorded: RecordedFlops) -> tuple[float | None, str | None]:
    sources = (
        (given.flops_per_step, "given"),
        (_number(run.description.get("flops_per_step")), "run.json"),
        (recorded.model, "recorded shapes"),
    )
    return next(((flops, source) for flops, source in sources if flops), (None, None))


def _recomputed(run: Run, recorded: RecordedFlops) -> float | None:
    """Return what backward ran again: by the trace, else by what the job itself counted."""
    if recorded.recomputed is not None:
        return recorded.recomputed
    model, hardware = (_number(run.description.get(key)) for key in ("flops_per_step", "hardware_flops_per_step"))
    return hardware - model if hardware and model else None


def _peak(chip: Lookup, given: GivenValues, shares: dict[str, float]) -> tuple[Peak | None, str | None]:
    """Return the peak of one device, or why there is none."""
    if given.peak_tflops:
        return Peak(given.peak_tflops * 1e12, "given", "given"), None
    if chip.chip is None:
        return None, f"peak unknown: {chip.reason}"
    peak = mfu_peak(chip.chip, eight_bit_share=shares.get("fp8", 0.0))
    return peak, None if peak else f"peak unknown: {chip.chip.name} has no 16-bit matrix unit; give --peak-tflops"


def _notes(
    recorded: RecordedFlops,
    flops_source: str | None,
    peak_reason: str | None,
    *,
    step_ns: float | None,
    mfu: float | None,
    recomputed: float | None,
) -> tuple[str, ...]:
    notes = list(recorded.notes) if flops_source == "recorded shapes" else []
    if flops_source is None and recorded.reason:
        notes.append(recorded.reason)
    if peak_reason:
        notes.append(peak_reason)
    if not step_ns:
        notes.append("MFU unknown: the step time is not known")
    if mfu is not None and recomputed is None:
        notes.append(f"HFU unknown: how much was recomputed is not known ({recorded.reason})")
    if mfu is not None and mfu > 1:
        notes.append(f"MFU is {mfu:.0%}: the FLOPs per step or the peak cannot be right")
    return tuple(notes)


def _per_second(count: float | None, step_ns: float | None) -> float | None:
    return count * NS_PER_S / step_ns if count and step_ns else None


def _first(said: float | None, described: object) -> float | None:
    return said if said is not None else _number(described)


def _number(value: object) -> float | None:
    return float(cast(float, value)) if is_number(value, low=0) else None
