"""`load-imbalance` between pipeline stages, by module: one stage has more of the model than the others."""

from dataclasses import replace

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.ownership import Ownership
from stepscope.analyze.replay.replay import Replay, rebuilt
from stepscope.analyze.replay.straggler_off import compute_ns, host_part_ns, host_part_scaled
from stepscope.diagnose.finding import Candidate, Evidence, Where
from stepscope.diagnose.rules.measures import host_ms
from stepscope.diagnose.where import costs_by_owner, places, top_modules
from stepscope.stats.distinct import distinct
from stepscope.stats.middle import median
from stepscope.trace.classify import EventKind

_MUCH_MORE = 1.3
"""of the mean stage's compute"""

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
    if not mean or took[at] < _MUCH_MORE * mean or len(took) < 2:
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
            change=even_stages,
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
    """Return the line that holds most of a stage's compute, and the modules at its top by their shares of it."""
    work = owned.rank.work
    computes = (work.step >= 0) & (work.kind != EventKind.COMM_KERNEL)
    costs = [(owned, costs_by_owner(owned.by_work, (work.end_ns - work.start_ns) * computes.astype(float)))]
    return (*places(costs)[:1], *top_modules(costs, most=_MAX_MODULES, depth=1))


def even_stages(replay: Replay) -> Replay:
    """Return the run in which every stage has the mean's compute and host time."""
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
    """Return the modules of a stage that no other is around, in order."""
    used = {owned.modules[m].split(".")[0] for m in distinct(owned.by_call.module).tolist() if m >= 0}
    return sorted(used - {""}, key=lambda name: (len(name), name))
