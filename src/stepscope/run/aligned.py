"""The run on one clock: offsets, matched collectives, and how long each rank waited in each of them."""

from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.clocks import (
    Clocks,
    align_clocks,
    machine_of_rank,
    one_clock_per_machine,
    probed_ties,
    tied_by_probes,
    within_probes,
)
from stepscope.run.load import Run
from stepscope.run.matching import Matches, match_collectives
from stepscope.trace.table import Int64s

UNMATCHED = -1


@dataclass(frozen=True, eq=False, repr=False)
class LastArrivals(ArrayRecord):
    """The last rank of each match, and what the others waited for it."""

    rank_index: npt.NDArray[np.int32]
    #: all others together; 0 where the last two arrived within the clocks' uncertainty, so that nobody can be named
    waited_ns: Int64s


@dataclass(frozen=True, eq=False, repr=False)
class AlignedRun(ArrayRecord):
    """A run whose ranks share a clock."""

    run: Run
    clocks: Clocks
    matches: Matches
    #: per rank and row of its Collectives: time until the last rank arrived; UNMATCHED where nobody knows
    wait_ns: tuple[Int64s, ...]
    #: when each member of `matches` started, on the shared clock
    arrival_ns: Int64s
    #: the same with all ranks of the job, where `run` has some of them in full; None where it has them all
    of_all: "AlignedRun | None" = None

    @property
    def whole(self) -> "AlignedRun":
        """Return all ranks of the job on one clock, as far as they were kept."""
        return self.of_all or self

    def last_arrival_ns(self) -> Int64s:
        """Return when the last member of each match started, on the shared clock."""
        return np.maximum.reduceat(self.arrival_ns, self.matches.first[:-1]) if len(self.matches) else self.arrival_ns

    @cached_property
    def last_arrivals(self) -> LastArrivals:
        return _last_arrivals(self)


def aligned(run: Run) -> AlignedRun:
    """Return the run on one clock; clocks and waits are by all its ranks, in full or not."""
    return chosen_ranks(aligned(run.everyone), run) if run.everyone else _aligned(run)


def chosen_ranks(every: AlignedRun, run: Run) -> AlignedRun:
    """Return the ranks of a run, taken out of all of them on one clock. What they waited for each other stays."""
    place = {rank.rank: index for index, rank in enumerate(every.run.ranks)}
    at = np.array([place[rank.rank] for rank in run.ranks], np.int64)
    matches, members = every.matches.among(at)
    return AlignedRun(
        run=run,
        clocks=every.clocks.of(at),
        matches=matches,
        wait_ns=tuple(every.wait_ns[i] for i in at.tolist()),
        arrival_ns=every.arrival_ns[members],
        of_all=every,
    )


def _aligned(run: Run) -> AlignedRun:
    matches = match_collectives(run.ranks)
    clocks = _clocks(run, matches)
    arrival = _arrivals(run, clocks, matches)
    wait = [np.full(len(r.collectives), UNMATCHED, np.int64) for r in run.ranks]
    if len(matches):
        last = np.maximum.reduceat(arrival, matches.first[:-1])
        waited = last[matches.of_member] - arrival
        for index, rank in enumerate(run.ranks):
            mine = matches.members_of(index)
            rows = matches.row[mine]
            duration = (rank.collectives.end_ns - rank.collectives.start_ns)[rows]
            # A coalesced operation is in several matches: it waits for the latest of its peers.
            np.maximum.at(wait[index], rows, np.clip(waited[mine], 0, duration))
    return AlignedRun(run, clocks, matches, tuple(wait), arrival)


def _clocks(run: Run, matches: Matches) -> Clocks:
    clocks, machines = align_clocks(run.ranks, matches), machine_of_rank(run)
    ties = probed_ties(run, clocks)
    clocks = one_clock_per_machine(tied_by_probes(clocks, ties, machines), machines)
    clocks = within_probes(run, clocks, ties)
    lost = [str(rank.rank) for rank, known in zip(run.ranks, clocks.known, strict=True) if not known]
    unknown = f"clock of rank {', '.join(lost)} unknown: no collective ties it to rank {run.ranks[0].rank}"
    return replace(
        clocks,
        uncertainty_ns=np.where(clocks.known, clocks.uncertainty_ns, np.nan),
        warnings=(*([unknown] if lost else ()), *clocks.warnings),
    )


def _arrivals(run: Run, clocks: Clocks, matches: Matches) -> Int64s:
    arrival = np.empty(len(matches.row), np.int64)
    for index, rank in enumerate(run.ranks):
        mine = matches.members_of(index)
        arrival[mine] = clocks.shared(index, rank.collectives.start_ns[matches.row[mine]])
    return arrival


def _last_arrivals(shared: AlignedRun) -> LastArrivals:
    matches, begin, arrival = shared.matches, shared.matches.first[:-1], shared.arrival_ns
    if not len(matches):
        return LastArrivals(matches.rank_index, arrival)
    waited = shared.last_arrival_ns()[matches.of_member] - arrival
    members = np.arange(len(arrival))
    last = np.minimum.reduceat(np.where(waited == 0, members, len(members)), begin)
    others = np.where(np.isin(members, last), np.iinfo(np.int64).max, waited)
    doubt = np.maximum.reduceat(np.nan_to_num(shared.clocks.uncertainty_ns)[matches.rank_index], begin)
    clear = np.minimum.reduceat(others, begin) > doubt
    return LastArrivals(matches.rank_index[last], np.where(clear, np.add.reduceat(waited, begin), 0))
