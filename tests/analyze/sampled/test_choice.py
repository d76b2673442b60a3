"""Which ranks of a run are in full: those that differ, wherever they are, and the rest from all over."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.simulate import SYNC, WAIT, Op, backward, collective, kernel, simulate

from stepscope.analyze.collective_costs import waited_for_ns
from stepscope.analyze.outlined_rank import outlined
from stepscope.analyze.sampled import chosen_indices
from stepscope.analyze.stragglers import late_ranks, own_times
from stepscope.run.aligned import AlignedRun, aligned, chosen_ranks

RANKS, MOST = 16, 8


def step(rank: int, *, late: int | None) -> list[Op]:
    slow = 300.0 if rank == late else 0.0
    return [kernel(200 + slow + rank % 3), backward(200), collective(50), WAIT, kernel(30), SYNC]


def shared(folder: Path, *, late: int | None = None) -> AlignedRun:
    return simulate(*(step(r, late=late) for r in range(RANKS)), steps=3).aligned(folder)


def as_outlines(found: AlignedRun) -> AlignedRun:
    return aligned(replace(found.run, ranks=tuple(map(outlined, found.run.ranks))))


@pytest.mark.parametrize("late", [1, 7, 15])
def test_the_late_rank_and_the_first_are_there(tmp_path: Path, late: int) -> None:
    chosen = chosen_indices(as_outlines(shared(tmp_path, late=late)), MOST)
    assert {0, late} <= set(chosen) and len(chosen) == len(set(chosen)) == MOST and chosen == sorted(chosen)


def test_roles_and_hosts_are_there(tmp_path: Path) -> None:
    found = shared(tmp_path)
    ranks = list(found.run.ranks)
    c = ranks[11].collectives  # a rank that takes part in less than the others
    fewer = {f.name: getattr(c, f.name)[1:] for f in fields(c) if isinstance(getattr(c, f.name), np.ndarray)}
    ranks[11] = replace(ranks[11], collectives=replace(c, **fewer))
    ranks[6] = replace(ranks[6], trace=replace(ranks[6].trace, header={**ranks[6].trace.header, "hostname": "other"}))
    other = aligned(replace(found.run, ranks=tuple(map(outlined, ranks))))
    assert {0, 6, 11} <= set(chosen_indices(other, 16 - 1))


def test_an_outline_tells_own_times_and_waits_as_the_rank_does(tmp_path: Path) -> None:
    found = shared(tmp_path, late=7)
    outlines = as_outlines(found)
    own, same = own_times(found), own_times(outlines)
    assert own is not None and same is not None and (own == same).all()
    assert late_ranks(found) == late_ranks(outlines)
    assert (waited_for_ns(found) == waited_for_ns(outlines)).all()
    assert waited_for_ns(found).argmax() == 7


def test_chosen_ranks_keep_their_clocks_and_waits(tmp_path: Path) -> None:
    every = as_outlines(shared(tmp_path, late=7))
    at = [0, 3, 9]
    some = chosen_ranks(every, replace(every.run, ranks=tuple(every.run.ranks[i] for i in at)))
    assert len(some.matches) == len(every.matches) and (np.diff(some.matches.first) == len(at)).all()
    assert sorted(set(some.matches.rank_index.tolist())) == [0, 1, 2]
    for place, index in enumerate(at):
        assert (some.wait_ns[place] == every.wait_ns[index]).all()
        assert some.clocks.offset_ns[place] == every.clocks.offset_ns[index]
    # They waited for rank 7, which is not among them.
    assert some.wait_ns[1].max() > 100_000 and some.whole is every
    assert not some.clocks.tied_to.any()
