"""Checks and guides: check lists with every item measured and marked pass, fail or not measured.

A guide is a check list for one subject, with a remedy for each item; it applies if one of its triggers holds.
Percentages are of the step in `account.step`: without profiler overhead if the unprofiled step time is known.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter, ge, gt, le, lt
from typing import NamedTuple, TypeVar

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.efficiency import precision_shares
from stepscope.analyze.host_time import data_loading as loading_spans
from stepscope.analyze.kernels import abilities
from stepscope.analyze.steadiness import log_series, steadiness_of
from stepscope.contract.names import PARTS
from stepscope.contract.operations import OP_CODE, element_bytes
from stepscope.intervals import covered_ns, union
from stepscope.records import Row
from stepscope.run.clocks import POINT_TO_POINT
from stepscope.stats.robust import among, distinct
from stepscope.units import ms, readable_bytes

PASS, FAIL, NOT_MEASURED = "pass", "fail", "not measured"


class Measurement(NamedTuple):
    """A value and how it was measured, or None and the reason."""

    value: float | None
    how: str


_Measure = Callable[[Account], Measurement]
# template of `Guide.why` -> conditions that must all hold; their measurements are the template's arguments
_Triggers = Mapping[str, tuple[tuple[_Measure, str], ...]]
_T = TypeVar("_T")


def checks_of(account: Account) -> list[Row]:
    """Return the general check list, measured."""
    return [_checked(account, *row, general=True) for row in _CHECKS]


def guides_of(account: Account) -> list[Row]:
    """Return the guides that apply to the run."""
    whys = ((title, next(_whys(account, triggers), None)) for title, (triggers, *_) in _GUIDES.items())
    return [guide_of(account, title, why=why) for title, why in whys if why is not None]


def guide_of(
    account: Account | None, title: str, *, why: str = "requested", values: Mapping[str, Measurement] | None = None
) -> Row:
    """Return one guide of an account, or of `values` by item where there is no recording."""

    def measured(row: tuple[str, _Measure, str, str]) -> _Measure:
        found = (values or {}).get(row[0], Measurement(None, _NO_RECORDING))
        return row[1] if account is not None else lambda _: found

    _, *rows = _GUIDES[title]
    chip = _chip_remedies(account)
    items = [Row(check=_checked(account, row[0], measured(row), row[2]), remedy=row[3].format(**chip)) for row in rows]
    return Row(id=title.lower().replace(" ", "-"), title=title, why=why, items=tuple(items))


def _checked(
    account: Account | None, name: str, measure: _Measure, good: str, bad: str | None = None, *, general: bool = False
) -> Row:
    found = _measured(measure, account)
    if found.value is None:
        return Row(id=name, value=None, good=good, bad=bad, status=NOT_MEASURED, reason=found.how)
    value = round(found.value, 4)
    is_good, is_bad = _within(value, good), bad is not None and _within(value, bad)
    passed = is_good or (general and not is_bad)  # a healthy job may be outside of what is usual
    outside = "borderline (not as usual, not bad): " if passed and not is_good else ""
    return Row(id=name, value=value, good=good, bad=bad, status=PASS if passed else FAIL, reason=outside + found.how)


def _measured(measure: _Measure, account: Account | None) -> Measurement:
    try:
        return measure(account)  # type: ignore[arg-type]  # None: measures of given values
    except _UnmeasuredError as error:
        return Measurement(None, str(error))


def _within(value: float, limits: str) -> bool:
    *low, sign, limit = limits.split()
    holds = {"<": lt, "<=": le, ">": gt, ">=": ge, "-": le}[sign]
    return bool(holds(value, float(limit))) and (not low or value >= float(low[0]))


def _whys(account: Account, triggers: _Triggers) -> Iterator[str]:
    for template, conditions in triggers.items():
        found = [(_measured(measure, account), limits) for measure, limits in conditions]
        if all(m.value is not None and _within(m.value, limits) for m, limits in found):
            yield template.format(*(m for m, _ in found), account=account)


def _chip_remedies(account: Account | None) -> dict[str, str]:  # bfloat16 and TF32 only for chips that support them
    chip = abilities((), None) if account is None else abilities(account.run.ranks, account.chip.chip)
    autocast, prefix = f"torch.autocast('cuda', torch.{chip.narrow})", "fp16" if chip.narrow == "float16" else "bf16"
    scaler_needed = "none on this chip: float16 needs the scaler, and it has no bfloat16"
    return {
        "autocast": autocast,
        "tensor_cores": autocast if chip.tf32 is False else "torch.set_float32_matmul_precision('high')",
        "compression": f"{prefix}_compress_hook, reduce_dtype=torch.{chip.narrow}",
        "no_scaler": scaler_needed if chip.bf16 is False else "train in bfloat16 without GradScaler",
    }


# Measures. The account is the last parameter, for `partial`. ---------------------------------------------------------
_NO_RECORDING = "nothing was recorded: give the run folder of `stepscope record` or stepscope.profile"
_NO_STEP = "no step was recorded"
_NO_DEVICE = "nothing ran on a device"
_NO_MEMORY = "no memory was recorded: record with --memory"


class _UnmeasuredError(Exception): ...


def _require(value: _T | None, why_not: str) -> _T:
    if not value:
        raise _UnmeasuredError(why_not)
    return value


def _percent(part: float | None, whole: float | None, how: str, why_not: str) -> Measurement:
    return Measurement(100 * (part or 0.0) / _require(whole if part is not None else None, why_not), how)


def _fraction(attribute: str, how: str, why_not: str, account: Account) -> Measurement:
    return _percent(attrgetter(attribute)(account), 1, how, why_not)


def _on_device(account: Account) -> bool:
    return any(view.on_device for view in account.ranks)


def _step_share(parts: tuple[str, ...], account: Account) -> Measurement:
    step = _require(account.step, _NO_STEP)
    time_ns = sum(step.ns(p) for p in parts)
    return Measurement(100 * time_ns / step.step_ns, f"{ms(time_ns):.2f} ms of the {ms(step.step_ns):.2f} ms step")


def _device_share(part: str, account: Account) -> Measurement:
    _require(_on_device(account), _NO_DEVICE)
    return _step_share((part,), account)


def _phase_share(part: str, account: Account) -> Measurement:
    _require(account.serving is None, "a serving engine's step has no phases of training")
    found, step = _step_share((part,), account), _require(account.step, _NO_STEP)
    phases = ("data_loading", "forward", "backward", "optimizer")
    other = max((p for p in step.parts if p.part not in phases), key=lambda p: p.ns_per_step)
    several = " (average rank)" if len(account.ranks) > 1 else ""
    rest = f"; of the rest, {PARTS[other.part]} takes most: {ms(other.ns_per_step):.2f} ms{several}"
    return Measurement(found.value, found.how + (rest if other.ns_per_step > 0 else ""))


def _data_loading(account: Account) -> Measurement:
    found = _step_share(("data_loading",), account)
    why_not = "no range of a data loader is in the trace: mark it with stepscope.region('data_loading')"
    _require(found.value != 0 or any(len(loading_spans(r)) for r in account.run.ranks), why_not)
    return found


def _device_utilisation(account: Account) -> Measurement:
    # as monitoring tools count it: a collective that waits for another rank keeps its device busy
    step = _require(account.step, _NO_STEP)
    _require(_on_device(account), _NO_DEVICE)
    idle, waits = sum(step.idle_ns.values()), step.ns("wait") + step.ns("pipeline_bubble")
    how = f"the device runs something for {ms(step.step_ns - idle):.2f} ms of the {ms(step.step_ns):.2f} ms step"
    how += f", {ms(waits):.2f} ms of it waiting for other ranks (average rank)" if waits > 0.01 * step.step_ns else ""
    return Measurement(100 * (1 - idle / step.step_ns), how)


def step_time_spread(account: Account) -> Measurement:
    """Return the standard deviation of step times in percent of their mean."""
    series = log_series(account.run.logs)
    if series is not None and len(series.dur_ns) >= 2:
        found = steadiness_of(series)
        return Measurement(found.spread_pct, f"{found.num_steps - found.warm_up_steps} steps of the step logs")
    # periods, not the spans of the host: one that runs ahead of its device has irregular spans in a steady run
    periods = [v.budget.periods.dur_ns[v.budget.periods.complete] for v in account.ranks if v.budget is not None]
    enough = [p for p in periods if len(p) >= 2]
    if not enough:
        return Measurement(None, "fewer than 2 whole steps were recorded on a rank")
    spread = float(np.mean([p.std() / p.mean() for p in enough]))
    return Measurement(100 * spread, f"{min(map(len, enough))} recorded steps per rank")


def _gradient_sync_of_backward(account: Account) -> Measurement:
    backward = _require(account.step, _NO_STEP).ns("backward")
    times = []  # per rank: total and exposed time per step
    for index, view in enumerate(account.ranks):
        c, num_steps = view.rank.collectives, len(view.rank.steps)
        rows = account.strategy.rows_of(index, "ddp", "zero1", "zero2", "fsdp-zero2", "fsdp-zero3")
        rows = rows[among(c.op[rows], (OP_CODE["all_reduce"], OP_CODE["reduce_scatter"])) & (c.step[rows] >= 0)]
        if view.window is not None and len(rows) and num_steps:
            spans = union(c.start_ns[rows], c.end_ns[rows])
            exposed = int(covered_ns(view.window.exposed_comm, spans.start, spans.end).sum())
            times.append((spans.total_ns / num_steps, exposed / num_steps))
    _require(times, "no all-reduce or reduce-scatter of gradients was found")
    total_ns, exposed_ns = (float(np.mean(column)) for column in zip(*times, strict=True))
    how = f"gradients are reduced for {ms(total_ns):.2f} ms per step, waiting included; {ms(exposed_ns):.2f} ms of it "
    how += f"exposed, of {ms(exposed_ns + backward):.2f} ms with backward"
    return Measurement(100 * exposed_ns / (_require(backward, how) + exposed_ns), how)


def _exposed_communication(account: Account) -> Measurement:
    step = _require(account.step, _NO_STEP)
    time_ns = step.ns("exposed_transfer") + step.ns("wait") + step.unmatched_ns
    return Measurement(100 * time_ns / step.step_ns, "unmatched collectives included")


def _stragglers(account: Account) -> Measurement:
    _require(len(account.run.ranks) > 1, "one rank alone cannot be late")
    named = ", ".join(f"rank {s.rank} by {s.cause}" for s in account.stragglers)
    return Measurement(float(len(account.stragglers)), named or "no rank is late")


def _waiting_in_collectives(account: Account) -> Measurement:
    found = [view.wait for view in account.ranks]
    known = [(w.wait_ns, w.transfer_ns) for w in found if w and w.wait_ns is not None and w.transfer_ns is not None]
    total, why_not = sum(map(sum, known)), "no collectives could be matched across ranks"
    return _percent(sum(wait for wait, _ in known), total, "of the time in matched collectives", why_not)


def _overlap(account: Account) -> Measurement:
    how, why_not = "compute and communication together / the smaller of both", "no communication next to compute"
    return _percent(account.overlap_efficiency, 1, how, why_not)


def _message_mb(account: Account) -> Measurement:
    ranks = [rank.collectives for rank in account.run.ranks]
    found = [c.full_bytes[(c.step >= 0) & (c.full_bytes > 0) & ~among(c.op, POINT_TO_POINT)] for c in ranks]
    sizes = np.sort(np.concatenate([np.empty(0), *found]))
    _require(len(sizes), "the sizes of collectives were not recorded")
    half = sizes[np.searchsorted(np.cumsum(sizes), sizes.sum() / 2)]
    return Measurement(float(half) / 1e6, f"half of the bytes travel in smaller ones; {len(sizes)} calls in the window")


def _syncs_per_step(account: Account) -> Measurement:
    rows = _require(account.views.buckets, "no gradient all-reduces were found").ranks
    return Measurement(
        max(r.syncs for r in rows), f"of {max(r.backward_passes for r in rows):g} backward passes per step"
    )


def _narrow_messages(account: Account) -> Measurement:
    narrow = known = 0.0
    for rank in account.run.ranks:
        c = rank.collectives
        rows = np.flatnonzero((c.step >= 0) & (c.record_row >= 0) & (c.full_bytes > 0))
        types = rank.trace.arg("dtype").at(c.record_row[rows], missing=-1)
        for code in distinct(types[types >= 0]):
            width = element_bytes(rank.trace.text(int(code)))
            size = float(c.full_bytes[rows][types == code].sum()) if width is not None else 0.0
            known, narrow = known + size, narrow + size * ((width or 0) <= 2)
    why_not = "the element types of collectives were not recorded"
    return _percent(narrow, known, "of the bytes whose type was recorded", why_not)


def _link_use(account: Account) -> Measurement:
    chip = account.chip.chip
    why_not = "the links of the device are not in the hardware table; stepscope calibrate measures them"
    _require(chip.link_gb_per_s if chip else None, why_not)
    rates = [(row.link_pct, row) for row in account.collectives if row.link_pct is not None]
    why_no_rate = "no collective between ranks on known hosts has a measured bandwidth and a link of known speed"
    pct, best = max(_require(rates, why_no_rate), key=lambda one: one[0])
    how = f"{best.op} {best.span}: {best.used_gb_per_s:.1f} of {best.link_gb_per_s:g} GB/s ({best.link})"
    return Measurement(pct, how)


def _sixteen_bit(account: Account) -> Measurement:
    shares = precision_shares([view.costs for view in account.ranks])
    _require(shares, "the operand types of matrix products are not known")
    how = ", ".join(f"{name} {100 * part:.0f} %" for name, part in shares.items())
    return Measurement(100 * sum(shares.get(name, 0.0) for name in ("fp16", "bf16", "fp8")), how)


def _matmul_rate(account: Account) -> Measurement:
    peak = _require(account.efficiency.peak_tflops, "the peak of the device is not known (--peak-tflops)")
    flops = time_ns = 0.0
    for c in (view.costs for view in account.ranks):
        known = np.flatnonzero(c.is_matmul & (c.flops > 0))  # NaN is not above 0
        flops, time_ns = flops + float(c.flops[known].sum()), time_ns + float(c.duration_ns[known].sum())
    rate = flops / _require(time_ns, "no kernel of a matrix product has recorded shapes (record with --shapes)") / 1e3
    return Measurement(100 * rate / peak, f"{rate:.0f} of {peak:.0f} TFLOP/s while they run")


def _tensor_cores(account: Account) -> Measurement:
    how, why_not = "of the time of matrix products, by kernel names", "no kernel name indicates a matrix product"
    return _percent(account.kernels.tensor_core_share, 1, how, why_not)


def _recomputed(account: Account) -> Measurement:
    used, why_not = account.efficiency, "FLOPs per step, or the recomputed part of them, are not known"
    return _percent(used.recomputed_flops_per_step, used.flops_per_step, "of the model's FLOPs", why_not)


def _short_kernels(account: Account) -> Measurement:
    _require(account.kernels.kernels, _NO_DEVICE)
    return Measurement(100 * account.kernels.short_count_share, "of all kernels take less than 10 us")


def _occupancy(account: Account) -> Measurement:
    kernels = [k for k in account.kernels.kernels if k.family != "communication"]
    known = [(k.occupancy_pct, k.total_ns) for k in kernels if k.occupancy_pct is not None]
    total_ns = _require(sum(time_ns for _, time_ns in known), "the trace holds no occupancy")
    return Measurement(sum(pct * time_ns for pct, time_ns in known) / total_ns, "as the profiler estimates it")


def _operators_share(pattern: str, what: str, account: Account) -> Measurement:
    table = account.operators
    _require(_on_device(account) and table.device_busy_ns, _NO_DEVICE)
    _require(table.operators, "no operators were recorded")
    time_ns = sum(o.device_total_ns for o in table.operators if re.fullmatch(pattern, o.name))
    return Measurement(100 * time_ns / table.device_busy_ns, f"device time of {what} against all device work")


def _scalar_reads(account: Account) -> Measurement:
    _require(account.num_steps and account.operators.operators, "no steps or no operators were recorded")
    calls = sum(o.calls for o in account.operators.operators if o.name == "aten::_local_scalar_dense")
    return Measurement(calls / account.num_steps, "calls of aten::_local_scalar_dense, average rank")


def _memory_of_limit(account: Account) -> Measurement:
    known = [r for r in _require(account.memory, _NO_MEMORY).ranks if r.peak_pct_of_total is not None]
    _require(known, "the device's memory size is not in the trace")
    fullest = max(known, key=lambda r: r.peak_pct_of_total or 0.0)
    peak = fullest.peak_reserved_bytes or fullest.peak_allocated_bytes or 0
    total = readable_bytes(fullest.device_total_bytes or 0)
    return Measurement(fullest.peak_pct_of_total, f"peak of {readable_bytes(peak)} of {total} on rank {fullest.rank}")


def _rank_max(attribute: str, how: str, account: Account) -> Measurement:
    ranks = _require(account.memory, _NO_MEMORY).ranks
    values = [v for rank in ranks if (v := getattr(rank, attribute, None)) is not None]
    reasons = (rank.reasons[attribute] for rank in ranks if attribute in rank.reasons)
    return Measurement(max(_require(values, next(reasons, "it was not recorded"))), how)


def _cache(account: Account) -> Measurement:
    found = [(r.cache_bytes, r.peak_reserved_bytes) for r in _require(account.memory, _NO_MEMORY).ranks]
    shares = [100 * cache / reserved for cache, reserved in found if cache is not None and reserved]
    return Measurement(max(_require(shares, "it was not recorded")), "of what is reserved at the peak")


def _growth_mb(attribute: str, where: str, account: Account) -> Measurement:
    found = [g for r in _require(account.memory, _NO_MEMORY).ranks if (g := getattr(r, attribute)) is not None]
    _require(found, "fewer than eight steps with a memory sample: step logs have them")
    worst = max(found, key=lambda g: g.bytes_per_step if g.leaks else 0.0)
    if not worst.leaks:
        return Measurement(0.0, f"{where} does not grow over {worst.num_steps} steps")
    return Measurement(worst.bytes_per_step / 1e6, f"{readable_bytes(worst.total_bytes)} over {worst.num_steps} steps")


# Tables of id, measure, good (`30 - 40` includes both) and bad or remedy ----------------------------------------------
_CHECKS: tuple[tuple[str, _Measure, str, str | None], ...] = (
    ("device_utilisation_pct", _device_utilisation, "> 80", "< 50"),
    ("data_loading_pct", _data_loading, "< 10", "> 30"),
    ("all_reduce_pct_of_backward", _gradient_sync_of_backward, "< 15", "> 30"),
    ("host_device_copies_pct", partial(_device_share, "copy"), "< 5", "> 15"),
    ("data_share_pct", _data_loading, "<= 10", None),  # 5 - 10 is usual, less is no fault
    ("forward_share_pct", partial(_phase_share, "forward"), "30 - 40", None),
    ("backward_share_pct", partial(_phase_share, "backward"), "40 - 50", None),
    ("optimizer_share_pct", partial(_phase_share, "optimizer"), "<= 10", None),  # 5 - 10 is usual, less is no fault
    ("step_time_spread_pct", step_time_spread, "<= 10", None),
    ("memory_pct_of_limit", _memory_of_limit, "< 95", ">= 95"),
)
_mfu = partial(_fraction, "efficiency.mfu", "of the peak", "MFU is not known")
_memory_bound = partial(_fraction, "kernels.memory_bound_share", "of compute-kernel time", "no compute kernels")
_launch_gap = partial(_device_share, "launch_gap")
_communication = partial(_step_share, ("exposed_transfer", "wait", "pipeline_bubble"))
_softmax = partial(_operators_share, "aten::_(softmax|softmax_backward_data|safe_softmax)", "softmax operators")
_casts = partial(_operators_share, "aten::_to_copy", "casts and copies (aten::_to_copy)")
_loss_scaling = partial(_operators_share, ".*_amp_.*", "gradient-scaler operators")
_allocator_calls: _Measure = partial(_rank_max, "allocator_calls", "calls per step that get or return device memory")
_allocator_retries = partial(_rank_max, "allocator_retries", "times the cache was emptied")
_device_growth: _Measure = partial(_growth_mb, "growth", "allocated memory")
_host_growth = partial(_growth_mb, "host_growth", "the host's memory")
_fragmentation = partial(_rank_max, "fragmentation", "of free memory")
# title (the id is its lower case with hyphens) -> triggers, rows
_GUIDES: dict[str, tuple[_Triggers, *tuple[tuple[str, _Measure, str, str], ...]]] = {
    "Low MFU": (
        {"MFU is {0.value:.1f} %; large dense models reach 40 and more": ((_mfu, "< 40"),)},
        ("tensor_cores_pct", _tensor_cores, "> 95", "{tensor_cores}"),
        ("sixteen_bit_pct", _sixteen_bit, "> 90", "{autocast}"),
        ("matmul_rate_pct", _matmul_rate, "> 60", "larger matrices, sizes that are multiples of 64"),
        ("device_utilisation_pct", _device_utilisation, "> 80", "the guide on device utilisation"),
        ("communication_pct", _communication, "< 10", "the guide on communication"),
        ("data_loading_pct", _data_loading, "< 10", "more loader workers, prefetch, pinned memory"),
        ("launch_gap_pct", _launch_gap, "< 5", "torch.compile(mode='reduce-overhead')"),
        ("softmax_pct", _softmax, "< 1", "F.scaled_dot_product_attention"),
        ("memory_bound_pct", _memory_bound, "< 50", "torch.compile, fused norms and activations"),
        ("recomputed_pct", _recomputed, "< 10", "checkpoint fewer blocks, or selectively"),
    ),
    "Slow communication": (
        {"exposed communication takes {0.value:.0f} % of the {account.whole}": ((_exposed_communication, ">= 10"),)},
        ("stragglers", _stragglers, "<= 0", "the late rank first: a faster link does not help it"),
        ("waiting_pct", _waiting_in_collectives, "< 20", "even out the ranks before the network"),
        ("overlap_pct", _overlap, "> 80", "DDP buckets, FSDP prefetch: send while computing"),
        ("message_mb", _message_mb, "> 1", "larger buckets (bucket_cap_mb=25), fewer calls"),
        ("syncs_per_step", _syncs_per_step, "<= 1", "model.no_sync() but for the last micro-batch"),
        ("narrow_pct", _narrow_messages, "> 90", "{compression}"),
        ("link_pct", _link_use, "> 50", "NCCL_DEBUG=INFO, nvidia-smi topo -m, stepscope calibrate"),
    ),
    "Memory pressure": (
        {
            "{0.value:.0f} % of the device's memory is in use: {0.how}": ((_memory_of_limit, ">= 80"),),
            "the device's allocator is called {0.value:g} times per step": ((_allocator_calls, "> 1"),),
            "memory grows by {0.value:.1f} MB per step": ((_device_growth, "> 0"),),
        },
        ("memory_pct_of_limit", _memory_of_limit, "< 95", "smaller micro-batches, checkpointing, FSDP"),
        ("allocator_calls", _allocator_calls, "<= 1", "no empty_cache() in the loop; expandable_segments:True"),
        ("allocator_retries", _allocator_retries, "<= 0", "lower the peak: a retry empties the cache"),
        ("cache_pct", _cache, "< 20", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("growth_mb_per_step", _device_growth, "<= 0", "loss.item() in logs, no lists of tensors with graphs"),
        ("host_growth_mb_per_step", _host_growth, "<= 0", "loader workers that keep Python objects"),
        ("fragmentation_pct", _fragmentation, "< 10", "record with --memory and open the snapshot"),
    ),
    "Low device utilisation": (
        {"the device is busy {0.value:.0f} % of the {account.whole}": ((_device_utilisation, "<= 80"),)},
        ("data_loading_pct", _data_loading, "< 10", "DataLoader(num_workers=4, pin_memory=True)"),
        ("launch_gap_pct", _launch_gap, "< 5", "torch.compile(mode='reduce-overhead')"),
        ("host_sync_pct", partial(_device_share, "host_sync"), "< 5", "no .item(), .cpu() or print in the step"),
        ("host_stall_pct", partial(_device_share, "host_stall"), "< 5", "gc.freeze(), checkpoints in a thread"),
        ("allocator_pct", partial(_device_share, "allocator"), "< 1", "no empty_cache(), constant shapes"),
        ("copies_pct", partial(_device_share, "copy"), "< 5", "pinned memory, non_blocking=True"),
        ("unknown_pct", partial(_device_share, "unknown"), "< 5", "other processes on the device: nvidia-smi"),
        ("short_kernels_pct", _short_kernels, "< 50", "larger batches, fused kernels"),
    ),
    "Mixed-precision overhead": (
        {
            "matrix products run in {account.efficiency.precision} with loss scaling": (
                (_sixteen_bit, "> 0"),
                (_loss_scaling, "> 0"),
            ),
            "casts take {1.value:.0f} % of all device work": ((_sixteen_bit, "> 0"), (_casts, ">= 5")),
        },
        ("loss_scaling_pct", _loss_scaling, "< 0.5", "{no_scaler}"),
        ("casts_pct", _casts, "< 5", "parameters in bfloat16, or autocast's cache left on"),
        ("reads_per_step", _scalar_reads, "<= 1", "one .item() per step at most: GradScaler alone needs one"),
    ),
    "Small batches": (
        {
            "{0.value:.0f} % of kernels are shorter than a launch and the device is busy {1.value:.0f} %": (
                (_short_kernels, ">= 50"),
                (_device_utilisation, "<= 80"),
            )
        },
        ("short_kernels_pct", _short_kernels, "< 50", "raise the batch, or launch as a graph"),
        ("launch_gap_pct", _launch_gap, "< 5", "torch.compile(mode='reduce-overhead')"),
        ("matmul_rate_pct", _matmul_rate, "> 30", "matrices too small to fill the device"),
        ("occupancy_pct", _occupancy, "> 30", "too few blocks per kernel: raise the batch"),
        ("memory_pct_of_limit", _memory_of_limit, "> 50", "raise the batch per device: there is room"),
    ),
}
