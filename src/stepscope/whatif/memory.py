"""Peak memory of a rank with activations recomputed, sharded or offloaded, and the time that costs.

    checkpointing[=LAYERS]   activations stored as the inputs of layers, and those of one layer at a time
    zero=1, 2, 3             optimizer state, gradients, weights split among the ranks that hold the same
    offload=optimizer        optimizer state in the host's memory
    batch=N, batch=2x        activations, and temporaries of forward and backward, with the batch

Measured curves of the categories are scaled by formulas, at every moment of the window: the peak may move. Where a
category or a fact of the job is unknown, so is the answer, with the reason. docs/metrics.md has the formulas' sources.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import field

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.collective_costs import host_compute
from stepscope.analyze.memory import Moments, rank_moments, snapshot_moments
from stepscope.analyze.phases import Passes, Phase
from stepscope.contract.names import category_name
from stepscope.errors import UsageError
from stepscope.intervals import Intervals, clip, subtract, union
from stepscope.records import Row, dataclass
from stepscope.run.rank import Rank
from stepscope.trace.table import EventKind
from stepscope.units import NS_PER_S

# What is known of a job that a change of its memory depends on: copies of the model, layers, batch, times, links.

_SHARDS = ("fsdp-zero3", "fsdp-zero2", "zero2", "zero1")
_NUMBERED = re.compile(r"^(?P<list>(?:.{1,300}\.)?)(?P<number>\d{1,5})$")
# smaller copies take their start more than the link
_MIN_COPY_BYTES = 1_000_000
_HOST_LINK = re.compile(r"HtoD|DtoH")


@dataclass(frozen=True)
class MemoryJob:
    """What changes are worked out from; None is unknown. Times are of one step of the rank."""

    #: ranks with the same weights, among which they could be split
    replicas: int | None = None
    #: the strategy that splits them already
    sharded_as: str | None = None
    layers: int | None = None
    #: whether forward is computed again in backward already
    recomputes: bool = False
    #: per rank and step
    samples: float | None = None
    forward_ns: float | None = None
    backward_ns: float | None = None
    #: time in collectives of data parallelism
    gradient_comm_ns: float | None = None
    #: between pinned memory of the host and the device, as copies of the run had it
    host_link_bytes_per_s: float | None = None


def memory_of(account: Account, rank: int | None = None) -> tuple[Rank, Moments | None] | None:
    """Return a rank (the fullest by default) and what it held; None without any memory."""
    fullest = account.memory.fullest_rank if account.memory else None
    wanted = rank if rank is not None else fullest
    for one, found in zip(account.run.ranks, account.strategy.passes, strict=True):
        if one.rank == wanted:
            return one, rank_moments(account.run, one, found)
    return None


def memory_job(account: Account, rank: Rank) -> MemoryJob:
    """Return the memory facts of one rank of an account."""
    index = account.run.ranks.index(rank)
    dimensions = account.strategy.dimensions
    compute = _phase_compute_ns(rank, account.strategy.passes[index]) or {}
    samples, world = account.run.description.get("samples_per_step"), account.run.world_size
    known = isinstance(samples, int | float) and samples > 0 and bool(world)
    return MemoryJob(
        replicas=next((d.size for d in dimensions if d.kind == "ddp"), None),
        sharded_as=next((d.kind for d in dimensions if d.kind in _SHARDS), None),
        layers=num_layers(m.module for m in account.code.modules) if account.code else None,
        recomputes=bool(account.efficiency.recomputed_flops_per_step),
        samples=samples / world if known and samples and world else None,
        forward_ns=compute.get(Phase.FORWARD),
        backward_ns=compute.get(Phase.BACKWARD),
        gradient_comm_ns=_gradient_comm_ns(account, rank, index),
        host_link_bytes_per_s=_host_link(rank),
    )


def num_layers(paths: Iterable[str]) -> int | None:
    """Return how many layers a model has by the paths of its modules: the outermost numbered ones.

    >>> num_layers(["blocks.0", "blocks.0.mlp.0", "blocks.0.mlp.1", "blocks.0.mlp.2", "blocks.1", "head"])
    2
    """
    lists: dict[str, set[int]] = {}
    for path in paths:
        if found := _NUMBERED.match(path):
            lists.setdefault(found["list"], set()).add(int(found["number"]))
    several = {name: numbers for name, numbers in lists.items() if len(numbers) > 1}
    if not several:
        return None
    return len(several[min(several, key=lambda name: (name.count("."), -len(several[name])))])


# How long does a rank compute in each phase of a step: its device, or the host where there is none? A kernel belongs to
# the phase in which the host launched it; communication is no compute.


def _phase_compute_ns(rank: Rank, found: Passes) -> dict[Phase, float] | None:
    if not found.known or not len(rank.steps) or not len(found.backward):
        return None
    spans = _device_spans(rank, found) if rank.has_device else _host_spans(rank, found)
    return {phase: span.total_ns / len(rank.steps) for phase, span in spans.items()}


def _device_spans(rank: Rank, found: Passes) -> dict[Phase, Intervals]:
    work, trace = rank.work, rank.trace
    mine = np.flatnonzero((work.kind == EventKind.KERNEL) & (work.step >= 0) & (work.launch_row >= 0))
    launch = work.launch_row[mine]
    phase = found.at(trace["ts_ns"][launch], trace["tid"][launch])
    return {p: union(work.start_ns[mine[phase == p]], work.end_ns[mine[phase == p]]) for p in Phase}


def _host_spans(rank: Rank, found: Passes) -> dict[Phase, Intervals]:
    computed = clip(host_compute(rank), int(rank.steps.start_ns.min()), int(rank.steps.end_ns.max()))
    outside = subtract(computed, found.backward)
    between = subtract(outside, found.optimizer)
    phase = found.at(between.start, np.full(len(between), -1, np.int64))
    spans = {p: union(between.start[phase == p], between.end[phase == p]) for p in Phase}
    spans[Phase.BACKWARD] = subtract(computed, outside)
    spans[Phase.OPTIMIZER] = subtract(outside, between)
    return spans


def _gradient_comm_ns(account: Account, rank: Rank, index: int) -> float | None:
    rows = account.strategy.rows_of(index, "ddp")
    if not len(rows) or not len(rank.steps):
        return None
    c = rank.collectives
    return float((c.end_ns[rows] - c.start_ns[rows]).sum()) / len(rank.steps)


def _host_link(rank: Rank) -> float | None:
    work, trace = rank.work, rank.trace
    rows = np.flatnonzero(work.kind == EventKind.COPY)
    size = trace.arg("bytes").at(work.row[rows], missing=-1) if len(rows) else np.empty(0, np.int64)
    names = [trace.strings[i] for i in work.name[rows].tolist()]
    lasting = work.end_ns[rows] - work.start_ns[rows]
    between = np.array([bool(_HOST_LINK.search(name)) and "Pageable" not in name for name in names], bool)
    keep = between & (size >= _MIN_COPY_BYTES) & (lasting > 0)
    return float(np.median(size[keep] / lasting[keep])) * NS_PER_S if keep.any() else None


# The peak with one change.

_WHAT_IFS = "checkpointing, checkpointing=LAYERS, zero=1, zero=2, zero=3, offload=optimizer, batch=N, batch=2x"
_STATES = ("optimizer_state", "gradients", "weights")
_FACTOR = re.compile(r"^(\d{1,6}(?:\.\d{1,6})?)x$")
_MAX_FACTOR = 1e6
# what the input of a transformer's layer is of all that the layer keeps, least and most over precisions: 4 h of 64 h in
# fp32, 2 h of 32 h in 16 bits, 4 h of 36 h under autocast; fused attention, an MLP of four times the width, no dropout
LAYER_INPUT_SHARES = (1 / 16, 1 / 9)
_NOT_WHOLE = "neither peak has what was there before the profiler: weights, optimizer state"

Range = tuple[float, float]


@dataclass(frozen=True)
class _Change:
    stays: dict[str, Range]
    adds: Range = (0.0, 0.0)
    #: whether `adds` comes in forward and backward only
    only_in_passes: bool = False
    time_ns: tuple[float | None, float | None] = (None, None)
    notes: tuple[str, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)


class _Unknown(Exception):
    """The reason for which a change cannot be worked out."""


def memory_what_if(change: str, moments: Moments | None, job: MemoryJob) -> Row:
    """Return what one change makes of the peak; a `UsageError` where there is no such change."""
    key, _, value = change.partition("=")
    if key not in _MAKERS:
        raise UsageError(f"--what-if {change}: there is no such change; use one of {_WHAT_IFS}")
    measured = int(moments.allocated_bytes.max(initial=0)) if moments else None
    try:
        if moments is None:
            raise _Unknown("memory by category was not recorded over the window: record with --memory")
        made = _MAKERS[key](value, moments, job)
    except _Unknown as error:
        unknown = dict.fromkeys(("peak_low_bytes", "peak_high_bytes", "phase", "extra_low_ns", "extra_high_ns"))
        reasons = {"peak": str(error), "time": str(error)}
        return Row(change=change, measured_bytes=measured, **unknown, notes=(), reasons=reasons)
    low, high = (_changed(moments, made, end) for end in (0, 1))
    at = int(high.argmax())
    phase = None if moments.phase is None else Phase(int(moments.phase[at])).name.lower()
    extra_low_ns, extra_high_ns = made.time_ns
    return Row(
        change=change,
        measured_bytes=measured,
        # equal where the formula leaves nothing open
        peak_low_bytes=int(low.max()),
        peak_high_bytes=int(high.max()),
        phase=phase,
        # by how much each step gets longer; negative where it gets shorter
        extra_low_ns=extra_low_ns,
        extra_high_ns=extra_high_ns,
        notes=made.notes if moments.is_whole else (*made.notes, _NOT_WHOLE),
        reasons=made.reasons,
    )


# What would have let a request succeed that ran out of memory?

_TRIED = ("checkpointing", "zero=1", "zero=2", "zero=3", "offload=optimizer")
_FRAGMENTED = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_FIRST_STEP = "No step was complete before the error, so the rest of the step may need more."


def would_have_fitted(view: Row, job: MemoryJob) -> list[Row]:
    """Return for each change whether the request of a snapshot's error fits with it; None is unknown, with why."""
    error, moments = view.out_of_memory, _with_request(view)
    if error is None or error.reachable_bytes is None:
        return []
    needed, most = error.allocated_bytes + error.requested_bytes, error.reachable_bytes
    found = []
    if needed <= most and not error.expandable:
        found.append(Row(change=_FRAGMENTED, peak_low_bytes=needed, peak_high_bytes=needed, fits=True, why=None))
    low, high = 0, 100
    if needed <= most:  # in pieces: the request itself has to become as small as the largest one
        high = 1 + 100 * max(error.device_free_bytes, error.largest_free_bytes) // error.requested_bytes
    while high - low > 1:  # percent of the batch
        middle = (low + high) // 2
        peak = memory_what_if(f"batch={middle / 100}x", moments, job).peak_high_bytes
        low, high = (middle, high) if peak is not None and peak <= most else (low, middle)
    for change in (f"batch={max(low, 1) / 100}x", *_TRIED):
        row = memory_what_if(change, moments, job)
        fits = None
        if row.peak_high_bytes is not None:
            fits = True if row.peak_high_bytes <= most else False if row.peak_low_bytes > most else None
        found.append(
            Row(
                change=change,
                peak_low_bytes=row.peak_low_bytes,
                peak_high_bytes=row.peak_high_bytes,
                fits=fits,
                why=row.reasons.get("peak") or (None if error.has_whole_step else _FIRST_STEP),
            )
        )
    return found


def _with_request(view: Row) -> Moments | None:
    """Return the moments up to the error, and last the one in which the request would have succeeded."""
    error = view.out_of_memory
    if error is None:
        return None
    before = view.timeline["allocated_bytes"], view.by_purpose
    asked = error.purpose or "unknown"
    last = {name: error.by_purpose[name] for name in before[1]}
    last[asked] = (last[asked] or 0) + error.requested_bytes
    curves = {
        name: None if last[name] is None else (*(curve or [0] * len(before[0])), last[name])
        for name, curve in before[1].items()
    }
    return snapshot_moments(curves, [*view.phases, error.phase])


def _changed(moments: Moments, change: _Change, end: int) -> npt.NDArray[np.float64]:
    passes = _in_passes(moments)
    total = np.where(passes, change.adds[end], 0.0 if change.only_in_passes else change.adds[end])
    for name, curve in moments.by_category.items():
        if curve is None:
            continue
        share = np.full(len(curve), change.stays.get(name, (1.0, 1.0))[end])
        if name == _TEMPORARY:
            share[~passes] = 1.0
        total += share * curve
    return total


def _in_passes(moments: Moments) -> npt.NDArray[np.bool_]:
    if moments.phase is None:
        return np.ones(len(moments.allocated_bytes), bool)
    return (moments.phase != Phase.OPTIMIZER) & (moments.phase != Phase.AFTER_BACKWARD)


_TEMPORARY = "temporary"


def _checkpointing(value: str, moments: Moments, job: MemoryJob) -> _Change:
    layers = job.layers
    if value:
        layers = int(value) if value.isdecimal() and len(value) < 6 else 0
        if not layers:
            raise UsageError(f"--what-if checkpointing={value}: LAYERS has to be a number from 1 on")
    if job.recomputes:
        raise _Unknown("the run computes forward again in backward already")
    if layers is None:
        raise _Unknown("the number of layers was not recorded; give it, as in checkpointing=24")
    _known(moments, "activations")
    inputs = LAYER_INPUT_SHARES
    one_layer = (moments.most("activations") or 0) / layers
    notes = (
        f"of {layers} layers each keeps its input, {100 * inputs[0]:.0f} to {100 * inputs[1]:.0f} % of what a "
        "transformer's layer keeps, and one at a time all of it; forward runs twice",
    )
    why = {} if job.forward_ns is not None else {"time": "the time of forward is not known"}
    return _Change(
        {"activations": inputs},
        (one_layer, one_layer),
        only_in_passes=True,
        time_ns=(job.forward_ns, job.forward_ns),
        notes=notes,
        reasons=why,
    )


def _zero(value: str, moments: Moments, job: MemoryJob) -> _Change:
    if value not in ("1", "2", "3"):
        raise UsageError(f"--what-if zero={value}: the stage has to be 1, 2 or 3")
    stage = int(value)
    if job.sharded_as is not None:
        raise _Unknown(f"the run splits its model already ({job.sharded_as})")
    if job.replicas is None:
        raise _Unknown("no data parallelism was seen, so the number of shards is unknown")
    _known(moments, *_STATES[:stage])
    adds = _gathered(moments, job) if stage == 3 else (0.0, 0.0)
    share = 1 / job.replicas
    after = "backward and forward gather the weights again" if stage == 3 else "weights are gathered after each step"
    half = job.gradient_comm_ns / 2 if job.gradient_comm_ns is not None else None
    why = {} if half is not None else {"time": "the time of the gradients' collectives is not known"}
    states = ", ".join(map(category_name, _STATES[:stage]))
    notes = (f"{states} divided by {job.replicas}; {after}: half as long as the gradients take "
             "now where nothing hides it, nothing where all of it is hidden",)  # fmt: skip
    time_ns = (None, None) if half is None else (0.0, half)
    stays = dict.fromkeys(_STATES[:stage], (share, share))
    return _Change(stays, adds, time_ns=time_ns, notes=notes, reasons=why)


def _gathered(moments: Moments, job: MemoryJob) -> Range:
    whole = float(moments.most("weights") or 0)
    if job.layers is None:
        return 0.0, whole
    size = whole * min(2 / job.layers, 1.0)
    return size, size


def _offload(value: str, moments: Moments, job: MemoryJob) -> _Change:
    if value != "optimizer":
        raise UsageError(f"--what-if offload={value}: only offload=optimizer is known")
    if not moments.on_device:
        raise _Unknown("the run has no device: its memory is the host's already")
    _known(moments, "optimizer_state", "weights")
    moved = (moments.most("gradients") or moments.most("weights") or 0) + (moments.most("weights") or 0)
    rate = job.host_link_bytes_per_s
    at_least = NS_PER_S * moved / rate if rate else None
    update = "how long the host takes to update the weights is not known, so there is no upper bound"
    why = update if rate else f"no copy of 1 MB or more from or to pinned memory shows the link's speed, and {update}"
    notes = ("gradients go to the host and weights come back once per step",)
    return _Change({"optimizer_state": (0.0, 0.0)}, time_ns=(at_least, None), notes=notes, reasons={"time": why})


def _batch(value: str, moments: Moments, job: MemoryJob) -> _Change:
    factor = _batch_factor(value, job)
    _known(moments, "activations", _TEMPORARY)
    stays = {"activations": (factor, factor), _TEMPORARY: (factor, factor)}
    notes = [f"activations and temporaries times {factor:g}; all else stays"]
    if moments.phase is None:
        notes.append("temporaries of the optimizer are scaled as well: phases are unknown")
    if job.forward_ns is None or job.backward_ns is None:
        return _Change(stays, notes=tuple(notes), reasons={"time": "the time of forward and backward is not known"})
    more = (factor - 1) * (job.forward_ns + job.backward_ns)
    return _Change(stays, time_ns=(min(more, 0.0), max(more, 0.0)), notes=tuple(notes))


def _batch_factor(value: str, job: MemoryJob) -> float:
    if found := _FACTOR.match(value):
        factor = float(found[1])
    elif value.isdecimal() and len(value) < 10 and int(value):
        if job.samples is None:
            raise _Unknown("the number of samples per step was not recorded; give a factor, as in batch=2x")
        factor = int(value) / job.samples
    else:
        raise UsageError(f"--what-if batch={value}: give samples per rank and step, or a factor as in batch=2x")
    if not 0 < factor <= _MAX_FACTOR:
        raise UsageError(f"--what-if batch={value}: the factor has to be above 0 and at most {_MAX_FACTOR:,.0f}")
    return factor


def _known(moments: Moments, *categories: str) -> None:
    missing = [name for name in categories if moments.by_category.get(name) is None]
    if missing:
        raise _Unknown(f"{' and '.join(missing)} cannot be separated: record with --memory")


_MAKERS: dict[str, Callable[[str, Moments, MemoryJob], _Change]] = {
    "checkpointing": _checkpointing,
    "zero": _zero,
    "offload": _offload,
    "batch": _batch,
}
