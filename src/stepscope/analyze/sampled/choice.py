"""Which ranks of a large run are analysed in full? Those that differ, and of the rest as many as there is room for.

    the first rank              its clock is the job's
    ranks that are asked for    by --ranks or --rank
    late ranks                  by their own times, the latest first: a quarter of the places at most
    ranks that are waited for   by the time that others wait for them: an eighth
    most and least compute      in the window: a sixteenth each
    one of each role            ranks that take part in other collectives (stages of a pipeline): an eighth
    one of each host            an eighth
    the rest                    evenly by rank number

Late ranks, roles and waits are those of all ranks; so a rank that costs the job time is among those in full wherever it
is. What is said as a mean over ranks is then of the ranks in full: those that differ are more of them than of the job.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import numpy as np

from stepscope.analyze.ranks.collectives import waited_for_ns
from stepscope.analyze.ranks.lateness import late_ranks
from stepscope.analyze.ranks.outlined_rank import window_of
from stepscope.run.aligned import AlignedRun
from stepscope.run.rank import Rank

RULE = "the first, late, most waited for, most and least compute, one of each role and host, the rest evenly"


def chosen_indices(every: AlignedRun, most: int, wanted: Collection[int] = ()) -> list[int]:
    """Return which of the ranks to analyse in full, at most so many, by their place among all; `wanted` are numbers."""
    ranks = every.run.ranks
    chosen = dict.fromkeys([0, *(index for index, rank in enumerate(ranks) if rank.rank in wanted)])
    for candidates, share in (
        (_late(every), 4),
        (_waited_for(every), 8),
        (_by_compute(ranks, most_first=True), 16),
        (_by_compute(ranks, most_first=False), 16),
        (_first_of_each(map(_role, ranks)), 8),
        (_first_of_each(rank.host for rank in ranks), 8),
    ):
        chosen.update(dict.fromkeys(islice(candidates, max(1, most // share))))
    first = list(chosen)[:most]
    others = [index for index in range(len(ranks)) if index not in set(first)]
    return sorted(first + _evenly(others, most - len(first)))


def _late(every: AlignedRun) -> Iterator[int]:
    place = {rank.rank: index for index, rank in enumerate(every.run.ranks)}
    return (place[one.rank] for one in late_ranks(every))


def _waited_for(every: AlignedRun) -> Iterator[int]:
    waited = waited_for_ns(every)
    return (int(index) for index in np.argsort(-waited, kind="stable") if waited[index] > 0)


def _by_compute(ranks: tuple[Rank, ...], *, most_first: bool) -> Iterator[int]:
    """Return the ranks with a window by what they compute in it."""
    windows = {index: window for index, rank in enumerate(ranks) if (window := window_of(rank)) is not None}
    sign = -1 if most_first else 1
    return iter(sorted(windows, key=lambda index: (sign * windows[index].compute.total_ns, index)))


def _role(rank: Rank) -> tuple[object, ...]:
    """Return in what a rank takes part: which operations, how often, in groups of which name and size."""
    c = rank.collectives
    names = [(group.desc, group.size) for group in c.groups]
    count = Counter((int(op), names[group]) for op, group in zip(c.op.tolist(), c.group.tolist(), strict=True))
    return (*sorted(count.items(), key=repr), rank.has_device)


def _first_of_each(kinds: Iterable[object]) -> Iterator[int]:
    first: dict[object, int] = {}
    for index, kind in enumerate(kinds):
        first.setdefault(kind, index)
    return iter(first.values())


def _evenly(others: list[int], count: int) -> list[int]:
    """Return so many of these, from all over.

    >>> _evenly([2, 3, 5, 7, 8, 9], 3)
    [2, 5, 8]
    """
    if count <= 0:
        return []
    return [others[i * len(others) // count] for i in range(count)] if len(others) > count else others
