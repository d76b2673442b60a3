"""`straggler`: one rank is late. `load-imbalance`: ranks have different amounts of work."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.device_state import DeviceState, slower_clock
from stepscope.analyze.log_stragglers import LateRank, late_ranks
from stepscope.analyze.owner_costs import host_waits
from stepscope.analyze.ownership import Ownership
from stepscope.analyze.replay.changes import (
    Change,
    compute_ns,
    evenly_spread,
    host_part_ns,
    host_part_scaled,
    straggler_off,
)
from stepscope.analyze.replay.removal import NO_PART, part_for
from stepscope.analyze.replay.replay import Replay, rebuilt
from stepscope.analyze.stacks import Line
from stepscope.analyze.stragglers import Straggler, cleared_by_logs, uneven_compute
from stepscope.dataclass import dataclass
from stepscope.diagnose.finding import MIN_MOSTLY, MORE_MICROBATCHES, Candidate, Evidence, Where
from stepscope.diagnose.rule_measures import at, host_ms, host_only, without_parts
from stepscope.diagnose.where import costs_by_owner, places, schedule_lines, top_modules
from stepscope.intervals import covered_ns
from stepscope.stats.distinct import distinct
from stepscope.stats.robust import lower_median, median
from stepscope.trace.classify import EventKind
from stepscope.units import ms

_WHY = {
    "host": "its host needs longer per step than the others' (slow or busy CPU, stalls, another process)",
    "device": "its device needs longer for the same work (clocks, power or heat limit, another process, a fault)",
    "data": "its input is late (slow disk or loader on that rank)",
    "load": "it has more work than the others",
    "network": "its link is slower",
}
_DO = {
    "host": "Look at that machine: CPU frequency and load, other processes, NUMA binding, python stalls on that rank only.",
    "device": "Check clocks, temperature, throttle reasons and ECC of that device (nvidia-smi -q); drain it if it stays slow.",
    "data": "Look at that rank's storage and loader workers; shard the data evenly.",
    "load": "Balance the batches (sort by length, pack sequences, same batch on every rank).",
    "network": "Check that rank's link and switch port.",
}
_ALL_STEPS = 1 << 40


def straggler(account: Account) -> list[Candidate]:
    """Return the late ranks that are slow, and uneven load as a fault of its own."""
    slow = [s for s in account.stragglers if s.cause != "load"]
    heavy = [s for s in account.stragglers if s.cause == "load"]
    found = []
    if slow:
        late = _slow(slow, late_ranks(account.run.logs, window_steps=_ALL_STEPS), account.devices)
        found.append(_placed(account, late))
    if heavy and not account.strategy.has("ep"):
        found.append(_heavy(heavy))
    # experts have a finding of their own, stages are cut by layers
    if not account.stragglers and not account.strategy.has(*("ep", "pp")):
        found += _uneven(account)
    return found


def _slow(late: list[Straggler], unprofiled: list[LateRank], devices: Sequence[DeviceState]) -> Candidate:
    ranks = tuple(s.rank for s in late)
    first = late[0]
    named = f"Rank {first.rank}" if len(ranks) == 1 else f"Ranks {', '.join(map(str, ranks))}"
    waiting = "every step waits" if first.persistent else f"{first.steps_late} of {first.num_steps} steps wait"
    return Candidate(
        id="straggler",
        title=f"{named}: {waiting} for {'it' if len(ranks) == 1 else 'them'}",
        cause=f"{first.cause}: {_recurs(first) or _WHY[first.cause]}{_held_back(first, devices)}",
        remedy=f"{_DO[first.cause]} The saving is of the late rank as fast as its peers' median.",
        change=lambda replay: straggler_off(replay, ranks),
        ranks=ranks,
        cost_ns=first.late_ns_per_step,
        # Measured in steps without the profiler, lateness is all there is to gain; in a trace it is an estimate.
        limit_ns=first.late_ns_per_step if first.rank in {u.rank for u in unprofiled} else None,
        evidence=(
            *_evidence(late),
            *_unprofiled_evidence([u for u in unprofiled if u.rank in ranks]),
            *_device_evidence(ranks, devices),
        ),
    )


def _placed(account: Account, late: Candidate) -> Candidate:

    replay, as_peers = account.owned_replay, late.change
    lines = lone_lines(account, late.ranks)
    if replay is None or as_peers is None or not lines:
        return late
    without = _without_lone_lines(account, late.ranks, lines)
    if replay.period_ns - without(replay).period_ns < MIN_MOSTLY * (replay.period_ns - as_peers(replay).period_ns):
        return late
    places = [f"{file}:{line}" for file, line in lines]
    named = ", ".join(places)
    several = len(late.ranks) > 1
    return replace(
        late,
        title=f"{late.title.split(':')[0]} alone execute{'' if several else 's'} {named}",
        cause=f"{late.cause}; {named} is executed on no other rank",
        remedy=f"Do what {named} does on all ranks in turn, less often, or outside the training job. The saving is of "
        "the step without it.",
        change=without,
        where=tuple(at(line, share=1.0 / len(lines)) for line in lines),
        what_if=("--without", places[0], "--ranks", ",".join(map(str, late.ranks))) if len(places) == 1 else (),
    )


def _recurs(late: Straggler) -> str | None:
    named = [name for name, ns in late.evidence.items() if name not in ("data", "device") and ns > 0]
    return f"it alone is busy with {', '.join(named)} in some steps" if named else None


def _held_back(late: Straggler, devices: Sequence[DeviceState]) -> str:
    mine = next((d for d in devices if d.rank == late.rank), None)
    return f"; its device is {mine.held_back}" if mine is not None and mine.held_back else ""


def _device_evidence(ranks: tuple[int, ...], devices: Sequence[DeviceState]) -> list[Evidence]:
    lines = []
    for mine in (d for d in devices if d.rank in ranks):
        where = f"rank {mine.rank}"
        slower = slower_clock(mine, [d for d in devices if d.rank not in ranks])
        said = (("device", mine.held_back), ("clock of its device", slower))
        lines += [Evidence(what, value, "", where) for what, value in said if value]
        if mine.others_bytes:
            lines.append(Evidence("memory of other processes on its device", mine.others_bytes, "bytes", where))
    return lines


def _unprofiled_evidence(known: list[LateRank]) -> list[Evidence]:
    what = "own time beyond the others', steps without the profiler"
    return [
        Evidence(
            what, round(ms(late.late_ns), 3), "ms", f"rank {late.rank}, {ms(late.low_ns):.1f} to {ms(late.high_ns):.1f}"
        )
        for late in known
    ]


def _heavy(late: list[Straggler]) -> Candidate:
    ranks = tuple(s.rank for s in late)
    return Candidate(
        id="load-imbalance",
        title=f"Rank {ranks[0]} has more work than the others",
        cause="the same operators run on larger shapes there",
        remedy=f"{_DO['load']} The saving is of the same work spread evenly.",
        change=evenly_spread,
        ranks=ranks,
        cost_ns=late[0].late_ns_per_step,
        evidence=_evidence(late),
        doubt=0.3,
    )


def _uneven(account: Account) -> list[Candidate]:
    found = uneven_compute(account.run.ranks)
    if found is None:
        return []
    one = found.heaviest
    by_rank = zip(found.ranks, found.compute_ns.mean(axis=1).tolist(), strict=True)
    return [
        Candidate(
            id="load-imbalance",
            title=f"Rank {one[0]} has more work than the others" if one else "Ranks take turns at having more work",
            cause="kernels of the same step launch more threads there, and every rank waits for the one with the most",
            remedy=f"{_DO['load']} The saving is of the same work spread evenly.",
            change=evenly_spread,
            ranks=one,
            cost_ns=found.imbalance_ns,
            limit_ns=found.imbalance_ns,
            evidence=(
                Evidence("most compute of a rank beyond the mean rank's, per step", host_ms(found.imbalance_ns), "ms"),
                *(Evidence("compute per step", host_ms(ns), "ms", f"rank {rank}") for rank, ns in by_rank),
            ),
            doubt=0.3,
            sureness=0.8,
        )
    ]


def _evidence(late: list[Straggler]) -> tuple[Evidence, ...]:
    lines = []
    for s in late:
        where = f"rank {s.rank}"
        lines.append(Evidence("own time beyond the others' median per step", host_ms(s.late_ns_per_step), "ms", where))
        lines.append(Evidence("steps late", f"{s.steps_late} of {s.num_steps}", "", where))
        more = {part: ns for part, ns in s.evidence.items() if ns > 0}
        lines += [Evidence(f"excess {part} time per step", host_ms(ns), "ms", where) for part, ns in more.items()]
    return tuple(lines)


# `straggler` by line: some ranks spend time in a line that the others do not.

# of the step: what a line takes more on a rank, to make it late
_MIN_SHARE = 0.05
# of the late ranks' time is the others': noise does not halve a line
_MUCH_LESS = 0.5


@dataclass(frozen=True)
class LateLine:
    """A line that takes longer on some ranks."""

    line: Line
    ranks: tuple[int, ...]
    #: per step on the rank that takes longest
    late_ns: float
    #: per step on the others
    usual_ns: float


def late_lines(account: Account) -> list[Candidate]:
    """Return ranks that are late for a line, where nothing else named them already."""
    if account.step is None or not all(account.ownership) or account.strategy.has("pp"):
        return []
    named = {s.rank for s in account.stragglers}
    found = [late for late in _lines_of_late_ranks(account) if not set(late.ranks) <= named]
    return [_candidate(account, late) for late in found if not _cleared(account, late)]


def _cleared(account: Account, late: LateLine) -> bool:
    more_ns = late.late_ns - late.usual_ns
    return all(cleared_by_logs(account.shared, rank, more_ns, account.run.logs) for rank in late.ranks)


def _lines_of_late_ranks(account: Account) -> list[LateLine]:
    owned = [one for one in account.ownership if one is not None]
    if len(owned) < 2 or account.step is None:
        return []
    each = [_own_line_ns(one) for one in owned]
    found = []
    for line in set().union(*each):
        took = np.array([one.get(line, 0.0) for one in each])
        usual = lower_median(took)
        more = took - usual
        if more.max() < _MIN_SHARE * account.step.step_ns:
            continue
        late = more >= _MUCH_LESS * more.max()
        others = took[~late]
        if not len(others) or 2 * late.sum() > len(took) or others.max() > _MUCH_LESS * took[late].min():
            continue
        ranks = tuple(one.rank.rank for one, is_late in zip(owned, late, strict=True) if is_late)
        found.append(LateLine(line, ranks, float(took.max()), usual))
    return sorted(found, key=lambda one: one.usual_ns - one.late_ns)


def _own_line_ns(owned: Ownership) -> dict[Line, float]:
    host = owned.host
    took = (host.end_ns - host.start_ns) * host.runs
    took = took - covered_ns(host_waits(owned.rank), host.start_ns, host.end_ns) * host.runs
    known = host.owner.stack >= 0
    sums = np.bincount(host.owner.stack[known], took[known], minlength=len(owned.stacks))
    steps = max(len(owned.rank.steps), 1)
    found: dict[Line, float] = {}
    for stack, ns in enumerate(sums.tolist()):
        line = owned.stacks.user_line(stack)
        if line is not None and ns > 0:
            found[line] = found.get(line, 0.0) + ns / steps
    return found


def _candidate(account: Account, late: LateLine) -> Candidate:
    place = f"{late.line[0]}:{late.line[1]}"
    several = len(late.ranks) > 1
    named = f"Ranks {', '.join(map(str, late.ranks))}" if several else f"Rank {late.ranks[0]}"
    more = late.late_ns - late.usual_ns
    factor = late.usual_ns / late.late_ns
    parts = []
    for known in account.line_work:
        if known is None or known.owned.rank.rank not in late.ranks or late.line not in known.lines:
            parts.append(NO_PART)
            continue
        holds = known.holding(late.line)
        parts.append(host_only(part_for(known.owned, lambda _, things, holds=holds: holds[things.stack])))  # type: ignore[misc]
    return Candidate(
        id="straggler",
        title=f"{named} spend{'' if several else 's'} {ms(more):.1f} ms more in {place}",
        cause=f"host: {place} takes {ms(late.late_ns):.1f} ms per step there and {ms(late.usual_ns):.1f} ms on the other ranks",
        remedy="Look at what that line does on these ranks only (input, files, waiting); do it on all ranks in turn or "
        "less often. The saving is of the line as fast there as on the others.",
        change=without_parts(parts, factor=factor, collectives=False),
        ranks=late.ranks,
        cost_ns=more,
        limit_ns=more,
        evidence=tuple(
            Evidence("own time in the line beyond the others' per step", host_ms(more), "ms", f"rank {rank}")
            for rank in late.ranks
        ),
        where=(at(late.line),),
        what_if=("--scale", f"{place}={factor:.4f}", "--ranks", ",".join(map(str, late.ranks))),
    )


# Lines that only late ranks execute: what such a rank does beside what all ranks do.


def lone_lines(account: Account, ranks: Sequence[int]) -> list[Line]:
    """Return the outermost lines that every one of these ranks executes and no other; none without all owners."""
    known = [one for one in account.line_work if one is not None]
    if len(known) < len(account.run.ranks):
        return []
    theirs = [one for one in known if one.owned.rank.rank in ranks]
    usual = set[Line]().union(*(one.lines for one in known if one.owned.rank.rank not in ranks))
    if not theirs or not usual:
        return []
    alone = [{line: work for line, work in one.lines.items() if line not in usual} for one in theirs]
    found = [set(one.outermost(lines)) for one, lines in zip(theirs, alone, strict=True)]
    return sorted(set.intersection(*found))


def _without_lone_lines(account: Account, ranks: Sequence[int], lines: Sequence[Line]) -> Change:
    parts = []
    for known in account.line_work:
        if known is None or known.owned.rank.rank not in ranks:
            parts.append(NO_PART)
            continue
        holds = np.logical_or.reduce([known.holding(line) for line in lines])
        parts.append(part_for(known.owned, lambda _, things, holds=holds: holds[things.stack]))  # type: ignore[misc]
    return without_parts(parts, collectives=False)


# `expert-imbalance`: tokens are routed unevenly, so some ranks receive and compute more than others.


def expert_imbalance(account: Account) -> list[Candidate]:
    """Return uneven exchanges of tokens, evened out."""
    view = account.views.experts
    if view is None or view.imbalance is None or view.imbalance < 1.2 or account.replay is None:
        return []
    uneven = view.imbalance
    ranks = () if view.fullest_rank is None else (view.fullest_rank,)
    return [
        Candidate(
            id="expert-imbalance",
            title=f"Tokens are routed unevenly: the fullest rank has {uneven:.1f} times the mean",
            cause="the router prefers few experts; their ranks receive and compute more while the others wait",
            remedy="Balance the router (auxiliary loss, or bias per expert as in auxiliary-loss-free balancing), set a capacity factor, or "
            "place popular experts on several ranks. The saving is of the same tokens spread evenly.",
            change=evenly_spread,
            ranks=ranks,
            evidence=(Evidence("load of the fullest rank against the mean", round(uneven, 2), "times"),),
            doubt=0.3,
        )
    ]


# `load-imbalance` between pipeline stages, by module: one stage has more of the model than the others.


_MAX_MODULES = 8


def stage_imbalance(account: Account) -> list[Candidate]:
    """Return the stage that has far more compute than the mean of them."""
    replay = account.replay
    if replay is None or not account.strategy.has("pp") or account.strategy.has("ep"):
        return []
    steps = len(replay.steps)
    took = np.array([compute_ns(p) / steps for p in replay.programs])
    mean = float(took.mean())
    at = int(took.argmax())
    # of the mean stage's compute
    if not mean or took[at] < 1.3 * mean or len(took) < 2:
        return []
    rank = account.run.ranks[at].rank
    owned = account.ownership[at]
    modules = _top_modules(owned) if owned is not None else []
    names = f" ({len(modules)} modules: {', '.join(modules[:8])})" if modules else ""
    return [
        Candidate(
            id="load-imbalance",
            title=f"The stage on rank {rank} has {took[at] / mean:.1f} times the work of the mean stage",
            cause=f"the stage on rank {rank}{names} computes for {host_ms(took[at]):.1f} ms per step, the others for "
            f"{host_ms(median(np.delete(took, at))):.1f} ms: they wait for it",
            remedy="Move layers from that stage to the others until all take as long. The saving is of the same work "
            "spread evenly, on hosts and devices.",
            change=_even_stages,
            ranks=(rank,),
            cost_ns=float(took[at] - mean),
            evidence=tuple(
                Evidence("compute per step", host_ms(float(ns)), "ms", f"stage on rank {r.rank}")
                for r, ns in zip(account.run.ranks, took, strict=True)
            ),
            where=_where(owned) if owned is not None else (),
            what_if=(),
            doubt=0.3,
        )
    ]


def _where(owned: Ownership) -> tuple[Where, ...]:
    work = owned.rank.work
    computes = (work.step >= 0) & (work.kind != EventKind.COMM_KERNEL)
    costs = [(owned, costs_by_owner(owned.by_work, (work.end_ns - work.start_ns) * computes.astype(float)))]
    return (*places(costs)[:1], *top_modules(costs, most=_MAX_MODULES, depth=1))


def _even_stages(replay: Replay) -> Replay:
    compute = [compute_ns(p) for p in replay.programs]
    hosts = [host_part_ns(p, "own_ns") for p in replay.programs]
    programs = []
    for program, mine, host in zip(replay.programs, compute, hosts, strict=True):
        computes = program.kind != EventKind.COMM_KERNEL
        factor = float(np.mean(compute)) / mine if mine else 1.0
        duration = np.where(computes, np.rint(program.duration_ns * factor), program.duration_ns).astype(np.int64)
        evened = replace(program, duration_ns=duration)
        programs.append(host_part_scaled(evened, "own_ns", float(np.mean(hosts)) / host) if host else evened)
    return rebuilt(replay, programs)


def _top_modules(owned: Ownership) -> list[str]:
    used = {owned.modules[m].split(".")[0] for m in distinct(owned.by_call.module).tolist() if m >= 0}
    return sorted(used - {""}, key=lambda name: (len(name), name))


# `pipeline-bubble`: too few micro-batches for the number of stages.

MICROBATCHES = "micro-batches"


def pipeline_bubble(account: Account) -> list[Candidate]:
    """Return the bubble of a pipeline, with four times the micro-batches as the fix."""
    view = account.views.pipeline
    if view is None or not view.microbatches or account.step is None:
        return []
    chunks = view.chunks or 1
    now = _step_in_microbatches(view.stages, view.microbatches, chunks)
    then = _step_in_microbatches(view.stages, MORE_MICROBATCHES * view.microbatches, chunks) / MORE_MICROBATCHES
    # Only what the pipeline does shrinks: its work and its bubble, not the optimizer or other idle time.
    bubble_ns = view.bubble_pct / 100 * account.step.step_ns
    ideal_share = (now - view.microbatches) / now
    avoidable = (now - then) / (now - view.microbatches) if ideal_share else 0.0
    return [
        Candidate(
            id="pipeline-bubble",
            title=f"{view.microbatches} micro-batches leave {view.stages} stages idle {view.bubble_pct:.0f} % of the step",
            cause=f"stages wait for the first and the last micro-batch: (p - 1)/(m + p - 1) = {100 * ideal_share:.0f} %",
            remedy="Use more, smaller micro-batches, an interleaved schedule (several chunks per rank) or a zero-bubble one. "
            "The saving is of four times the micro-batches at the same total work.",
            fixed_saving_ns=avoidable * bubble_ns,
            cost_ns=bubble_ns,
            evidence=(
                Evidence("measured bubble", round(view.bubble_pct, 2), "% of the step", "mean rank"),
                Evidence(
                    "bubble with equal stages, by (p - 1)/(m + p - 1)", round(100 * ideal_share, 2), "% of the step"
                ),
                Evidence(MICROBATCHES, view.microbatches),
                Evidence("stages", view.stages),
            ),
            where=schedule_lines(account),
            doubt=0.3,
        )
    ]


def _step_in_microbatches(stages: int, microbatches: int, chunks: int) -> float:
    return microbatches + (stages - 1) / chunks
