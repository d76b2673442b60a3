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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyze.match_owners import ownership_of
from stepscope.analyze.ownership import Ownership
from stepscope.contract.operations import OPS
from stepscope.records import ArrayRecord, dataclass
from stepscope.report.timeline_limit import MAX_SLICES
from stepscope.run.aligned import UNMATCHED, AlignedRun
from stepscope.run.collectives import span_rows
from stepscope.run.device_work import DEVICE_KINDS
from stepscope.run.formats import Progress
from stepscope.run.rank import Rank
from stepscope.run.steps import PROFILER_STEP
from stepscope.tables.catalog import StringTable
from stepscope.trace.table import EventKind, Int64s, rows_named
from stepscope.units import NS_PER_US, rank_ranges

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


def lanes(start: Int64s, end: Int64s) -> list[Tokens]:
    """Return the lanes of slices that are sorted by start, longest first where starts are equal.

    >>> import numpy as np
    >>> lanes(np.array([0, 4, 9]), np.array([7, 11, 13]))
    [[0, -1, 2, -3], [1, -2]]
    """
    ends = end.tolist()
    tokens: list[Tokens] = []
    open_in: list[list[int]] = []
    for i, (begins, finishes) in enumerate(zip(start.tolist(), ends, strict=True)):
        for lane, is_open in zip(tokens, open_in, strict=True):
            while is_open and ends[is_open[-1]] <= begins:
                lane.append(~is_open.pop())
            if not is_open or ends[is_open[-1]] >= finishes:
                break
        else:
            if len(tokens) == MAX_LANES:
                continue
            lane, is_open = [], []
            tokens.append(lane)
            open_in.append(is_open)
        lane.append(i)
        is_open.append(i)
    for lane, is_open in zip(tokens, open_in, strict=True):
        lane.extend(~i for i in reversed(is_open))
    return tokens


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
    always = np.zeros(len(shown), bool)
    always[_step_rows(rank)] = always[_collective_rows(rank)] = True
    if not chosen.python:
        shown &= rank.kinds != EventKind.PYTHON
    if chosen.gpu_only:
        shown &= always | np.isin(rank.kinds, _ON_DEVICE)
    if chosen.min_ns is not None:
        shown &= always | (rank.trace["dur_ns"] >= chosen.min_ns)
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


STEPS, LINES, MODULES = "steps", "source lines", "modules"
# process of rank 0: viewers take 0 and 1 for the system's own
FIRST_PID = 1000

Values = dict[str, int | str]
# starts, ends and texts
Spans = tuple[Int64s, Int64s, list[str]]


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
    owners: bool = False,
    progress: Progress | None = None,
) -> Timeline:
    """Return the timeline of a run: what the filter leaves, of which at most `most` slices.

    With `owners`, ranks that recorded them have tracks of source lines and modules. `progress` is called with the
    slices done and all there are.
    """
    ranks = shared.run.ranks
    asked = given or Filter()
    chosen, left_out = _fitted(ranks, asked, most=most)
    rows = [_shown_rows(rank, chosen) for rank in ranks]
    base_ns = min((int(_shared_start(shared, i, r).min()) for i, r in enumerate(rows) if len(r)), default=0)
    owned = ownership_of(shared.run) if owners and shared.run.owners and not asked.gpu_only else [None] * len(ranks)
    layout = _Layout(shared, base_ns, asked.min_ns or 0, StringTable(), StringTable())
    flows, total, done = _flows(shared, rows), sum(map(len, rows)), 0
    built = []
    for i, r in enumerate(rows):
        if progress:
            progress(done, total)
        if len(r):
            built.append(layout.of_rank(i, r, owned[i], flows[i]))
        done += len(r)
    said = []
    if left_out:
        more = "; more than a viewer opens: --ranks or --steps choose, --max-slices 0 keeps all"
        why = "" if chosen == asked else more
        said.append(f"left out, {left_out:,} slices: {', '.join(chosen.words())}{why}")
    if crossing := sum(num for _, num in built):
        said.append(f"left out, {crossing:,} slices that cross too many others of their thread or stream")
    return Timeline(
        name=shared.run.name,
        base_ns=base_ns,
        ranks=tuple(rank for rank, _ in built),
        names=layout.texts.listed,
        categories=layout.categories.listed,
        left_out=tuple(said),
        warnings=(*shared.run.warnings, *shared.clocks.warnings),
    )


def _shared_start(shared: AlignedRun, index: int, rows: npt.NDArray[np.intp]) -> Int64s:
    return shared.clocks.shared(index, shared.run.ranks[index].trace["ts_ns"][rows])


class _Layout(NamedTuple):
    shared: AlignedRun
    base_ns: int
    #: of the spans of owners; events are chosen already
    min_ns: int
    texts: StringTable
    categories: StringTable

    def of_rank(
        self, index: int, rows: npt.NDArray[np.intp], owned: Ownership | None, flows: dict[int, tuple[int, ...]]
    ) -> tuple[RankTimeline, int]:
        """Return the timeline of a rank, and how many slices found no lane."""
        rank, trace = self.shared.run.ranks[index], self.shared.run.ranks[index].trace
        key, names = _track_of_row(rank, rows)
        start, duration = _shared_start(self.shared, index, rows) - self.base_ns, trace["dur_ns"][rows]
        columns: list[Int64s] = [
            key,
            start,
            duration,
            self.texts.strings(trace, trace["name"][rows]).astype(np.int64),
            self.categories.strings(trace, trace["cat"][rows]).astype(np.int64),
            rows,
        ]
        for title, spans in self._spans_of_owners(index, owned, int(start.min()), int((start + duration).max())):
            begins, ends, texts = spans
            alike = np.ones(len(begins), np.int64)
            words = np.array([self.texts.place(text) for text in texts], np.int64)
            more = [len(names) * alike, begins, ends - begins, words, self.categories.place(title) * alike, -alike]
            columns = [np.concatenate(pair) for pair in zip(columns, more, strict=True)]
            names.append(title)
        key, start, duration, name, category, row = columns
        order = np.lexsort((row, -duration, start, key))
        tracks, track, tokens = _laid_out(key[order], names, start[order], (start + duration)[order])
        kept = np.flatnonzero(track >= 0)
        position = np.cumsum(track >= 0) - 1
        order = order[kept]
        at = {event: i for i, event in enumerate(row[order].tolist())}
        values = _collective_values(self.shared, index)
        digits = len(str(self.shared.run.ranks[-1].rank))  # viewers sort by name: rank 10 comes after rank 09
        timeline = RankTimeline(
            rank=rank.rank,
            label=" · ".join([f"rank {rank.rank:0{digits}}", *filter(None, (rank.host, rank.device_name))]),
            tracks=tuple(tracks),
            track=track[kept],
            start_ns=start[order],
            dur_ns=duration[order],
            name=name[order],
            category=category[order],
            tokens=np.where(tokens >= 0, position[tokens], ~position[~tokens]),
            flows={at[event]: ids for event, ids in flows.items() if event in at},
            values={at[event]: known for event, known in values.items() if event in at},
        )
        return timeline, len(track) - len(kept)

    def _spans_of_owners(
        self, index: int, owned: Ownership | None, first_ns: int, last_ns: int
    ) -> Iterator[tuple[str, Spans]]:
        if owned is None:
            return
        owner = owned.host.owner
        for title, ids, texts in ((LINES, owner.stack, _line_of_stack(owned)), (MODULES, owner.module, owned.modules)):
            begins, ends, words = _owner_spans(self.shared, index, owned, ids, texts)
            begins, ends = begins - self.base_ns, ends - self.base_ns
            kept = np.flatnonzero((begins >= first_ns) & (ends <= last_ns) & (ends - begins >= self.min_ns))
            if len(kept):
                yield title, (begins[kept], ends[kept], [words[k] for k in kept.tolist()])


def _laid_out(key: Int64s, names: Sequence[str], start: Int64s, end: Int64s) -> tuple[list[Track], Int64s, Int64s]:
    tracks: list[Track] = []
    track = np.full(len(key), -1, np.int64)
    tokens = []
    cuts = np.searchsorted(key, np.arange(len(names) + 1))
    for k, name in enumerate(names):
        first, last = int(cuts[k]), int(cuts[k + 1])
        for lane, listed in enumerate(lanes(start[first:last], end[first:last])):
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
# Spans of the training thread within the time of the rank's slices; neighbours with one owner are one slice.
# Unattributed time is left blank. A trace with Python frames shows lines already.


def _line_of_stack(owned: Ownership) -> list[str]:
    names = [f"{f.file}:{f.line} {f.function}" for f in owned.frames]
    return [names[frame] if frame >= 0 else "" for frame in owned.stacks.innermost_user[:-1].tolist()]


def _owner_spans(
    shared: AlignedRun, index: int, owned: Ownership, ids: npt.NDArray[np.int32], texts: Sequence[str]
) -> Spans:
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
