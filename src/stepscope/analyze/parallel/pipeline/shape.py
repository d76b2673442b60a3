"""Which ranks form a pipeline, and how many micro-batches and chunks per rank does it run?"""

from collections import Counter
from collections.abc import Sequence

from stepscope.analyze.parallel.pipeline.actions import Action
from stepscope.analyze.parallel.strategy import Strategy
from stepscope.contract.collectives import OP_CODE
from stepscope.run.aligned import AlignedRun
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.trace.table import Int64s

KIND = "pp"


def chains_of(shared: AlignedRun, strategy: Strategy, used: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the ranks of each pipeline, the longest first: those that messages connect, else those of the group."""
    groups: list[set[int]] = []
    for i in used:
        c = shared.run.ranks[i].collectives
        mine = among(c.messages.collective, strategy.rows_of(i, KIND))
        linked = {shared.run.ranks[i].rank, *(p for p in c.messages.peer[mine].tolist() if p >= 0)}
        members = [c.groups[g].ranks for g in distinct(c.group[strategy.rows_of(i, KIND)])]
        if len(linked) == 1:
            linked |= set(members[0] or [shared.run.ranks[k].rank for k in used])
        joined = [g for g in groups if g & linked]
        groups = [g for g in groups if not g & linked] + [linked.union(*joined)]
    return sorted((tuple(sorted(g)) for g in groups), key=lambda chain: (-len(chain), chain))


def microbatches_and_chunks(
    shared: AlignedRun, strategy: Strategy, chain: tuple[int, ...], actions: dict[int, list[Action]], *, marked: bool
) -> tuple[int | None, int | None, list[str]]:
    """Return micro-batches and chunks, with a note where they are unknown."""
    forwards, backwards = (
        Counter(n for a in actions.values() for n in Counter(x.step for x in a if x.kind == kind).values())
        for kind in "FB"
    )
    usual = forwards.most_common(1)
    if marked and usual:
        chunks = max(len({x.stage for x in a}) for a in actions.values())
        return usual[0][0] // chunks, chunks, []
    if len(forwards) != 1 or backwards.keys() != forwards.keys():
        return None, None, ["the micro-batches could not be told apart: stages or steps differ in how many they show"]
    count = usual[0][0]
    # An end of the chain receives m v messages from its neighbour, and m (v - 1) around from the other end.
    ends = [i for i in actions if shared.run.ranks[i].rank in (chain[0], chain[-1])]
    received = {_receives(shared.run.ranks[i], strategy.rows_of(i, KIND)) for i in ends}
    found = 2 * count - received.pop() if len(received) == 1 else count
    if 0 < found < count and count % found == 0:
        return found, count // found, []
    return count, 1, []


def one_step_of_one(
    shared: AlignedRun, chains: Sequence[tuple[int, ...]], actions: dict[int, list[Action]]
) -> list[list[Action]] | None:
    """Return the actions of one step of the first pipeline that was recorded whole, in the order of its stages."""
    index = {shared.run.ranks[i].rank: i for i in actions}
    for chain in chains:
        if all(rank in index for rank in chain):
            steps = set.intersection(*({a.step for a in actions[index[r]]} for r in chain))
            if steps:
                last = max(steps)
                return [[a for a in actions[index[r]] if a.step == last] for r in chain]
    return None


def _receives(rank: Rank, rows: Int64s) -> int:
    """Return how many operations of a step receive something."""
    c = rank.collectives
    receiving = among(c.op[rows], [OP_CODE["recv"], OP_CODE["send_recv"]])
    return int(receiving.sum()) // max(len(rank.steps), 1)
