"""The run on one clock: offsets, matched collectives, and how long each rank waited in each of them."""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.records import ArrayRecord, dataclass
from stepscope.run.clocks import FLOOR_NS, Clocks, Matches, align_clocks, match_collectives, member_times
from stepscope.run.load import Run, is_nsight
from stepscope.stats.robust import distinct, median
from stepscope.trace.table import Int64s

# Ranks that share a clock: those of one machine since its last boot, where the recorder noted it, and those
# that one capture of Nsight Systems recorded together.
#
# Ranks of one machine need no estimate between them, and what is estimated between machines is better for having
# several ranks on each side.


def machine_of_rank(run: Run) -> list[str | None]:
    """Return the boot id of each rank's machine, else the capture that recorded it; None where neither is known."""
    facts = recorded_facts(run)
    boots = [facts.get(str(rank.rank), {}).get("boot_id") for rank in run.ranks]
    return [
        boot if isinstance(boot, str) else f"capture {rank.trace.path}" if is_nsight(rank.trace) else None
        for boot, rank in zip(boots, run.ranks, strict=True)
    ]


def recorded_facts(run: Run) -> dict[str, dict[str, Any]]:
    """Return what the recorder noted of each rank, by its number as text."""
    listed = run.description.get("ranks")
    return {rank: f for rank, f in listed.items() if isinstance(f, dict)} if isinstance(listed, dict) else {}


def one_clock_per_machine(clocks: Clocks, machines: list[str | None]) -> Clocks:
    """Return the clocks with one offset for all ranks of a machine: the median of what each of them gave.

    Where their collectives contradict that (a file was shifted, a clock set), each rank keeps its own estimate.
    """
    offset, uncertainty = clocks.offset_ns.copy(), clocks.uncertainty_ns.copy()
    drift = clocks.drift_ppm.copy()
    for machine in dict.fromkeys(filter(None, machines)):
        there = np.flatnonzero(clocks.known & [one == machine for one in machines])
        offsets, doubt = clocks.offset_ns[there], clocks.uncertainty_ns[there]
        if not len(there) or not np.ptp(offsets) <= 3 * doubt.max():
            continue
        if machine == machines[0]:
            offset[there], uncertainty[there], drift[there] = 0, FLOOR_NS, np.nan
        else:
            offset[there], uncertainty[there] = round(median(offsets)), doubt.min()
    return replace(clocks, offset_ns=offset, uncertainty_ns=uncertainty, drift_ppm=drift)


# Clock probes of the recorder.
#
# The first rank of every host queried rank 0's clock, before and after the window (`clock_probes` in `run.json`):
#
#     {"when": "before", "at_ns": local time, "offset_ns": rank 0's clock minus ours, "uncertainty_ns": half the round}
#
# The reply was sent between request and receipt, so the true offset is within the uncertainty on any network. These
# bounds tighten those of the collectives; ranks that share no collective with the others get their offset from them.

# what the clock of a computer drifts at most: for times outside the probes
_FASTEST_DRIFT = 100e-6
# differences of two stay within 64 bits; a time of the year 2043 is as far as that
_MAX_PROBE_NS = 1 << 61
Probe = dict[str, int]


@dataclass(frozen=True)
class ClockProbe:
    """What probes say a rank's offset to the first rank is, at its reference time."""

    offset_ns: int
    uncertainty_ns: float
    #: nan where two probes do not show one
    drift_ppm: float = np.nan


def probed_ties(run: Run, clocks: Clocks) -> list[ClockProbe | None]:
    """Return for each rank what probes say of its offset to the first one; None where there are none.

    Ranks of one machine share its clock, hence its probes; rank 0 and its machine need none.
    """
    to_rank_0 = [
        _at(probes, int(at_ns)) for probes, at_ns in zip(_probes_of_ranks(run), clocks.reference_ns, strict=True)
    ]
    first = to_rank_0[0]
    return [None if tie is None or first is None else _difference(tie, first) for tie in to_rank_0]


def tied_by_probes(clocks: Clocks, ties: list[ClockProbe | None], machines: list[str | None]) -> Clocks:
    """Return the clocks with the ranks known that only probes, or their machine, tie to the first.

    Ranks that collectives tie to each other are moved together, so that what they waited for each other stays.
    """
    offset, uncertainty, drift = clocks.offset_ns.copy(), clocks.uncertainty_ns.copy(), clocks.drift_ppm.copy()
    known = clocks.known.copy()
    same_clock: dict[str, ClockProbe] = {}
    for index, machine in enumerate(machines):
        if machine is not None and clocks.known[index]:
            doubt = float(clocks.uncertainty_ns[index]) if index else 0.0
            same_clock.setdefault(machine, ClockProbe(int(clocks.offset_ns[index]), doubt))
    ties = [tie or same_clock.get(machine or "") for tie, machine in zip(ties, machines, strict=True)]
    for root in distinct(clocks.tied_to[~known]).tolist():
        together = np.flatnonzero(clocks.tied_to == root)
        probed = [(i, tie) for i in together.tolist() if (tie := ties[i]) is not None]
        if not probed:
            continue
        best, tie = min(probed, key=lambda pair: pair[1].uncertainty_ns)
        offset[together] += tie.offset_ns - offset[best]
        uncertainty[together] += np.where(together == best, 0.0, uncertainty[best]) + tie.uncertainty_ns
        uncertainty[best] = tie.uncertainty_ns + FLOOR_NS
        if np.isnan(drift[together]).all():
            drift[together] = tie.drift_ppm
        known[together] = True
    return replace(clocks, offset_ns=offset, uncertainty_ns=uncertainty, drift_ppm=drift, known=known)


def within_probes(run: Run, clocks: Clocks, ties: list[ClockProbe | None]) -> Clocks:
    """Return the clocks within the bounds of the probes; a rank whose collectives contradict them keeps its offset,
    with a warning.
    """
    offset, uncertainty = clocks.offset_ns.copy(), clocks.uncertainty_ns.copy()
    against = []
    for index, tie in enumerate(ties):
        if tie is None or not clocks.known[index]:
            continue
        low = max(offset[index] - uncertainty[index], tie.offset_ns - tie.uncertainty_ns - FLOOR_NS)
        high = min(offset[index] + uncertainty[index], tie.offset_ns + tie.uncertainty_ns + FLOOR_NS)
        if low > high:
            against.append(run.ranks[index].rank)
            continue
        # No further than the bounds ask for: collectives know neighbours better than probes do.
        offset[index] = round(min(max(offset[index], low), high))
        uncertainty[index] = max(high - offset[index], offset[index] - low)
    line = (
        f"clock probes of rank {', '.join(map(str, against))} contradict the collectives, which count: a clock was set "
        "or a file was changed after recording"
    )
    warnings = (*clocks.warnings, line) if against else clocks.warnings
    return replace(clocks, offset_ns=offset, uncertainty_ns=uncertainty, warnings=warnings)


def _probes_of_ranks(run: Run) -> list[list[Probe] | None]:
    """Return the probes of rank 0's clock by each rank or its machine; empty on the same clock, None if not probed."""
    facts = recorded_facts(run)
    listed = {rank: f.get("clock_probes") for rank, f in facts.items()}
    asked = {rank: [*filter(_is_probe, found)] for rank, found in listed.items() if isinstance(found, list)}
    boots = {rank: f["boot_id"] for rank, f in facts.items() if isinstance(f.get("boot_id"), str)}
    of_machine = {boots[rank]: probes for rank, probes in asked.items() if probes and rank in boots}
    if "0" in boots:
        of_machine[boots["0"]] = []
    machines = machine_of_rank(run)
    return [
        [] if rank.rank == 0 else asked.get(str(rank.rank)) or of_machine.get(machine or "")
        for rank, machine in zip(run.ranks, machines, strict=True)
    ]


def _is_probe(probe: Any) -> bool:
    keys = ("at_ns", "offset_ns", "uncertainty_ns")
    within = isinstance(probe, dict) and all(type(probe.get(k)) is int and abs(probe[k]) <= _MAX_PROBE_NS for k in keys)
    return within and probe["uncertainty_ns"] >= 0


def _at(probes: list[Probe] | None, at_ns: int) -> ClockProbe | None:
    if not probes:
        return None if probes is None else ClockProbe(0, 0.0)
    first, last = min(probes, key=lambda p: p["at_ns"]), max(probes, key=lambda p: p["at_ns"])
    elapsed = last["at_ns"] - first["at_ns"]
    share = min(max((at_ns - first["at_ns"]) / elapsed, 0.0), 1.0) if elapsed else 0.0
    outside = max(first["at_ns"] - at_ns, at_ns - last["at_ns"], 0)
    change = last["offset_ns"] - first["offset_ns"]
    doubt = (1 - share) * first["uncertainty_ns"] + share * last["uncertainty_ns"]
    shows = elapsed > 0 and abs(change) > first["uncertainty_ns"] + last["uncertainty_ns"]
    return ClockProbe(
        offset_ns=first["offset_ns"] + round(share * change),
        uncertainty_ns=doubt + _FASTEST_DRIFT * outside,
        drift_ppm=change / elapsed * 1e6 if shows else np.nan,
    )


def _difference(tie: ClockProbe, first: ClockProbe) -> ClockProbe:
    if tie is first:
        return ClockProbe(0, 0.0)
    drift = float(np.nan_to_num(tie.drift_ppm) - np.nan_to_num(first.drift_ppm))
    shown = not (np.isnan(tie.drift_ppm) and np.isnan(first.drift_ppm))
    return ClockProbe(
        offset_ns=tie.offset_ns - first.offset_ns,
        uncertainty_ns=tie.uncertainty_ns + first.uncertainty_ns,
        drift_ppm=drift if shown else np.nan,
    )


UNMATCHED = -1


@dataclass(frozen=True, eq=False, repr=False)
class LastArrivals(ArrayRecord):
    """The last rank of each match, and what the others waited for it."""

    rank_index: npt.NDArray[np.int32]
    #: all others together; 0 where the last two arrived within the clocks' uncertainty, so no rank can be named
    waited_ns: Int64s


@dataclass(frozen=True, eq=False, repr=False)
class AlignedRun(ArrayRecord):
    """A run whose ranks share a clock."""

    run: Run
    clocks: Clocks
    matches: Matches
    #: per rank and row of its Collectives: time until the last rank arrived; UNMATCHED where unknown
    wait_ns: tuple[Int64s, ...]
    #: when each member of `matches` started, on the shared clock
    arrival_ns: Int64s
    #: the same with all ranks of the job, where `run` has some of them in full; None where it has them all
    of_all: "AlignedRun | None" = None

    @property
    def whole(self) -> "AlignedRun":
        """Return all ranks of the job on one clock, including outlined ones."""
        return self.of_all or self

    def last_arrival_ns(self) -> Int64s:
        """Return when the last member of each match started, on the shared clock."""
        return np.maximum.reduceat(self.arrival_ns, self.matches.first[:-1]) if len(self.matches) else self.arrival_ns

    @cached_property
    def last_arrivals(self) -> LastArrivals:
        matches, begin, arrival = self.matches, self.matches.first[:-1], self.arrival_ns
        if not len(matches):
            return LastArrivals(matches.rank_index, arrival)
        waited = self.last_arrival_ns()[matches.of_member] - arrival
        members = np.arange(len(arrival))
        last = np.minimum.reduceat(np.where(waited == 0, members, len(members)), begin)
        others = np.where(np.isin(members, last), np.iinfo(np.int64).max, waited)
        doubt = np.maximum.reduceat(np.nan_to_num(self.clocks.uncertainty_ns)[matches.rank_index], begin)
        clear = np.minimum.reduceat(others, begin) > doubt
        return LastArrivals(matches.rank_index[last], np.where(clear, np.add.reduceat(waited, begin), 0))


def aligned(run: Run) -> AlignedRun:
    """Return the run on one clock; clocks and waits are by all its ranks, in full or not."""
    return chosen_ranks(aligned(run.everyone), run) if run.everyone else _aligned(run)


def chosen_ranks(every: AlignedRun, run: Run) -> AlignedRun:
    """Return the ranks of a run, selected from all ranks on one clock. Their waits for each other stay."""
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
    starts, _ = member_times(run.ranks, matches)
    arrival = clocks.shared(matches.rank_index, starts)
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


def sharing_ranks(shared: AlignedRun) -> list[list[int]]:
    """Return the ranks (by index) of each device that several ranks share, where their clocks are known."""
    alike: dict[str, list[int]] = {}
    uuid_of = {t.rank: t.device.get("uuid") for t in shared.run.beside.telemetry}
    for index, rank in enumerate(shared.run.ranks):
        uuid = uuid_of.get(rank.rank)
        if uuid and rank.has_device and shared.clocks.known[index]:
            alike.setdefault(uuid, []).append(index)
    return [members for members in alike.values() if len(members) > 1]
