"""The run on one clock: offsets, matched collectives, and how long each rank waited in each of them."""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.contract.collectives import OP_CODE
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.load import Run, is_nsight
from stepscope.run.matching import SYMMETRIC, Matches, mad_sigmas, match_collectives, median_times, medians
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.stats.robust import mad_sigma, median, theil_sen
from stepscope.trace.table import Int64s
from stepscope.units import NS_PER_MS, NS_PER_S

# Bounds from single collectives: how far apart ends can be, and that no end precedes a start.

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# time stamps are not better than a microsecond across processes
FLOOR_NS = 1_000
_IN_ROUNDS = tuple(OP_CODE[op] for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
# per rank: from here on a ring keeps all its ranks busy at once (one slot of NCCL's buffers)
_PIPELINED_BYTES = 512 << 10


def _unequal_ends(matches: Matches, start: Int64s, end: Int64s) -> Floats:
    """Return for each member how far apart the ends of its collective can lie although the clocks agree; times are
    on the shared clock.

    A ring that is pipelined finishes on all ranks within one of its rounds: 1/(2(P-1)) of an all-reduce, 1/(P-1) of
    a gather, scatter or exchange. A message too small for that goes around rank by rank: in the second half of an
    all-reduce, in all of the others. A message may end on one rank a whole transfer before it ends on the other. The
    transfer is from the last arrival to the last end, the median over all alike: a short one may be luck.
    """
    if not len(matches):
        return np.empty(0)
    arrived = np.maximum.reduceat(start, matches.first[:-1])
    ended = np.maximum.reduceat(end, matches.first[:-1])
    members = np.diff(matches.first)
    rounds = np.where(np.isin(matches.op, _IN_ROUNDS), np.maximum(members - 1, 1), 1)
    rounds = np.where(matches.size_bytes >= _PIPELINED_BYTES * members, rounds, 1)
    rounds = np.where(matches.op == OP_CODE["all_reduce"], 2 * rounds, rounds)
    alike = np.unique(np.stack((matches.op, matches.size_bytes, matches.group)), axis=1, return_inverse=True)[1]
    kind = alike.reshape(-1)
    order = np.argsort(kind, kind="stable")
    transfer = np.maximum(ended - arrived, 0).astype(float)[order]
    of_kind = medians(transfer, np.searchsorted(kind[order], np.arange(kind.max() + 2)))
    return (of_kind[kind] / rounds)[matches.of_member]


def _within_bounds(num_ranks: int, matches: Matches, start: Int64s, end: Int64s) -> Int64s:
    """Return what to add to each rank's offset where a symmetric collective would otherwise end before all had
    started; times are on the shared clock.
    """
    move = np.zeros(num_ranks, np.int64)
    if not len(matches):
        return move
    symmetric = np.isin(matches.op, SYMMETRIC)[matches.of_member]
    started = np.maximum.reduceat(start, matches.first[:-1])[matches.of_member]
    ended = np.minimum.reduceat(end, matches.first[:-1])[matches.of_member]
    for index in range(1, num_ranks):
        mine = matches.members_of(index)
        mine = mine[symmetric[mine]]
        if len(mine):
            too_late = int((start[mine] - ended[mine]).max())
            too_early = int((started[mine] - end[mine]).max())
            move[index] = -too_late if too_late > 0 > too_early else too_early if too_early > 0 > too_late else 0
    return move


# Drift and jumps inside the window.

_MIN_SPAN_FOR_DRIFT_NS = 5 * NS_PER_S
_MIN_JUMP_NS = 5 * NS_PER_MS


def _drifts(num_ranks: int, matches: Matches, when: Int64s, residual: Floats, usable: Bools) -> tuple[Floats, Int64s]:
    """Return each rank's drift in ppm against the first where a long window shows one (nan elsewhere), and what to
    add to the offsets that goes with it. `when` is each member's end since its rank's reference.
    """
    drift, shift = np.full(num_ranks, np.nan), np.zeros(num_ranks, np.int64)
    lines = []
    for index in range(num_ranks):
        mine = _usable_members(matches, index, usable)
        if len(mine) < 16 or np.ptp(when[mine]) < _MIN_SPAN_FOR_DRIFT_NS:
            return drift, shift
        x, y = when[mine].astype(float), residual[mine]
        order, cuts = np.argsort(x, kind="stable"), distinct(np.linspace(0, len(x), 65).astype(np.int64))
        lines.append((theil_sen(medians(x[order], cuts), medians(y[order], cuts)), x, y))
    base_slope, base_cut = lines[0][0]
    for index, ((slope, cut), x, y) in enumerate(lines):
        noise = mad_sigma(y - slope * x)
        if abs(slope - base_slope) * np.ptp(x) > 3 * noise + FLOOR_NS:
            drift[index] = -(slope - base_slope) * 1e6
            shift[index] = -round(cut - base_cut)
    return drift, shift


def _usable_members(matches: Matches, index: int, usable: Bools) -> Int64s:
    mine = matches.members_of(index)
    return mine[usable[matches.of_member[mine]]]


def _jumps(ranks: tuple[Rank, ...], matches: Matches, residual: Floats, usable: Bools) -> list[str]:
    found = {}
    for index, rank in enumerate(ranks):
        mine = _usable_members(matches, index, usable)
        # By step: where a clock was set back, its times no longer tell the order.
        order = np.lexsort((matches.row[mine], matches.step[matches.of_member[mine]]))
        jump_ns = _level_change(residual[mine[order]])
        if jump_ns:
            found[rank.rank] = jump_ns
    if len(ranks) == 2 and found:  # two clocks: nobody can tell which of them was set
        first, second = (rank.rank for rank in ranks)
        apart_ms = 2 * max(map(abs, found.values())) / NS_PER_MS
        return [f"clocks of ranks {first} and {second} jump apart by {apart_ms:.1f} ms inside the window"]
    return [f"clock of rank {rank} jumps by {ns / NS_PER_MS:.1f} ms inside the window" for rank, ns in found.items()]


def _level_change(values: Floats) -> float:
    if len(values) < 6:
        return 0.0
    steps = np.abs(np.diff(values))[1:-1]
    at = 2 + int(np.argmax(steps))
    if steps[at - 2] <= _MIN_JUMP_NS:
        return 0.0
    before, after = values[:at], values[at:]
    change = float(median(after) - median(before))
    noise = max(mad_sigma(before), mad_sigma(after), 1.0)
    return change if abs(change) > max(20 * noise, _MIN_JUMP_NS) else 0.0


_ROUNDS = 3


@dataclass(frozen=True, eq=False, repr=False)
class Clocks(ArrayRecord):
    """What to add to each rank's times. `known[i]` is False for a rank that nothing ties to the first one."""

    offset_ns: Int64s
    #: half-width that should hold the true offset to the rank that `tied_to` names
    uncertainty_ns: Floats
    #: nan where the window is too short to tell, or where no drift shows
    drift_ppm: Floats
    reference_ns: Int64s
    known: Bools
    #: index of the first among the ranks that collectives tie together; their offsets hold among themselves
    tied_to: Int64s
    warnings: tuple[str, ...] = ()

    def shared(self, rank_index: npt.ArrayLike, local_ns: Int64s) -> Int64s:
        i = np.asarray(rank_index)
        shifted = local_ns + self.offset_ns[i]
        if np.isnan(self.drift_ppm).all():
            return shifted
        drift = np.nan_to_num(self.drift_ppm)[i] * 1e-6
        return shifted + np.rint(drift * (local_ns - self.reference_ns[i])).astype(np.int64)

    def of(self, ranks: Int64s) -> "Clocks":
        """Return the clocks of some of the ranks, the first one among them; their offsets are to it as before."""
        roots = self.tied_to[ranks]
        first = {root: place for place, root in reversed(list(enumerate(roots.tolist())))}
        columns = ("offset_ns", "uncertainty_ns", "drift_ppm", "reference_ns", "known")
        tied_to = np.array([first[root] for root in roots.tolist()], np.int64)
        return replace(self, **{name: getattr(self, name)[ranks] for name in columns}, tied_to=tied_to)


def align_clocks(ranks: tuple[Rank, ...], matches: Matches) -> Clocks:
    """Return the clocks of these ranks relative to the first one."""
    start, end = member_times(ranks, matches)
    # Symmetric collectives tell clocks best; where they do not tie all ranks together, everything counts.
    symmetric = np.isin(matches.op, SYMMETRIC)
    tied = distinct(matches.rank_index[symmetric[matches.of_member]])
    usable = symmetric if len(tied) == len(distinct(matches.rank_index)) else np.ones(len(matches), bool)
    clocks, hops = _first_estimate(ranks, matches, end, usable)
    for _ in range(_ROUNDS):
        residual, sharp = _residuals(clocks, matches, end, usable)
        offset = clocks.offset_ns - medians(*_by_rank(residual, matches, sharp, len(ranks))).astype(np.int64)
        clocks = replace(clocks, offset_ns=offset - offset[0])
    of = clocks.tied_to
    clocks = replace(clocks, reference_ns=clocks.reference_ns[of] + clocks.offset_ns[of] - clocks.offset_ns)
    since = end - clocks.reference_ns[matches.rank_index]
    for _ in range(_ROUNDS):  # while clocks run apart, the median of their ends is bent: the first slope is rough
        residual, _ = _residuals(clocks, matches, end, usable)
        drift, shift = _drifts(len(ranks), matches, since, residual, usable)
        if np.isnan(drift).all():
            break
        clocks = replace(
            clocks,
            drift_ppm=np.where(np.isnan(drift), clocks.drift_ppm, np.nan_to_num(clocks.drift_ppm) + drift),
            offset_ns=clocks.offset_ns + shift,
        )
    residual, sharp = _residuals(clocks, matches, end, usable)
    noise = 2 * mad_sigmas(*_by_rank(residual, matches, sharp, len(ranks)))
    shared_start, shared_end = (clocks.shared(matches.rank_index, times) for times in (start, end))
    apart = _unequal_ends(matches, shared_start, shared_end)
    unequal = hops * medians(*_by_rank(apart, matches, sharp, len(ranks)))
    return replace(
        clocks,
        offset_ns=clocks.offset_ns + _within_bounds(len(ranks), matches, shared_start, shared_end),
        uncertainty_ns=noise + unequal + FLOOR_NS,
        warnings=tuple(_jumps(ranks, matches, residual, usable)),
    )


def member_times(ranks: tuple[Rank, ...], matches: Matches) -> tuple[Int64s, Int64s]:
    """Return start and end of each member of the matches on its rank's clock."""
    start, end = np.empty((2, len(matches.row)), np.int64)
    for index, rank in enumerate(ranks):
        mine = matches.members_of(index)
        start[mine] = rank.collectives.start_ns[matches.row[mine]]
        end[mine] = rank.collectives.end_ns[matches.row[mine]]
    return start, end


def _first_estimate(ranks: tuple[Rank, ...], matches: Matches, end: Int64s, usable: Bools) -> tuple[Clocks, Int64s]:
    """Return first offsets, walking from the first rank through shared collectives, and how many the walk took.

    Ranks that nothing ties to the first are walked from the first among them: their waits still make sense.
    """
    num = len(ranks)
    offset, hops, tied_to = np.zeros(num, np.int64), np.zeros(num, np.int64), np.full(num, -1, np.int64)
    while (tied_to < 0).any():
        root = int(np.argmax(tied_to < 0))
        tied_to[root] = root
        fresh = [root]
        while len(fresh):
            fresh = _walk(matches, end, usable, offset, tied_to)
            tied_to[fresh] = root
            hops[fresh] = hops[tied_to == root].max() + 1
    firsts = (rank.steps.start_ns if len(rank.steps) else rank.collectives.start_ns for rank in ranks)
    reference = np.array([first.min() if len(first) else 0 for first in firsts], np.int64)
    unknown = np.full(num, np.nan)
    return Clocks(offset, unknown, unknown, reference, tied_to == 0, tied_to), hops


def _walk(matches: Matches, end: Int64s, usable: Bools, offset: Int64s, tied_to: Int64s) -> list[int]:
    """Set the offsets of the ranks that share a collective with one already reached; return those ranks.

    In every match the members not reached yet are compared with the median of those that are.
    """
    if not len(matches):
        return []
    there = (tied_to >= 0)[matches.rank_index]
    reached = np.add.reduceat(there, matches.first[:-1], dtype=np.int64)
    open_matches = usable & (reached > 0) & (reached < np.diff(matches.first))
    member = np.flatnonzero(open_matches[matches.of_member])
    anchors, others = member[there[member]], member[~there[member]]
    times = end[anchors] + offset[matches.rank_index[anchors]]
    anchor = median_times(times, np.concatenate(([0], np.cumsum(np.where(open_matches, reached, 0)))))
    difference = anchor[matches.of_member[others]] - end[others]
    rank, order = matches.rank_index[others], np.argsort(matches.rank_index[others], kind="stable")
    fresh, begin = np.unique(rank[order], return_index=True)
    offset[fresh] = median_times(difference[order], np.append(begin, len(order)))
    return fresh.tolist()


def _residuals(clocks: Clocks, matches: Matches, end: Int64s, usable: Bools) -> tuple[Floats, Bools]:
    """Return how far each member's end lies from its match's median, and which matches are sharp.

    Sharp is the half of the usable matches whose ends agree best: small collectives.
    """
    if not len(matches):
        return np.empty(0), usable
    shared = clocks.shared(matches.rank_index, end)
    residual = (shared - median_times(shared, matches.first)[matches.of_member]).astype(float)
    spread = np.maximum.reduceat(np.abs(residual), matches.first[:-1])
    return residual, usable & (spread <= (median(spread[usable]) if usable.any() else 0.0))


def _by_rank(values: Floats, matches: Matches, chosen: Bools, num_ranks: int) -> tuple[Floats, Int64s]:
    member = matches.by_rank[0]
    member = member[chosen[matches.of_member[member]]]
    return values[member], np.searchsorted(matches.rank_index[member], np.arange(num_ranks + 1))


# Ranks that share a clock: those of one machine since its last boot, where the recorder noted it, and those
# that one capture of Nsight Systems recorded together.
#
# Ranks of one machine need no estimate between them, and what is estimated between machines is better for having
# several ranks on each side.


def machine_of_rank(run: Run) -> list[str | None]:
    """Return the boot id of each rank's machine, else the capture that recorded it; None where neither is known."""
    facts = _recorded_facts(run)
    boots = [facts.get(str(rank.rank), {}).get("boot_id") for rank in run.ranks]
    return [
        boot if isinstance(boot, str) else f"capture {rank.trace.path}" if is_nsight(rank.trace) else None
        for boot, rank in zip(boots, run.ranks, strict=True)
    ]


def _recorded_facts(run: Run) -> dict[str, dict[str, Any]]:
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
# The first rank of every host asked rank 0 for the time, before and after the window (`clock_probes` in `run.json`):
#
#     {"when": "before", "at_ns": local time, "offset_ns": rank 0's clock minus ours, "uncertainty_ns": half the round}
#
# An answer came between question and receipt, so the true offset lies within the uncertainty whatever the network did.
# Such bounds cut into those of the collectives; ranks that no collective ties to the others get their offset from
# them.

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
    """Return the clocks within the bounds of the probes; a rank whose collectives lie outside them keeps its
    offset, and a warning says so.
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
    """Return each rank's probes of rank 0's clock: its own or its machine's; empty where they read the same clock,
    None where nobody asked.
    """
    facts = _recorded_facts(run)
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
