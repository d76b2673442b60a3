"""Who owns each instant? Layers of intervals painted over one another, the first layer on top.

    layers   a [0, 4)        b [2, 6)        ->  a [0, 2) a [2, 4) b [4, 6) NOTHING [6, 9)
    cuts     0, 9

Every instant between the first and the last cut lies in exactly one segment, so durations sum to the whole.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.intervals import Intervals, clip, union
from stepscope.stats.distinct import among
from stepscope.trace.table import Int64s

NOTHING = 255
"""label of instants that no layer covers"""

Labels = npt.NDArray[np.uint8]


class Timeline(NamedTuple):
    """Consecutive segments, each with one label."""

    start: Int64s
    end: Int64s
    label: Labels

    def of(self, *labels: int) -> Intervals:
        """Return the time that carries one of these labels."""
        keep = among(self.label, labels)
        return union(self.start[keep], self.end[keep])


def painted(layers: Sequence[tuple[int, Intervals]], cuts: npt.ArrayLike) -> Timeline:
    """Return the time between the first and the last cut, each instant with the label of the first layer over it.

    No segment crosses a cut. Cuts ascend.
    """
    edges = np.asarray(cuts, np.int64)
    clipped = [(label, clip(x, int(edges[0]), int(edges[-1]))) for label, x in layers if len(x)]
    bounds = _distinct(np.concatenate([edges, *(side for _, x in clipped for side in (x.start, x.end))]))
    label = np.full(len(bounds) - 1, NOTHING, np.uint8)
    for layer, x in reversed(clipped):
        np.putmask(label, _covered(bounds, x), layer)
    return Timeline(bounds[:-1], bounds[1:], label)


def label_ns(timeline: Timeline, cuts: npt.ArrayLike, num_labels: int) -> Int64s:
    """Return the time of each label between neighbouring cuts, as rows of `num_labels` columns."""
    edges = np.asarray(cuts, np.int64)
    out = np.zeros((max(len(edges) - 1, 0), num_labels), np.int64)
    known = np.flatnonzero(timeline.label < num_labels)
    between = np.searchsorted(edges, timeline.start[known], side="right") - 1
    np.add.at(out.reshape(-1), between * num_labels + timeline.label[known], (timeline.end - timeline.start)[known])
    return out


def _distinct(moments: Int64s) -> Int64s:
    """Return each moment once, ascending; a merge sort, because the input is a few runs that ascend already."""
    ordered = np.sort(moments, kind="stable")
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


def _covered(bounds: Int64s, x: Intervals) -> npt.NDArray[np.bool_]:
    """Return which segments between bounds lie inside `x`, whose edges are all among the bounds."""
    change = np.zeros(len(bounds), np.int8)
    change[np.searchsorted(bounds, x.start)] += 1
    change[np.searchsorted(bounds, x.end)] -= 1
    return np.cumsum(change[:-1], dtype=np.int8).astype(bool)
