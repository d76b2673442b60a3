"""`memory-bound-kernels`: consecutive elementwise and normalisation kernels, each of which reads and writes memory."""

import json
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.host_calls import Mask
from stepscope.analyze.kernel_costs import FAMILY_CODE, PRECISION_CODE, Abilities, KernelCosts, abilities
from stepscope.analyze.memory import RankMemory
from stepscope.analyze.owner_lines import LineWork, RankLines, stands_after_optimizer
from stepscope.analyze.ownership import Ownership
from stepscope.analyze.phases import parameter_gradients, trains
from stepscope.analyze.replay.changes import (
    Change,
    fused_chains,
    fused_work,
    with_work_times,
    without_syncs,
    without_work,
)
from stepscope.analyze.replay.removal import NO_PART, Part
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.stacks import Line
from stepscope.analyze.stacks import Mask as stacks_Mask
from stepscope.contract.step_line import Region
from stepscope.cost.chips import Chip, mfu_peak
from stepscope.cost.kernel_names import Family
from stepscope.diagnose.finding import MIN_MOSTLY, Candidate, Evidence, Where
from stepscope.diagnose.rule_measures import Mask as measures_Mask
from stepscope.diagnose.rule_measures import (
    at,
    device_ms,
    host_ms,
    lines_on_all,
    ranks_with,
    with_work_ns,
    without_lines,
    without_parts,
)
from stepscope.diagnose.where import MAX_PLACES, recorded_event_places, short_kernel_places, user_lines
from stepscope.intervals import EMPTY, union
from stepscope.records import once_per_record
from stepscope.run.load import each_rank
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind, by_string
from stepscope.trace.table import NO_STRING

# `memory-bound-kernels`: convolutions convert the layout of what they are given, and back.
#
# Libraries compute convolutions on matrix cores with channels last. Tensors that have channels first, torch's default,
# are converted before every one of them and after it. Such a kernel says so by its name, and does nothing else.

# of the step: weights alone, converted in every step, are less
_MIN_SHARE = 0.02


@once_per_record
def _conversions(rank: Rank) -> Mask:
    named = by_string(
        rank.trace,
        rank.work.name,
        lambda s: any(name in s.lower() for name in ("nchwtonhwc", "nhwctonchw", "ncdhwtondhwc", "ndhwctoncdhw")),
    )
    return named.astype(bool) & (rank.work.kind == EventKind.KERNEL)


def convolution_layout(account: Account) -> list[Candidate]:
    """Return the conversions between channels first and last that libraries make around convolutions."""
    chosen = [_conversions(rank) & (rank.work.step >= 0) for rank in account.run.ranks]
    spent_ns = device_ms(account, chosen) * 1e6
    if account.step is None or spent_ns < _MIN_SHARE * account.step.step_ns:
        return []
    launches = [m.sum() / max(len(r.steps), 1) for m, r in zip(chosen, account.run.ranks, strict=True)]
    return [
        Candidate(
            id="memory-bound-kernels",
            title="Convolutions convert the layout of their tensors",
            cause="they are computed with channels last, and what they are given has channels first: it is converted "
            "before each of them, and the result back",
            remedy="model.to(memory_format=torch.channels_last), and each batch too. The saving is of the step without these "
            "kernels alone; normalisation often gets faster besides.",
            change=lambda replay: without_work(replay, chosen),
            limit_ns=with_work_ns(account, spent_ns),
            claim="layout of convolutions",
            cost_ns=spent_ns,
            evidence=(
                Evidence("conversions per step", round(float(np.mean(launches))), "launches", "mean rank"),
                Evidence("their device time per step", round(spent_ns / 1e6, 3), "ms", "mean rank"),
            ),
            doubt=0.3,
            sureness=0.9,
            what_if=(),
            subject="converting the layout of tensors",
        )
    ]


# `memory-bound-attention`: attention written out, with its S x S matrices in memory.

_MIN_SEQUENCE = 128
# an input is square; the product of the first two inputs is
_SQUARE, _MULTIPLIED_TO_SQUARE = 1, 2


def memory_bound_attention(account: Account) -> list[Candidate]:
    """Return the work on S x S matrices, where a softmax over them shows that it is attention."""
    peak = mfu_peak(account.chip.chip) if account.chip.chip else None
    if peak is None:
        return []
    by_rank = [view.costs for view in account.ranks]
    chosen = [_on_square_scores(costs) for costs in by_rank]
    spent = device_ms(account, chosen)
    if not spent or not any(_has_softmax(c, mask) for c, mask in zip(by_rank, chosen, strict=True)):
        return []
    times = []
    for costs, mask in zip(by_rank, chosen, strict=True):
        flops = float(np.nansum(costs.flops[mask & costs.is_matmul]))
        # share of the peak that fused attention reaches, forward and backward together
        # fused attention computes the scores again in backward
        fused_ns = 1.2 * flops / (peak.flops_per_s * 0.4) * 1e9
        total = float(costs.duration_ns[mask].sum())
        times.append(costs.duration_ns.astype(float) * min(1.0, fused_ns / total if total else 1.0))
    return [
        Candidate(
            id="memory-bound-attention",
            title="Attention writes its score matrices to memory",
            cause="scores, mask, softmax and dropout are separate kernels over tensors of sequence x sequence",
            remedy="Use torch.nn.functional.scaled_dot_product_attention (or FlashAttention); pass is_causal=True instead of a mask. "
            "The saving is of fused attention.",
            change=lambda replay: with_work_times(replay, chosen, times),
            cost_ns=spent * 1e6,
            evidence=(Evidence("device work on score matrices per step", round(spent, 3), "ms", "mean rank"),),
            doubt=0.2,
        )
    ]


def _on_square_scores(costs: KernelCosts) -> npt.NDArray[np.bool_]:
    trace, work = costs.rank.trace, costs.rank.work
    rows = np.flatnonzero((work.op_row >= 0) & (work.step >= 0) & (work.kind != int(EventKind.COMM_KERNEL)))
    op = work.op_row[rows]
    dims = trace.arg("input_dims").at(op, missing=NO_STRING).astype(np.int32)
    shapes = by_string(trace, dims, _square_shapes)
    multiplied = np.flatnonzero(shapes == _MULTIPLIED_TO_SQUARE)
    multiplies = by_string(trace, trace["name"][op[multiplied]], lambda name: "bmm" in name).astype(bool)
    found = np.zeros(len(work), bool)
    found[rows] = shapes == _SQUARE
    found[rows[multiplied]] = multiplies
    return found


@lru_cache(maxsize=256)  # texts may have 64 kB each
def _square_shapes(dims: str) -> int:
    try:
        found = json.loads(dims)
    except (ValueError, RecursionError):
        return 0
    listed = found if isinstance(found, list) else []
    shapes = [s for s in listed if isinstance(s, list) and len(s) >= 3 and all(isinstance(n, int) for n in s)]
    if any(s[-1] == s[-2] >= _MIN_SEQUENCE for s in shapes):
        return _SQUARE
    if len(shapes) < 2:
        return 0
    # Scores are a product of (S, d) and (d, S) with d < S.
    (*_, rows, inner), (*_, columns) = shapes[:2]
    return _MULTIPLIED_TO_SQUARE if rows == columns >= _MIN_SEQUENCE and inner < rows else 0


def _has_softmax(costs: KernelCosts, mask: npt.NDArray[np.bool_]) -> bool:
    trace, work = costs.rank.trace, costs.rank.work
    return bool(by_string(trace, trace["name"][work.op_row[mask]], lambda name: "softmax" in name).any())


# `memory-bound-kernels` by line: tensors that the user's code puts into another memory order.
#
# Fusing does not take such a copy out where products or convolutions stand on both sides of it; one memory order
# throughout does.


def layout_copies(account: Account) -> list[Candidate]:
    """Return the copies into another memory order that lines of the user's ask for, all together."""
    if account.step is None:
        return []
    chosen = [np.zeros(len(r.work), bool) if o is None else _copies(o) for r, o in _ranks(account)]
    total = device_ms(account, chosen) * 1e6
    # of the step: a model that needs a copy here and there is no fault
    if not total or total < 0.05 * account.step.step_ns:
        return []
    took: Counter[Line] = Counter()
    for (_, owned), mask in zip(_ranks(account), chosen, strict=True):
        if owned is not None:
            took += _by_line(owned, mask)
    lines = took.most_common(MAX_PLACES)
    named = ", ".join(f"{file}:{number}" for (file, number), _ in lines)
    steps = sum(max(len(rank.steps), 1) for rank in account.run.ranks)
    return [
        Candidate(
            id="memory-bound-kernels",
            title=f"{named} put{'s' if len(lines) == 1 else ''} tensors into another memory order",
            cause="contiguous() copies the whole tensor where its memory order is another; gradients follow it in backward",
            remedy="Keep one memory order through the model (channels_last for convolutions with Linear and LayerNorm between) and "
            "leave contiguous() out where the next operator takes strides. The saving is of the step without these "
            "copies in forward.",
            change=without_parts(
                [NO_PART if o is None else _part(o, m) for (_, o), m in zip(_ranks(account), chosen, strict=True)]
            ),
            cost_ns=total,
            evidence=(
                Evidence("copies into another memory order per step", host_ms(total), "ms", "mean rank"),
                *(
                    Evidence("copies of the line per step", host_ms(ns / steps), "ms", f"{file}:{number}")
                    for (file, number), ns in lines
                ),
            ),
            where=tuple(at(line, share=ns / sum(took.values())) for line, ns in lines),
            what_if=(),
            doubt=0.3,
            sureness=0.7,
        )
    ]


def _ranks(account: Account) -> list[tuple[Rank, Ownership | None]]:
    return list(zip(account.run.ranks, account.ownership, strict=True))


def _asked(owned: Ownership) -> stacks_Mask:
    calls, by, names = owned.calls, owned.by_call, owned.rank.trace.strings
    named = np.array([names[name] == "aten::contiguous" for name in calls.name.tolist()], bool)
    innermost = owned.stacks.innermost
    users = (innermost >= 0) & (innermost == owned.stacks.innermost_user)
    return named & users[by.stack] & ~by.backward


def _copies(owned: Ownership) -> stacks_Mask:
    work = owned.rank.work
    call = owned.calls.at_rows(work.op_row)
    inside = np.append(owned.calls.nearest(_asked(owned)) >= 0, False)
    return inside[call] & (work.step >= 0)


def _part(owned: Ownership, copies: stacks_Mask) -> Part:
    rows = distinct(owned.calls.nearest(_asked(owned))[owned.calls.at_rows(owned.rank.work.op_row[copies])])
    host = union(owned.calls.start_ns[rows], owned.calls.end_ns[rows])
    none = np.zeros(len(owned.rank.collectives), bool)
    return Part(host, EMPTY, copies, none, np.empty(0, np.int64))


def _by_line(owned: Ownership, copies: stacks_Mask) -> Counter[Line]:
    work, found = owned.rank.work, Counter[Line]()
    for row in np.flatnonzero(copies).tolist():
        if lines := user_lines(owned, int(owned.by_work.stack[row])):
            found[lines[-1]] += int(work.end_ns[row] - work.start_ns[row])
    return found


# `precision`: matrix products off the tensor cores, or wider than they need to be.

_WIDE = (PRECISION_CODE["fp64"], PRECISION_CODE["fp32"], PRECISION_CODE["tf32"])
# share of the peak that 16-bit products of a size worth the name reach
_PRECISION_REACHED = 0.6
_NARROW = (PRECISION_CODE["fp16"], PRECISION_CODE["bf16"])


def precision(account: Account) -> list[Candidate]:
    """Return 32-bit matrix products on a chip whose 16-bit units are faster."""
    chip = account.chip.chip
    peak = mfu_peak(chip) if chip else None
    if chip is None or peak is None:
        return []
    costs = [view.costs for view in account.ranks]
    chosen = [c.is_matmul & among(c.precision, _WIDE) & (c.rank.work.step >= 0) for c in costs]
    spent = device_ms(account, chosen)
    narrow = device_ms(account, [c.is_matmul & among(c.precision, _NARROW) & (c.rank.work.step >= 0) for c in costs])
    mixed = narrow > spent / 2
    # changing the precision is no small thing: proposed where such products are most of the step; below that the
    # waterfall shows what they cost
    # where the job computes in 16 bit already, what is left in 32 bit was left out rather than decided on
    needed = 0.05 if mixed else 0.5
    if account.step is None or spent * 1e6 < needed * account.step.step_ns:
        return []
    times = [_sixteen_bit_ns(c, mask, chip, peak.flops_per_s) for c, mask in zip(costs, chosen, strict=True)]
    off = [c.is_matmul & (c.tensor_core == 0) & mask for c, mask in zip(costs, chosen, strict=True)]
    can = abilities(account.run.ranks, chip)
    return [
        Candidate(
            id="precision",
            title="Some matrix products run in 32 bit beside others in 16"
            if mixed
            else "Matrix products run in 32 bit",
            cause="products off the tensor cores"
            if device_ms(account, off) > spent / 2
            else f"products in {'TF32 or FP32' if can.tf32 is not False else 'FP32'}",
            remedy=_remedy_of_the_rest(can) if mixed else _remedy(can, trains=bool(trains(account.strategy.passes))),
            change=lambda replay: with_work_times(replay, chosen, times),
            cost_ns=spent * 1e6,
            evidence=(
                Evidence("32-bit matrix products per step", round(spent, 3), "ms", "mean rank"),
                Evidence("of it off the tensor cores", round(device_ms(account, off), 3), "ms", "mean rank"),
            ),
            doubt=0.2,
        )
    ]


def _remedy_of_the_rest(can: Abilities) -> str:
    return (
        f"Bring these layers under the autocast region as well (or cast their inputs and weights to torch.{can.narrow}): "
        "the rest of the job computes in 16 bit. Keep the loss and the statistics that need it in 32 bit, after the "
        "product. The saving is of 16-bit products at the rate such shapes reach."
    )


def _remedy(can: Abilities, *, trains: bool) -> str:
    scaler = " with torch.amp.GradScaler, because its range is small" if can.narrow == "float16" and trains else ""
    around = "forward and loss" if trains else "the forward pass"
    least = "; at least torch.set_float32_matmul_precision('high') for TF32" if can.tf32 is not False else ""
    return (
        f"Use torch.autocast('cuda', torch.{can.narrow}) around {around}{scaler} (or load the model in {can.narrow}){least}. "
        "The saving is of 16-bit products at the rate such shapes reach."
    )


def _sixteen_bit_ns(
    costs: KernelCosts, mask: npt.NDArray[np.bool_], chip: Chip, peak_flops: float
) -> npt.NDArray[np.float64]:
    by_flops = costs.flops / (peak_flops * _PRECISION_REACHED) * 1e9
    by_bytes = costs.bytes / 2 / chip.memory_gb_per_s if chip.memory_gb_per_s else np.zeros(len(mask))
    # Without shapes the ratio of the units' peaks stands in.
    own = chip.peak_flops("fp32") or peak_flops
    unknown = costs.duration_ns * min(1.0, own / (peak_flops * _PRECISION_REACHED))
    best = np.where(np.isnan(by_flops), unknown, np.fmax(by_flops, by_bytes))
    return np.minimum(np.maximum(best, 3_000.0), costs.duration_ns)


# `mixed-precision-overhead`: loss scaling: unscaling, checks for infinities and the synchronisation they need.


def mixed_precision_overhead(account: Account) -> list[Candidate]:
    """Return the work of a gradient scaler; on a chip without bfloat16 there is nothing to put in its place."""
    if abilities(account.run.ranks, account.chip.chip).bf16 is False:
        return []
    chosen = []
    for rank in account.run.ranks:
        work, scaling = rank.work, rank.rows_named(lambda s: "_amp_" in s, EventKind.HOST_OP)
        chosen.append((work.step >= 0) & among(work.op_row, scaling))
    if not any(mask.any() for mask in chosen):
        return []

    def without_scaler(replay: Replay) -> Replay:
        return without_syncs(without_work(replay, chosen))

    return [
        Candidate(
            id="mixed-precision-overhead",
            title="Loss scaling costs time",
            cause="GradScaler unscales every gradient, checks it for infinities and waits for the answer",
            remedy="Train in bfloat16, which needs no scaler: torch.autocast('cuda', torch.bfloat16) and no GradScaler. "
            "The saving is of the same step without scaling and its synchronisation.",
            change=without_scaler,
            limit_ns=with_work_ns(account, device_ms(account, chosen) * 1e6),
            cost_ns=device_ms(account, chosen) * 1e6,
            evidence=(Evidence("scaler operations per step", round(float(np.mean([m.sum() / max(len(r.steps), 1)
                      for m, r in zip(chosen, account.run.ranks, strict=True)]))), "launches", "mean rank"),),
            doubt=0.4,
            sureness=0.8,
        )
    ]  # fmt: skip


# `optimizer`: an optimizer step of many small kernels instead of a few fused ones.

_FUSED_LAUNCHES = 8


def optimizer(account: Account) -> list[Candidate]:
    """Return optimizer work launched as many kernels: of no fused implementation, or of one called for each group."""
    calls = [_fused_calls(rank) / max(len(rank.steps), 1) for rank in account.run.ranks]
    by_group = min(calls, default=0.0) > _FUSED_LAUNCHES
    chosen = []
    for view in account.ranks:
        rank, budget = view.rank, view.budget
        if budget is None or budget.regions is None:
            return []
        work = rank.work
        mine = (budget.regions.region == Region.OPTIMIZER) & (work.step >= 0) & (work.kind != EventKind.COMM_KERNEL)
        if not by_group:
            mine &= ~by_string(rank.trace, work.name, lambda s: "Fused" in s or "fused_adam" in s).astype(bool)
        chosen.append(mine)
    per_step = float(np.mean([m.sum() / max(len(r.steps), 1) for m, r in zip(chosen, account.run.ranks, strict=True)]))
    if per_step <= _FUSED_LAUNCHES:
        return []
    title, cause, remedy = (
        "The optimizer step is not fused",
        f"{per_step:.0f} device operations per optimizer step",
        "Pass fused=True to the optimizer (torch.optim.AdamW(..., fused=True)), or foreach=True where fused is not available. "
        "The saving is of a fused optimizer.",
    )
    if by_group:
        title, cause, remedy = (
            "The optimizer is called for each group of parameters",
            f"{np.mean(calls):.0f} fused calls and {per_step:.0f} device operations per optimizer step, one call for each group",
            "Put parameters with the same settings into one group: a fused call changes all of them. "
            "The saving is of a few calls, the device's time as it is.",
        )
    # a fused Adam reads and writes 28 bytes per parameter; written out, its operators move about 72
    device_share = 1.0 if by_group else 0.4
    spent = device_ms(account, chosen)
    return [
        Candidate(
            id="optimizer",
            title=title,
            cause=cause,
            remedy=remedy,
            change=lambda replay: fused_work(replay, chosen, launches=_FUSED_LAUNCHES, device_share=device_share),
            limit_ns=with_work_ns(account, spent * 1e6),
            cost_ns=spent * 1e6,
            evidence=(
                Evidence("optimizer operations per step", round(per_step), "launches", "mean rank"),
                Evidence("optimizer device time per step", round(spent, 3), "ms", "mean rank"),
            ),
            doubt=0.3,
        )
    ]


def _fused_calls(rank: Rank) -> int:
    rows = rank.rows_named(
        lambda name: name.startswith(("aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad")),
        EventKind.HOST_OP,
    )
    return int((rank.steps.of(rank.trace["ts_ns"][rows]) >= 0).sum())


# `recomputation`: activation checkpointing repeats forward work in the backward pass.

# what torch.utils.checkpoint runs first in a checkpointed block, after it has kept the state of the random numbers
_ENTRIES = ("_NoopSaveInputs", "CheckpointFunction")


def recomputation(account: Account) -> list[Candidate]:
    """Return the recomputed work as a cost."""
    chosen = [view.costs.recomputed & (view.rank.work.step >= 0) for view in account.ranks]
    repeated = device_ms(account, chosen)
    if not repeated:
        return []
    entered = [_first_launches(rank) for rank in account.run.ranks]
    return [
        Candidate(
            id="recomputation",
            title="Forward work is computed a second time in backward",
            cause="activation checkpointing discards activations and recomputes them",
            remedy="Checkpoint fewer blocks, or only cheap operators (selective checkpointing, torch.utils.checkpoint with a policy), as far "
            "as memory allows. The saving is of no recomputation at all.",
            change=lambda replay: without_work(replay, chosen, entered=entered),
            limit_ns=with_work_ns(account, repeated * 1e6),
            cost_ns=repeated * 1e6,
            evidence=(Evidence("recomputed device work per step", round(repeated, 3), "ms", "mean rank"),),
            where=_checkpointing_lines(account),
        )
    ]


def _checkpointing_lines(account: Account) -> tuple[Where, ...]:
    """Return the lines that call checkpointed blocks, by how many they call: what is repeated stands in the blocks'
    own lines and in that of backward, and none of those is what to change.
    """
    found: Counter[Line] = Counter()
    for owned in account.ownership:
        if owned is None:
            continue
        names = owned.rank.trace.strings
        entries = np.array([names[name] in _ENTRIES for name in owned.calls.name.tolist()], bool)
        for stack in owned.by_call.stack[entries & ~owned.by_call.backward].tolist():
            if lines := user_lines(owned, stack):
                found[lines[-1]] += 1
    total = sum(found.values())
    return tuple(at(line, share=calls / total) for line, calls in found.most_common(MAX_PLACES))


def _first_launches(rank: Rank) -> measures_Mask:
    entries = np.sort(rank.trace["ts_ns"][rank.rows_named(lambda name: name in _ENTRIES, EventKind.HOST_OP)])
    first = np.zeros(len(rank.work), bool)
    launched = np.flatnonzero(rank.work.launch_row >= 0)
    when = rank.trace["ts_ns"][rank.work.launch_row[launched]]
    order = np.argsort(when, kind="stable")
    at = np.searchsorted(when[order], entries, side="right")
    first[launched[order[at[at < len(order)]]]] = True
    return first


# `recomputation`: a forward pass of the trained model whose result nothing is run back through.


def unused_forward(account: Account) -> list[Candidate]:
    """Return lines that run the trained modules once more, after the last backward or below the optimizer's line: no loss
    of the step has it.
    """
    return [_candidate(account, line) for line in lines_on_all(account, _is_unused)]


def _is_unused(rank: RankLines, work: LineWork) -> bool:
    if not work.apart or not work.modules or work.in_place:
        return False
    # of the modules below the line are trained in the same step: it is the model, not a frozen one beside it
    if len(work.modules & rank.trained) < 0.5 * len(work.modules):
        return False
    ran = work.last_ns > work.first_ns
    after = (work.first_ns[ran] > rank.backward_ns[ran]).all() or stands_after_optimizer(rank, work)
    return bool(ran.any() and after)


def _candidate(account: Account, line: Line) -> Candidate:
    took, modules = [], 0
    for known in ranks_with(account, line):
        took.append(known.lines[line].device_ns / max(len(known.owned.rank.steps), 1))
        modules = max(modules, len(known.lines[line].modules))
    place = f"{line[0]}:{line[1]}"
    return Candidate(
        id="recomputation",
        title=f"The model runs forward once more in {place}, with no backward",
        cause=f"{place} runs {modules} modules that are trained in the same step; nothing goes back through its result, "
        "and it comes after the loss: a metric or a log",
        remedy="Take the metric from the output of the training pass, or compute it every N steps. The saving is of "
        "the step without this line.",
        change=without_lines(account, [line]),
        cost_ns=float(np.mean(took)) or None,
        evidence=(
            Evidence("device work of the second forward pass per step", host_ms(float(np.mean(took))), "ms", place),
        ),
        where=(at(line),),
        what_if=("--without", place),
        subject=f"a forward pass without backward ({place})",
    )


# `small-batch`: too little work per kernel to fill the device.

_BUSY = 0.5


def small_batch(account: Account) -> list[Candidate]:
    """Return a device that is mostly idle between short kernels: more work per step would be nearly free."""
    short = account.kernels.short_count_share
    windows = [v.window for v in account.ranks if v.window is not None and v.window.window_ns]
    busy = sum(a.compute.total_ns for a in windows) / max(sum(a.window_ns for a in windows), 1)
    if short < 0.5 or busy > _BUSY or not any(r.has_device for r in account.run.ranks):
        return []
    return [
        Candidate(
            id="small-batch",
            title="Too little work per kernel",
            cause="most kernels end before the host can launch the next one",
            remedy="Raise the batch (or sequence) per device until the device is busy; the step hardly grows until then, so throughput "
            "does. No saving per step is claimed: the step has more samples.",
            fixed_saving_ns=0.0,
            evidence=(
                Evidence("kernels shorter than a launch", round(100 * short, 1), "% of launches"),
                Evidence("device busy with compute", round(100 * busy, 1), "% of the window"),
            ),
            where=short_kernel_places(account),
            always=True,
            sureness=0.7,
        )
    ]


# `memory-pressure`: memory near the limit, or growing from step to step.


def memory_pressure(account: Account) -> list[Candidate]:
    """Return ranks within 5 % of their device's memory, whose cache is emptied in between, or that keep growing."""
    if account.memory is None:
        return []
    full = [r for r in account.memory.ranks if (r.peak_pct_of_total or 0.0) >= 95.0]
    flushed = [r for r in account.memory.ranks if r.allocator_retries]
    growing = [r for r in account.memory.ranks if r.growth is not None and r.growth.leaks]
    pressed = {r.rank: r for r in (*full, *flushed, *growing)}
    if not pressed:
        return []
    return [
        Candidate(
            id="memory-pressure",
            title="Device memory is nearly full" if full or flushed else "Device memory grows from step to step",
            cause="the allocator has to empty its cache"
            if flushed
            else "near the limit"
            if full
            else "something keeps tensors alive",
            remedy="Free what is not needed (detach losses that are kept for logging, zero_grad(set_to_none=True)), checkpoint activations, shard "
            "optimizer state, or lower the batch; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragments.",
            fixed_saving_ns=0.0,
            ranks=tuple(sorted(pressed)),
            evidence=tuple(e for r in pressed.values() for e in _evidence(r)),
            always=True,
        )
    ]


def _evidence(r: RankMemory) -> list[Evidence]:
    where = f"rank {r.rank}"
    lines = []
    if r.peak_pct_of_total is not None:
        lines.append(Evidence("peak of the device's memory", round(r.peak_pct_of_total, 1), "%", where))
    if r.allocator_retries:
        lines.append(Evidence("times the cache was emptied", r.allocator_retries, "", where))
    if r.growth is not None and r.growth.leaks:
        lines.append(Evidence("growth per step", round(r.growth.bytes_per_step), "bytes", where))
        for leak in r.leaks[:3]:
            kept = f"of each of {leak.steps} steps kept by {leak.name}"
            lines.append(Evidence(kept, round(leak.bytes_per_step), "bytes", where))
    return lines


# `profiler-overhead`: the trace itself is distorted; says how far to trust it.


def profiler_overhead(account: Account) -> list[Candidate]:
    """Return how much longer a step was while it was recorded, where that is a lot."""
    step = account.step
    if step is None or step.overhead_pct is None or step.overhead_pct < 20.0:
        return []
    factor = account.replay.host_factor if account.replay else None
    return [
        Candidate(
            id="profiler-overhead",
            title=f"Recording made the step {step.overhead_pct:.0f} % longer",
            cause="the profiler slows the host; launch gaps in the trace are partly its own",
            remedy="All numbers here have it taken out; record fewer steps without shapes and stacks to see less of it.",
            fixed_saving_ns=0.0,
            cost_ns=step.profiled_ns - (step.ordinary_ns or step.profiled_ns),
            evidence=(
                Evidence("step while profiled", host_ms(step.profiled_ns), "ms"),
                Evidence("step without the profiler", host_ms(step.ordinary_ns or 0.0), "ms"),
                Evidence("host time left without the profiler", round(factor, 2) if factor else "unknown", "share"),
            ),
            where=recorded_event_places(account),
            always=True,
            sureness=0.95,
        )
    ]


_FUSIBLE = [FAMILY_CODE[f] for f in (Family.ELEMENTWISE, Family.NORMALISATION, Family.COPY, Family.REDUCTION)]


# where the host limits the step: what fusing does to its time no trace tells
_LAUNCH_DOUBT, _LAUNCH_SURENESS = 1.0, 0.5
_HOST_LIMITS = "the host is what limits the step; only the device's time is counted: compiled code launches less, but how fast is not known"


def memory_bound_kernels(account: Account) -> list[Candidate]:
    """Return runs of fusible kernels, fused into one pass each."""
    fusible = [
        among(v.costs.family, _FUSIBLE)
        & (v.rank.work.kind == EventKind.KERNEL)
        & (v.rank.work.step >= 0)
        & ~_conversions(v.rank)  # parts of a library's convolution
        for v in account.ranks
    ]
    gradients = each_rank(account.run, lambda _, rank: parameter_gradients(rank))
    beside = [mask & leaf for mask, leaf in zip(fusible, gradients, strict=True)]
    chosen = [mask & ~leaf for mask, leaf in zip(fusible, beside, strict=True)]
    spent = device_ms(account, chosen)
    if not spent:
        return []
    fused = [_fused_ns(v.costs, mask, leaf) for v, mask, leaf in zip(account.ranks, chosen, beside, strict=True)]
    times, leads = [f[0] for f in fused], [f[1] for f in fused]

    @once_per_record
    def fuse(replay: Replay) -> Replay:
        return fused_chains(replay, chosen, times, leads)

    @once_per_record
    def fuse_on_device(replay: Replay) -> Replay:
        return with_work_times(replay, chosen, times)

    by_launches = _by_launches(account, fuse, fuse_on_device)
    removed_ns = _removed_ns(account, chosen, times)
    if not by_launches and account.step:
        removed_ns += account.step.ns("launch_gap")  # of launches there are fewer
    return [
        Candidate(
            id="memory-bound-kernels",
            title="Consecutive elementwise kernels are not fused",
            cause="each reads its inputs from memory and writes its result back for the next"
            + (f"; {_HOST_LIMITS}" if by_launches else ""),
            remedy="torch.compile(model) fuses them; or use fused layers (fused norms, fused SwiGLU). The saving is of each run of such "
            "kernels as one launch and one pass over its largest one.",
            change=fuse_on_device if by_launches else fuse,
            limit_ns=min(spent * 1e6, removed_ns),
            claim="fused kernels",
            cost_ns=spent * 1e6,
            evidence=(Evidence("elementwise and normalisation kernels per step", round(spent, 3), "ms", "mean rank"),),
            doubt=_LAUNCH_DOUBT if by_launches else 0.5,
            sureness=_LAUNCH_SURENESS if by_launches else 0.7,
        )
    ]


def _by_launches(account: Account, fuse: Change, fuse_on_device: Change) -> bool:
    replay, step = account.owned_replay, account.step
    # of the step in which the device waits for launches: below it time on the device is what counts
    if replay is None or step is None or step.ns("launch_gap") < 0.05 * step.step_ns:
        return False
    saves = replay.period_ns - fuse(replay).period_ns
    if not saves > 0:
        return False
    on_device = replay.period_ns - fuse_on_device(replay).period_ns
    return bool(on_device < MIN_MOSTLY * saves)


def _removed_ns(account: Account, chosen: Sequence[measures_Mask], fused: Sequence[npt.NDArray[np.float64]]) -> float:
    removed = [
        (view.costs.duration_ns - after)[mask].sum() / max(len(view.rank.steps), 1)
        for view, mask, after in zip(account.ranks, chosen, fused, strict=True)
    ]
    return float(np.mean(removed))


def _fused_ns(
    costs: KernelCosts, mask: measures_Mask, beside: measures_Mask
) -> tuple[npt.NDArray[np.float64], measures_Mask]:
    """Return times in which each run of consecutive chosen kernels takes what its longest one takes, and which
    kernels are the first of their run: the fused one is launched there.

    What is `beside` a run, gradients of parameters that no other kernel reads, neither joins nor ends it.
    """
    work = costs.rank.work
    order = np.lexsort((work.stream, work.device))  # and by start, as it is
    order = order[~beside[order]]
    joins = mask[order]
    begins = joins.copy()
    begins[1:] &= ~joins[:-1]
    out, first = costs.duration_ns.astype(float), np.zeros(len(mask), bool)
    first[order[np.flatnonzero(begins)]] = True
    joined = order[np.flatnonzero(joins)]
    starts, duration = np.flatnonzero(first[joined]), out[joined]
    longest, total = np.maximum.reduceat(duration, starts), np.add.reduceat(duration, starts)
    share = np.where(total > 0, longest / np.maximum(total, 1), 1.0)
    out[joined] = duration * np.repeat(share, np.diff(starts, append=len(joined)))
    return out, first
