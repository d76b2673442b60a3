"""Collectives matched across ranks, and the clock offsets and damaged times that they show."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stepscope.contract.operations import OP_CODE, OPS
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.collectives import Group
from stepscope.run.rank import Rank, with_collective_ends
from stepscope.stats.robust import (
    MAD_TO_SIGMA,
    distinct,
    mad_sigma,
    median,
    segment_medians,
    segment_middles,
    theil_sen,
)
from stepscope.trace.table import Int64s
from stepscope.units import NS_PER_MS, NS_PER_S

# Matching of collectives across ranks, and of sends with receives.
#
# Ranks agree on the order of the collectives of a group, so the k-th of a step on one rank is the k-th of that step
# on the others. Only operations launched inside the window count: how many older ones a trace still holds differs
# from rank to rank. Where a rank recorded fewer (a cut file, a shifted window), its sequence is placed only where
# operation and size fit in exactly one way; otherwise it stays unmatched and is counted.

# Alignment of each member's calls in a step with those of the others.
#
#     member 0   A B C D        A B C D      the longest sequence is the reference
#     member 1     B C     ->     B C        placed where it fits in exactly one way
#     member 2   A B X D                     fits nowhere: left out
#     member 3     B C D E  ->     B C D E   E is its own, where the reference ends earlier
#                               a column is what at least two members share
#
# All sequences are flat arrays in which an entry is one call, so that a thousand ranks take no loop over calls.

# entries, where those of each column begin, and its step
Columns = tuple[Int64s, Int64s, Int64s]
NO_STEP = -1
_UNPLACED = -1
# calls by which a recording may begin or end later than another
_MAX_SHIFT = 100


def shared_columns(key: Int64s, step: Int64s, member: Int64s, signature: Int64s) -> Columns:
    """Return the columns of each key and step that at least two members share: entries, bounds and steps.

    Column `c` has the entries `entry[first[c]:first[c + 1]]`, by member, and is of `step[c]`, NO_STEP where the members
    share no step number.

    Entries of one key, step and member are a sequence in the order they come. Where no two members of a key have a
    step in common, their whole sequences are compared.
    """
    order = np.lexsort((member, step, key))
    common = _common_steps(key[order], step[order], member[order])
    step = np.where(common, step[order], NO_STEP)
    if not common.all():  # whole sequences of one member have to lie together
        again = np.lexsort((member[order], step, key[order]))
        order, step = order[again], step[again]
    block = _starts(key[order], step)
    sequence = block | _starts(member[order])
    place = _places(key[order], block, sequence, signature[order])
    return _columns(order, step, np.cumsum(block), place)


def _starts(*columns: Int64s) -> npt.NDArray[np.bool_]:
    out = np.zeros(len(columns[0]), bool)
    out[:1] = True
    for column in columns:
        out[1:] |= column[1:] != column[:-1]
    return out


def _common_steps(key: Int64s, step: Int64s, member: Int64s) -> npt.NDArray[np.bool_]:
    block = _starts(key, step)
    another = _starts(member) & ~block
    of_key = np.cumsum(_starts(key)) - 1
    return (np.bincount(of_key, another) > 0)[of_key] if len(key) else another


def _places(key: Int64s, block: npt.NDArray[np.bool_], sequence: npt.NDArray[np.bool_], signature: Int64s) -> Int64s:
    begin = np.flatnonzero(sequence)
    length = np.diff(np.append(begin, len(sequence)))
    of_sequence = np.cumsum(sequence) - 1
    place = np.arange(len(sequence)) - begin[of_sequence]
    first = np.flatnonzero(block)
    of_block = np.cumsum(block) - 1
    reference = first[of_block] + np.minimum(place, length[of_sequence[first]][of_block] - 1)
    same = (signature == signature[reference]) & (length[of_sequence] == length[of_sequence[first]][of_block])
    uneven = np.flatnonzero(np.bincount(of_block, ~same)) if len(place) else first
    bounds = np.append(first, len(sequence))
    for b in uneven.tolist():
        mine = slice(int(bounds[b]), int(bounds[b + 1]))
        cuts = np.append(np.flatnonzero(sequence[mine]), mine.stop - mine.start)
        at_start = b == 0 or key[mine.start - 1] != key[mine.start]
        at_end = mine.stop == len(key) or key[mine.stop] != key[mine.start]
        place[mine] = _placed(signature[mine], cuts, at_start=bool(at_start), at_end=bool(at_end))
    return place


def _placed(signature: Int64s, cuts: Int64s, *, at_start: bool, at_end: bool) -> Int64s:
    longest = int(np.argmax(np.diff(cuts)))
    reference = signature[cuts[longest] : cuts[longest + 1]]
    place = np.full(len(signature), _UNPLACED, np.int64)
    for begin, end in pairwise(cuts.tolist()):
        shift = _shift(reference, signature[begin:end], at_start=at_start, at_end=at_end)
        if shift is not None:
            at = shift + np.arange(end - begin)
            place[begin:end] = np.where((at >= 0) & (at < len(reference)), at, _UNPLACED)
    return place


def _shift(reference: Int64s, sequence: Int64s, *, at_start: bool, at_end: bool) -> int | None:
    """Return where in the reference a sequence begins, None where that is not certain.

    In the first step of a recording calls at its start may be missing, in the last step calls at its end.
    """
    length, longer = len(sequence), len(reference) - len(sequence)
    starts = np.flatnonzero(reference[: longer + 1] == sequence[0]).tolist()
    fits = [at for at in starts if np.array_equal(reference[at : at + length], sequence)]
    if at_start != at_end and fits:
        return int(fits[-1] if at_start else fits[0])
    if not fits:  # each has calls that the other lacks: what both have is most of it
        most = min(length // 2, _MAX_SHIFT)
        shifts = [*range(-most, 0), *range(longer + 1, longer + most + 1)]
        fits = [at for at in shifts if _agrees(reference, sequence, at)]
        least = min((max(-at, at - longer) for at in fits), default=0)
        fits = [at for at in fits if max(-at, at - longer) == least]
    return int(fits[0]) if len(fits) == 1 else None


def _agrees(reference: Int64s, sequence: Int64s, at: int) -> bool:
    first, last = max(at, 0), min(at + len(sequence), len(reference))
    return np.array_equal(reference[first:last], sequence[first - at : last - at])


def _columns(order: Int64s, step: Int64s, block: Int64s, place: Int64s) -> Columns:
    by_place = np.lexsort((place, block))
    by_place = by_place[place[by_place] != _UNPLACED]
    start = _starts(block[by_place], place[by_place])
    count = np.diff(np.append(np.flatnonzero(start), len(start)))
    kept = by_place[np.repeat(count > 1, count)]
    first = np.concatenate(([0], np.cumsum(count[count > 1])))
    return order[kept], first, step[kept[first[:-1]]]


Floats = npt.NDArray[np.float64]


def median_times(times_ns: Int64s, first: Int64s) -> Int64s:
    """Return the median of each segment in whole nanoseconds: since 1970 they are more than a float holds."""
    low, high = segment_middles(times_ns, first)
    return low + (high - low) // 2


def mad_sigmas(values: Floats, first: Int64s) -> Floats:
    """Return the standard deviation of each segment as its median absolute deviation gives it."""
    middle = np.repeat(segment_medians(values, first), np.diff(first))
    return MAD_TO_SIGMA * segment_medians(np.abs(values - middle), first)


POINT_TO_POINT = (OP_CODE["send"], OP_CODE["recv"], OP_CODE["send_recv"])
# Every rank of these gives and takes, so none can end before all have started.
SYMMETRIC = tuple(OP_CODE[op] for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))
# Their size is the same on every rank.
_SAME_SIZE = tuple(OP_CODE[op] for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"))

# keys of messages, one per pair of ranks, lie above those of groups
_MESSAGES = 1 << 40


@dataclass(frozen=True, eq=False, repr=False)
class Matches(ArrayRecord):
    """Collectives that at least two recorded ranks took part in.

    Match `m` has the members `first[m]:first[m + 1]` of the flat arrays `rank_index` and `row`.
    """

    #: code in `collective_names.OPS`; `send` for a point-to-point message, whose first member is the sender
    op: npt.NDArray[np.uint8]
    #: full buffer or message, -1 unknown
    size_bytes: Int64s
    #: index into `groups`
    group: npt.NDArray[np.int32]
    #: step number, -1 where steps are unknown
    step: Int64s
    first: Int64s
    rank_index: npt.NDArray[np.int32]
    #: in that rank's Collectives
    row: Int64s
    groups: tuple[Group, ...]

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def of_member(self) -> Int64s:
        return np.repeat(np.arange(len(self)), np.diff(self.first))

    @cached_property
    def by_rank(self) -> tuple[Int64s, Int64s]:
        """Return the flat members rank by rank, and where those of each rank begin."""
        order = np.argsort(self.rank_index, kind="stable")
        last = int(self.rank_index[order[-1]]) if len(order) else -1
        return order, np.searchsorted(self.rank_index[order], np.arange(last + 2))

    def members_of(self, rank_index: int) -> Int64s:
        """Return the flat members of one rank, in the order of the matches."""
        order, cuts = self.by_rank
        return order[cuts[rank_index] : cuts[rank_index + 1]] if rank_index + 1 < len(cuts) else order[:0]

    def among(self, ranks: Int64s) -> tuple["Matches", Int64s]:
        """Return the matches that at least two of these ranks took part in, numbered by their place among them, and
        which of the flat members are left.
        """
        place = np.full(max(int(self.rank_index.max(initial=-1)), int(ranks.max(initial=-1))) + 1, -1, np.int32)
        place[ranks] = np.arange(len(ranks))
        there = place[self.rank_index] >= 0
        count = np.bincount(self.of_member[there], minlength=len(self))
        kept = np.flatnonzero(count > 1)
        members = np.flatnonzero(there & (count > 1)[self.of_member])
        found = replace(
            self,
            **{name: getattr(self, name)[kept] for name in ("op", "size_bytes", "group", "step")},
            first=np.concatenate(([0], np.cumsum(count[kept]))),
            rank_index=place[self.rank_index[members]],
            row=self.row[members],
        )
        return found, members


def match_collectives(ranks: tuple[Rank, ...]) -> Matches:
    """Return everything that could be matched between these ranks."""
    calls, groups = _calls(ranks)
    entry, first, step = shared_columns(*(calls[name] for name in ("key", "step", "member", "signature")))
    first_member = entry[first[:-1]]
    size = calls["size_bytes"][entry]
    return Matches(
        op=calls["op"][first_member].astype(np.uint8),
        size_bytes=np.maximum.reduceat(size, first[:-1]) if len(size) else size,
        group=calls["group"][first_member].astype(np.int32),
        step=step,
        first=first,
        rank_index=calls["rank_index"][entry].astype(np.int32),
        row=calls["row"][entry],
        groups=groups,
    )


# What was called, in columns of equal length. `key` is the process group or the pair of ranks; `member` the rank index
# in a group, of a message 0 for the sender and 1 for the receiver; `signature`, equal on all members of a collective,
# is operation and size (0 where sizes differ between ranks).
_Calls = dict[str, Int64s]


def _calls(ranks: tuple[Rank, ...]) -> tuple[_Calls, tuple[Group, ...]]:
    numbers = {rank.rank: index for index, rank in enumerate(ranks)}
    groups: dict[tuple[str, tuple[int, ...] | None], tuple[int, Group]] = {}
    parts = []
    for index, rank in enumerate(ranks):
        named = rank.collectives.groups
        known = [groups.setdefault((g.name, g.ranks), (len(groups), g))[0] for g in named]
        group = np.array(known, np.int64)[rank.collectives.group] if known else np.empty(0, np.int64)
        parts += [_collective_calls(rank, index, group), _message_calls(rank, index, group, numbers)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return columns, tuple(group for _, group in groups.values())


def _collective_calls(rank: Rank, index: int, group: Int64s) -> _Calls:
    c = rank.collectives
    rows = _issued(rank, ~np.isin(c.op, POINT_TO_POINT))
    op, size = c.op[rows].astype(np.int64), c.full_bytes[rows]
    return {
        "key": group[rows],
        "member": np.full(len(rows), index),
        "step": _step_numbers(rank, rows),
        "signature": np.where(np.isin(op, _SAME_SIZE), size, 0) * len(OPS) + op,
        "rank_index": np.full(len(rows), index),
        "row": rows,
        "op": op,
        "size_bytes": size,
        "group": group[rows],
    }


def _message_calls(rank: Rank, index: int, group: Int64s, numbers: dict[int, int]) -> _Calls:
    c = rank.collectives
    peers = np.array([numbers.get(peer, -1) for peer in c.messages.peer.tolist()], np.int64)
    issued = np.isin(c.messages.collective, _issued(rank, np.isin(c.op, POINT_TO_POINT)))
    kept = np.flatnonzero(issued & (peers >= 0))
    rows, peer, sends = c.messages.collective[kept], peers[kept], c.messages.is_send[kept]
    pair = np.where(sends, index * len(numbers) + peer, peer * len(numbers) + index)
    return {
        "key": _MESSAGES + pair,
        "member": (~sends).astype(np.int64),
        "step": _step_numbers(rank, rows),
        "signature": c.messages.size_bytes[kept],
        "rank_index": np.full(len(rows), index),
        "row": rows,
        "op": np.full(len(rows), OP_CODE["send"]),
        "size_bytes": c.messages.size_bytes[kept],
        "group": group[rows],
    }


def _issued(rank: Rank, wanted: npt.NDArray[np.bool_]) -> Int64s:
    c = rank.collectives
    known = c.issue_ns > np.iinfo(np.int64).min
    rows = np.flatnonzero(wanted & known & ((c.step >= 0) | (len(rank.steps) == 0)))
    return rows[np.argsort(c.issue_ns[rows], kind="stable")]


def _step_numbers(rank: Rank, rows: Int64s) -> Int64s:
    step = rank.collectives.step[rows]
    return np.where(step >= 0, rank.steps.number[step], NO_STEP) if len(rank.steps) else np.full(len(rows), NO_STEP)


# Bounds from single collectives: how far apart ends can be, and that no end precedes a start.

Bools = npt.NDArray[np.bool_]

# time stamps are not better than a microsecond across processes
FLOOR_NS = 1_000
_IN_ROUNDS = tuple(OP_CODE[op] for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
# per rank: from here on a ring keeps all its ranks busy at once (one slot of NCCL's buffers)
_PIPELINED_BYTES = 512 << 10


def _unequal_ends(matches: Matches, start: Int64s, end: Int64s) -> Floats:
    """Return for each member the possible spread of its collective's ends although the clocks agree, on the shared
    clock.

    A pipelined ring finishes on all ranks within one of its rounds: 1/(2(P-1)) of an all-reduce, 1/(P-1) of a gather,
    scatter or exchange. A message too small for that is passed rank by rank: in the second half of an all-reduce, in
    all of the others. A message may end on one rank a whole transfer before it ends on the other. The transfer is from
    the last arrival to the last end, the median over all similar ones: a short one may be luck.
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
    of_kind = segment_medians(transfer, np.searchsorted(kind[order], np.arange(kind.max() + 2)))
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
    """Return each rank's drift in ppm against the first where a long window shows one (nan elsewhere), and the matching
    correction of the offsets. `when` is each member's end since its rank's reference.
    """
    drift, shift = np.full(num_ranks, np.nan), np.zeros(num_ranks, np.int64)
    lines = []
    for index in range(num_ranks):
        mine = _usable_members(matches, index, usable)
        if len(mine) < 16 or np.ptp(when[mine]) < _MIN_SPAN_FOR_DRIFT_NS:
            return drift, shift
        x, y = when[mine].astype(float), residual[mine]
        order, cuts = np.argsort(x, kind="stable"), distinct(np.linspace(0, len(x), 65).astype(np.int64))
        lines.append((theil_sen(segment_medians(x[order], cuts), segment_medians(y[order], cuts)), x, y))
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
    if len(ranks) == 2 and found:  # two clocks: it is unknown which of them was set
        first, second = (rank.rank for rank in ranks)
        apart_ms = 2 * max(map(abs, found.values())) / NS_PER_MS
        return [f"clocks of ranks {first} and {second} diverge by {apart_ms:.1f} ms inside the window"]
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
        offset = clocks.offset_ns - segment_medians(*_by_rank(residual, matches, sharp, len(ranks))).astype(np.int64)
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
    unequal = hops * segment_medians(*_by_rank(apart, matches, sharp, len(ranks)))
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
    """Return how far each member's end is from its match's median, and which matches are sharp.

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


# Ends of collectives that the ranks cannot have seen. An exchange ends on all of them at about the same time.

# times what ends of equal collectives usually differ by
_FAR_APART = 20
_MIN_APART_NS = 50_000


def with_agreed_ends(ranks: Sequence[Rank]) -> list[Rank]:
    """Return the ranks with damaged collectives corrected: they end when they do on the other ranks.

    Damaged are times that were impossible on the rank itself, and an end far from where all the others have theirs.
    """
    matches = match_collectives(tuple(ranks))
    start, end = member_times(tuple(ranks), matches)
    clocks, _ = _first_estimate(tuple(ranks), matches, end, np.ones(len(matches), bool))
    shared = clocks.shared(matches.rank_index, end)
    apart = np.abs(shared - median_times(shared, matches.first)[matches.of_member])
    usual = _unequal_ends(matches, clocks.shared(matches.rank_index, start), shared)
    far = apart > np.maximum(_FAR_APART * np.maximum(usual, median(apart)), _MIN_APART_NS)
    far &= (np.isin(matches.op, SYMMETRIC) & (np.diff(matches.first) > 2))[matches.of_member]
    estimated = np.zeros(len(end), bool)
    for index, rank in enumerate(ranks):
        mine, c = matches.members_of(index), rank.collectives
        rows = rank.work.row[c.device_index[matches.row[mine]]] if rank.has_device else c.device_index[:0]
        estimated[mine[: len(rows)]] = np.isin(rows, np.append(rank.cut, rank.moved))
    agreed = dict[int, dict[int, int]]()
    for member in np.flatnonzero(far | estimated).tolist():
        match = matches.of_member[member]
        others = np.arange(matches.first[match], matches.first[match + 1])
        others = others[~(far | estimated)[others]]
        if len(others):
            index, row = int(matches.rank_index[member]), int(matches.row[member])
            agreed.setdefault(index, {})[row] = int(end[member] + median(shared[others] - shared[member]))
    return [
        with_collective_ends(rank, np.array(list(ends)), np.array(list(ends.values())))
        if (ends := agreed.get(i))
        else rank
        for i, rank in enumerate(ranks)
    ]
