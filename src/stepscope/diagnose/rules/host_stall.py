"""`host-stall`: the host does something else than training: garbage collection, logging, checkpoints, a lock."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.host.host_compute import computing_operators
from stepscope.analyze.owners.line_work import RankLines
from stepscope.analyze.owners.loop_lines import loop_lines
from stepscope.analyze.owners.steady_stalls import steady_stalls
from stepscope.analyze.replay.changes import without_recurring, without_window_stalls
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.step.recurring import OUTSIDE
from stepscope.diagnose.finding import MIN_MOSTLY, Candidate, Evidence
from stepscope.diagnose.rules.measures import host_ms, host_part_ns, typical_host_ns
from stepscope.diagnose.rules.recurring_causes import common_ns, evidence_of, may_be_needed, named_cause, stall_causes

_MAX_OPERATORS = 2


def host_stall(account: Account) -> list[Candidate]:
    """Return what stops the usual rank's host: each cause that the step log names, and stretches without a name."""
    return [*(_named(account, cause) for cause in stall_causes(account)), *_unnamed(account)]


def _named(account: Account, cause: str) -> Candidate:
    said = named_cause(account, cause)
    return Candidate(
        id="host-stall",
        title=said.title,
        cause=said.cause,
        remedy=f"{said.remedy} The saving is this time gone.",
        change=lambda replay: without_recurring(replay, (cause,)),
        limit_ns=host_part_ns(account, "host_stall"),
        cost_ns=common_ns(account, (cause,)),
        evidence=evidence_of(account, (cause,)),
        sureness=0.5 if may_be_needed(account, cause) else 0.95,
    )


def _unnamed(account: Account) -> list[Candidate]:
    """Return long stretches in which the host ran no operator and asked for no data, and what recurs outside every
    region of the step log.
    """
    stalled, outside = _stalled_ns(account), common_ns(account, (OUTSIDE,))
    if not stalled + outside:
        return []
    cause = "for at least a millisecond at a time the host launches nothing and loads no data"
    if outside > stalled:
        cause = (
            "in some steps the host does something else for long, outside data loading, forward, backward and "
            "optimizer: checkpoints, evaluation, logging"
        )
    causes = (OUTSIDE,) if outside else ()
    return [
        Candidate(
            id="host-stall",
            title="The host stalls inside the step" if stalled >= outside else "The host stops in some steps",
            cause=cause,
            remedy="Look at what runs between the operators there (record with --stacks): gc.freeze() and gc.disable() with a "
            "collection every N steps, logging and checkpoints in a thread, no locks or sleeps in the loop. "
            "The saving is these stretches gone.",
            change=lambda replay: _without(replay, causes, window=stalled > 0),
            limit_ns=host_part_ns(account, "host_stall"),
            cost_ns=stalled + outside,
            evidence=(
                Evidence("stalled host time per step", host_ms(stalled), "ms", "median rank, ordinary steps"),
                *_computed(account),
                *evidence_of(account, (OUTSIDE,)),
            ),
            sureness=0.85,
        )
    ]


def _without(replay: Replay, causes: tuple[str, ...], *, window: bool) -> Replay:
    changed = without_recurring(replay, causes)
    return without_window_stalls(changed) if window else changed


def _stalled_ns(account: Account) -> float:
    """Return how long the usual rank's host stalls per step without a cause of its own.

    On ranks without a device whose lines are known, stalls in lines beside training are `work_beside_training`'s, and
    those that no line has in most steps, or that lie between the operators of the passes themselves, are of other programs
    on the same cores: nothing is left where these are most.
    """
    stalled = typical_host_ns(account, "stall_ns")
    if not stalled or any(rank.has_device for rank in account.run.ranks):
        return stalled
    known = [one for one in account.line_work if one is not None]
    if len(known) < len(account.run.ranks):
        return stalled
    left = np.quantile([_unexplained_ns(one) for one in known], 0.5, method="lower")
    return stalled if left >= MIN_MOSTLY * stalled else 0.0


def _unexplained_ns(known: RankLines) -> float:
    """Return the steady stalls of a rank in lines that are not beside training, nor called from one that is."""
    beside = np.zeros(len(known.owned.stacks) + 1, bool)
    for line in loop_lines(known):
        beside |= known.holding(line)
    others = known.sets.sums((~beside[:-1]).astype(np.int64))
    return sum(ns for line, ns in steady_stalls(known).items() if others[known.lines[line].number])


def _computed(account: Account) -> list[Evidence]:
    """Return the operators that compute on the host while they launch nothing, those that take longest."""
    found: dict[str, int] = {}
    for view in account.run.ranks:
        for row in computing_operators(view).tolist():
            name = view.trace.strings[view.trace["name"][row]]
            found[name] = found.get(name, 0) + int(view.trace["dur_ns"][row])
    steps = max(account.num_steps, 1) * max(len(account.run.ranks), 1)
    longest = sorted(found.items(), key=lambda item: -item[1])[:_MAX_OPERATORS]
    return [Evidence("computed on the host per step", host_ms(ns / steps), "ms", name) for name, ns in longest]
