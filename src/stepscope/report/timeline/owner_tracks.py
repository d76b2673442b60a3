"""Two more tracks for each rank that recorded owners: which line, and which module, its host worked for.

    track   source lines     train.py:42 step        the innermost line of the user's
    track   modules          layers.3.mlp

Spans of the training thread; neighbours with one owner are one slice. What nobody owns is left blank.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.owners.of_run import ownership_of
from stepscope.analyze.owners.ownership import Ownership
from stepscope.report.timeline.filter import Filter
from stepscope.report.timeline.slices import RankTimeline, Timeline, Track
from stepscope.run.aligned import AlignedRun
from stepscope.trace.table import Int64s

LINES, MODULES = "source lines", "modules"


def with_owner_tracks(timeline: Timeline, shared: AlignedRun, *, given: Filter | None = None) -> Timeline:
    """Return the timeline with tracks of lines and modules, over the time that each rank's slices cover.

    A trace with Python frames of its own shows them already.
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
    """Return for each stack its innermost line of the user's, empty where it has none."""
    names = [f"{f.file}:{f.line} {f.function}" for f in owned.frames]
    return [names[frame] if frame >= 0 else "" for frame in owned.stacks.innermost_user[:-1].tolist()]


def _spans(shared: AlignedRun, index: int, owned: Ownership, ids: npt.NDArray[np.int32], texts: Sequence[str]) -> Spans:
    """Return when the training thread worked for which text, neighbours put together."""
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
