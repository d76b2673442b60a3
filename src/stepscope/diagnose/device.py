"""Kinds of findings in what the device computes: precision, attention, fusion, layout, optimizer, recomputation, memory."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.host_time import host_calls, spans
from stepscope.analyze.kernels import FILLS_LITTLE, SHORT_NS, KernelCosts, abilities, filled_share, launch_sizes
from stepscope.analyze.operators import FAMILY_CODE, PRECISION_CODE
from stepscope.analyze.owner_places import (
    MAX_PLACES,
    MOSTLY,
    Where,
    recorded_event_places,
    short_kernel_places,
    user_lines,
)
from stepscope.analyze.ownership import Line, Ownership
from stepscope.analyze.phases import loop_in, parameter_gradients, regions, trains
from stepscope.analyze.replay.changes import (
    Change,
    fused_chains,
    fused_work,
    with_work_times,
    without_syncs,
    without_work,
)
from stepscope.analyze.replay.removal import NO_PART, Part, taken_out
from stepscope.analyze.replay.replay import Replay
from stepscope.contract.step_line import Region
from stepscope.cost.chips import Chip, Peak, mfu_peak
from stepscope.cost.operators import Family, function_of
from stepscope.diagnose.finding import NEGLIGIBLE, NOTABLE, WORTH_A_LINE, Evidence, Kind, Match, evidence_ms
from stepscope.diagnose.measures import (
    COMPUTE,
    HOST,
    Mask,
    at,
    device_ns,
    has_device,
    host_ns,
    host_part,
    launching,
    lines_on_all,
    per_step,
    place_of,
    with_work_ns,
    without_parts,
)
from stepscope.diagnose.recording import Need, Scope, recording_of
from stepscope.intervals import EMPTY, Intervals, covered_ns, union
from stepscope.records import Row, once_per_record
from stepscope.run.device_work import enclosing
from stepscope.run.load import each_rank
from stepscope.run.rank import Rank
from stepscope.run.side_files import StepLog, code_of
from stepscope.stats.robust import among, distinct, median
from stepscope.trace.table import EventKind, Int64s, by_string

Floats = npt.NDArray[np.float64]

# Layout: libraries compute convolutions on matrix cores with channels last. Tensors with channels first, torch's default,
# are converted before each of them and after it, by kernels whose names give it away.


@once_per_record
def _conversions(rank: Rank) -> Mask:
    names = ("nchwtonhwc", "nhwctonchw", "ncdhwtondhwc", "ndhwctoncdhw")
    named = by_string(rank.trace, rank.work.name, lambda s: any(name in s.lower() for name in names))
    return named.astype(bool) & (rank.work.kind == EventKind.KERNEL)


def _convolution_layout(account: Account) -> Iterator[Match]:
    chosen = [_conversions(rank) & (rank.work.step >= 0) for rank in account.run.ranks]
    spent = device_ns(account, chosen)
    if account.step is not None and spent >= WORTH_A_LINE * account.step.step_ns:
        yield Match(
            lambda replay: without_work(replay, chosen),
            limit_ns=with_work_ns(account, spent),
            claim="layout of convolutions",
            cost_ns=spent,
            evidence=(
                Evidence("conversions {per_step}", round(per_step(account, chosen)), "launches", "average rank"),
                evidence_ms("their device time {per_step}", spent, "average rank"),
            ),
            what_if=(),
        )


def _layout_copies(account: Account) -> Iterator[Match]:
    """Yield the copies that `contiguous()` in the user's lines makes, all together: fusing does not remove such a copy where
    products or convolutions surround it; one memory order throughout does.
    """
    owned = account.ownership
    chosen = [
        _contiguous(o)[0] if o else np.zeros(len(r.work), bool) for r, o in zip(account.run.ranks, owned, strict=True)
    ]
    total = device_ns(account, chosen)
    if account.step is None or not total or total < NOTABLE * account.step.step_ns:
        return
    took: Counter[Line] = Counter()
    for one, mask in zip(owned, chosen, strict=True):
        for row in np.flatnonzero(mask).tolist() if one is not None else ():
            assert one is not None
            if stack := user_lines(one, int(one.by_work.stack[row])):
                took[stack[-1]] += int(one.rank.work.end_ns[row] - one.rank.work.start_ns[row])
    lines = took.most_common(MAX_PLACES)
    steps = sum(max(len(rank.steps), 1) for rank in account.run.ranks)
    named = ", ".join(place_of(line) for line, _ in lines)
    yield Match(
        without_parts([_contiguous(one)[1] if one else NO_PART for one in owned]),
        facts={"place": named},
        cost_ns=total,
        evidence=(
            evidence_ms("copies into another memory order {per_step}", total, "average rank"),
            *(evidence_ms("copies of the line {per_step}", ns / steps, place_of(line)) for line, ns in lines),
        ),
        where=tuple(at(line, share=ns / sum(took.values())) for line, ns in lines),
        what_if=(),
    )


def _contiguous(owned: Ownership) -> tuple[Mask, Part]:
    """Return the copies below `contiguous()` calls of the user's in forward, and the part that removes them."""
    calls, by, work = owned.calls, owned.by_call, owned.rank.work
    named = by_string(owned.rank.trace, calls.name, lambda s: s == "aten::contiguous").astype(bool)
    innermost = owned.stacks.innermost
    users = (innermost >= 0) & (innermost == owned.stacks.innermost_user)
    around = calls.nearest(named & users[by.stack] & ~by.backward)
    copies = np.append(around >= 0, False)[calls.at_rows(work.op_row)] & (work.step >= 0)
    rows = distinct(around[calls.at_rows(work.op_row[copies])])
    host = union(calls.start_ns[rows], calls.end_ns[rows])
    return copies, Part(host, EMPTY, copies, np.zeros(len(owned.rank.collectives), bool), np.empty(0, np.int64))


# Attention written out: batched products with a softmax between them and nothing else that multiplies or normalises, in
# forward and in backward. Scores, mask, softmax and dropout are separate kernels over matrices of sequence x sequence.


def _attention(account: Account) -> Iterator[Match]:
    by_rank = [view.costs for view in account.ranks]
    chosen = [_attention_work(costs) for costs in by_rank]
    spent, peak = device_ns(account, chosen), mfu_peak(account.chip.chip) if account.chip.chip else None
    if account.step is None or not spent or spent < NOTABLE * account.step.step_ns:
        return
    times = []
    for costs, mask in zip(by_rank, chosen, strict=True):
        products = mask & costs.is_matmul
        total, multiplied = (float(costs.duration_ns[m].sum()) for m in (mask, products))
        flops = float(np.nansum(costs.flops[products]))
        # Fused attention computes the scores again in backward, and reaches 40 % of the peak over both passes. Without
        # shapes it takes what its products take now.
        fused_ns = 1.2 * flops / (peak.flops_per_s * 0.4) * 1e9 if flops and peak is not None else multiplied
        times.append(costs.duration_ns.astype(float) * min(1.0, fused_ns / total if total else 1.0))
    asked = host_ns(account, chosen)
    parts = [host_part(costs.rank, launching(costs.rank, mask)) for costs, mask in zip(by_rank, chosen, strict=True)]
    # two products in forward and four in backward, of which fused attention makes one operator each
    count = sum(int((mask & costs.is_matmul).sum()) for costs, mask in zip(by_rank, chosen, strict=True))
    left = min(1.0, count / 3 / sum(int(mask.sum()) for mask in chosen))
    yield Match(
        lambda replay: taken_out(with_work_times(replay, chosen, times), parts, factor=left, collectives=False),
        cost_ns=max(spent, asked),
        evidence=(
            evidence_ms("unfused attention kernels {per_step}", spent, "average rank"),
            evidence_ms("host time for launching them {per_step}", asked, "average rank"),
        ),
    )


def _attention_work(costs: KernelCosts) -> Mask:
    trace, work = costs.rank.trace, costs.rank.work
    found = np.zeros(len(work), bool)
    rows = np.flatnonzero((work.op_row >= 0) & (work.step >= 0) & (work.launch_row >= 0))
    rows = rows[np.argsort(trace["ts_ns"][work.launch_row[rows]], kind="stable")]
    name = trace["name"][work.op_row[rows]]
    batched = by_string(trace, name, lambda s: "bmm" in s).astype(bool)
    softmax = by_string(trace, name, lambda s: "softmax" in s and "log_softmax" not in s).astype(bool)
    ends = costs.is_matmul[rows] & ~batched | (costs.family[rows] == FAMILY_CODE[Family.NORMALISATION]) & ~softmax
    segment = np.cumsum(ends)
    count = int(segment[-1]) + 1 if len(rows) else 0
    products, softmaxes = (np.bincount(segment[which], minlength=count) for which in (batched, softmax))
    attends = (products >= 2) & (softmaxes > 0) & _over_scores(costs, rows, segment, batched, softmax)
    place = np.arange(len(rows))
    first, last = np.full(count, len(rows)), np.full(count, -1)
    np.minimum.at(first, segment[batched], place[batched])
    np.maximum.at(last, segment[batched], place[batched])
    found[rows] = attends[segment] & (place >= first[segment]) & (place <= last[segment]) & ~ends
    return found


def _over_scores(costs: KernelCosts, rows: Int64s, segment: Int64s, batched: Mask, softmax: Mask) -> Mask:
    """Return for each segment whether a softmax is over as many values as a batched product has; routers' are not."""
    over = np.ones(int(segment[-1]) + 1 if len(rows) else 0, bool)
    sizes = [_values(costs.rank, rows[which], product) for which, product in ((batched, True), (softmax, False))]
    scores = dict[int, set[int]]()
    for place, size in zip(segment[batched].tolist(), sizes[0], strict=True):
        scores.setdefault(place, set()).add(size)
    for place, size in zip(segment[softmax].tolist(), sizes[1], strict=True):
        known = scores.get(place, set())
        over[place] = 0 in (size, *known) or size in known
    return over


_DIMS = re.compile(r"\[([\d, ]*)\]")


def _values(rank: Rank, rows: Int64s, of_product: bool) -> list[int]:
    """Return how many values batched products have, or how many others take; 0 where shapes were not recorded."""
    shapes = rank.trace.arg("input_dims").at(rank.work.op_row[rows], missing=-1)
    known = dict[int, int]()
    for shape in distinct(shapes).tolist():
        text = rank.trace.text(shape) or "" if shape >= 0 else ""
        dims = [[int(n) for n in found.split(",") if n.strip()] for found in _DIMS.findall(text)]
        if of_product:
            pair = [d for d in dims if len(d) == 3][-2:]
            known[shape] = pair[0][0] * pair[0][1] * pair[1][2] if len(pair) == 2 else 0
        else:
            known[shape] = math.prod(dims[0]) if dims and dims[0] else 0
    return [known[shape] for shape in shapes.tolist()]


# Precision: matrix products off the tensor cores, or wider than they need to be.

_WIDE = tuple(PRECISION_CODE[name] for name in ("fp64", "fp32", "tf32"))
_NARROW = tuple(PRECISION_CODE[name] for name in ("fp16", "bf16"))
# of the peak: what 16-bit products of a size worth the name reach
_REACHED = 0.6
# of the step: at twice the rate, fewer products save less than a tenth
_WORTH_NARROWING = 0.25


def _precision(account: Account) -> Iterator[Match]:
    chip, can = account.chip.chip, abilities(account.run.ranks, account.chip.chip)
    peak = mfu_peak(chip) if chip else None
    if account.step is None or (peak is None and can.bf16 is None):  # nothing shows 16-bit units
        return
    costs, chosen = [view.costs for view in account.ranks], _products(account, _WIDE)
    spent = device_ns(account, chosen)
    mixed = device_ns(account, _products(account, _NARROW)) > spent / 2
    # Another precision is no small change: proposed where computing limits the step and it saves more than a tenth, or where
    # the job computes in 16 bit already and these were forgotten.
    if not spent or (spent < NOTABLE * account.step.step_ns if mixed else not _worth_narrowing(account, spent)):
        return
    times = [_sixteen_bit_ns(c, mask, chip, peak) for c, mask in zip(costs, chosen, strict=True)]
    off = device_ns(account, [mask & (c.tensor_core == 0) for c, mask in zip(costs, chosen, strict=True)])
    training = bool(trains(account.strategy.passes))
    scaler = " with torch.amp.GradScaler, because its range is small" if can.narrow == "float16" and training else ""
    in_tf32 = device_ns(account, _products(account, _WIDE[2:])) > spent * (1 - NOTABLE)
    least = "" if in_tf32 or can.tf32 is False else "; at least torch.set_float32_matmul_precision('high') for TF32"
    how = (
        f"Use torch.autocast('cuda', torch.{can.narrow}) around {'forward and loss' if training else 'the forward pass'}{scaler} "
        f"(or load the model in {can.narrow}){least}."
    )
    if mixed:
        how = (
            f"Bring these layers under the autocast region as well (or cast their inputs and weights to torch.{can.narrow}): "
            "the rest of the job computes in 16 bit. Compute the loss and the statistics that need it in 32 bit, after the "
            "product."
        )
    # A replay launches as slowly as recorded: in a window with first calls the device's own time tells what is saved.
    warm = bool(account.num_steps) or not recording_of(account).rules_out("host-bound")
    shorter = [
        (c.duration_ns - ns)[mask].sum() / max(len(c.rank.steps), 1)
        for c, mask, ns in zip(costs, chosen, times, strict=True)
    ]
    yield Match(
        (lambda replay: with_work_times(replay, chosen, times)) if warm else None,
        formula_ns=0.0 if warm else float(np.mean(shorter)),
        what_if=None if warm else (),
        facts={
            "how": how,
            "which": "Some matrix products run in 32 bit, others in 16"
            if mixed
            else f"Matrix products run in {'TF32' if in_tf32 else '32 bit'}",
            "why": "off the tensor cores"
            if off > spent / 2
            else f"in {'TF32' if in_tf32 else 'TF32 or FP32' if can.tf32 is not False else 'FP32'}",
        },
        cost_ns=spent,
        evidence=(
            evidence_ms("32-bit matrix products {per_step}", spent, "average rank"),
            *((evidence_ms("of it off the tensor cores", off, "average rank"),) if off > 0 else ()),
        ),
        doubt=None if peak is not None and warm else 0.5,
    )


def _products(account: Account, precisions: Sequence[int]) -> list[Mask]:
    costs = [view.costs for view in account.ranks]
    return [c.is_matmul & (c.rank.work.step >= 0) & among(c.precision, precisions) for c in costs]


def _worth_narrowing(account: Account, wide_ns: float) -> bool:
    step, proved_ns = account.step, _proved_ns(account)
    computing = sum(step.ns(part) for part in COMPUTE) if step is not None else 0.0
    return computing > MOSTLY * proved_ns and wide_ns >= _WORTH_NARROWING * proved_ns


def _proved_ns(account: Account) -> float:
    """Return the step less host time that is not proved: that of first calls is gone in another recording of the job."""
    step = account.step
    if step is None:
        return 0.0
    return step.step_ns - (
        sum(step.ns(part) for part in HOST) if recording_of(account).rules_out("host-bound") else 0.0
    )


def _few_wide_products(account: Account) -> str | None:
    step = account.step
    wide, narrow = (device_ns(account, _products(account, precisions)) for precisions in (_WIDE, _NARROW))
    if step is None or narrow > wide / 2:
        return None
    if wide < NOTABLE * _proved_ns(account):
        return None
    taken = f"they take {wide / 1e6:.3g} of {step.step_ns / 1e6:.3g} ms"
    if _worth_narrowing(account, wide):  # and yet no finding
        return f"a {account.whole} that 32-bit products bound: {taken}, next to what takes as long"
    return f"a recording in which compute takes most of the {account.whole}, 32-bit products a quarter: {taken}"


def _sixteen_bit_ns(costs: KernelCosts, mask: Mask, chip: Chip | None, peak: Peak | None) -> Floats:
    if chip is None or peak is None:  # every chip with 16-bit units multiplies at least twice as fast on them
        return np.minimum(np.maximum(costs.duration_ns / 2, 3_000.0), costs.duration_ns)
    peak_flops = peak.flops_per_s
    by_flops = costs.flops / (peak_flops * _REACHED) * 1e9
    by_bytes = costs.bytes / 2 / chip.memory_gb_per_s if chip.memory_gb_per_s else np.zeros(len(mask))
    # Without shapes the ratio of the units' peaks stands in.
    own = chip.peak_flops("fp32") or peak_flops
    unknown = costs.duration_ns * min(1.0, own / (peak_flops * _REACHED))
    best = np.where(np.isnan(by_flops), unknown, np.fmax(by_flops, by_bytes))
    return np.minimum(np.maximum(best, 3_000.0), costs.duration_ns)  # no kernel is shorter than 3 us


# What GradScaler does around its own operators: moving the scale, making the flags, reading them.
_SCALER = "_amp_"
_AROUND_SCALER = frozenset(("aten::to", "aten::reciprocal", "aten::full", "aten::fill_", "aten::zeros", "aten::item"))


def _loss_scaling(account: Account) -> Iterator[Match]:
    """Yield the work of a gradient scaler; on a chip without bfloat16 nothing can replace it."""
    ranks, step = account.run.ranks, account.step
    if step is None or abilities(ranks, account.chip.chip).bf16 is False:
        return
    host = [_scaling(rank) for rank in ranks]
    took = float(np.mean([h.total_ns / max(len(rank.steps), 1) for rank, h in zip(ranks, host, strict=True)]))
    if took < NEGLIGIBLE * step.step_ns:
        return
    chosen = [_launched_in(rank, spans) for rank, spans in zip(ranks, host, strict=True)]
    parts = [host_part(rank, spans, work) for rank, spans, work in zip(ranks, host, chosen, strict=True)]
    on_device, spent = has_device(account), device_ns(account, chosen)
    lines = lines_on_all(account, lambda _, work: any(_SCALER in name for name in work.top_calls))
    yield Match(
        lambda replay: without_syncs(without_parts(parts)(replay)),
        facts={"device": "cuda" if on_device else "cpu"},
        limit_ns=with_work_ns(account, spent) if on_device else None,
        cost_ns=max(spent, took),
        evidence=(
            evidence_ms("host in GradScaler {per_step}: unscaling, checks for infinities, new scale", took),
            Evidence("scaler operations {per_step}", round(per_step(account, chosen)), "launches", "average rank"),
        )[: 1 + on_device],
        where=tuple(at(line) for line in lines[:MAX_PLACES]),
    )


def _scaling(rank: Rank) -> Intervals:
    """Return when the host worked for the gradient scaler: from the end of backward, of the optimizer or of the operator
    before, to the end of its own last operator.
    """
    if not len(rank.rows_named(lambda name: _SCALER in name, EventKind.HOST_OP)):
        return EMPTY
    calls = host_calls(rank)
    own, around, unscales = (
        by_string(rank.trace, calls.name, fits).astype(bool)
        for fits in (lambda s: _SCALER in s, lambda s: s in _AROUND_SCALER, lambda s: _SCALER in s and "unscale" in s)
    )
    tops = np.flatnonzero(calls.parent < 0)
    every, optimizer = calls.end_ns[tops], loop_in(rank, Region.OPTIMIZER).end
    spans = []
    for place in np.flatnonzero(own[tops] & (rank.steps.of(calls.start_ns[tops]) >= 0)).tolist():
        first = last = place
        mine = calls.thread[tops] == calls.thread[tops[place]]
        while first > 0 and mine[first - 1] and around[tops[first - 1]]:
            first -= 1
        while last + 1 < len(tops) and mine[last + 1] and around[tops[last + 1]] and unscales[tops[place]]:
            last += 1
        start = calls.start_ns[tops[first]]  # its Python comes before its operators: a loop over the gradients
        before = [ends[ends <= start].max(initial=0) for ends in (every, optimizer, rank.steps.start_ns)]
        start = int(max(before))
        spans.append((start, int(calls.end_ns[tops[last]])))
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    return union(starts, ends)


def _launched_in(rank: Rank, spans: Intervals) -> Mask:
    work = rank.work
    launch = np.where(work.launch_row >= 0, rank.trace["ts_ns"][work.launch_row], -1)
    return (work.step >= 0) & (launch >= 0) & (covered_ns(spans, launch, launch + 1) > 0)


def _casts(account: Account) -> Iterator[Match]:
    """Yield the casts that autocast makes for operators again in every step where nothing is trained: a model that is
    stored in 16 bit needs none.
    """
    ranks, step = account.run.ranks, account.step
    if step is None or trains(account.strategy.passes) or abilities(ranks, account.chip.chip).bf16 is False:
        return
    host = [_casting(rank) for rank in ranks]
    chosen = [_launched_in(rank, spans) for rank, spans in zip(ranks, host, strict=True)]
    on_device, spent = has_device(account), device_ns(account, chosen)
    took = float(np.mean([h.total_ns / max(len(rank.steps), 1) for rank, h in zip(ranks, host, strict=True)]))
    if (spent if on_device else took) < WORTH_A_LINE * step.step_ns:
        return
    yield Match(
        without_parts([host_part(rank, spans, work) for rank, spans, work in zip(ranks, host, chosen, strict=True)]),
        cost_ns=spent if on_device else took,
        evidence=(evidence_ms("casts for operators {per_step}", spent if on_device else took, "average rank"),),
        what_if=(),
    )


def _casting(rank: Rank) -> Intervals:
    """Return when the host cast what autocast's operators read: before each runs, below an operator of the same name."""
    calls = host_calls(rank)
    wraps = (calls.parent >= 0) & (calls.name == calls.name[calls.parent])
    wrapped = np.zeros(len(calls.row), bool)
    wrapped[calls.parent[wraps]] = True
    casts = by_string(rank.trace, calls.name, lambda s: s == "aten::to").astype(bool)
    mine = casts & (calls.parent >= 0) & wrapped[calls.parent] & (rank.steps.of(calls.start_ns) >= 0)
    return union(calls.start_ns[mine], calls.end_ns[mine])


# Optimizer.

_FUSED_LAUNCHES = 8


_OPTIM = "torch/optim/"
_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_FUSED_FORMS = ("Adam", "AdamW", "SGD", "Adagrad")
_ONLY_FORM = re.compile(r"Optimizer\.step#(SparseAdam|LBFGS)\.step")  # neither fused nor batched
_BATCHED_FORMS = ("Adadelta", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
# a fused Adam reads and writes 28 bytes per parameter; written out, its operators move about 72. On a CPU, one thread,
# 0.4 to 12 million parameters in 48 to 200 tensors, it took 0.22 to 0.40 of the CPU time.
_FUSED_ADAM = 0.4
_ADAM = re.compile(r"Optimizer\.step#AdamW?\.step")


def _optimizer(account: Account) -> Iterator[Match]:
    """Yield optimizer work launched as many kernels: of no fused implementation, or of one called for each group."""
    calls = [_fused_calls(rank) / max(len(rank.steps), 1) for rank in account.run.ranks]
    by_group = min(calls, default=0.0) > _FUSED_LAUNCHES
    chosen = []
    for view in account.ranks:
        work = view.rank.work
        if view.budget is None or view.budget.regions is None:
            return
        mine = (regions(view.rank).region == Region.OPTIMIZER) & (work.step >= 0) & (work.kind != EventKind.COMM_KERNEL)
        if not by_group:
            fused = by_string(view.rank.trace, work.name, lambda s: "Fused" in s or "fused_adam" in s)
            only_form = view.rank.rows_named(lambda s: bool(_ONLY_FORM.match(s)), EventKind.ANNOTATION)
            mine &= ~fused.astype(bool)
            launched = np.flatnonzero(mine & (work.launch_row >= 0))
            mine[launched] = enclosing(view.rank.trace, only_form, work.launch_row[launched]) < 0
        chosen.append(mine)
    launches, spent = per_step(account, chosen), device_ns(account, chosen)
    if launches <= _FUSED_LAUNCHES:
        return
    device_share = 1.0 if by_group else _FUSED_ADAM
    yield Match(
        lambda replay: fused_work(replay, chosen, launches=_FUSED_LAUNCHES, device_share=device_share),
        limit_ns=with_work_ns(account, spent),
        cost_ns=max(spent, asked := host_ns(account, chosen)),
        evidence=(
            Evidence("optimizer operations {per_step}", round(launches), "launches", "average rank"),
            evidence_ms("optimizer device time {per_step}", spent, "average rank"),
            evidence_ms("host time for them {per_step}", asked, "average rank"),
        ),
        facts={"launches": f"{launches:.0f}"},
        title="The optimizer is called for each group of parameters" if by_group else "",
        cause=f"{np.mean(calls):.0f} fused calls and {launches:.0f} device operations per optimizer step, one call for each group"
        if by_group
        else "",
        remedy="Put parameters with the same settings into one group: a fused call changes all of them. Assumes a "
        "few calls, with the device's time unchanged."
        if by_group
        else _how_to_fuse(account),
        where=_optimizer_lines(account),
        where_only=True,
    )


def _optimizer_names(account: Account) -> set[str]:
    return {m[1] for r in account.run.ranks for s in r.names(EventKind.ANNOTATION) if (m := _OPTIMIZER_STEP.match(s))}


def _optimizer_lines(account: Account) -> tuple[Where, ...]:
    """Return the lines that make the optimizers, as far as the source shows them, then those that call their steps."""
    steps: Counter[Line] = Counter()
    files: set[str] = set()
    for owned in account.ownership:
        if owned is not None:
            files |= {frame.file for frame in owned.frames if frame.is_user}
            inside = owned.holding([i for i, f in enumerate(owned.frames) if not f.is_user and _OPTIM in f.file])
            called = owned.by_call.stack[inside[owned.by_call.stack]]
            for stack, count in zip(*np.unique(called, return_counts=True), strict=True):
                if line := owned.stacks.user_line(int(stack)):
                    steps[line] += int(count)
    makes = re.compile(rf"(?<!class )\b(?:{'|'.join(map(re.escape, _optimizer_names(account))) or '(?!)'})\(")
    made = [
        (file, number)
        for file in sorted(files)
        for number, text in enumerate(account.run.source.lines(file) or (), 1)
        if makes.search(code_of(text))
    ]
    calls = [line for line, _ in steps.most_common()]
    before = [max(own) for step in calls if (own := [line for line in made if line[0] == step[0] and line < step])]
    first = before or (made if len(made) == 1 else [])
    return tuple(at(line) for line in dict.fromkeys([*first, *calls]))[:MAX_PLACES]


def _how_to_fuse(account: Account) -> str:
    """Return how to fuse the optimizers that the trace names; empty where it names none."""
    names = _optimizer_names(account)
    if fused := [name for name in _FUSED_FORMS if name in names]:
        each = " and ".join(f"torch.optim.{name}(..., fused=True)" for name in fused)
        return f"Pass fused=True to the optimizer ({each}). Assumes a fused optimizer."
    if not names:
        return ""
    batched = next((name for name in sorted(names) if name in _BATCHED_FORMS), None)
    if batched is not None:
        return (
            f"Pass foreach=True to the optimizer (torch.optim.{batched}(..., foreach=True)). Assumes a fused optimizer."
        )
    return (
        f"Update all parameters of {sorted(names)[0]} at once, with torch._foreach_* operators or torch.compile of its step; or "
        "use an optimizer of torch.optim with fused=True. Assumes a fused optimizer."
    )


def _optimizer_on_host(account: Account) -> Iterator[Match]:
    """Yield Adam on the host as one operator after another for each parameter."""
    if has_device(account):
        return
    parts, took, count = [], 0.0, 0.0
    for rank in account.run.ranks:
        adam = rank.rows_named(lambda name: bool(_ADAM.match(name)), EventKind.ANNOTATION)
        host, calls, steps = spans(rank, adam), host_calls(rank), max(len(rank.steps), 1)
        inside = (covered_ns(host, calls.start_ns, calls.start_ns + 1) > 0) & (rank.steps.of(calls.start_ns) >= 0)
        took += covered_ns(host, rank.steps.start_ns, rank.steps.end_ns).sum() / steps / len(account.run.ranks)
        count += inside.sum() / steps / len(account.run.ranks)
        parts.append(host_part(rank, host))
    if count > _FUSED_LAUNCHES and not any(map(_fused_calls, account.run.ranks)):
        yield Match(
            without_parts(parts, factor=_FUSED_ADAM),
            cost_ns=took,
            limit_ns=(1 - _FUSED_ADAM) * took,
            cause=f"{count:.0f} operators per optimizer step, each of which passes over memory",
            remedy=_how_to_fuse(account),
            where=_optimizer_lines(account),
            where_only=True,
            evidence=(
                evidence_ms("time inside optimizer.step() {per_step}", took, "average rank"),
                Evidence("operators in it, {per_step}", round(count), "calls", "average rank"),
            ),
        )


def _fused_calls(rank: Rank) -> int:
    names = ("aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad")
    rows = rank.rows_named(lambda name: name.startswith(names), EventKind.HOST_OP)
    return int((rank.steps.of(rank.trace["ts_ns"][rows]) >= 0).sum())


# Recomputation: activation checkpointing repeats forward work in the backward pass.

# what torch.utils.checkpoint runs first in a checkpointed block, after it has stored the state of the random numbers
_ENTRIES = ("_NoopSaveInputs", "CheckpointFunction")


def _recomputation(account: Account) -> Iterator[Match]:
    chosen = [view.costs.recomputed & (view.rank.work.step >= 0) for view in account.ranks]
    repeated = device_ns(account, chosen)
    if repeated:
        entered = [_first_launches(rank) for rank in account.run.ranks]
        yield Match(
            lambda replay: without_work(replay, chosen, entered=entered),
            limit_ns=with_work_ns(account, repeated),
            cost_ns=max(repeated, asked := host_ns(account, chosen)),
            evidence=(
                evidence_ms("recomputed device work {per_step}", repeated, "average rank"),
                evidence_ms("host time for it {per_step}", asked, "average rank"),
            ),
            where=_checkpointing_lines(account),
        )


def _checkpointing_lines(account: Account) -> tuple[Where, ...]:
    """Return the lines that call checkpointed blocks, by how many they call: what is repeated stands in the blocks'
    own lines and in that of backward, and none of those is what to change.
    """
    found: Counter[Line] = Counter()
    for owned in account.ownership:
        if owned is None:
            continue
        entries = by_string(owned.rank.trace, owned.calls.name, lambda s: s in _ENTRIES).astype(bool)
        for stack in owned.by_call.stack[entries & ~owned.by_call.backward].tolist():
            if lines := user_lines(owned, stack):
                found[lines[-1]] += 1
    total = sum(found.values())
    return tuple(at(line, share=calls / total) for line, calls in found.most_common(MAX_PLACES))


def _first_launches(rank: Rank) -> Mask:
    entries = np.sort(rank.trace["ts_ns"][rank.rows_named(lambda name: name in _ENTRIES, EventKind.HOST_OP)])
    first = np.zeros(len(rank.work), bool)
    launched = np.flatnonzero(rank.work.launch_row >= 0)
    when = rank.trace["ts_ns"][rank.work.launch_row[launched]]
    order = np.argsort(when, kind="stable")
    place = np.searchsorted(when[order], entries, side="right")
    first[launched[order[place[place < len(order)]]]] = True
    return first


# Fusion: consecutive elementwise and normalisation kernels, each of which reads and writes memory.

_FUSIBLE = [FAMILY_CODE[f] for f in (Family.ELEMENTWISE, Family.NORMALISATION, Family.COPY, Family.REDUCTION)]


def _fusible(account: Account) -> Iterator[Match]:
    """Yield runs of fusible kernels, fused into one pass each."""
    fusible = [
        among(v.costs.family, _FUSIBLE) & (v.rank.work.kind == EventKind.KERNEL) & (v.rank.work.step >= 0)
        & ~_conversions(v.rank)  # parts of a library's convolution
        & (regions(v.rank).region != Region.OPTIMIZER)  # its step is not compiled with the model
        for v in account.ranks
    ]  # fmt: skip
    gradients = each_rank(account.run, lambda _, rank: parameter_gradients(rank))
    next_to = [mask & leaf for mask, leaf in zip(fusible, gradients, strict=True)]
    chosen = [mask & ~leaf for mask, leaf in zip(fusible, next_to, strict=True)]
    spent = device_ns(account, chosen)
    if not spent:
        return
    fused = [_fused_ns(v.costs, mask, leaf) for v, mask, leaf in zip(account.ranks, chosen, next_to, strict=True)]
    times, leads = [f[0] for f in fused], [f[1] for f in fused]

    @once_per_record
    def fuse(replay: Replay) -> Replay:
        return fused_chains(replay, chosen, times, leads)

    @once_per_record
    def fuse_on_device(replay: Replay) -> Replay:
        return with_work_times(replay, chosen, times)

    host_limits = _host_limits(account, fuse, fuse_on_device)
    removed = [
        (view.costs.duration_ns - after)[mask].sum() / max(len(view.rank.steps), 1)
        for view, mask, after in zip(account.ranks, chosen, times, strict=True)
    ]
    removed_ns = float(np.mean(removed))
    if not host_limits and account.step:
        removed_ns += account.step.ns("launch_gap")  # there are fewer launches
    limits = (
        "; the host limits the step, and only the device's time is counted: compiled code launches less, but how fast is "
        "not known"
    )
    yield Match(
        fuse_on_device if host_limits else fuse,
        limit_ns=min(spent, removed_ns),
        claim="fused kernels",
        cost_ns=spent,
        evidence=(evidence_ms("elementwise and normalisation kernels {per_step}", spent, "average rank"),),
        facts={"limits": limits if host_limits else ""},
        doubt=1.0 if host_limits else None,
        sureness=0.5 if host_limits else None,
    )


def _host_limits(account: Account, fuse: Change, fuse_on_device: Change) -> bool:
    """Return whether fusing would mostly save launches: what it does to the host's time no trace shows."""
    replay, step = account.owned_replay, account.step
    if replay is None or step is None or step.ns("launch_gap") < NOTABLE * step.step_ns:
        return False
    saves = replay.period_ns - fuse(replay).period_ns
    return saves > 0 and replay.period_ns - fuse_on_device(replay).period_ns < MOSTLY * saves


def _fused_ns(costs: KernelCosts, mask: Mask, next_to: Mask) -> tuple[Floats, Mask]:
    """Return times in which each run of consecutive chosen kernels takes what its longest one takes, and which
    kernels are the first of their run: the fused one is launched there.

    What is `next_to` a run, gradients of parameters that no other kernel reads, neither joins nor ends it. A run of one
    kernel again and again works on separate tensors and stays as it is.
    """
    work = costs.rank.work
    order = np.lexsort((work.stream, work.device))  # and by start, as it is
    order = order[~next_to[order]]
    joins = mask[order]
    begins = joins.copy()
    begins[1:] &= ~joins[:-1]
    out, first = costs.duration_ns.astype(float), np.zeros(len(mask), bool)
    first[order[np.flatnonzero(begins)]] = True
    joined = order[np.flatnonzero(joins)]
    starts, duration, name = np.flatnonzero(first[joined]), out[joined], work.name[joined]
    longest, total = np.maximum.reduceat(duration, starts), np.add.reduceat(duration, starts)
    repeats = np.minimum.reduceat(name, starts) == np.maximum.reduceat(name, starts)  # the same again: no chain
    share = np.where((total > 0) & ~repeats, longest / np.maximum(total, 1), 1.0)
    lengths = np.diff(starts, append=len(joined))
    out[joined] = duration * np.repeat(share, lengths)
    first[joined[np.repeat(repeats, lengths)]] = True
    return out, first


# What is said without a saving: too little work, too little memory, a trace that distorts.


def _small_batch(account: Account) -> Iterator[Match]:
    short = account.kernels.short_count_share
    windows = [v.window for v in account.ranks if v.window is not None and v.window.window_ns]
    busy = sum(a.compute.total_ns for a in windows) / max(sum(a.window_ns for a in windows), 1)
    if short >= MOSTLY and busy <= MOSTLY and has_device(account):
        yield Match(
            evidence=(
                Evidence("kernels shorter than a launch", round(100 * short, 1), "% of launches"),
                Evidence("device busy with compute", round(100 * busy, 1), "% of the window"),
            ),
            where=short_kernel_places(account),
        )


def _unfilled(account: Account) -> Iterator[Match]:
    """Yield long kernels whose launches cannot fill the device, with the device filled as the counterfactual."""
    times, chosen, longest = [], [], list[tuple[int, str, str]]()
    for rank in account.run.ranks:
        work, filled = rank.work, filled_share(rank)
        took = work.end_ns - work.start_ns
        mine = (filled < FILLS_LITTLE) & (took >= SHORT_NS) & (work.kind == EventKind.KERNEL)
        times.append(took * filled)
        chosen.append(mine)
        if mine.any():
            first = int(np.argmax(np.where(mine, took, 0)))
            (grid, block), name = launch_sizes(rank), function_of(rank.trace.strings[work.name[first]])
            longest.append((int(took[first]), name, f"{grid[first]:,.0f} blocks of {block[first]:.0f} threads"))
    spent = device_ns(account, chosen)
    if account.step is not None and spent >= NOTABLE * account.step.step_ns:
        yield Match(
            lambda replay: with_work_times(replay, chosen, times),
            limit_ns=spent,
            cost_ns=spent,
            evidence=(evidence_ms(f"launched with {max(longest)[2]}, {{per_step}}", spent),),
            facts={"kernel": max(longest)[1], "blocks": max(longest)[2]},
            on_device=True,
        )


def _memory_pressure(account: Account) -> Iterator[Match]:
    """Yield ranks within 5 % of their device's memory, whose cache is emptied in between, or that grow."""
    ranks: Sequence[Row] = account.memory.ranks if account.memory is not None else ()
    full = [r for r in ranks if (r.peak_pct_of_total or 0.0) >= 95.0]
    flushed = [r for r in ranks if r.allocator_retries]
    growing = [r for r in ranks if r.growth is not None and r.growth.leaks]
    pressed = {r.rank: r for r in (*full, *flushed, *growing)}
    if pressed:
        why = (
            "the allocator has to empty its cache"
            if flushed
            else "near the limit"
            if full
            else "tensors are never freed"
        )
        yield Match(
            facts={"why": why, "how": "is nearly full" if full or flushed else "grows from step to step"},
            ranks=tuple(sorted(pressed)),
            evidence=tuple(e for r in pressed.values() for e in _memory_evidence(r)),
        )


def _memory_evidence(r: Row) -> Iterator[Evidence]:
    where = f"rank {r.rank}"
    if r.peak_pct_of_total is not None:
        yield Evidence("peak of the device's memory", round(r.peak_pct_of_total, 1), "%", where)
    if r.allocator_retries:
        yield Evidence("times the cache was emptied", r.allocator_retries, "", where)
    if r.growth is not None and r.growth.leaks:
        yield Evidence("growth per step", round(r.growth.bytes_per_step), "bytes", where)
        for leak in r.leaks[:3]:
            held = f"of each of {leak.steps} steps held by {leak.name}"
            yield Evidence(held, round(leak.bytes_per_step), "bytes", where)


def _profiler_overhead(account: Account) -> Iterator[Match]:
    step = account.step
    if step is None or step.overhead_pct is None or step.overhead_pct < 20.0:
        return
    if account.run.lost and step.profiled_ns <= median([_long_step_ns(log) for log in account.run.logs]):
        return  # on cores that other programs use, many steps without the profiler are as long
    factor = account.replay.host_factor if account.replay else None
    yield Match(
        facts={"pct": f"{step.overhead_pct:.0f}"},
        cost_ns=step.profiled_ns - (step.ordinary_ns or step.profiled_ns),
        evidence=(
            evidence_ms("step while profiled", step.profiled_ns, of_step=False),
            evidence_ms("step without the profiler", step.ordinary_ns or 0.0, of_step=False),
            Evidence("host time scaled by", round(factor, 2) if factor else "unknown"),
        ),
        where=recorded_event_places(account),
    )


def _long_step_ns(log: StepLog) -> float:
    """Return the upper quartile of the steps without the profiler."""
    return float(np.percentile(log.dur_ns[log.unprofiled], 75)) if log.unprofiled.any() else 0.0


_DEVICE = Scope.DEVICE
_WITH_HOST = (Need.DEVICE, Need.HOST)

# fmt: off
KINDS = (
    Kind("mixed-precision-overhead", _loss_scaling, "Loss scaling costs time",
         "GradScaler unscales every gradient, checks it for infinities and waits for the answer",
         "Train in bfloat16, which needs no scaler: torch.autocast('{device}', torch.bfloat16) and no GradScaler. "
         "Assumes the same step without scaling and its synchronisation.",
         needs=(Need.HOST,), training_only=True, always=True, doubt=0.4, sureness=0.8),
    Kind("mixed-precision-overhead", _casts, "Autocast converts weights and inputs in every step",
         "nothing is trained, so the weights could be stored in the type that operators compute in",
         "Load the model in 16 bit once (model.to(torch.bfloat16)) and cast its inputs, in place of torch.autocast. Assumes the "
         "same step without these casts.",
         needs=(Need.HOST,), doubt=0.3, subject="casts of autocast"),
    Kind("recomputation", _recomputation, "Forward is recomputed in backward",
         "activation checkpointing discards activations and recomputes them",
         "Checkpoint fewer blocks, or only cheap operators (selective checkpointing, torch.utils.checkpoint with a policy), as "
         "far as memory allows. Assumes no recomputation at all.",
         scope=_DEVICE, needs=_WITH_HOST, training_only=True),
    Kind("memory-bound-kernels", _convolution_layout, "Convolutions convert the layout of their tensors",
         "they are computed with channels last, and their inputs have channels first: inputs are converted before each of "
         "them, and the results back",
         "model.to(memory_format=torch.channels_last), and each batch too. Assumes the step without these kernels "
         "alone; normalisation often gets faster as well.",
         scope=_DEVICE, needs=(Need.DEVICE, Need.KERNELS), doubt=0.3, subject="converting the layout of tensors"),
    Kind("memory-bound-attention", _attention, "Unfused attention (score matrices in memory)",
         "scores, mask, softmax and dropout are separate kernels over tensors of sequence x sequence",
         "Use torch.nn.functional.scaled_dot_product_attention (or FlashAttention). Where the mask is causal, is_causal=True "
         "replaces it. Assumes fused attention.",
         scope=_DEVICE, needs=(Need.DEVICE, Need.HOST), doubt=0.2),
    Kind("precision", _precision, "{which}",
         "products {why}",
         "{how} Assumes 16-bit products at the rate such shapes reach.",
         "Allow TF32 or 16-bit products in the math library (cublasSetMathMode, cudnnSetConvolutionMathType). Assumes 16-bit "
         "products at the rate such shapes reach.",
         scope=_DEVICE, needs=(Need.DEVICE, Need.KERNELS), doubt=0.2, unjudged=_few_wide_products),
    Kind("optimizer", _optimizer, "The optimizer step is not fused",
         "{launches} device operations per optimizer step",
         "Pass fused=True to the optimizer (torch.optim.AdamW(..., fused=True)), or foreach=True where it has no fused form. "
         "Assumes a fused optimizer.",
         scope=_DEVICE, needs=_WITH_HOST, training_only=True, doubt=0.3),
    Kind("optimizer", _optimizer_on_host, "The optimizer step is not fused",
         "",
         "Pass fused=True to the optimizer (torch.optim.AdamW(..., fused=True)). Assumes a fused optimizer.",
         scope=Scope.HOST, needs=(Need.HOST,), training_only=True, doubt=0.3),
    Kind("memory-bound-kernels", _layout_copies, "Copies into another memory order ({place})",
         "contiguous() copies the whole tensor where its memory order is another; gradients follow it in backward",
         "Use one memory order through the model (channels_last for convolutions with Linear and LayerNorm between) and leave "
         "contiguous() out where the next operator takes strides. Assumes the step without these copies in forward.",
         scope=_DEVICE, doubt=0.3, sureness=0.7),
    Kind("memory-bound-kernels", _fusible, "Consecutive elementwise kernels are not fused",
         "each reads its inputs from memory and writes its result back for the next{limits}",
         "Fuse them with torch.compile(model), or use fused norms and activations. Assumes that each chain of such kernels becomes "
         "one kernel that reads and writes its largest tensor once.",
         "Fuse them by hand or with a compiler. Assumes that each chain of such kernels becomes one kernel that reads and writes "
         "its largest tensor once.",
         scope=_DEVICE, needs=(Need.DEVICE, Need.KERNELS), general=True, doubt=0.5, sureness=0.7),
    Kind("small-batch", _small_batch, "Too little work per kernel",
         "most kernels end before the host can launch the next one",
         "Raise the batch (or sequence) per device until the device is busy; the step hardly grows until then, so throughput "
         "does. No saving per step is claimed: the step has more samples.",
         scope=_DEVICE, needs=(Need.DEVICE, Need.KERNELS), general=True, always=True, sureness=0.7),
    Kind("small-batch", _unfilled, "Too few threads in kernel {kernel}",
         "its launches can use less than a quarter of the device's lanes: {blocks}",
         "Launch more blocks, of a multiple of 32 threads: split the kernel's loops over threads, or do more at once (a larger "
         "batch). Assumes that a kernel's time shrinks as its threads fill the device.",
         scope=_DEVICE, needs=(Need.DEVICE,), general=True, doubt=0.9, sureness=0.7,
         subject="too few threads in kernel {kernel}"),
    Kind("memory-pressure", _memory_pressure, "Device memory {how}",
         "{why}",
         "Free what is not needed (detach losses that are stored for logging, zero_grad(set_to_none=True)), checkpoint "
         "activations, shard optimizer state, or lower the batch; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against "
         "fragments.",
         scope=_DEVICE, needs=(Need.MEMORY,), general=True, always=True),
    Kind("profiler-overhead", _profiler_overhead, "Recording made the step {pct} % longer",
         "the profiler slows the host; launch gaps in the trace are partly its overhead",
         "Already subtracted from all numbers here. To reduce it, record without shapes and stacks.",
         needs=(Need.UNPROFILED,), general=True, always=True, sureness=0.95),
)
# fmt: on
