"""All ranks on one clock as tracks of slices: what every form of the exported timeline is written from.

    process   rank 3
    track       steps                     what the profiler marks as steps
    track       stream 7, stream 16       kernels, copies and sets, by stream
    track       ranges on stream 7        the device's share of the host's ranges
    track       thread 424 (python)       operators, ranges, runtime calls and python frames, by thread

Each complete event of the traces is one slice, as long as it was. Collectives that were matched share a flow.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.contract.collectives import OPS
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.report.timeline.filter import Filter, collective_rows, fitted, shown_rows
from stepscope.report.timeline.lanes import lanes
from stepscope.report.timeline.limit import MAX_SLICES
from stepscope.report.timeline.tracks import track_of_row
from stepscope.run.aligned import UNMATCHED, AlignedRun
from stepscope.run.reading.each_file import Progress
from stepscope.tables.string_table import StringTable
from stepscope.trace.table import Int64s

FIRST_PID = 1000
"""process of rank 0: viewers take 0 and 1 for the system's own"""

Values = dict[str, int | str]


@dataclass(frozen=True)
class Track:
    """One lane below a rank. Lanes of one stream or thread have the same name."""

    name: str
    lane: int
    """0 for the first of its name"""


@dataclass(frozen=True, eq=False, repr=False)
class RankTimeline(ArrayRecord):
    """The slices of one rank, by track and start. Times are nanoseconds since the timeline's beginning."""

    rank: int
    label: str
    tracks: tuple[Track, ...]
    row: npt.NDArray[np.intp]
    """in the rank's event table"""
    track: Int64s
    start_ns: Int64s
    dur_ns: Int64s
    name: Int64s
    """index into the timeline's names"""
    category: Int64s
    """index into the timeline's categories"""
    tokens: Int64s
    """beginnings (i) and ends (~i) of the slices, in the order in which each track has them"""
    flows: dict[int, tuple[int, ...]]
    """matched collectives that each slice takes part in; only of those that two shown slices share"""
    values: dict[int, Values]
    """what is known of a slice that is a collective"""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(ArrayRecord):
    """The slices of all ranks."""

    name: str
    base_ns: int
    """the beginning on the shared clock, since 1970"""
    ranks: tuple[RankTimeline, ...]
    names: tuple[str, ...]
    categories: tuple[str, ...]
    left_out: tuple[str, ...]
    """what is not in it; the file says so too"""
    warnings: tuple[str, ...]
    """what to know before trusting it"""

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
    chosen, left_out = fitted(ranks, asked, most=most)
    rows = [shown_rows(rank, chosen) for rank in ranks]
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
    return Timeline(
        name=shared.run.name,
        base_ns=base_ns,
        ranks=tuple(built),
        names=texts.listed,
        categories=categories.listed,
        left_out=tuple(_left_out(asked, chosen, left_out, crossing)),
        warnings=(*shared.run.warnings, *shared.clocks.warnings),
    )


def _left_out(asked: Filter, chosen: Filter, count: int, crossing: int) -> list[str]:
    said = []
    if count:
        more = "; more than a viewer opens: --ranks or --steps choose, --max-slices 0 keeps all"
        why = "" if chosen == asked else more
        said.append(f"left out, {count:,} slices: {', '.join(chosen.words())}{why}")
    if crossing:
        said.append(f"left out, {crossing:,} slices that cross too many others of their thread or stream")
    return said


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
    key, names = track_of_row(rank, rows)
    start, duration = _shared_start(shared, index, rows) - base_ns, trace["dur_ns"][rows]
    order = np.lexsort((rows, -duration, start, key))
    tracks, track, tokens = _laid_out(key[order], names, start[order], (start + duration)[order])
    kept = np.flatnonzero(track >= 0)
    position = np.cumsum(track >= 0) - 1
    order = order[kept]
    at = {row: i for i, row in enumerate(rows[order].tolist())}
    values = _collective_values(shared, index)
    return RankTimeline(
        rank=rank.rank,
        label=" · ".join(["rank " + str(rank.rank), *filter(None, (rank.host, rank.device_name))]),
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
    """Return the tracks, the track of each slice (-1 where none had room), and all tokens."""
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
    """Return for each rank the matches that each shown event row takes part in, if another shown one does."""
    matches = shared.matches
    row = np.full(len(matches.row), -1, np.int64)
    for i, rank in enumerate(shared.run.ranks):
        mine = np.flatnonzero(matches.rank_index == i)
        event = collective_rows(rank)[matches.row[mine]]
        row[mine] = np.where(np.isin(event, rows[i]), event, -1)
    members = np.bincount(matches.of_member[row >= 0], minlength=len(matches))
    joined = np.flatnonzero((row >= 0) & (members[matches.of_member] > 1))
    flows: list[dict[int, tuple[int, ...]]] = [{} for _ in rows]
    for member in joined.tolist():
        mine = flows[matches.rank_index[member]]
        mine[int(row[member])] = (*mine.get(int(row[member]), ()), int(matches.of_member[member]) + 1)
    return flows


def _collective_values(shared: AlignedRun, index: int) -> dict[int, Values]:
    """Return what is known of each collective, by event row."""
    rank = shared.run.ranks[index]
    c, wait = rank.collectives, shared.wait_ns[index]
    groups = [f"{g.desc or g.name}, {g.size or '?'} ranks" for g in c.groups]
    found: dict[int, Values] = {}
    for i, row in enumerate(collective_rows(rank).tolist()):
        values: Values = {"op": OPS[c.op[i]], "group": groups[c.group[i]]}
        if c.full_bytes[i] >= 0:
            values["size_bytes"] = int(c.full_bytes[i])
        if wait[i] != UNMATCHED:
            values["wait_ns"] = int(wait[i])
        found[row] = values
    return found
