"""Kinds of findings in which the host is busy with something else, waits, or moves data."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.budget import host_device_copies
from stepscope.analyze.host_time import (
    allocations,
    blocked_host,
    computing_operators,
    data_loading,
    host_calls,
    spans,
)
from stepscope.analyze.kernels import FILLS_LITTLE, abilities, filled_share, launch_sizes
from stepscope.analyze.owner_places import MOSTLY, Where, rare_places
from stepscope.analyze.phases import loop_in, regions, trains
from stepscope.analyze.replay.changes import (
    as_graph,
    at_any_factor,
    faster_work,
    graphs_of_few_launches,
    hidden_copies,
    in_passes,
    passes_as_graphs,
    save_ns,
    waits_inside,
    with_work_times,
    without_allocator,
    without_data_wait,
    without_recurring,
    without_state_saves,
    without_syncs,
    without_window_stalls,
)
from stepscope.analyze.replay.graph import Program
from stepscope.analyze.replay.removal import Part, taken_out
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.training_step import (
    COMMUNICATION,
    DATA_CAUSES,
    NO_CORE,
    OUTSIDE,
    WORK_REGIONS,
    Recurring,
    region_times,
)
from stepscope.contract.names import PARTS
from stepscope.contract.step_line import (
    ANOMALY_DETECTION,
    CHECKPOINT,
    COMPILATION,
    EVALUATE,
    EVALUATION,
    GARBAGE_COLLECTION,
    Region,
)
from stepscope.diagnose.finding import NEGLIGIBLE, NOTABLE, Evidence, Kind, Match, evidence_ms
from stepscope.diagnose.measures import (
    COMPUTE,
    HOST,
    Mask,
    device_ns,
    has_device,
    host_ns,
    host_part,
    host_part_ns,
    host_waits,
    kernel_gaps,
    launching,
    launching_ns,
    ms_text,
    not_busy_ns,
    not_busy_or_copying_ns,
    per_step,
    transfers_to_device,
    typical_host_ns,
    without_parts,
)
from stepscope.diagnose.recording import (
    COMPUTE_NOTHING,
    Need,
    Scope,
    compiling,
    is_compiled,
    launches_graphs,
    made_already,
    missing,
    trains_with_torch,
    uses_torch,
)
from stepscope.intervals import EMPTY, Intervals, covered_ns, union, union_of
from stepscope.run.core_time import no_core_ns, no_core_share
from stepscope.run.device_work import DEVICE_KINDS
from stepscope.run.rank import Rank
from stepscope.run.side_files import StepLog
from stepscope.stats.robust import OFTEN, distinct, median
from stepscope.trace.table import PAGE_MOVE, EventKind, by_string, of_kinds
from stepscope.units import NS_PER_MS

if TYPE_CHECKING:
    from stepscope.analyze.thread_time import Holder

# What recurs in some steps of the training, by the step logs: title, cause and remedy of each cause that has a name.
RECURRING = {
    CHECKPOINT: (
        "Training stops for checkpoints",
        "the model is saved inside the training loop, and no step runs meanwhile",
        "Save less often, or in the background: torch.distributed.checkpoint.async_save, or copy the state to pinned "
        "memory and write it in a thread.",
    ),
    EVALUATION: (
        "Passes without gradients run between training steps",
        "forward passes without gradients run, and no training step meanwhile: an evaluation, or data that the job generates "
        "itself",
        "Run them on larger batches; an evaluation less often or in a separate job, data that training needs (rollouts) with a "
        "cache of keys and values, or as a graph.",
    ),
    GARBAGE_COLLECTION: (
        "Python collects garbage inside steps",
        "the interpreter's collector stops the training thread",
        "gc.freeze() after the model is built, gc.disable() in the loop and gc.collect() every N steps on all ranks at once.",
    ),
    COMPILATION: (
        "The model is compiled again during training",
        "torch.compile meets new shapes or values and compiles again",
        "Pad to a few shapes, or torch.compile(dynamic=True); TORCH_LOGS=recompiles shows the reason for each.",
    ),
}


_OF_WORKERS = "% of the time of the loader's workers in the user's code"


def _recurring(account: Account) -> Recurring | None:
    replay = account.replay
    return replay.recurring if replay is not None and replay.recurring.causes else None


def common_ns(account: Account, causes: tuple[str, ...]) -> float:
    """Return what causes take per step on the median rank; 0 where most ranks do not have them (one late rank is a
    straggler).
    """
    recurring = _recurring(account)
    by_rank = [recurring.rank_ns(c) for c in causes if c in recurring.causes] if recurring else []
    if not np.any(by_rank):
        return 0.0
    total = np.sum(by_rank, axis=0)
    have = total >= total.max() / 3  # a rank that has less of a cause does not have it
    return median(total) if have.sum() * 2 > len(total) else 0.0


def _recurring_evidence(account: Account, causes: tuple[str, ...]) -> list[Evidence]:
    found, recurring = [], _recurring(account)
    for cause in causes if recurring else ():
        assert recurring is not None
        if cause in recurring.causes and recurring.rank_ns(cause).any():
            where = "in {} of {} logged steps".format(*recurring.num_steps_with(cause))
            found.append(
                evidence_ms(f"{cause} beyond the ordinary step, per step", median(recurring.rank_ns(cause)), where)
            )
    return found


def _named_stalls(account: Account) -> Iterator[Match]:
    recurring = _recurring(account)
    others = (*DATA_CAUSES, OUTSIDE, COMMUNICATION, NO_CORE, COMPILATION)
    return _causes_named(account, [cause for cause in recurring.causes if cause not in others] if recurring else [])


def _compilations(account: Account) -> Iterator[Match]:
    """Yield compilation: in most recorded steps by its ranges, else in some steps by the step log."""
    spent, ranks = _compiled_ns(account), account.run.ranks
    if account.step is None or spent < NEGLIGIBLE * account.step.step_ns:
        yield from _causes_named(account, [COMPILATION])
        return
    yield Match(
        without_parts([host_part(rank, compiling(rank)) for rank in ranks]),
        cost_ns=spent,
        limit_ns=spent,
        title="The model is compiled again in every step",
        evidence=(
            evidence_ms("compilation, {per_step}", min(spent, account.step.step_ns), "median step of the median rank"),
        ),
    )


def _compiled_ns(account: Account) -> float:
    """Return what torch.compile takes in the median step of the median rank."""
    took = [covered_ns(compiling(rank), rank.steps.start_ns, rank.steps.end_ns) for rank in account.run.ranks]
    return median([float(np.median(ns)) if len(ns) else 0.0 for ns in took])


def _causes_named(account: Account, causes: Sequence[str]) -> Iterator[Match]:
    recurring = _recurring(account)
    for cause in causes:
        spent = common_ns(account, (cause,))
        if not spent or recurring is None:
            continue
        steps, of = recurring.num_steps_with(cause)
        needed = cause == EVALUATION and steps >= OFTEN * of
        title, why, remedy = RECURRING.get(cause) or (
            f"Training stops for {cause}",
            "the region of that name takes long in some steps",
            "Do it less often, or in a thread or a separate job.",
        )
        yield Match(
            lambda replay, cause=cause: without_recurring(replay, (cause,)),  # type: ignore[misc]
            cost_ns=spent,
            limit_ns=host_part_ns(account, "host_stall"),
            evidence=tuple(_recurring_evidence(account, (cause,))),
            title=title,
            cause=f"{cause}: {why}",
            remedy=f"{remedy} Assumes none of this time is left.",
            subject="checkpointing" if cause == CHECKPOINT else cause.replace("_", " "),
            sureness=0.5 if needed else None,
        )


def _more_work(account: Account) -> Iterator[Match]:
    """Yield what recurs without a cause in the log, where the device computes more in those steps than in the others."""
    replay, training = account.replay, account.training
    if replay is None or training is None or not (unnamed := replay.recurring.other_ns):
        return
    rare = [training.event_steps.get(rank.rank, frozenset[int]()) for rank in account.run.ranks]
    often = max((len(steps) for steps in rare), default=0) / max((len(log) for log in account.run.logs), default=1)
    more = [ns for rank, steps in zip(account.run.ranks, rare, strict=True) if (ns := _more_device_ns(rank, steps))]
    if len(more) < len(rare):
        return
    yield Match(
        lambda replay: replace(
            replay, recurring=replace(replay.recurring, other_ns=0.0), period_ns=replay.period_ns - unnamed
        ),
        cost_ns=unnamed,
        facts={"pct": f"{100 * often:.0f}"},
        evidence=(
            evidence_ms(
                "device time of such a step beyond an ordinary one", median(more), "median rank", of_step=False
            ),
        ),
        where=rare_places(account, replay),
        on_device=True,
    )


def _more_device_ns(rank: Rank, rare: frozenset[int]) -> float:
    """Return how much more the device computes in rare steps than in the others, in the mean; 0 where it is less busy in
    the time that they take more than in an ordinary step: then something else makes them long.
    """
    work, steps, mine = rank.work, rank.steps, np.isin(rank.steps.number, list(rare))
    if mine.all() or not mine.any():
        return 0.0
    kernels = (work.step >= 0) & (work.kind == EventKind.KERNEL)
    busy = np.bincount(work.step[kernels], (work.end_ns - work.start_ns)[kernels], minlength=len(mine))
    long = steps.end_ns - steps.start_ns
    more, longer = (float(x[mine].mean() - x[~mine].mean()) for x in (busy, long))
    return more if more * long[~mine].mean() >= longer * busy[~mine].mean() > 0 else 0.0


def _lost(account: Account, spent: float, **more: Any) -> Match:
    """Return a match of time that the training thread waited, as the kernel or samples measured it: no replay has it."""
    limit = not_busy_or_copying_ns(account) if has_device(account) else spent
    return Match(formula_ns=spent, cost_ns=spent, limit_ns=limit, what_if=(), **more)


def _no_core(account: Account) -> Iterator[Match]:
    """Yield the time in which the training thread was ready to run and other threads or programs had its core."""
    share, step = no_core_share(account.run.logs), account.step
    if share is None or step is None or share < NEGLIGIBLE:
        return
    spent = share * step.step_ns
    lost = [one.samples.preempted / max(int(one.step.max() - one.step.min()), 1) for one in account.sampled
            if one.samples.preempted is not None]  # fmt: skip
    yield _lost(
        account,
        spent,
        facts={
            "cores": _cores_text(account),
            "fewer": "loader workers and " if _rank_facts(account, "loader_workers")[0] else "",
        },
        evidence=(
            evidence_ms(
                "the training thread was ready and had no core, {per_step}", spent, "by the kernel, median rank"
            ),
            *(
                [Evidence("involuntary context switches {per_step}", round(median(lost), 1), "", "median rank")]
                if lost
                else []
            ),
        ),
    )


def _rank_facts(account: Account, *names: str) -> list[int | None]:
    """Return what the recorder noted of the first rank (cores, loader workers), None where it did not."""
    ranks = account.run.description.get("ranks")
    first = next(iter(ranks.values()), None) if isinstance(ranks, dict) else None
    found = [first.get(name) if isinstance(first, dict) else None for name in names]
    return [one if isinstance(one, int) else None for one in found]


def _cores_text(account: Account) -> str:
    cores, workers = _rank_facts(account, "cores", "loader_workers")
    loading = f" and {workers} loader workers per rank" if workers else ""
    return f" (the job may use {cores} core{'' if cores == 1 else 's'}{loading})" if cores else ""


def _window_wait_ns(account: Account) -> float:
    """Return how long the usual rank's training thread waited for a core per recorded step."""
    found = []
    for log in account.run.logs:
        waited, steps = no_core_ns(log), log.profiled
        found.append(float(waited[steps].mean()) if waited is not None and steps.any() else 0.0)
    return median(found) if found else 0.0


# What samples of all threads show: who holds the GIL or a lock, what runs in some steps only, what grows.


def _gil_holders(account: Account) -> "list[tuple[Holder, float]]":
    step = account.step
    busy = 1 - sum(step.idle_ns.values()) / step.step_ns if step is not None and has_device(account) else 0.0
    found = [one.gil_holder(device_busy=max(0.0, busy)) for one in account.sampled]
    return sorted([one for one in found if one is not None and one[1] >= NEGLIGIBLE], key=lambda one: -one[1])


def _gil(account: Account) -> Iterator[Match]:
    """Yield the time in which the training thread waited while another thread ran Python code."""
    found, step = _gil_holders(account), account.step
    if not found or step is None:
        return
    holder, spent = found[0][0], sum(share for _, share in found) / len(account.sampled) * step.step_ns
    yield _lost(
        account,
        spent,
        facts={"thread": holder.thread, "place": holder.text, "line": f"{holder.file}:{holder.line}"},
        evidence=(
            evidence_ms("the training thread waited for the GIL, {per_step}", spent, f"thread {holder.thread} held it"),
            Evidence(f"time of thread {holder.thread} in {holder.text}", round(100 * holder.share), "%"),
        ),
        where=(Where(holder.file, holder.line),) if holder.is_user else (),
    )


def _lock_waits(account: Account) -> "list[tuple[tuple[str, int], Holder, float, int]]":
    """Return for each rank the line that waits for another thread, what that one does, the share of the time, samples."""
    found = []
    for one in account.sampled:
        for line, share in list(one.shares(one.blocked).items())[:1]:
            waiting = one.blocked & one.at(line)
            holder = one.partner(waiting) if share >= MOSTLY else None
            if holder is not None:
                part = float(one.weight_ns[waiting].sum() / one.weight_ns.sum())
                found.append((line, holder, part, int(waiting.sum())))
    return sorted(found, key=lambda wait: -wait[2])


def _locks(account: Account) -> Iterator[Match]:
    """Yield a line in which the training thread waits while another thread is at a line that it is at seldom else."""
    found, step = _lock_waits(account), account.step
    if not found or step is None:
        return
    (file, line), holder, _, samples = found[0]
    spent = sum(wait[2] for wait in found) / len(account.sampled) * step.step_ns
    yield _lost(
        account,
        spent,
        facts={"thread": holder.thread, "place": holder.text, "line": f"{file}:{line}"},
        evidence=(
            evidence_ms("the training thread waits {per_step}", spent, f"{file}:{line}, {samples} samples"),
            Evidence(f"of these waits thread {holder.thread} was in {holder.text}", round(100 * holder.share), "%"),
        ),
        where=(Where(file, line), *([Where(holder.file, holder.line, share=holder.share)] if holder.is_user else [])),
        doubt=max(0.15, samples**-0.5),
    )


def _rare_lines(account: Account) -> tuple[Where, ...]:
    """Return the lines that make long steps longer than ordinary ones, by samples."""
    training, found = account.training, dict[tuple[str, int], float]()
    for one in account.sampled if training is not None else ():
        long = np.isin(one.log.step, list(training.event_steps.get(one.log.rank, ())))  # type: ignore[union-attr]
        for line, ns in one.longer(long, ~long).items():
            found[line] = found.get(line, 0.0) + ns
    total = sum(found.values())
    largest = sorted(found.items(), key=lambda item: -item[1])[:3]
    return tuple(Where(*line, share=ns / total) for line, ns in largest if ns >= 0.1 * total)


def _growing(account: Account) -> Iterator[Match]:
    """Yield steps that become longer through the run, with the line that grew."""
    sampled = {one.log.rank: one for one in account.sampled}
    if not account.run.logs:
        return
    from stepscope.analyze.thread_time import growth  # only where steps were logged

    found = [growth(log, sampled.get(log.rank)) for log in account.run.logs]
    known = [one for one in found if one is not None]
    if account.step is None or 2 * len(known) <= len(found):
        return
    most = max(known, key=lambda one: one.line_ns if one.line else 0.0)
    if most.line is None and most.region in WORK_REGIONS:
        return  # nothing to name
    share = median([one.mean_ns / (one.early_ns + one.mean_ns) for one in known])
    without_core = 0.0 if has_device(account) else no_core_share(account.run.logs) or 0.0
    spent = share * (1 - without_core) * account.step.step_ns
    place = f"{most.line[0]}:{most.line[1]}" if most.line else most.region.replace("_", " ")
    times = {
        "median step in the first third of the run": most.early_ns,
        "in the last third, at the machine's speed in the first": most.late_ns,
    }
    evidence = [evidence_ms(what, ns, of_step=False) for what, ns in times.items()]
    if most.line:
        evidence.append(
            evidence_ms("of it in the line, per step", min(most.line_ns, most.late_ns - most.early_ns), place)
        )
    yield Match(
        formula_ns=spent,
        facts={"place": place, "region": most.region.replace("_", " ")},
        cost_ns=spent,
        limit_ns=spent,
        evidence=tuple(evidence),
        where=(Where(*most.line),) if most.line else (),
        what_if=(),
        sureness=None if most.region not in WORK_REGIONS else 0.5,
    )


def _stalls(account: Account) -> Iterator[Match]:
    """Yield long stretches in which the host ran no operator and loaded no data, with what recurs outside every region
    of the step log and the copies with which training saves its state.
    """
    stalled, outside = _stalled_ns(account), common_ns(account, (OUTSIDE,))
    if account.step is None or stalled > account.step.step_ns:  # it is outside what the steps cover
        stalled = 0.0

    rare = _rare_lines(account) if outside else ()
    if any((w.file, w.line) == line for w in rare[:1] for line, *_ in _lock_waits(account)):
        outside = 0.0
    if stalled and (_gil_holders(account) or _compiled_ns(account) >= MOSTLY * stalled):
        stalled = 0.0
    without_core = _window_wait_ns(account) if stalled else 0.0
    stalled = stalled - without_core if stalled - without_core >= MOSTLY * stalled else 0.0
    saving = save_ns(account.replay) if account.replay is not None and trains_with_torch(account) else 0.0
    if not stalled + outside + saving:
        return
    cost = stalled + outside
    if account.step is not None and has_device(account) and len(account.run.ranks) == 1:
        cost = min(
            cost, sum(account.step.ns(part) for part in (*HOST, "data_loading"))
        )  # other idle time is unexplained

    def without(replay: Replay) -> Replay:
        changed = without_recurring(replay, (OUTSIDE,)) if outside else replay
        changed = without_window_stalls(changed) if stalled else changed
        return without_state_saves(changed) if saving else changed

    limit = host_part_ns(account, "host_stall")
    if without_core and stalled:
        most = not_busy_or_copying_ns(account) if limit is None else limit
        limit = None if most is None else max(0.0, most - without_core)
    evidence = _part_evidence(account, "host_stall", stalled, "stalled host time") if stalled else []
    computed = _computed(account)
    evidence += [*computed, *_recurring_evidence(account, (OUTSIDE,))]
    title, cause, remedy, subject = "", "", "", ""
    if saving:
        subject = "saving a checkpoint"
        copied = evidence_ms("checkpoint copies and host time between them, {per_step}", saving)
        evidence.insert(int(stalled > saving), copied)
        title, what = "Many tensors are copied to the host", "state, statistics or gradients"
        remedy = "Copy less often, or reduce the tensors on the device first. Assumes none of this time is left."
        if _may_save(account):
            title, what = "A checkpoint is saved inside the {step}", "a checkpoint"
            remedy = f"{RECURRING[CHECKPOINT][2]} Assumes none of this time is left."
        cause = f"many tensors in a row are copied to the host, and nothing is computed meanwhile: {what}"
    elif computed and has_device(account) and float(computed[0].value) * NS_PER_MS >= MOSTLY * (stalled + outside):
        subject = "computing on the host"
        title = f"Operators compute on the host ({computed[0].where})"
        cause = "their tensors are in host memory, and the device waits for the result"
        remedy = (
            "Create the tensors on the device (device=...), or ahead of time: in worker processes or once before the loop. "
            "Assumes none of this time is left."
        )
    elif outside > stalled:
        title, subject = "The host stops in some steps", "host work outside training"
        cause = (
            "in some steps the host does something else for long, outside data loading, forward, backward and "
            "optimizer: checkpoints, evaluation, logging"
        )
        if rare and rare[0].share >= MOSTLY:
            title = f"A line takes long in some steps ({rare[0].text})"
            cause = f"samples spread over the run meet {rare[0].text} in long steps and seldom in the others"
            remedy = (
                "Run it less often, in a thread that waits most of its time, or in another process. "
                "Assumes none of this time is left."
            )
    yield Match(
        without,
        facts={
            "stacks": " in these lines"
            if all(one is not None for one in account.ownership)
            else " (record with --stacks)"
        },
        cost_ns=cost + saving,
        limit_ns=limit,
        evidence=tuple(evidence),
        where=rare if outside > stalled + saving else (),
        title=title,
        cause=cause,
        remedy=remedy,
        subject=subject,
    )


def _may_save(account: Account) -> bool:
    """Return whether checkpoints were saved; also where no step log has regions, which would show them."""
    seen = [region_times(log) for log in account.run.logs]
    return not any(seen) or any(CHECKPOINT in times for times in seen)


def _part_evidence(account: Account, part: str, host_ns: float, what: str) -> list[Evidence]:
    """Return a part of the step as all tables show it, with the host's time for it where more of that is hidden."""
    shown = account.step.ns(part) if account.step is not None else 0.0
    evidence = [evidence_ms(f"{PARTS[part]} {{per_step}}", shown, "average rank")] if shown else []
    if account.step is not None and (not shown or host_ns - shown >= NEGLIGIBLE * account.step.step_ns):
        hidden = f"{what}, partly hidden by other work, {{per_step}}"
        evidence.append(evidence_ms(hidden, host_ns, "median rank, ordinary steps"))
    return evidence


def _stalled_ns(account: Account) -> float:
    """Return how long the usual rank's host stalls per step; 0 without a device where lines are known: they are findings
    of their own, and what no line does in most steps is other programs on the same cores.
    """
    known = not has_device(account) and all(one is not None for one in account.line_work)
    return 0.0 if known else typical_host_ns(account, "stall_ns")


def _computed(account: Account) -> list[Evidence]:
    found: dict[str, int] = {}
    for rank in account.run.ranks:
        calls = host_calls(rank)
        strings, dur = rank.trace.strings, calls.end_ns - calls.start_ns
        long = calls.at_rows(computing_operators(rank))
        long = long[rank.steps.of(calls.start_ns[long]) >= 0] if len(rank.steps) else long
        for call in long[~np.isin(long, calls.parent[long])].tolist():  # the innermost: others wait for what they call
            took = int(dur[call])
            if strings[calls.name[call]] in COMPUTE_NOTHING:
                continue
            while (above := int(calls.parent[call])) >= 0 and above in long and took >= MOSTLY * dur[above]:
                call = above
            found[strings[calls.name[call]]] = found.get(strings[calls.name[call]], 0) + took
    steps = max(account.num_steps, 1) * max(len(account.run.ranks), 1)
    longest = sorted(found.items(), key=lambda item: -item[1])[:2]
    return [evidence_ms("computed on the host {per_step}", ns / steps, name) for name, ns in longest]


# Autograd's anomaly detection stores a Python stack for every node of the graph, inside the operators of forward, which
# only the step log shows, and looks for NaN in whatever a node returns, which the trace shows: operators directly inside
# the nodes that autograd evaluates.

_LOOKS = "aten::isnan"
_CHECK = frozenset((_LOOKS, "aten::_is_any_true", "aten::any", "aten::item", "aten::is_nonzero"))
_PIECE_NS = 100_000


def _anomaly_detection(account: Account) -> Iterator[Match]:
    ranks, step = account.run.ranks, account.step
    if step is None or not ranks:
        return
    logged = {log.rank: _stacks_ns(log) for log in account.run.logs}
    looks = [_looks(rank) for rank in ranks]
    stacks_ns = float(np.mean([logged.get(rank.rank, 0.0) for rank in ranks]))
    looks_ns = float(
        np.mean([host.total_ns / max(len(rank.steps), 1) for rank, host in zip(ranks, looks, strict=True)])
    )
    if stacks_ns + looks_ns < NEGLIGIBLE * step.step_ns:
        return

    def without(replay: Replay) -> Replay:
        forward = [loop_in(rank, Region.FORWARD) for rank in ranks]
        steps = max(sum(len(rank.steps) for rank in ranks), 1)
        took_ns = replay.host_factor * sum(int((spans.end - spans.start).sum()) for spans in forward) / steps
        share = min(stacks_ns / took_ns, 0.95) if took_ns else 0.0
        gone = [union_of(host, _part_of_each(spans, share)) for host, spans in zip(looks, forward, strict=True)]
        return taken_out(replay, [host_part(rank, host) for rank, host in zip(ranks, gone, strict=True)])

    yield Match(
        without,
        facts={"stacks": ms_text(stacks_ns), "looks": ms_text(looks_ns)},
        cost_ns=stacks_ns + looks_ns,
        claim=ANOMALY_DETECTION,
        evidence=(
            evidence_ms("stacks stored {per_step}, by the step log", stacks_ns, "in forward"),
            evidence_ms("checks for NaN {per_step}", looks_ns, "in backward"),
        ),
        what_if=(),
    )


def _stacks_ns(log: StepLog) -> float:
    stacks = np.nan_to_num(log.column(f"regions.{ANOMALY_DETECTION}.ns"))[log.unprofiled]
    return float(stacks.mean()) if len(stacks) else 0.0


def _looks(rank: Rank) -> Intervals:
    """Return when a rank looked for NaN in what nodes returned, in its steps; a job's own hooks may look in some nodes."""
    trace = rank.trace
    if not len(rank.rows_named(lambda name: name == _LOOKS, EventKind.HOST_OP)):
        return EMPTY
    calls = host_calls(rank)
    look, node, check = (
        by_string(trace, calls.name, fits).astype(bool)
        for fits in (lambda s: s == _LOOKS, lambda s: s.startswith(EVALUATE), lambda s: s in _CHECK)
    )
    direct = check & (calls.parent >= 0) & node[calls.parent]
    looked = np.zeros(len(calls), bool)
    looked[calls.parent[direct & look]] = True
    if looked.sum() < MOSTLY * node.sum():
        return EMPTY
    chosen = direct & looked[calls.parent] & (rank.steps.of(calls.start_ns) >= 0)
    return union(calls.start_ns[chosen], calls.end_ns[chosen])


def _part_of_each(spans: Intervals, share: float) -> Intervals:
    starts = [np.arange(start, end, _PIECE_NS) for start, end in zip(spans.start, spans.end, strict=True)]
    start = np.concatenate([*starts, np.empty(0, np.int64)]).astype(np.int64)
    end = np.minimum(start + _PIECE_NS, np.repeat(spans.end, [len(one) for one in starts]))
    return union(start, start + np.rint(share * (end - start)).astype(np.int64))


# Waiting for the device, and for its memory.


def _syncs(account: Account) -> Iterator[Match]:
    replay, step = account.replay, account.step
    if replay is None or step is None or not all(r.has_device for r in account.run.ranks):
        return
    if step.ns("unknown") - step.unmatched_ns > MOSTLY * step.step_ns:
        return  # what paces the loop is not recorded, and waiting next to it may cost nothing
    each = _waits_per_step(account)
    overhead = min(_idle_syncs_ns(account), step.step_ns - replay.period_ns)
    if each:
        yield Match(
            at_any_factor(without_syncs),
            cost_ns=step.ns("host_sync"),
            evidence=(
                Evidence("synchronisations {per_step}", round(each, 1 if each < 10 else None), "calls", "median rank"),
                evidence_ms("device idle after them {per_step}", step.ns("host_sync")),
            ),
            formula_ns=max(0.0, overhead),
            what_if=() if overhead >= NEGLIGIBLE * step.step_ns else None,
        )


def _idle_syncs_ns(account: Account) -> float:
    """Return how long synchronisations last per step on an idle device: a replay has them end with the device's work."""
    each = []
    for rank in account.run.ranks:
        start, end = blocked_host(rank, synchronisations_only=True)
        mine = rank.steps.of(start) >= 0
        idle = end - start - covered_ns(rank.work.intervals(*DEVICE_KINDS), start, end)
        each.append(idle[mine].sum() / max(len(rank.steps), 1))
    return median(each)


def _allocator(account: Account) -> Iterator[Match]:
    spent = typical_host_ns(account, "allocator_ns")
    if spent:
        evidence = _part_evidence(account, "allocator", spent, "time in allocation calls")
        cause, remedy = _allocator_words(account)
        yield Match(without_allocator, cost_ns=spent, evidence=tuple(evidence), cause=cause, remedy=remedy)


def _allocator_words(account: Account) -> tuple[str, str]:
    """Return cause and remedy of allocations; empty where memory is freed between operators, as empty_cache() does."""
    tensors = cached = inside = freed = 0
    for rank in account.run.ranks:
        trace, calls, rows = rank.trace, host_calls(rank), allocations(rank)
        around = calls.innermost_at(trace["tid"][rows], trace["ts_ns"][rows])
        new = by_string(trace, calls.name, lambda s: s == "aten::empty").astype(bool)
        tensors += int(new.sum())
        cached += int(new.sum()) - int(new[distinct(around[around >= 0])].sum())
        frees = by_string(trace, trace["name"][rows], lambda s: "Free" in s or "Release" in s).astype(bool)
        freed, inside = freed + int(frees.sum()), inside + int((frees & (around >= 0)).sum())
    if tensors and cached < MOSTLY * tensors:
        return (
            f"{tensors - cached:,} of {tensors:,} new tensors get memory from the driver: the caching allocator is off",
            "Unset PYTORCH_NO_CUDA_MEMORY_CACHING (PYTORCH_NO_HIP_MEMORY_CACHING): the caching allocator reuses memory "
            "without these calls. Assumes none of these calls is left.",
        )
    if freed and inside < MOSTLY * freed:
        return "", ""
    return "", (
        "Keep shapes constant or pad them; lower the peak so that the cache is not flushed; set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. Assumes none of these calls is left."
    )


# Input: the wait for it, and its way to the device.


def _data_loading(account: Account) -> Iterator[Match]:
    """Yield the wait for input, where the usual rank has one: in the window's steps, or in others of the log."""
    waited, restarts = typical_host_ns(account, "data_ns"), common_ns(account, DATA_CAUSES)
    if not waited + restarts or _worker_start(account) is not None:
        return
    cause = "in some steps the loader is started again or has no batch ready, and training waits meanwhile"
    share, how, sureness = _reachable_wait(account, waited)
    datasets = _dataset_lines(account)
    yield Match(
        partial(without_data_wait, share=share),
        cost_ns=waited + restarts,
        limit_ns=host_part_ns(account, "data_loading"),
        evidence=(
            *_part_evidence(account, "data_loading", waited, "time in the loader"),
            *_recurring_evidence(account, DATA_CAUSES),
            *(Evidence(f"in {w.text}", round(100 * w.share, 1), _OF_WORKERS) for w in datasets),
        ),
        where=datasets,
        cause=cause if restarts > waited else "",
        remedy=how,
        sureness=sureness,
        what_if=None if not share else (),
    )


def _from_workers(rank: Rank) -> Intervals:
    return spans(rank, rank.rows_named(lambda s: _WORKERS in s, EventKind.ANNOTATION, EventKind.HOST_OP))


def _worker_start(account: Account) -> str | None:
    """Return that most of a window's wait is for the first batch of workers: they start once, however long the run."""
    asked = [_from_workers(rank) for rank in account.run.ranks]
    first = sum(int((one.end - one.start)[:1].sum()) for one in asked)
    if account.num_steps or first <= MOSTLY * sum(data_loading(rank).total_ns for rank in account.run.ranks):
        return None
    return f"later batches: the wait for the first of the loader's workers takes {ms_text(first / len(asked))} ms"


_WORKERS = "_MultiProcessingDataLoaderIter"
_MORE_WORKERS = (
    "Use more workers than the DataLoader has (num_workers), with persistent_workers=True and a larger prefetch_factor; move "
    "decoding and augmentation out of the loop, or cache them. Assumes no remaining wait."
)
# of the training thread for each batch that a worker hands over, measured for two small tensors: 0.6 to 0.8 ms
_FROM_WORKER_NS = 500_000


def _off_core_ns(account: Account) -> float:
    """Return how long the usual rank's training thread neither ran nor was ready to run in a step; 0 where unknown."""
    found = []
    for log in account.run.logs:
        ran, waited, steps = log.column("cpu.run_ns"), no_core_ns(log), log.unprofiled
        if waited is not None and steps.any():
            found.append(float(np.median((log.dur_ns - np.nan_to_num(ran) - waited)[steps])))
    return max(0.0, median(found)) if found else 0.0


def _reachable_wait(account: Account, waited: float) -> tuple[float, str, float | None]:
    """Return the share of the wait that is left with a worker on every free core of the host, with the remedy for it;
    the kind's own remedy where the recording shows neither workers nor cores.
    """
    workers, cores = _rank_facts(account, "loader_workers", "cores")
    hosts = account.run.description.get("hosts")
    if workers is None or cores is None or account.step is None or not waited:
        has_workers = any(len(_from_workers(rank)) for rank in account.run.ranks)
        return 0.0, _MORE_WORKERS if has_workers else "", None
    local = max((len(r) for r in hosts.values() if isinstance(r, list)), default=1) if isinstance(hosts, dict) else 1
    free = cores // max(local, 1) - 1
    usable = max(1, free)
    has = f"{workers} worker{'' if workers == 1 else 's'} per rank, {cores} core{'' if cores == 1 else 's'} for {local} rank{'' if local == 1 else 's'}"
    cheaper = "decode and augment ahead of time, cache the result, or augment on the device"
    step_ns = account.step.step_ns
    batch_ns, free_ns = step_ns * workers if workers else waited, max(step_ns - waited, 1.0)
    handed_over = 0 if workers else _FROM_WORKER_NS
    left = max(handed_over, batch_ns / usable - free_ns) / waited
    computes = free < 1 and _off_core_ns(account) < MOSTLY * waited  # a worker would take the core from training
    if workers >= usable or left >= 1 - NOTABLE or computes:
        costs = (
            "; loading computes, and no core is free"
            if computes
            else f"; a worker's batch takes about {ms_text(handed_over)} ms of the training thread"
            if handed_over
            else ""
        )
        return 0.0, (
            f"{cheaper[0].upper()}{cheaper[1:]}, or use a host with more cores: more workers cannot hide it on this one ({has}"
            f"{costs}). Assumes no wait is left."
        ), 0.5  # fmt: skip
    number = min(usable, math.ceil(batch_ns / free_ns) + 1)
    return left, (
        f"Use DataLoader(num_workers={number}, prefetch_factor=4, persistent_workers=True, pin_memory=True): the job has {has}. "
        f"Where that is not enough, {cheaper}. Assumes the time per batch recorded."
    ), None  # fmt: skip


def _dataset_lines(account: Account) -> tuple[Where, ...]:
    """Return the lines in which loader workers were sampled, with their shares."""
    sampled = [owners.loader for owners in account.run.owners if owners.loader]
    shares: dict[str, float] = {}
    for lines in sampled:
        for place, share in lines:
            shares[place] = shares.get(place, 0.0) + share / len(sampled)
    largest = sorted(shares.items(), key=lambda item: -item[1])[:3]
    found = [(*place.rpartition(":")[::2], share) for place, share in largest if share >= 0.1]
    return tuple(Where(file, int(line), share=min(1.0, share)) for file, line, share in found if line.isdigit())


# of its time, a copy takes from or to pinned memory instead of pageable one, about
_PINNED_SHARE = 0.5


def _copies(account: Account) -> Iterator[Match]:
    """Yield the copies to the device as a cost, with the host's waiting for them, and slow copies to the host."""
    every, torch = transfers_to_device(account), uses_torch(account)
    chosen = [mask & ~_prefetched(rank) for rank, mask in zip(account.run.ranks, every, strict=True)]
    spent, step = device_ns(account, chosen), account.step
    if step is None or (trains(account.strategy.passes) and _offloads(account)):
        return
    pageable = _pageable(account, chosen)
    down = _pageable(account, [host_device_copies(r) & ~to for r, to in zip(account.run.ranks, every, strict=True)])
    if (slow := device_ns(account, down)) >= NOTABLE * step.step_ns:
        yield Match(
            lambda replay: faster_work(replay, down, _PINNED_SHARE),
            cost_ns=slow,
            evidence=(evidence_ms("copies to pageable memory of the host {per_step}", slow, "average rank"),),
            title="The {waiter} waits for copies to the host",
            cause="their destination is pageable memory, so the copy blocks the host and goes through a buffer",
            remedy=f"Copy into pinned memory ({'torch.empty(..., pin_memory=True)' if torch else 'cudaMallocHost'}); copy less, "
            "less often or in smaller types. Assumes copies at twice the rate.",
            what_if=(),
        )
    if not spent:
        return
    is_pageable = device_ns(account, pageable) > MOSTLY * spent
    waits = median(host_waits(account)[0]) / max(len(account.replay.steps), 1) if account.replay else 0.0
    asked = host_ns(account, chosen)
    evidence = [evidence_ms("host-to-device copies {per_step}", spent, "average rank")]
    if asked > spent:
        evidence.append(evidence_ms("host time for them {per_step}", asked, "average rank"))
    small = waits > 0 and spent < NEGLIGIBLE * step.step_ns  # it is the waiting that costs, not the bytes
    if small:
        evidence.insert(0, evidence_ms("device idle after synchronisations {per_step}", step.ns("host_sync")))
    if waits:
        evidence.append(Evidence("copies that the host waits for, {per_step}", round(waits, 1), "calls", "median rank"))
    together = "; bring what belongs together in one copy" if waits >= 4 else ""
    pin, call = ("pin_memory=True in the DataLoader", "tensor.to(device, non_blocking=True)")
    if not step.ns("data_loading") and not any(
        "dataloader" in s.lower() for r in account.run.ranks for s in r.trace.strings
    ):
        pin = "tensor.pin_memory()"
    if not torch:
        pin, call = ("pinned memory (cudaMallocHost)", "cudaMemcpyAsync")
    ahead = ", one batch ahead on a separate stream" if account.num_steps else ""
    # Without a step there is no batch before this one whose work could hide the copies.
    share = 0.0 if account.num_steps else _PINNED_SHARE if is_pageable else 1.0
    yield Match(
        at_any_factor(lambda replay: hidden_copies(replay, chosen, share)),
        facts={
            "why": "the source is pageable memory, so the copy blocks the host"
            if is_pageable
            else "the host waits for each until all that was launched before it is done"
            if waits
            else "copies run alone, not overlapped with compute",
            "how": f"{f'{pin} and ' if is_pageable or waits else ''}{call}{ahead}; send smaller "
            f"types{together}{'; make what does not change once, on the device' if waits else ''}",
        },
        cost_ns=max(spent, asked),
        # Hidden copies still take their time, next to whatever else the step does; from pinned memory less of it.
        limit_ns=min(
            step.step_ns if account.num_steps else spent * (1 - _PINNED_SHARE) if is_pageable else spent,
            step.step_ns if (idle := not_busy_or_copying_ns(account)) is None else idle,
            step.step_ns
            - max(
                sum(step.ns(part) for part in (*COMPUTE, "data_loading")),
                max(spent, step.ns("copy")) - (spent * (1 - _PINNED_SHARE) if is_pageable else 0.0),
            ),
        ),
        title="The host waits in small copies to the device" if small else "",
        evidence=tuple(evidence),
        what_if=None if not share else (),
    )


def _prefetched(rank: Rank) -> Mask:
    """Return the operations whose fix is made: from pinned memory, on a stream without kernels, the host not waiting."""
    trace, work = rank.trace, rank.work
    pinned = by_string(trace, work.name, lambda s: "Pinned ->" in s).astype(bool)
    launch = np.maximum(work.launch_row, 0)
    returns = trace["ts_ns"][launch] + trace["dur_ns"][launch]
    computing = distinct(work.stream[of_kinds(work.kind, (EventKind.KERNEL, EventKind.COMM_KERNEL))])
    return pinned & (work.launch_row >= 0) & (returns < work.end_ns) & ~np.isin(work.stream, computing)


def _pageable(account: Account, chosen: Sequence[Mask]) -> list[Mask]:
    return [
        mask & by_string(rank.trace, rank.work.name, lambda s: "Pageable" in s).astype(bool)
        for rank, mask in zip(account.run.ranks, chosen, strict=True)
    ]


def _offloads(account: Account) -> list[Mask]:
    """Return the copies in both directions of a job that keeps parameters, optimizer state or activations on the host:
    inside forward, backward and optimizer, about as much to the host as back; empty where it does not.
    """
    chosen = []
    for view in account.ranks:
        regions = view.budget.regions if view.budget is not None else None
        if regions is None:
            return []
        inside = np.isin(regions.region, (Region.FORWARD, Region.BACKWARD, Region.OPTIMIZER))
        chosen.append(host_device_copies(view.rank) & inside & (view.rank.work.step >= 0))
    down = [c & ~to for c, to in zip(chosen, transfers_to_device(account), strict=True)]
    both, back = device_ns(account, chosen), device_ns(account, down)
    many = per_step(account, down) >= 8
    return chosen if account.step and both >= NEGLIGIBLE * account.step.step_ns and many and back >= both / 10 else []


def _offload(account: Account) -> Iterator[Match]:
    chosen = _offloads(account)
    if not chosen or not trains(account.strategy.passes):
        return
    spent = device_ns(account, chosen)
    parts = [_offload_part(view.rank, mask) for view, mask in zip(account.ranks, chosen, strict=True)]
    yield Match(
        lambda replay: taken_out(replay, parts, collectives=False),
        cost_ns=spent,
        facts={"spent": ms_text(spent)},
        evidence=(
            evidence_ms("copies between host and device inside the passes, {per_step}", spent, "average rank"),
            Evidence("of them {per_step}", round(per_step(account, chosen)), "copies", "average rank"),
        ),
        what_if=(),
    )


def _offload_part(rank: Rank, copies: Mask) -> Part:
    """Return the copies with the host's time for them: from the launch before each of them to the end of its operator;
    and the optimizer's where that runs on the host.
    """
    host = launching(rank, copies)
    optimizer = loop_in(rank, Region.OPTIMIZER)
    trace, launch = rank.trace, rank.work.launch_row
    others = launch[(launch >= 0) & ~copies]
    ends = trace["ts_ns"][others] + trace["dur_ns"][others]
    if not covered_ns(optimizer, ends, ends + 1).any():
        host = union_of(host, optimizer)
    part = host_part(rank, host)
    return Part(host, EMPTY, copies, part.collectives, part.calls)


# Launching: what is left of the host's time when everything above is gone.


def _launches(account: Account) -> Iterator[Match]:
    replay, step = account.replay, account.step
    if replay is None or step is None or not has_device(account):
        return
    training = trains(account.strategy.passes)
    gaps = kernel_gaps(account)
    idle, claimed = float(gaps.sum()), launching_ns(account) or 0.0
    outside = idle - float(gaps[Region.FORWARD] + gaps[Region.BACKWARD])  # what graphs of the passes leave as it is
    how = "torch.compile(model, mode='reduce-overhead'), which fuses kernels too, or torch.cuda.make_graphed_callables"
    if any(len(rank.rows_named(_RECURRENT.__contains__, EventKind.HOST_OP)) for rank in account.run.ranks):
        how = "torch.cuda.make_graphed_callables (torch.compile leaves nn.LSTM, nn.GRU and nn.RNN as they are)"
    elif is_compiled(account):
        how = "mode='reduce-overhead' in the torch.compile() that is there, or torch.cuda.make_graphed_callables"
    if training and outside >= NOTABLE * step.step_ns:
        how += (
            f". The whole step in one torch.cuda.graph, with capturable=True in the optimizer, would take "
            f"{ms_text(as_graph(replay).period_ns)} ms"
        )
    if launches_graphs(account):
        how = "capture forward, backward and optimizer together (torch.cuda.graph); graphs launch parts of it already"
    if abilities(account.run.ranks, account.chip.chip).graphs is False:
        how = "with what the device's vendor has for it"
    more = "larger batches and fused optimizers help too" if training else "larger batches help too"
    launches = float(np.mean([len(p) for p in replay.programs])) / len(replay.steps)
    evidence = [evidence_ms("kernel-launch gaps {per_step}", step.ns("launch_gap"))]
    if (others := step.ns("launch_gap") - idle) >= NEGLIGIBLE * step.step_ns:
        evidence.append(evidence_ms("of them before copies or in slow calls {per_step}", others))
    if claimed - idle >= NEGLIGIBLE * step.step_ns:
        later = evidence_ms("waiting for ranks that launch later {per_step}", claimed - idle)
        evidence.insert(0 if claimed - idle > idle else len(evidence), later)  # the larger first
    few, graphs = graphs_of_few_launches(replay)
    if few > graphs / 2:
        evidence.append(Evidence("passes too short for a graph to be faster for sure {per_step}", round(few), "passes"))
    yield Match(
        passes_as_graphs,
        facts={"how": f"{how}; {more}", "first": _before_graphs(account), "the_passes": _passes_text(account)},
        cost_ns=claimed,
        at_most=few > graphs / 2,
        evidence=(*evidence, Evidence("device operations {per_step}", round(launches), "launches")),
        title="The host synchronises, and the device waits for kernel launches"
        if _waits_per_step(account) >= 1 and step.ns("host_sync") > idle
        else "",
    )


# of whole layers; torch.compile breaks its graph at them
_RECURRENT = frozenset(f"aten::{name}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


def _before_graphs(account: Account) -> str:
    """Return what has to change before graphs can launch the passes, by the recorded steps; ends before the verb."""
    assert account.replay is not None
    pairs = [(r, p) for r, p in zip(account.run.ranks, account.replay.programs, strict=True) if r.has_device and len(p)]
    inside = (waits_inside(rank, program).sum() for rank, program in pairs)
    waits = round(max(inside, default=0) / len(account.replay.steps))
    first = []
    if waits:
        first.append(
            f"remove the {f'{waits} synchronisations' if waits > 1 else 'synchronisation'} inside {{the_passes}}"
        )
    if any(_launches_differ(rank, program) for rank, program in pairs):
        first.append("give every step the same shapes and branches (the recorded ones launch different kernels)")
    text = f"{' and '.join(first)} first, then launch" if first else "launch"
    return text[0].upper() + text[1:]


def _passes_text(account: Account) -> str:
    if trains(account.strategy.passes):
        return "forward and backward"
    known = any((regions(rank).region == Region.FORWARD).any() for rank in account.run.ranks)
    return "the forward passes" if known else "the {step}"


def _launches_differ(rank: Rank, program: Program) -> bool:
    """Return whether the passes of the steps launch different kernels, or the same with other grids."""
    rows = program.device_index[in_passes(rank)[program.device_index]]
    step = program.step[in_passes(rank)[program.device_index]]
    what = np.stack((rank.work.name[rows], launch_sizes(rank)[0][rows]))
    each = [what[:, step == one] for one in distinct(step)]
    return any(not np.array_equal(each[0], other) for other in each[1:])


def _page_faults(account: Account) -> Iterator[Match]:
    """Yield kernels that wait for pages of unified memory, with the pages moved beforehand as the counterfactual: what a
    fault takes beyond moving its page is gone.
    """
    chosen, times, moved = [], [], []
    for rank in account.run.ranks:
        work = rank.work
        is_page = by_string(rank.trace, work.name, lambda name: name == f"{PAGE_MOVE}HtoD").astype(bool)
        pages = np.flatnonzero(is_page)
        pages = pages[np.argsort(work.start_ns[pages], kind="stable")]
        start, took = work.start_ns[pages], (work.end_ns - work.start_ns)[pages]
        first, last = (np.searchsorted(start, edge) for edge in (work.start_ns, work.end_ns))
        # a kernel of few threads is slow between its faults by itself
        waits = (last > first) & (work.kind == EventKind.KERNEL) & (filled_share(rank) >= FILLS_LITTLE)
        sums = np.append(0, np.cumsum(took))
        spanned = np.zeros(len(work), np.int64)
        rows = np.flatnonzero(waits)
        spanned[rows] = np.minimum(start[last[rows] - 1] + took[last[rows] - 1], work.end_ns[rows]) - start[first[rows]]
        beyond = np.maximum(spanned - np.where(waits, sums[last] - sums[first], 0), 0)
        chosen.append(waits)
        times.append((work.end_ns - work.start_ns - beyond).astype(np.float64))
        moved.append((beyond, (last - first)[waits]))
    steps = max(account.num_steps, 1) * max(len(moved), 1)
    lost, pages_in = (sum(float(np.sum(one[k])) for one in moved) / steps for k in range(2))
    if account.step is not None and lost >= NOTABLE * account.step.step_ns:
        yield Match(
            lambda replay: with_work_times(replay, chosen, times),
            cost_ns=lost,
            limit_ns=lost,
            evidence=(
                evidence_ms("kernels wait for page faults, beyond the moves {per_step}", lost),
                Evidence("moves of pages during kernels {per_step}", round(pages_in), "moves"),
            ),
        )


def _waits_per_step(account: Account) -> float:
    return median(host_waits(account)[1]) / max(len(account.replay.steps), 1) if account.replay is not None else 0.0


def _between_graphs(account: Account) -> str | None:
    step, graphs = account.step, made_already(account, "launch-overhead")
    if step is None or graphs is None or step.ns("launch_gap") < NOTABLE * step.step_ns:
        return None
    code, by = (
        ("lines of the host", "") if missing(account, Need.LINES) else ("a check of the code", " (stepscope code)")
    )
    return f"{code} between graph launches{by}: {graphs}, and the device idles before them"


_ON_HOST = (Need.HOST,)

# fmt: off
KINDS = (
    Kind("data-loading", _data_loading, "Data loading: the {waiter} waits for input",
         "the next batch is not ready when the host requests it",
         "Load in workers: DataLoader(num_workers=8, persistent_workers=True). Raise prefetch_factor, set pin_memory=True; "
         "move decoding and augmentation out of the loop, or cache them. Assumes no remaining wait.",
         needs=_ON_HOST, limit=not_busy_ns, sureness=0.95, unjudged=_worker_start),
    Kind("host-to-device-copy", _page_faults, "Kernels wait for pages of unified memory",
         "kernels touch pages that are in the host's memory; each fault stops them until the page is moved",
         "Move the data before the kernel: cudaMemPrefetchAsync(pointer, bytes, device), or cudaMemcpy into memory of the device. "
         "Assumes the same moves without faults.",
         scope=Scope.DEVICE, doubt=0.3, sureness=0.7),
    Kind("host-stall", _named_stalls, "Training stops for something else",
         "",
         "",
         needs=_ON_HOST, limit=not_busy_or_copying_ns, sureness=0.95),
    Kind("recompilation", _compilations, RECURRING[COMPILATION][0],
         RECURRING[COMPILATION][1],
         f"{RECURRING[COMPILATION][2]} Assumes none of this time is left.",
         needs=_ON_HOST, sureness=0.95, subject="compilation"),
    Kind("host-stall", _more_work, "{pct} % of the steps do more than the others",
         "passes without gradients (validation, sampling, a metric) or other extra work runs on the device in some steps only, "
         "and training waits for it",
         f"{RECURRING[EVALUATION][2]} Split it over the ranks. Assumes none of this time is left.",
         scope=Scope.DEVICE, needs=_ON_HOST, training_only=True, sureness=0.7, subject="extra work in some steps"),
    Kind("host-stall", _no_core, "Training waits for a CPU core",
         "the training thread is ready to run, and other threads or programs have the cores{cores}",
         "Give it dedicated cores: fewer {fewer}threads (OMP_NUM_THREADS, torch.set_num_threads), no other "
         "programs on these cores, ranks pinned to separate cores (taskset, numactl, --cpus-per-task). Assumes a core whenever "
         "it is ready.",
         scope=Scope.DEVICE, needs=_ON_HOST, sureness=0.95, subject="waiting for a CPU core"),
    Kind("host-stall", _gil, "Another thread holds the GIL ({line})",
         "thread {thread} runs Python code in {place}, and the training thread waits for the interpreter meanwhile",
         "Move that work to another process (multiprocessing, a subprocess), or let the thread wait for an event or a queue "
         "instead of running. Assumes the training thread does not wait for it.",
         needs=_ON_HOST, sureness=0.85, doubt=0.25, subject="another thread with the GIL"),
    Kind("host-stall", _locks, "The training thread waits for another thread ({line})",
         "it waits in {line} while thread {thread} is in {place}",
         "Hold the lock only to copy what is shared and do the slow part outside of it, or hand the data over by a queue without "
         "waiting (put_nowait). Assumes no remaining wait.",
         needs=_ON_HOST, sureness=0.85, doubt=0.25, subject="waiting for another thread"),
    Kind("host-stall", _growing, "Steps become longer during the run ({place})",
         "{place} takes longer from step to step: what it works on grows (a list, a cache, a history)",
         "Bound what grows: delete old entries, keep sums instead of histories, detach() what is kept of the graph. "
         "Assumes all steps as long as the first ones.",
         needs=_ON_HOST, sureness=0.8, doubt=0.25, subject="step growth"),
    Kind("host-stall", _stalls, "The host stalls inside the {step}",
         "for at least a millisecond at a time the host launches nothing and loads no data",
         "Find out what the host does between operators{stacks}. Often it is garbage collection (gc.freeze(), or gc.disable() "
         "and a collection every N steps), logging, a checkpoint, a lock or a sleep. Assumes all stalls are removed.",
         needs=_ON_HOST, limit=not_busy_or_copying_ns, sureness=0.85),
    Kind("host-stall", _anomaly_detection, "Autograd's anomaly detection is on",
         "it stores a stack for every node of the graph ({stacks} ms {per_step}, inside the operators of forward) and looks "
         "for NaN in what every node of backward returns ({looks} ms)",
         "torch.autograd.set_detect_anomaly(False), or take detect_anomaly() out of the loop: it is there to find a NaN, not "
         "to train with. Assumes the step without it.",
         needs=_ON_HOST, training_only=True, sureness=0.95, doubt=0.3, subject="anomaly detection"),
    Kind("allocator", _allocator, "Memory is allocated and freed in the {step}",
         "cudaMalloc and cudaFree block the host and the device; a caching allocator calls them only at first",
         "Remove torch.cuda.empty_cache() from the loop; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; keep "
         "shapes constant or pad them; lower the peak so that the cache is not flushed. Assumes none of these calls is left.",
         "Allocate before the loop, or from a pool (cudaMallocAsync). Assumes none of these calls is left.",
         scope=Scope.DEVICE, needs=_ON_HOST, limit=not_busy_ns),
    Kind("host-to-device-copy", _copies, "The {waiter} waits for copies to the device",
         "{why}",
         "Use {how}. Assumes the step without these copies and without waiting for them.",
         scope=Scope.DEVICE, needs=(Need.DEVICE,)),
    Kind("host-to-device-copy", _offload, "Offloading moves state between host and device",
         "parameters, gradients, optimizer state or activations live on the host: {spent} ms of copies {per_step} in forward, "
         "backward and optimizer, with the host waiting for them",
         "Keep them on the device while they fit: no CPUOffloadPolicy or offload_to_cpu (FSDP), no save_on_cpu; shard over "
         "more ranks or checkpoint activations to save memory instead. Assumes the step without these copies "
         "and the waiting for them.",
         scope=Scope.DEVICE, needs=(Need.DEVICE,), training_only=True, doubt=0.25, subject="offloading to the host"),
    Kind("host-device-sync", _syncs, "The host waits for the device in the {step}",
         "a synchronisation empties the queue, and the device idles until the host has launched again",
         "Leave values on the device (loss.detach() instead of loss.item(), torch.where instead of if), log every N steps, "
         "use non_blocking copies from pinned memory. Assumes the step without these waits.",
         "Synchronise after the loop instead of inside it: order work with streams and events (cudaStreamWaitEvent), copy with "
         "cudaMemcpyAsync from pinned memory. Assumes the step without these waits.",
         scope=Scope.DEVICE, needs=(Need.DEVICE, Need.LAUNCHES), limit=not_busy_ns, doubt=0.3),
    Kind("launch-overhead", _launches, "The device waits for kernel launches",
         "Python and operator dispatch take longer than the kernels they launch",
         "{first} {the_passes} as CUDA graphs: {how}. Assumes graphs of the same kernels, and the rest of the {step} as it is.",
         "{first} the {step} as a CUDA graph (cudaStreamBeginCapture, cudaGraphLaunch), or merge kernels. Assumes that the whole "
         "{step} runs as one graph.",
         scope=Scope.DEVICE, needs=(Need.DEVICE, Need.LAUNCHES), limit=launching_ns, general=True, doubt=0.2,
         unjudged=_between_graphs),
)
# fmt: on
