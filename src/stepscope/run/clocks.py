"""How far apart are the ranks' clocks, and how sure is that?

A collective ends on all its ranks at nearly the same moment, whoever came late; so the differences of its ends,
over many collectives, are the differences of the clocks. Nothing is concluded from starts, because a rank that is
always late starts late. Starts give hard bounds instead: every rank of a symmetric collective starts before any of
them ends.

    shared time = local time + offset + drift x (local time - reference)
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.contract.collectives import OP_CODE
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.load import Run, is_nsight
from stepscope.run.matching import SYMMETRIC, Matches, mad_sigmas, median_times, medians
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.stats.robust import mad_sigma, median, theil_sen
from stepscope.trace.table import Int64s
from stepscope.units import NS_PER_MS, NS_PER_S

# What do single collectives allow the clocks to be? How far apart ends can lie, and that none precedes a start.

Floats = npt.NDArray[np.float64]

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
    transfer = _median_of_kind(np.maximum(ended - arrived, 0).astype(float), alike.reshape(-1))
    return (transfer / rounds)[matches.of_member]


def _median_of_kind(values: Floats, kind: Int64s) -> Floats:
    order = np.argsort(kind, kind="stable")
    first = np.searchsorted(kind[order], np.arange(kind.max() + 2))
    return medians(values[order], first)[kind]


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


# Did a clock run faster than the others inside the window, or was it set?

Bools = npt.NDArray[np.bool_]

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
        lines.append((theil_sen(*_in_chunks(x, y)), x, y))
    base_slope, base_cut = lines[0][0]
    for index, ((slope, cut), x, y) in enumerate(lines):
        noise = mad_sigma(y - slope * x)
        if abs(slope - base_slope) * np.ptp(x) > 3 * noise + 1_000:
            drift[index] = -(slope - base_slope) * 1e6
            shift[index] = -round(cut - base_cut)
    return drift, shift


def _usable_members(matches: Matches, index: int, usable: Bools) -> Int64s:
    mine = matches.members_of(index)
    return mine[usable[matches.of_member[mine]]]


def _in_chunks(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(x, kind="stable")
    cuts = distinct(np.linspace(0, len(x), 64 + 1).astype(np.int64))
    return medians(x[order], cuts), medians(y[order], cuts)


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
        apart_ms = 2 * max(map(abs, found.values())) / NS_PER_MS
        return [
            f"clocks of ranks {ranks[0].rank} and {ranks[1].rank} jump apart by {apart_ms:.1f} ms inside the window"
        ]
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


# time stamps of a device are not better than a microsecond across processes
FLOOR_NS = 1_000
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
        return Clocks(
            offset_ns=self.offset_ns[ranks],
            uncertainty_ns=self.uncertainty_ns[ranks],
            drift_ppm=self.drift_ppm[ranks],
            reference_ns=self.reference_ns[ranks],
            known=self.known[ranks],
            tied_to=np.array([first[root] for root in roots.tolist()], np.int64),
            warnings=self.warnings,
        )


def align_clocks(ranks: tuple[Rank, ...], matches: Matches) -> Clocks:
    """Return the clocks of these ranks relative to the first one."""
    start, end = _member_times(ranks, matches)
    usable = _usable(matches)
    clocks, hops = _first_estimate(ranks, matches, end, usable)
    for _ in range(_ROUNDS):
        residual, sharp = _residuals(clocks, matches, end, usable)
        offset = clocks.offset_ns - medians(*_by_rank(residual, matches, sharp, len(ranks))).astype(np.int64)
        clocks = replace(clocks, offset_ns=offset - offset[0])
    clocks = _with_one_reference(clocks)
    since = end - clocks.reference_ns[matches.rank_index]
    for _ in range(_ROUNDS):  # while clocks run apart, the median of their ends is bent: the first slope is rough
        residual, _ = _residuals(clocks, matches, end, usable)
        drift, shift = _drifts(len(ranks), matches, since, residual, usable)
        if np.isnan(drift).all():
            break
        clocks = replace(clocks, drift_ppm=_sum(clocks.drift_ppm, drift), offset_ns=clocks.offset_ns + shift)
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


def _member_times(ranks: tuple[Rank, ...], matches: Matches) -> tuple[Int64s, Int64s]:
    start = np.empty(len(matches.row), np.int64)
    end = np.empty(len(matches.row), np.int64)
    for index, rank in enumerate(ranks):
        mine = matches.members_of(index)
        start[mine] = rank.collectives.start_ns[matches.row[mine]]
        end[mine] = rank.collectives.end_ns[matches.row[mine]]
    return start, end


def _first_time(rank: Rank) -> int:
    c = rank.collectives
    return int(rank.steps.start_ns.min()) if len(rank.steps) else int(c.start_ns.min()) if len(c) else 0


def _usable(matches: Matches) -> Bools:
    """Return which matches may speak about clocks: symmetric collectives, where they tie all ranks together;
    point-to-point messages and rooted collectives only where nothing better does.
    """
    symmetric = np.isin(matches.op, SYMMETRIC)
    tied = distinct(matches.rank_index[symmetric[matches.of_member]])
    everything = distinct(matches.rank_index)
    return symmetric if len(tied) == len(everything) else np.ones(len(matches), bool)


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
    reference = np.array([_first_time(rank) for rank in ranks], np.int64)
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


def _with_one_reference(clocks: Clocks) -> Clocks:
    of = clocks.tied_to
    return replace(clocks, reference_ns=clocks.reference_ns[of] + clocks.offset_ns[of] - clocks.offset_ns)


def _sum(a: Floats, b: Floats) -> Floats:
    return np.where(np.isnan(a) & np.isnan(b), np.nan, np.nan_to_num(a) + np.nan_to_num(b))


def _by_rank(values: Floats, matches: Matches, chosen: Bools, num_ranks: int) -> tuple[Floats, Int64s]:
    member = matches.by_rank[0]
    member = member[chosen[matches.of_member[member]]]
    return values[member], np.searchsorted(matches.rank_index[member], np.arange(num_ranks + 1))


# Which ranks read the same clock? Those of one machine since its last boot, where the recorder noted it, and those
# that one capture of Nsight Systems recorded together.
#
# Ranks of one machine need no estimate between them, and what is estimated between machines is better for having
# several ranks on each side.

# time stamps of two processes on one machine are not better than a microsecond
_SAME_CLOCK_NS = 1_000.0


def machine_of_rank(run: Run) -> list[str | None]:
    """Return the boot id of each rank's machine, else the capture that recorded it; None where neither is known."""
    listed = run.description.get("ranks")
    known = listed if isinstance(listed, dict) else {}
    facts = [known.get(str(rank.rank)) for rank in run.ranks]
    ids = [fact.get("boot_id") if isinstance(fact, dict) else None for fact in facts]
    captures = [_capture(rank) for rank in run.ranks]
    return [found if isinstance(found, str) else capture for found, capture in zip(ids, captures, strict=True)]


def _capture(rank: Rank) -> str | None:
    return f"capture {rank.trace.path}" if is_nsight(rank.trace) else None


def one_clock_per_machine(clocks: Clocks, machines: list[str | None]) -> Clocks:
    """Return the clocks with one offset for all ranks of a machine: the median of what each of them gave.

    Where their collectives contradict that (a file was shifted, a clock set), each rank keeps its own estimate.
    """
    offset, uncertainty = clocks.offset_ns.copy(), clocks.uncertainty_ns.copy()
    drift = clocks.drift_ppm.copy()
    for mine in _ranks_of_machines(machines):
        there = mine[clocks.known[mine]]
        if not len(there) or not _agree(clocks, there):
            continue
        if mine[0] == 0:
            offset[there], uncertainty[there], drift[there] = 0, _SAME_CLOCK_NS, np.nan
        else:
            offset[there] = round(median(clocks.offset_ns[there]))
            uncertainty[there] = np.min(clocks.uncertainty_ns[there])
    return replace(clocks, offset_ns=offset, uncertainty_ns=uncertainty, drift_ppm=drift)


def _ranks_of_machines(machines: list[str | None]) -> list[Int64s]:
    found: dict[str, list[int]] = {}
    for index, machine in enumerate(machines):
        if machine is not None:
            found.setdefault(machine, []).append(index)
    return [np.array(indices, np.int64) for indices in found.values()]


def _agree(clocks: Clocks, there: Int64s) -> bool:
    offsets, doubt = clocks.offset_ns[there], clocks.uncertainty_ns[there]
    return bool(offsets.max() - offsets.min() <= 3 * doubt.max())


# What did the recorder itself measure of the clocks, and does it agree with the collectives?
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
_NAN = float("nan")

Probe = dict[str, int]


@dataclass(frozen=True)
class Tie:
    """What probes say a rank's offset to the first rank is, at its reference time."""

    offset_ns: int
    uncertainty_ns: float
    #: nan where two probes do not show one
    drift_ppm: float = _NAN


def probed_ties(run: Run, clocks: Clocks) -> list[Tie | None]:
    """Return for each rank what probes say of its offset to the first one; None where there are none.

    Ranks of one machine share its clock, hence its probes; rank 0 and its machine need none.
    """
    to_rank_0 = [
        _at(probes, int(at_ns)) for probes, at_ns in zip(_probes_of_ranks(run), clocks.reference_ns, strict=True)
    ]
    first = to_rank_0[0]
    return [None if tie is None or first is None else _difference(tie, first) for tie in to_rank_0]


def tied_by_probes(clocks: Clocks, ties: list[Tie | None], machines: list[str | None]) -> Clocks:
    """Return the clocks with the ranks known that only probes, or their machine, tie to the first.

    Ranks that collectives tie to each other are moved together, so that what they waited for each other stays.
    """
    offset, uncertainty, drift = clocks.offset_ns.copy(), clocks.uncertainty_ns.copy(), clocks.drift_ppm.copy()
    known = clocks.known.copy()
    same_clock = _ties_of_machines(clocks, machines)
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


def within_probes(run: Run, clocks: Clocks, ties: list[Tie | None]) -> Clocks:
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
    warnings = (*clocks.warnings, *_contradicted(against))
    return replace(clocks, offset_ns=offset, uncertainty_ns=uncertainty, warnings=warnings)


def _probes_of_ranks(run: Run) -> list[list[Probe] | None]:
    """Return each rank's probes of rank 0's clock: its own or its machine's; empty where they read the same clock,
    None where nobody asked.
    """
    listed = run.description.get("ranks")
    facts = {rank: f for rank, f in listed.items() if isinstance(f, dict)} if isinstance(listed, dict) else {}
    asked = {rank: [p for p in _listed(f.get("clock_probes")) if _is_probe(p)] for rank, f in facts.items()}
    of_machine = {f["boot_id"]: asked[rank] for rank, f in facts.items() if asked[rank] and _is_id(f.get("boot_id"))}
    same = facts.get("0", {}).get("boot_id")
    if _is_id(same):
        of_machine[same] = []
    machines = machine_of_rank(run)
    return [
        [] if rank.rank == 0 else asked.get(str(rank.rank)) or of_machine.get(machine or "")
        for rank, machine in zip(run.ranks, machines, strict=True)
    ]


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _is_id(found: Any) -> bool:
    return isinstance(found, str)


def _is_probe(probe: Any) -> bool:
    keys = ("at_ns", "offset_ns", "uncertainty_ns")
    within = isinstance(probe, dict) and all(type(probe.get(k)) is int and abs(probe[k]) <= _MAX_PROBE_NS for k in keys)
    return within and probe["uncertainty_ns"] >= 0


def _at(probes: list[Probe] | None, at_ns: int) -> Tie | None:
    if not probes:
        return None if probes is None else Tie(0, 0.0)
    first, last = min(probes, key=lambda p: p["at_ns"]), max(probes, key=lambda p: p["at_ns"])
    elapsed = last["at_ns"] - first["at_ns"]
    share = min(max((at_ns - first["at_ns"]) / elapsed, 0.0), 1.0) if elapsed else 0.0
    outside = max(first["at_ns"] - at_ns, at_ns - last["at_ns"], 0)
    change = last["offset_ns"] - first["offset_ns"]
    doubt = (1 - share) * first["uncertainty_ns"] + share * last["uncertainty_ns"]
    shows = elapsed > 0 and abs(change) > first["uncertainty_ns"] + last["uncertainty_ns"]
    return Tie(
        offset_ns=first["offset_ns"] + round(share * change),
        uncertainty_ns=doubt + _FASTEST_DRIFT * outside,
        drift_ppm=change / elapsed * 1e6 if shows else _NAN,
    )


def _difference(tie: Tie, first: Tie) -> Tie:
    if tie is first:
        return Tie(0, 0.0)
    drift = float(np.nan_to_num(tie.drift_ppm) - np.nan_to_num(first.drift_ppm))
    shown = not (np.isnan(tie.drift_ppm) and np.isnan(first.drift_ppm))
    return Tie(
        offset_ns=tie.offset_ns - first.offset_ns,
        uncertainty_ns=tie.uncertainty_ns + first.uncertainty_ns,
        drift_ppm=drift if shown else _NAN,
    )


def _ties_of_machines(clocks: Clocks, machines: list[str | None]) -> dict[str, Tie]:
    found: dict[str, Tie] = {}
    for index, machine in enumerate(machines):
        if machine is not None and clocks.known[index]:
            doubt = float(clocks.uncertainty_ns[index]) if index else 0.0
            found.setdefault(machine, Tie(int(clocks.offset_ns[index]), doubt))
    return found


def _contradicted(ranks: list[int]) -> list[str]:
    if not ranks:
        return []
    return [
        f"clock probes of rank {', '.join(map(str, ranks))} contradict the collectives, which count: a clock was set "
        "or a file was changed after recording"
    ]
