"""Who owns each instant? Layers of intervals painted over one another, the first layer on top.

    layers   a [0, 4)        b [2, 6)        ->  a [0, 2) a [2, 4) b [4, 6) NOTHING [6, 9)
    cuts     0, 9

Every instant between the first and the last cut lies in exactly one segment, so durations sum to the whole.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.contract.step_line import Region
from stepscope.intervals import Intervals, clip, union
from stepscope.stats.distinct import among, distinct_places
from stepscope.trace.table import Int64s

# label of instants that no layer covers
NOTHING = 255

Labels = npt.NDArray[np.uint8]


class Timeline(NamedTuple):
    """Consecutive segments, each with one label."""

    start: Int64s
    end: Int64s
    label: Labels

    def of(self, *labels: int) -> Intervals:
        keep = among(self.label, labels)
        return union(self.start[keep], self.end[keep])


def painted(layers: Sequence[tuple[int, Intervals]], cuts: npt.ArrayLike) -> Timeline:
    """Return the time between the first and the last cut, each instant with the label of the first layer over it.

    No segment crosses a cut. Cuts ascend.
    """
    edges = np.asarray(cuts, np.int64)
    clipped = [(label, clip(x, int(edges[0]), int(edges[-1]))) for label, x in layers if len(x)]
    bounds, place = distinct_places(np.concatenate([edges, *(np.stack(x, axis=1).ravel() for _, x in clipped)]))
    inside, at = np.zeros(len(bounds), np.uint32), len(edges)  # a bit for each layer
    for i, (_, x) in enumerate(clipped):
        after = at + 2 * len(x)
        inside[place[at:after:2]] ^= 1 << i
        inside[place[at + 1 : after : 2]] ^= 1 << i
        at = after
    first_over = _first_layers([label for label, _ in clipped])
    return Timeline(bounds[:-1], bounds[1:], first_over.take(np.bitwise_xor.accumulate(inside[:-1])))


def _first_layers(labels: Sequence[int]) -> Labels:
    out = np.full(1, NOTHING, np.uint8)
    for label in reversed(labels):
        out = np.stack((out, np.full(len(out), label, np.uint8)), axis=1).ravel()
    return out


def label_ns(timeline: Timeline, cuts: npt.ArrayLike, num_labels: int) -> Int64s:
    """Return the time of each label between neighbouring cuts, as rows of `num_labels` columns."""
    edges = np.asarray(cuts, np.int64)
    out = np.zeros((max(len(edges) - 1, 0), num_labels), np.int64)
    known = np.flatnonzero(timeline.label < num_labels)
    start, label = timeline.start[known], timeline.label[known]
    first = np.append(np.searchsorted(start, edges), len(start))
    place = np.repeat(np.arange(-1, len(edges)) * num_labels, np.diff(first, prepend=0)) + label
    np.add.at(out.reshape(-1), place, timeline.end[known] - start)
    return out


# The parts of a step's budget, as the contract names them, and what becomes of each region of training.

PARTS = (
    "forward", "backward", "optimizer", "other_compute", "exposed_transfer", "wait", "pipeline_bubble", "copy",
    "data_loading", "launch_gap", "host_sync", "allocator", "host_stall", "unknown",
)  # fmt: skip
PART_CODE = {part: code for code, part in enumerate(PARTS)}

# what computing in a region is; where two run at once the first of these counts
COMPUTE_PART = {
    Region.FORWARD: "forward",
    Region.BACKWARD: "backward",
    Region.OPTIMIZER: "optimizer",
    Region.OTHER: "other_compute",
    Region.DATA: "data_loading",
}
