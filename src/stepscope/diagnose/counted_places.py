"""Where is a fault that no replay can place? By counting what it is made of: messages, short kernels, recorded events.

A pipeline's bubble is where its messages are asked for: the line that runs the schedule. Too little work per kernel is
where most short kernels are launched, and the profiler costs most where most events were recorded.
"""

from collections import defaultdict

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.roofline import SHORT_NS
from stepscope.analyze.owners.ownership import Ownership
from stepscope.diagnose.finding import Where
from stepscope.diagnose.where import MAX_PLACES, Costs, costs_by_owner, places, user_lines
from stepscope.run.matching.match import POINT_TO_POINT
from stepscope.stats.distinct import among
from stepscope.trace.classify import EventKind


def schedule_lines(account: Account) -> tuple[Where, ...]:
    """Return the lines that ask for messages between stages; every rank may have one of its own."""
    asked: dict[tuple[str, int], float] = defaultdict(float)
    for owned in _known(account):
        c = owned.rank.collectives
        messages = (c.step >= 0) & among(c.op, POINT_TO_POINT)
        for (stack, caller, _), count in costs_by_owner(owned.by_collective, messages.astype(float)).items():
            lines = user_lines(owned, caller if caller >= 0 else stack)
            if lines:
                asked[lines[-1]] += count
    total = sum(asked.values())
    largest = sorted(asked.items(), key=lambda item: -item[1])[:MAX_PLACES]
    return tuple(Where(*line, share=count / total) for line, count in largest)


def short_kernel_places(account: Account) -> tuple[Where, ...]:
    """Return the lines that launch most of the short kernels."""
    return places([(owned, _short_kernels(owned)) for owned in _known(account)])


def recorded_event_places(account: Account) -> tuple[Where, ...]:
    """Return the lines in which most host events were recorded."""
    return places([(owned, _operators(owned)) for owned in _known(account)])


def _known(account: Account) -> list[Ownership]:
    return [one for one in account.ownership if one is not None]


def _short_kernels(owned: Ownership) -> Costs:
    work = owned.rank.work
    short = (work.kind == EventKind.KERNEL) & (work.step >= 0) & (work.end_ns - work.start_ns < SHORT_NS)
    return costs_by_owner(owned.by_work, short.astype(float))


def _operators(owned: Ownership) -> Costs:
    return costs_by_owner(owned.by_call, (owned.rank.steps.of(owned.calls.start_ns) >= 0).astype(float))
