"""All ranks on one clock as tracks of slices: what every form of the exported timeline is written from.

    process   rank 3
    track       steps                     what the profiler marks as steps
    track       stream 7, stream 16       kernels, copies and sets, by stream
    track       ranges on stream 7        the device's share of the host's ranges
    track       thread 424 (python)       operators, ranges, runtime calls and python frames, by thread

Each complete event of the traces is one slice, as long as it was. Collectives that were matched share a flow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stepscope.analyze.match_owners import ownership_of
from stepscope.analyze.ownership import Ownership
from stepscope.contract.collectives import OPS
from stepscope.records import ArrayRecord, dataclass
from stepscope.report.timeline_limit import MAX_SLICES
from stepscope.run.aligned import UNMATCHED, AlignedRun
from stepscope.run.formats import Progress
from stepscope.run.rank import DEVICE_KINDS, PROFILER_STEP, Rank, rank_ranges, span_rows
from stepscope.tables.catalog import StringTable
from stepscope.trace.table import EventKind, Int64s, rows_named
from stepscope.units import NS_PER_US

# In which lanes do the slices of one track lie, so that in each of them every slice is inside another or apart?
#
# Viewers draw a track as a stack: a slice that begins inside another must end inside it too. Kernels of one stream
# that
# overlap at their edges, or ranges of one thread that cross, break that, and the viewer drops or cuts them.
#
#     one track                      two lanes
#     A =======                      A =======   C ====
#         B =======       ->         B     =======
#              C ====

# slices that overlap with more others than this are dropped and counted
MAX_LANES = 64

# `i` where slice i begins and `~i` where it ends, in the order of one lane
Tokens = list[int]


@dataclass(frozen=True)
class Lanes:
    """The lanes of one track."""

    tokens: tuple[Tokens, ...]
    #: slices that found no lane
    left_out: int


def lanes(start: Int64s, end: Int64s) -> Lanes:
    """Return the lanes of slices that are sorted by start, longest first where starts are equal.

    >>> import numpy as np
    >>> lanes(np.array([0, 4, 9]), np.array([7, 11, 13])).tokens
    ([0, -1, 2, -3], [1, -2])
    """
    ends = end.tolist()
    tokens: list[Tokens] = []
    open_in: list[list[int]] = []
    left_out = 0
    for i, (begins, finishes) in enumerate(zip(start.tolist(), ends, strict=True)):
        for lane, is_open in zip(tokens, open_in, strict=True):
            while is_open and ends[is_open[-1]] <= begins:
                lane.append(~is_open.pop())
            if not is_open or ends[is_open[-1]] >= finishes:
                break
        else:
            if len(tokens) == MAX_LANES:
                left_out += 1
                continue
            lane, is_open = [], []
            tokens.append(lane)
            open_in.append(is_open)
        lane.append(i)
        is_open.append(i)
    for lane, is_open in zip(tokens, open_in, strict=True):
        lane.extend(~i for i in reversed(is_open))
    return Lanes(tuple(tokens), left_out)


# Which slices does an exported timeline show? The user's selection, within the limit of a viewer.
#
# Where everything is too much, things are left out in this order until it fits, except those the user chose himself:
# python frames, the host, all but two steps in the middle, short slices. Steps and collectives always stay.

_ON_DEVICE = (*DEVICE_KINDS, EventKind.DEVICE_ANNOTATION, EventKind.DEVICE_SYNC)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Filter:
    """What to show. None is no limit."""

    ranks: frozenset[int] | None = None
    #: numbers of the steps; device work belongs to the step that launched it
    steps: range | None = None
    gpu_only: bool = False
    python: bool = True
    min_ns: int | None = None

    def words(self) -> list[str]:
        """Return what is left out, one phrase each."""
        said = []
        if self.ranks is not None:
            said.append(f"ranks other than {rank_ranges(sorted(self.ranks))}")
        if not self.python and not self.gpu_only:
            said.append("python frames")
        if self.gpu_only:
            said.append("the host's threads")
        if self.steps is not None:
            said.append(f"steps outside {self.steps.start}:{self.steps.stop}")
        if self.min_ns is not None:
            said.append(f"slices below {self.min_ns / NS_PER_US:g} us")
        return said


def _shown_rows(rank: Rank, chosen: Filter) -> npt.NDArray[np.intp]:
    if chosen.ranks is not None and rank.rank not in chosen.ranks:
        return np.empty(0, np.intp)
    shown = rank.trace["ph"] == ord("X")
    steps, collectives = _step_rows(rank), _collective_rows(rank)
    if not chosen.python:
        shown &= rank.kinds != EventKind.PYTHON
    if chosen.gpu_only:
        shown &= _with(np.isin(rank.kinds, _ON_DEVICE), steps, collectives)
    if chosen.min_ns is not None:
        shown &= _with(rank.trace["dur_ns"] >= chosen.min_ns, steps, collectives)
    if chosen.steps is not None:
        shown &= _in_steps(rank, chosen.steps)
    return np.flatnonzero(shown)


def _step_rows(rank: Rank) -> npt.NDArray[np.intp]:
    ranges = np.flatnonzero(rank.kinds == EventKind.ANNOTATION)
    return rows_named(rank.trace, ranges, lambda s: s.startswith(PROFILER_STEP))


def _collective_rows(rank: Rank) -> npt.NDArray[np.intp]:
    if rank.has_device:
        return rank.work.row[rank.collectives.device_index]
    return np.array(span_rows(rank.trace, rank.kinds), np.intp)


def _fitted(ranks: Sequence[Rank], given: Filter, *, most: int | None = MAX_SLICES) -> tuple[Filter, int]:
    """Return the filter that leaves at most `most` slices, and how many complete events it leaves out.

    Only what the user did not choose is tightened; where that does not suffice the tightest is returned.
    """
    total = sum(int((rank.trace["ph"] == ord("X")).sum()) for rank in ranks)
    for chosen in _tighter(ranks, given):
        count = sum(len(_shown_rows(rank, chosen)) for rank in ranks)
        if most is None or count <= most:
            break
    return chosen, total - count


def _tighter(ranks: Sequence[Rank], given: Filter) -> Iterator[Filter]:
    yield given
    chosen = replace(given, python=False)
    yield chosen
    if not given.gpu_only and any(rank.has_device for rank in ranks):
        chosen = replace(chosen, gpu_only=True)
        yield chosen
    middle = _two_steps(ranks)
    if given.steps is None and middle is not None:
        chosen = replace(chosen, steps=middle)
        yield chosen
    if given.min_ns is None:
        for shortest_us in (5, 20, 100, 500):
            yield replace(chosen, min_ns=shortest_us * NS_PER_US)


def _two_steps(ranks: Sequence[Rank]) -> range | None:
    each, count = np.unique(np.concatenate([rank.steps.number for rank in ranks]), return_counts=True)
    common = each[count == count.max()] if len(each) else each
    if len(common) < 3:
        return None
    first = int(common[(len(common) - 1) // 2])
    return range(first, first + 2)


def _in_steps(rank: Rank, numbers: range) -> Mask:
    """Return the rows that belong to these steps: by launch on the device, by start on the host.

    Ranges and waits of the device have no launch: those that begin while the steps' own work runs are theirs.
    """
    trace = rank.trace
    index = rank.steps.of(trace["ts_ns"])
    index[rank.work.row] = rank.work.step
    known = np.append(rank.steps.number, -1)  # -1 as an index: no step
    number = known[index]
    mine = (index >= 0) & (number >= numbers.start) & (number < numbers.stop)
    work = np.flatnonzero(mine[rank.work.row])
    if len(work):
        first, last = rank.work.start_ns[work].min(), rank.work.end_ns[work].max()
        beside = np.isin(rank.kinds, (EventKind.DEVICE_ANNOTATION, EventKind.DEVICE_SYNC))
        mine[beside] = (trace["ts_ns"][beside] >= first) & (trace["ts_ns"][beside] < last)
    return mine


def _with(mask: Mask, *rows: npt.NDArray[np.intp]) -> Mask:
    for more in rows:
        mask[more] = True
    return mask


# On which track of its rank does an event lie, and what is the track called?


class _Role(IntEnum):
    STEPS = 0
    STREAM = 1
    RANGES = 2
    WAITS = 3
    THREAD = 4


def _track_of_row(rank: Rank, rows: npt.NDArray[np.intp]) -> tuple[Int64s, list[str]]:
    trace, kinds = rank.trace, rank.kinds[rows]
    role = np.full(len(rows), _Role.THREAD, np.int64)
    role[np.isin(kinds, DEVICE_KINDS)] = _Role.STREAM
    role[kinds == EventKind.DEVICE_ANNOTATION] = _Role.RANGES
    role[kinds == EventKind.DEVICE_SYNC] = _Role.WAITS
    role[np.isin(rows, _step_rows(rank))] = _Role.STEPS
    of_rank = role == _Role.STEPS
    pid, tid = np.where(of_rank, 0, trace["pid"][rows]), np.where(of_rank, 0, trace["tid"][rows])
    keys, back, count = np.unique(np.stack((role, pid, tid)), axis=1, return_inverse=True, return_counts=True)
    shown = np.lexsort((keys[2], keys[1], np.where(keys[0] == _Role.THREAD, -count, 0), keys[0]))
    place = np.empty(len(shown), np.int64)
    place[shown] = np.arange(len(shown))
    labels = _thread_labels(rank)
    several = len(np.unique(keys[1][keys[0] == _Role.STREAM])) > 1
    names = [_track_name(rank, _Role(r), p, t, labels, several) for r, p, t in keys[:, shown].T.tolist()]
    return place[back.reshape(-1)], names


def _track_name(
    rank: Rank, role: _Role, pid: int, tid: int, labels: dict[tuple[int, int], str], several_devices: bool
) -> str:
    if role is _Role.STEPS:
        return STEPS
    if role is _Role.THREAD:
        own = rank.trace.id_text(tid)
        return labels.get((pid, tid)) or (f"thread {own}" if own.lstrip("-").isdigit() else own)
    stream = f"stream {rank.trace.id_text(tid)}"
    if several_devices:
        stream += f" of device {rank.trace.id_text(pid)}"
    return {_Role.RANGES: f"ranges on {stream}", _Role.WAITS: f"waits on {stream}"}.get(role, stream)


def _thread_labels(rank: Rank) -> dict[tuple[int, int], str]:
    trace = rank.trace
    rows = np.flatnonzero(rank.kinds == EventKind.META)
    label = trace.arg("label").at(rows, missing=-1)
    found = {}
    for row, text in zip(rows.tolist(), label.tolist(), strict=True):
        if text >= 0 and trace.text(int(trace["name"][row])) == "thread_name":
            found[int(trace["pid"][row]), int(trace["tid"][row])] = (trace.text(text) or "").strip()
    return found


STEPS = "steps"
# process of rank 0: viewers take 0 and 1 for the system's own
FIRST_PID = 1000

Values = dict[str, int | str]


@dataclass(frozen=True)
class Track:
    """One lane below a rank. Lanes of one stream or thread have the same name."""

    name: str
    #: 0 for the first of its name
    lane: int


@dataclass(frozen=True, eq=False, repr=False)
class RankTimeline(ArrayRecord):
    """The slices of one rank, by track and start. Times are nanoseconds since the timeline's beginning."""

    rank: int
    label: str
    tracks: tuple[Track, ...]
    #: in the rank's event table
    row: npt.NDArray[np.intp]
    track: Int64s
    start_ns: Int64s
    dur_ns: Int64s
    #: index into the timeline's names
    name: Int64s
    #: index into the timeline's categories
    category: Int64s
    #: beginnings (i) and ends (~i) of the slices, in the order in which each track has them
    tokens: Int64s
    #: matched collectives that each slice takes part in; only of those that two shown slices share
    flows: dict[int, tuple[int, ...]]
    #: what is known of a slice that is a collective
    values: dict[int, Values]

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(ArrayRecord):
    """The slices of all ranks."""

    name: str
    #: the beginning on the shared clock, since 1970
    base_ns: int
    ranks: tuple[RankTimeline, ...]
    names: tuple[str, ...]
    categories: tuple[str, ...]
    #: what is not in it; the file says so too
    left_out: tuple[str, ...]
    #: what to know before trusting it
    warnings: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Return everything that must be said with it."""
        return self.left_out + self.warnings

    @property
    def num_slices(self) -> int:
        """Return how many slices there are."""
        return sum(map(len, self.ranks))

    @property
    def num_flows(self) -> int:
        """Return how many flows there are: one per rank and matched collective."""
        return sum(len(flows) for rank in self.ranks for flows in rank.flows.values())


def timeline_of(
    shared: AlignedRun,
    *,
    given: Filter | None = None,
    most: int | None = MAX_SLICES,
    progress: Progress | None = None,
) -> Timeline:
    """Return the timeline of a run: what the filter leaves, of which at most `most` slices.

    `progress` is called with the slices done and all there are.
    """
    ranks = shared.run.ranks
    asked = given or Filter()
    chosen, left_out = _fitted(ranks, asked, most=most)
    rows = [_shown_rows(rank, chosen) for rank in ranks]
    texts, categories = StringTable(), StringTable()
    base_ns = min((int(_shared_start(shared, i, r).min()) for i, r in enumerate(rows) if len(r)), default=0)
    flows = _flows(shared, rows)
    total, done = sum(map(len, rows)), 0
    built = []
    for i, r in enumerate(rows):
        if progress:
            progress(done, total)
        if len(r):
            built.append(
                _rank_timeline(shared, i, rows=r, base_ns=base_ns, texts=texts, categories=categories, flows=flows[i])
            )
        done += len(r)
    crossing = total - sum(map(len, built))
    said = []
    if left_out:
        more = "; more than a viewer opens: --ranks or --steps choose, --max-slices 0 keeps all"
        why = "" if chosen == asked else more
        said.append(f"left out, {left_out:,} slices: {', '.join(chosen.words())}{why}")
    if crossing:
        said.append(f"left out, {crossing:,} slices that cross too many others of their thread or stream")
    return Timeline(
        name=shared.run.name,
        base_ns=base_ns,
        ranks=tuple(built),
        names=texts.listed,
        categories=categories.listed,
        left_out=tuple(said),
        warnings=(*shared.run.warnings, *shared.clocks.warnings),
    )


def _shared_start(shared: AlignedRun, index: int, rows: npt.NDArray[np.intp]) -> Int64s:
    return shared.clocks.shared(index, shared.run.ranks[index].trace["ts_ns"][rows])


def _rank_timeline(
    shared: AlignedRun,
    index: int,
    *,
    rows: npt.NDArray[np.intp],
    base_ns: int,
    texts: StringTable,
    categories: StringTable,
    flows: dict[int, tuple[int, ...]],
) -> RankTimeline:
    rank = shared.run.ranks[index]
    trace = rank.trace
    key, names = _track_of_row(rank, rows)
    start, duration = _shared_start(shared, index, rows) - base_ns, trace["dur_ns"][rows]
    order = np.lexsort((rows, -duration, start, key))
    tracks, track, tokens = _laid_out(key[order], names, start[order], (start + duration)[order])
    kept = np.flatnonzero(track >= 0)
    position = np.cumsum(track >= 0) - 1
    order = order[kept]
    at = {row: i for i, row in enumerate(rows[order].tolist())}
    values = _collective_values(shared, index)
    digits = len(str(shared.run.ranks[-1].rank))  # viewers sort by name: rank 10 comes after rank 09
    return RankTimeline(
        rank=rank.rank,
        label=" · ".join([f"rank {rank.rank:0{digits}}", *filter(None, (rank.host, rank.device_name))]),
        tracks=tuple(tracks),
        row=rows[order],
        track=track[kept],
        start_ns=start[order],
        dur_ns=duration[order],
        name=texts.strings(trace, trace["name"][rows[order]]).astype(np.int64),
        category=categories.strings(trace, trace["cat"][rows[order]]).astype(np.int64),
        tokens=np.where(tokens >= 0, position[tokens], ~position[~tokens]),
        flows={at[row]: ids for row, ids in flows.items() if row in at},
        values={at[row]: known for row, known in values.items() if row in at},
    )


def _laid_out(key: Int64s, names: Sequence[str], start: Int64s, end: Int64s) -> tuple[list[Track], Int64s, Int64s]:
    tracks: list[Track] = []
    track = np.full(len(key), -1, np.int64)
    tokens = []
    cuts = np.searchsorted(key, np.arange(len(names) + 1))
    for k, name in enumerate(names):
        first, last = int(cuts[k]), int(cuts[k + 1])
        for lane, listed in enumerate(lanes(start[first:last], end[first:last]).tokens):
            mine = np.array(listed, np.int64)
            mine = np.where(mine >= 0, mine + first, mine - first)
            track[mine[mine >= 0]] = len(tracks)
            tracks.append(Track(name, lane))
            tokens.append(mine)
    return tracks, track, np.concatenate(tokens)


def _flows(shared: AlignedRun, rows: list[npt.NDArray[np.intp]]) -> list[dict[int, tuple[int, ...]]]:
    matches = shared.matches
    row = np.full(len(matches.row), -1, np.int64)
    for i, rank in enumerate(shared.run.ranks):
        mine = np.flatnonzero(matches.rank_index == i)
        event = _collective_rows(rank)[matches.row[mine]]
        row[mine] = np.where(np.isin(event, rows[i]), event, -1)
    members = np.bincount(matches.of_member[row >= 0], minlength=len(matches))
    joined = np.flatnonzero((row >= 0) & (members[matches.of_member] > 1))
    flows: list[dict[int, tuple[int, ...]]] = [{} for _ in rows]
    for member in joined.tolist():
        mine = flows[matches.rank_index[member]]
        mine[int(row[member])] = (*mine.get(int(row[member]), ()), int(matches.of_member[member]) + 1)
    return flows


def _collective_values(shared: AlignedRun, index: int) -> dict[int, Values]:
    rank = shared.run.ranks[index]
    c, wait = rank.collectives, shared.wait_ns[index]
    groups = [f"{g.desc or g.name}, {g.size or '?'} ranks" for g in c.groups]
    found: dict[int, Values] = {}
    for i, row in enumerate(_collective_rows(rank).tolist()):
        values: Values = {"op": OPS[c.op[i]], "group": groups[c.group[i]]}
        if c.full_bytes[i] >= 0:
            values["size_bytes"] = int(c.full_bytes[i])
        if wait[i] != UNMATCHED:
            values["wait_ns"] = int(wait[i])
        found[row] = values
    return found


# Two more tracks for each rank that recorded owners: which line, and which module, its host worked for.
#
#     track   source lines     train.py:42 step        the innermost line of the user's
#     track   modules          layers.3.mlp
#
# Spans of the training thread; neighbours with one owner are one slice. Unattributed time is left blank.

LINES, MODULES = "source lines", "modules"


def with_owner_tracks(timeline: Timeline, shared: AlignedRun, *, given: Filter | None = None) -> Timeline:
    """Return the timeline with tracks of lines and modules, over the time that each rank's slices cover.

    A trace with Python frames shows them already.
    """
    chosen = given or Filter()
    if chosen.gpu_only or not shared.run.owners:
        return timeline
    ownership = ownership_of(shared.run)
    names, categories = list(timeline.names), list(timeline.categories)
    index = {one.rank.rank: (i, one) for i, one in enumerate(ownership) if one is not None}
    ranks = []
    for rank in timeline.ranks:
        if rank.rank in index and len(rank):
            i, owned = index[rank.rank]
            owner = owned.host.owner
            of_track = {LINES: (owner.stack, _line_of_stack(owned)), MODULES: (owner.module, list(owned.modules))}
            for track, (ids, texts) in of_track.items():
                spans = _spans(shared, i, owned, ids, texts)
                rank = _with_track(rank, track, spans, timeline, chosen, names, categories)
        ranks.append(rank)
    return replace(timeline, ranks=tuple(ranks), names=tuple(names), categories=tuple(categories))


Spans = tuple[Int64s, Int64s, list[str]]


def _line_of_stack(owned: Ownership) -> list[str]:
    names = [f"{f.file}:{f.line} {f.function}" for f in owned.frames]
    return [names[frame] if frame >= 0 else "" for frame in owned.stacks.innermost_user[:-1].tolist()]


def _spans(shared: AlignedRun, index: int, owned: Ownership, ids: npt.NDArray[np.int32], texts: Sequence[str]) -> Spans:
    host = owned.host
    took = {int(t): int((host.end_ns - host.start_ns)[host.thread == t].sum()) for t in np.unique(host.thread)}
    mine = np.flatnonzero(host.thread == max(took, key=lambda t: took[t])) if took else np.empty(0, np.intp)
    start, end = (shared.clocks.shared(index, ns[mine]) for ns in (host.start_ns, host.end_ns))
    text = np.array([*texts, ""], object)[ids[mine]]
    keep = (text != "").astype(bool)
    start, end, text = start[keep], end[keep], text[keep]
    begins = np.ones(len(start), bool)
    begins[1:] = (text[1:] != text[:-1]) | (start[1:] > end[:-1])
    at = np.flatnonzero(begins)
    return start[at], end[np.append(at[1:], len(start)) - 1] if len(at) else end, text[at].tolist()


def _with_track(
    rank: RankTimeline,
    track: str,
    spans: Spans,
    timeline: Timeline,
    chosen: Filter,
    names: list[str],
    categories: list[str],
) -> RankTimeline:
    start, end, texts = spans
    start, end = start - timeline.base_ns, end - timeline.base_ns
    first, last = int(rank.start_ns.min()), int((rank.start_ns + rank.dur_ns).max())
    kept = np.flatnonzero((start >= first) & (end <= last) & (end - start >= (chosen.min_ns or 0)))
    if not len(kept):
        return rank
    known = {text: len(names) + i for i, text in enumerate(dict.fromkeys(texts[k] for k in kept.tolist()))}
    names += known
    if track not in categories:
        categories.append(track)
    at = len(rank) + np.arange(len(kept))
    return replace(
        rank,
        tracks=(*rank.tracks, Track(track, 0)),
        row=np.append(rank.row, np.full(len(kept), -1, rank.row.dtype)),
        track=np.append(rank.track, np.full(len(kept), len(rank.tracks), np.int64)),
        start_ns=np.append(rank.start_ns, start[kept]),
        dur_ns=np.append(rank.dur_ns, (end - start)[kept]),
        name=np.append(rank.name, [known[texts[k]] for k in kept.tolist()]),
        category=np.append(rank.category, np.full(len(kept), categories.index(track), np.int64)),
        tokens=np.append(rank.tokens, np.stack((at, ~at), axis=1).reshape(-1)),
    )
