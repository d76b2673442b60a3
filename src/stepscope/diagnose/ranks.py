"""Kinds of findings in which ranks differ: one is late, has more work, or waits for the schedule of a pipeline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.budget import PART_CODE
from stepscope.analyze.owner_costs import host_waits
from stepscope.analyze.owner_places import (
    MOSTLY,
    Where,
    costs_by_owner,
    places,
    rare_places,
    schedule_lines,
    top_modules,
)
from stepscope.analyze.ownership import Line, Ownership
from stepscope.analyze.phases import marks_of
from stepscope.analyze.replay.changes import (
    Change,
    compute_ns,
    evenly_spread,
    host_part_ns,
    host_part_scaled,
    straggler_off,
)
from stepscope.analyze.replay.replay import Replay, rebuilt, replay_of
from stepscope.analyze.steadiness import slower_clock
from stepscope.analyze.stragglers import cleared_by_logs, common_steps, find_stragglers, uneven_compute
from stepscope.contract.lateness import ALL_STEPS, LateRank
from stepscope.diagnose.finding import (
    MICROBATCHES,
    MORE_MICROBATCHES,
    NEGLIGIBLE,
    NOTABLE,
    Evidence,
    Kind,
    Match,
    evidence_ms,
)
from stepscope.diagnose.host import RECURRING
from stepscope.diagnose.measures import COMPUTE, at, ms_text, parts_of_lines, place_of, without_parts
from stepscope.diagnose.recording import Need, Scope
from stepscope.intervals import covered_ns
from stepscope.records import Row
from stepscope.run.rank import Rank
from stepscope.stats.robust import distinct, lower_median, median
from stepscope.trace.table import EventKind

# why a rank is late, and what to do, by the cause that the account names
_WHY = {
    "host": (
        "its process takes longer on the host than those of the other ranks (slow or busy cores, stalls, another process)",
        "Check the process of {rank}{host}: CPU load, NUMA binding, stalls (py-spy). Other processes may run on its cores.",
    ),
    "device": (
        "its device needs longer for the same work (clocks, power or heat limit, another process, a fault)",
        "Check the device of {rank}{host}: clocks, temperature, throttling, ECC (nvidia-smi -q); drain it if it stays slow.",
    ),
    "data": (
        "its input is late (slow disk or loader on that rank)",
        "Check storage and loader workers of {rank}{host}; shard the data evenly.",
    ),
    "network": ("its link is slower", "Check the link and the switch port of {rank}{host}."),
}
_BALANCE = "Balance the batches (sort by length, pack sequences, same batch on every rank)."


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks in words: `rank 3`, `ranks 0 and 2`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(r) for r in ranks[:4]]
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}" if len(ranks) <= 4 else f"ranks {', '.join(shown)}, ..."


def _late(account: Account) -> Iterator[Match]:
    """Yield the late ranks as one match: as fast as the median of their peers, or without the lines that only they run."""
    named = [s for s in account.stragglers if s.cause != "load"]
    # Lateness that may be the profiler's needs another sign: lines that no other rank runs.
    late = named or [s for s in find_stragglers(account.shared) if s.cause != "load" and lone_lines(account, (s.rank,))]
    if not late:
        return
    first, ranks = late[0], tuple(s.rank for s in late)
    from stepscope.analyze.log_stragglers import late_ranks  # only where a rank is late

    known = [u for u in late_ranks(account.run.logs, window_steps=ALL_STEPS) if u.rank in ranks]
    why, how = _WHY[first.cause]
    recurs = [name for name, ns in first.evidence.items() if name not in ("data", "device") and ns > 0]
    if recurs:
        why = f"it alone is busy with {', '.join(recurs)} in some steps"
        said = RECURRING.get(recurs[0])
        how = said[2] if said else "Do it less often, in the background or outside the training job."
    mine = next((d for d in account.devices if d.rank == first.rank), None)
    held = f"; its device is {mine.held_back}" if mine is not None and mine.held_back else ""
    region = None if recurs else _late_region(account, first)
    if region is not None:
        why = f"most of the difference is inside the range {region}"
        how = f"Check what {region} does on {{rank}}{{host}} and not on the others (input, files, waiting)."
    several = len(ranks) > 1
    title = ranks_text(ranks).capitalize()
    often = "" if first.persistent else f" in {first.steps_late} of {first.num_steps} steps"
    how = how.replace("{rank}", ranks_text(ranks)).replace("{host}", _host_text(account, ranks))
    found = Match(
        lambda replay: straggler_off(replay, ranks),
        facts={
            "title": f"{title} {'are' if several else 'is'} late{often} ({first.cause})",
            "cause": first.cause,
            "why": f"{why}{held}",
        },
        ranks=ranks,
        cost_ns=first.late_ns_per_step,
        # Measured in steps without the profiler, lateness is all there is to gain; in a trace it is an estimate.
        limit_ns=first.late_ns_per_step if first.rank in {u.rank for u in known} else None,
        evidence=(*_late_evidence(account, late), *_unprofiled(known), *_device_evidence(ranks, account.devices)),
        remedy=f"{how} Assumes the late rank becomes as fast as the median rank.",
    )
    saved_ns = None if any(s.persistent for s in late) or _recurs(account, late) else _in_some_steps_ns(account, ranks)
    if saved_ns is not None:
        places = rare_places(account, account.replay, ranks=ranks) if account.replay is not None else ()
        yield replace(found, change=None, formula_ns=saved_ns, where=places)
    else:
        without = _without_lone_lines(account, found, title, several=several)
        if named or without is not found:
            yield without


def _late_region(account: Account, late: Row) -> str | None:
    """Return the innermost range of the user's that takes a late rank longer by most of its lateness, None without one."""
    totals = {rank.rank: _range_ns(rank) for rank in account.run.ranks if len(rank.steps)}
    mine, named = totals.pop(late.rank, {}), {s.rank for s in account.stragglers}
    others = [one for rank, one in totals.items() if rank not in named]
    if not others:
        return None
    more = {name: ns - median([one.get(name, 0.0) for one in others]) for name, ns in mine.items()}
    found = [name for name, ns in more.items() if ns >= MOSTLY * late.late_ns_per_step]
    return min(found, key=lambda name: mine[name], default=None)


def _range_ns(rank: Rank) -> dict[str, float]:
    rows = np.setdiff1d(np.flatnonzero(rank.kinds == EventKind.ANNOTATION), marks_of(rank).rows)  # parts have a cause
    names, trace = rank.trace["name"][rows], rank.trace
    took = np.bincount(names, trace["dur_ns"][rows]) / len(rank.steps) if len(rows) else np.empty(0)
    texts = {trace.strings[i]: float(took[i]) for i in distinct(names).tolist()}
    return {text: ns for text, ns in texts.items() if "#" not in text}  # not the profiler's own


def _host_text(account: Account, ranks: Sequence[int]) -> str:
    hosts = {rank.host for rank in account.run.ranks if rank.rank in ranks and rank.host}
    return f" on {next(iter(hosts))}" if len(hosts) == 1 else ""


def _recurs(account: Account, late: Sequence[Row]) -> bool:
    """Return whether what makes ranks late is known from the logs to recur: then the replay has it, without its steps."""
    more = account.replay.recurring.late_ns() if account.replay is not None else {}
    return all(more.get(s.rank, 0.0) >= MOSTLY * s.late_ns_per_step for s in late)


def _in_some_steps_ns(account: Account, ranks: Sequence[int]) -> float | None:
    """Return what ranks cost that are late in some steps only, where the replay is of the other steps; None where it has
    those steps. All recorded steps are replayed, and the late ones weighted as often as the logs have them.
    """
    replay, training = account.replay, account.training
    recorded = common_steps(account.run.ranks)
    late = {step for rank in ranks for step in training.event_steps.get(rank, ())} if training is not None else set()
    missed = late & set(recorded.tolist()) - set(replay.steps.tolist()) if replay is not None else set()
    if not missed or training is None:
        return None
    whole = replay_of(account.shared, unprofiled_ns=training.mean_ns, every_step=True)
    if whole is None:
        return None
    logged = max((len(log) for log in account.run.logs), default=0)
    often = (len(late) / logged) / (len(missed) / len(recorded)) if logged else 1.0
    return max(0.0, whole.period_ns - straggler_off(whole, ranks).period_ns) * often


def _without_lone_lines(account: Account, late: Match, named: str, *, several: bool) -> Match:
    """Return the match with the lines that only late ranks execute as the cause, where those are most of the lateness."""
    replay, as_peers = account.owned_replay, late.change
    lines = lone_lines(account, late.ranks)
    if replay is None or as_peers is None or not lines:
        return late

    def without(lines: Sequence[Line]) -> Change:
        return without_parts(parts_of_lines(account, lines, ranks=late.ranks), collectives=False)

    def saved_ns(lines: Sequence[Line]) -> float:
        return replay.period_ns - without(lines)(replay).period_ns

    if len(lines) > 1:  # one that takes next to nothing can be missing on the others by chance
        lines = [line for line in lines if saved_ns([line]) >= NEGLIGIBLE * replay.period_ns]
    if not lines or saved_ns(lines) < MOSTLY * (replay.period_ns - as_peers(replay).period_ns):
        return late
    return replace(late, change=without(lines), **_alone(late.facts, named, lines, several=several))


def _alone(facts: Mapping[str, object], named: str, lines: Sequence[Line], *, several: bool) -> dict[str, Any]:
    listed = ", ".join(map(place_of, lines))
    return {
        "facts": {
            **facts,
            "title": f"{named} run{'' if several else 's'} {listed} alone",
            "why": f"{listed} is executed on no other rank, and the others wait for it",
        },
        "remedy": f"Run {listed} less often, in the background or outside the training job. Assumes the step without it.",
        "where": tuple(at(line, share=1.0 / len(lines)) for line in lines),
    }


def _alone_match(account: Account, took: dict[Line, float], ranks: tuple[int, ...]) -> Match:
    """Return the match of lines that nobody else executes: in them these ranks wait for no other."""
    places, whole = list(took), sum(took.values())
    return Match(
        without_parts(parts_of_lines(account, places, ranks=ranks), collectives=False),
        ranks=ranks,
        cost_ns=whole,
        limit_ns=whole,
        evidence=tuple(
            evidence_ms("in the line {per_step}, waits included", ns, place_of(x)) for x, ns in took.items()
        ),
        **_alone({"cause": "host"}, ranks_text(ranks).capitalize(), places, several=len(ranks) > 1),
    )


def lone_lines(account: Account, ranks: Sequence[int]) -> list[Line]:
    """Return the outermost lines that every one of these ranks executes and no other; none without all owners."""
    known = [one for one in account.line_work if one is not None]
    theirs = [one for one in known if one.owned.rank.rank in ranks]
    usual = set[Line]().union(*(one.lines for one in known if one.owned.rank.rank not in ranks))
    if len(known) < len(account.run.ranks) or not theirs or not usual:
        return []
    alone = [{line: work for line, work in one.lines.items() if line not in usual} for one in theirs]
    return sorted(set.intersection(*(set(one.outermost(lines)) for one, lines in zip(theirs, alone, strict=True))))


def _late_evidence(account: Account, late: Sequence[Row]) -> Iterator[Evidence]:
    for s in late:
        yield Evidence("late in", f"{s.steps_late} of {s.num_steps} steps", "", f"rank {s.rank}")
    waits = _mean_of_others(account, [s.rank for s in late], ("wait", "pipeline_bubble"))
    if waits:
        yield evidence_ms("other ranks wait {per_step}", waits)
    for s in late:
        where = f"rank {s.rank}"
        yield evidence_ms("own time over the median rank {per_step}", s.late_ns_per_step, where)
        more = {part: ns for part, ns in s.evidence.items() if ns > 0}
        yield from (evidence_ms(f"excess {part} time {{per_step}}", ns, where) for part, ns in more.items())


def _mean_of_others(account: Account, ranks: Sequence[int], parts: Sequence[str]) -> float | None:
    """Return the mean time of these parts of the step over all ranks but `ranks`."""
    known = [view.rank.rank for view in account.ranks if view.budget is not None]
    others = [i for i, rank in enumerate(known) if rank not in ranks]
    if account.step is None or not others:
        return None
    return float(account.step.rank_part_ns[np.ix_(others, [PART_CODE[p] for p in parts])].sum(axis=1).mean())


def _unprofiled(known: Sequence[LateRank]) -> Iterator[Evidence]:
    for late in known:
        interval = f"rank {late.rank}, {ms_text(late.low_ns)} to {ms_text(late.high_ns)}"
        yield evidence_ms("extra time over the median rank, steps without the profiler", late.late_ns, interval)


def _device_evidence(ranks: Sequence[int], devices: Sequence[Row]) -> Iterator[Evidence]:
    for mine in (d for d in devices if d.rank in ranks):
        where = f"rank {mine.rank}"
        slower = slower_clock(mine, [d for d in devices if d.rank not in ranks])
        found = (("device", mine.held_back), ("clock of its device", slower))
        yield from (Evidence(what, value, "", where) for what, value in found if value)
        if mine.others_bytes:
            yield Evidence("memory of other processes on its device", mine.others_bytes, "bytes", where)


# A line in which some ranks spend time that the others do not, where nothing else named these ranks.


def _late_lines(account: Account) -> Iterator[Match]:
    step, known = account.step, [one for one in account.ownership if one is not None]
    if step is None or len(known) < max(2, len(account.run.ranks)) or account.strategy.has("pp"):
        return
    named = {s.rank for s in account.stragglers}
    each = [_own_line_ns(one, in_waits=False) for one in known]
    slower: dict[tuple[int, ...], list[_SlowLine]] = {}
    for line in sorted(set().union(*each)):
        took = np.array([one.get(line, 0.0) for one in each])
        usual = lower_median(took)
        more = took - usual
        late = more >= MOSTLY * more.max()
        others = took[~late]
        if more.max() < NOTABLE * step.step_ns or not len(others) or 2 * late.sum() > len(took):
            continue
        ranks = tuple(one.rank.rank for one, is_late in zip(known, late, strict=True) if is_late)
        # noise does not halve a line
        clear = others.max() <= MOSTLY * took[late].min() and not set(ranks) <= named
        if clear and not all(cleared_by_logs(account.shared, rank, more.max(), account.run.logs) for rank in ranks):
            slower.setdefault(ranks, []).append((line, float(took.max()), usual))
    for ranks, lines in slower.items():
        alone = lone_lines(account, ranks)
        whole = [_own_line_ns(one, in_waits=True) for one in known if one.rank.rank in ranks]
        if all(line in alone for line, _, _ in lines):
            yield _alone_match(account, {line: max(one.get(line, 0.0) for one in whole) for line in alone}, ranks)
        else:
            yield _slower_match(account, lines, ranks)


# a line, its time on the late ranks and on the others
_SlowLine = tuple[Line, float, float]


def _own_line_ns(owned: Ownership, *, in_waits: bool) -> dict[Line, float]:
    host = owned.host
    took = (host.end_ns - host.start_ns) * host.runs
    if not in_waits:
        took = took - covered_ns(host_waits(owned.rank), host.start_ns, host.end_ns) * host.runs
    known = host.owner.stack >= 0
    sums = np.bincount(host.owner.stack[known], took[known], minlength=len(owned.stacks))
    found: dict[Line, float] = {}
    for stack, ns in enumerate((sums / max(len(owned.rank.steps), 1)).tolist()):
        line = owned.stacks.user_line(stack)
        if line is not None and ns > 0:
            found[line] = found.get(line, 0.0) + ns
    return found


def _slower_match(account: Account, lines: Sequence[_SlowLine], ranks: tuple[int, ...]) -> Match:
    lines = sorted(lines, key=lambda one: one[2] - one[1])
    changes = [_as_fast(account, line, usual_ns / late_ns, ranks) for line, late_ns, usual_ns in lines]
    more = sum(late_ns - usual_ns for _, late_ns, usual_ns in lines)
    listed = ", ".join(place_of(line) for line, _, _ in lines)
    rows = [
        f"{place_of(line)} takes {ms_text(late)} ms there and {ms_text(usual)} ms on the other ranks"
        for line, late, usual in lines
    ]
    return Match(
        lambda replay: reduce(lambda done, change: change(done), changes, replay),
        facts={
            "title": f"{ranks_text(ranks).capitalize()} spend{'' if len(ranks) > 1 else 's'} {ms_text(more)} ms more in "
            f"{listed}",
            "cause": "host",
            "why": "; ".join(rows),
        },
        ranks=ranks,
        cost_ns=more,
        limit_ns=more,
        evidence=tuple(evidence_ms("extra time in the line {per_step}", more, f"rank {r}") for r in ranks),
        remedy="Check what the line does on these ranks only (input, files, waiting); run it less "
        "often. Assumes the line becomes as fast there as on the other ranks.",
        where=tuple(at(line, share=(late_ns - usual_ns) / more) for line, late_ns, usual_ns in lines),
    )


def _as_fast(account: Account, line: Line, factor: float, ranks: Sequence[int]) -> Change:
    parts = [
        replace(p, work=np.zeros_like(p.work), collectives=np.zeros_like(p.collectives), calls=p.calls[:0])
        for p in parts_of_lines(account, [line], ranks=ranks)
    ]
    return without_parts(parts, factor=factor, collectives=False)


# Uneven work.


def _uneven(account: Account) -> Iterator[Match]:
    """Yield ranks with more work: late ones by the account, or those whose kernels launch more threads; experts have a
    kind of their own, and stages are split by layers.
    """
    heavy = [s for s in account.stragglers if s.cause == "load"]
    if heavy and not account.strategy.has("ep"):
        yield Match(
            evenly_spread,
            facts={
                "which": f"Rank {heavy[0].rank} has more work than the others",
                "why": "the same operators run on larger shapes",
            },
            ranks=tuple(s.rank for s in heavy),
            cost_ns=heavy[0].late_ns_per_step,
            evidence=tuple(_late_evidence(account, heavy)),
        )
    found = (
        uneven_compute(account.run.ranks) if not account.stragglers and not account.strategy.has("ep", "pp") else None
    )
    if found is not None:
        one = found.heaviest
        by_rank = zip(found.ranks, found.compute_ns.mean(axis=1).tolist(), strict=True)
        yield Match(
            evenly_spread,
            facts={
                "which": f"Rank {one[0]} has more work than the others"
                if one
                else "Ranks take turns at having more work",
                "why": "kernels of the same step launch more threads there, and every rank waits for the one with the most",
            },
            ranks=one,
            cost_ns=found.imbalance_ns,
            limit_ns=found.imbalance_ns,
            evidence=(
                evidence_ms("most compute of a rank beyond the average rank's, {per_step}", found.imbalance_ns),
                *(evidence_ms("compute {per_step}", ns, f"rank {rank}") for rank, ns in by_rank),
            ),
            sureness=0.8,
        )


def _experts(account: Account) -> Iterator[Match]:
    view = account.views.experts
    if view is None or view.imbalance is None or view.imbalance < 1.2 or account.replay is None:
        return
    yield Match(
        evenly_spread,
        facts={
            "times": f"{view.imbalance:.1f}",
            "who": "One rank" if view.fullest_rank is None else f"Rank {view.fullest_rank}",
        },
        ranks=() if view.fullest_rank is None else (view.fullest_rank,),
        evidence=tuple(_expert_evidence(account, view.fullest_rank)),
    )


def _expert_evidence(account: Account, fullest: int | None) -> Iterator[Evidence]:
    if fullest is None:
        return
    everyone = [view.rank.rank for view in account.ranks]
    sides = {f"rank {fullest}": [r for r in everyone if r != fullest], "mean of the other ranks": [fullest]}
    for where, others in sides.items():
        if ns := _mean_of_others(account, others, COMPUTE):
            yield evidence_ms("compute {per_step}", ns, where)


# Pipelines: one stage with more of the model than the others, and too few micro-batches.


def _heavy_stage(account: Account) -> Iterator[Match]:
    replay = account.replay
    if replay is None or not account.strategy.has("pp") or account.strategy.has("ep"):
        return
    took = np.array([compute_ns(p) for p in replay.programs]) / len(replay.steps)
    mean, index = float(took.mean()), int(took.argmax())
    if not mean or took[index] < 1.3 * mean or len(took) < 2:
        return
    rank, owned = account.run.ranks[index].rank, account.ownership[index]
    used = (
        {owned.modules[m].split(".")[0] for m in distinct(owned.by_call.module).tolist() if m >= 0} if owned else set()
    )
    modules = sorted(used - {""}, key=lambda name: (len(name), name))
    names = f" ({len(modules)} modules)" if modules else ""
    rest = median(np.delete(took, index))
    yield Match(
        _even_stages,
        facts={
            "rank": rank,
            "times": f"{took[index] / rest:.1f}" if rest else "many",
            "names": names,
            "mine": ms_text(took[index]),
            "rest": ms_text(rest),
        },
        ranks=(rank,),
        cost_ns=float(took[index] - mean),
        evidence=tuple(
            evidence_ms("kernel time {per_step}", float(ns), f"stage on rank {r.rank}")
            for r, ns in zip(account.run.ranks, took, strict=True)
        ),
        where=_stage_modules(owned) if owned is not None else (),
        what_if=(),
    )


def _stage_modules(owned: Ownership) -> tuple[Where, ...]:
    work = owned.rank.work
    computes = (work.step >= 0) & (work.kind != EventKind.COMM_KERNEL)
    costs = [(owned, costs_by_owner(owned.by_work, (work.end_ns - work.start_ns) * computes.astype(float)))]
    return (*places(costs)[:1], *top_modules(costs, most=8, depth=1))


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


def _bubble(account: Account) -> Iterator[Match]:
    """Yield the bubble of a pipeline, with more micro-batches as the fix: only the schedule's part of it shrinks."""
    view, step = account.views.pipeline, account.step
    if view is None or not view.microbatches or step is None:
        return
    from stepscope.analyze.pipeline import microbatch_saving_ns  # only where there is a pipeline

    m, more = view.microbatches, MORE_MICROBATCHES * view.microbatches
    saving_ns = microbatch_saving_ns(view, more, step_ns=step.step_ns)
    if saving_ns <= 0:  # what more messages take is more
        return
    extra = (view.stages - 1) / (view.chunks or 1)
    idle_ns = float(np.mean([one.idle_ns for one in view.ranks]))
    yield Match(
        formula_ns=saving_ns,
        facts={
            "m": m, "stages": view.stages, "extra": f"{extra:.3g}", "all": f"{m + extra:.3g}", "more": more,
        },
        cost_ns=view.bubble_pct / 100 * step.step_ns,
        evidence=(
            evidence_ms("waiting for other stages {per_step}", step.ns("pipeline_bubble"), "average rank"),
            evidence_ms("idle between micro-batches {per_step}", idle_ns, "average rank"),
            Evidence(MICROBATCHES, m),
            Evidence("stages", view.stages),
        ),
        where=schedule_lines(account),
        what_if=("--set", f"microbatches={more}"),
    )  # fmt: skip


_RANKS = Scope.SEVERAL_RANKS
_EVENLY = "Assumes the same work spread evenly."

# fmt: off
KINDS = (
    Kind("straggler", _late, "{title}",
         "{cause}: {why}",
         "",
         scope=_RANKS, needs=(Need.STEPS, Need.ALL_RANKS)),
    Kind("straggler", _late_lines, "{title}",
         "{cause}: {why}",
         "",
         scope=_RANKS),
    Kind("load-imbalance", _uneven, "{which}",
         "{why}",
         f"{_BALANCE} {_EVENLY}",
         scope=_RANKS, needs=(Need.STEPS, Need.ALL_RANKS), doubt=0.3),
    Kind("expert-imbalance", _experts, "{who} receives {times} times the mean tokens",
         "the router prefers few experts; their ranks receive and compute more while the others wait",
         "Raise the router's load-balancing loss, or lower the capacity factor. A bias per expert (auxiliary-loss-free "
         "balancing) or popular experts on several ranks help too. Assumes the same tokens spread evenly.",
         scope=_RANKS, needs=(Need.ALL_RANKS, Need.SIZES), doubt=0.3),
    Kind("load-imbalance", _heavy_stage, "Rank {rank}'s stage has {times} times the others' work",
         "the stage on rank {rank}{names} has {mine} ms of kernels {per_step}, the others {rest} ms; they wait for it",
         f"Move layers from rank {{rank}}'s stage to the others until all take as long. {_EVENLY}",
         scope=_RANKS, doubt=0.3),
    Kind("pipeline-bubble", _bubble, "Pipeline bubble ({m} micro-batches, {stages} stages)",
         "while the pipeline fills and drains, each stage is idle for {extra} of {all} micro-batch times, even with equal stages",
         "Use {more} micro-batches instead of {m} (used for the prediction), or an interleaved or zero-bubble schedule. Assumes the same "
         "total work.",
         scope=_RANKS, needs=(Need.STEPS, Need.ALL_RANKS), doubt=0.3),
)
# fmt: on
