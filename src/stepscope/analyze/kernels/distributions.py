"""How long are kernels, and how many lie launched and waiting on the device?

Durations in bins that double (below 2 µs, 2 to 4 µs, ...), by what kernels are. The queue is what the host has launched
and the device has not begun: at 0 the device waits for the host.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.kernels.call_costs import FAMILIES
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.stats.middle import median
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

Floats = npt.NDArray[np.float64]
FIRST_BIN_NS = 2_000
NUM_BINS = 16
QUEUE_EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""the least length of each bin"""
COMMUNICATION = "communication"


@dataclass(frozen=True, eq=False, repr=False)
class Distributions(ArrayRecord):
    """Means over ranks, per rank."""

    families: tuple[str, ...]
    count: Floats
    """kernels by family and bin of duration"""
    time_ns: Floats
    """the same by their time"""
    queue_share: Floats
    """of the time between the first launch and the last start, by bin of the queue's length; sums to 1"""
    queue_median: float | None
    """length that half of all launches find or exceed"""


def distributions(costs: Sequence[KernelCosts]) -> Distributions | None:
    """Return how kernels and queues are distributed, None where nothing ran on a device."""
    known = [one for one in costs if one.rank.has_device]
    if not known:
        return None
    count: dict[str, Floats] = {}
    time_ns: dict[str, Floats] = {}
    for one in known:
        work = one.rank.work
        kernels = np.isin(work.kind, (EventKind.KERNEL, EventKind.COMM_KERNEL))
        bins = duration_bins(one.duration_ns)
        names = np.where(work.kind == EventKind.COMM_KERNEL, len(FAMILIES), one.family)
        for code in distinct(names[kernels]).tolist():
            mine = kernels & (names == code)
            name = COMMUNICATION if code == len(FAMILIES) else FAMILIES[code].value
            count[name] = count.get(name, 0) + np.bincount(bins[mine], minlength=NUM_BINS) / len(known)
            spent = np.bincount(bins[mine], one.duration_ns[mine], minlength=NUM_BINS)
            time_ns[name] = time_ns.get(name, 0) + spent / len(known)
    if not count:
        return None
    families = tuple(sorted(count, key=lambda name: -float(time_ns[name].sum())))
    shares, medians = zip(*(_queue(one.rank) for one in known), strict=True)
    lengths = [m for m in medians if m is not None]
    return Distributions(
        families=families,
        count=np.array([count[name] for name in families]),
        time_ns=np.array([time_ns[name] for name in families]),
        queue_share=np.mean(shares, axis=0),
        queue_median=median(lengths) if lengths else None,
    )


def duration_bins(duration_ns: Int64s) -> Int64s:
    """Return the bin of each duration.

    >>> duration_bins(np.array([900, 2_000, 5_000])).tolist()
    [0, 1, 2]
    """
    edges = FIRST_BIN_NS * 2 ** np.arange(NUM_BINS - 1)
    return np.searchsorted(edges, duration_ns, side="right")


def _queue(rank: Rank) -> tuple[Floats, float | None]:
    """Return the share of time at each length of the queue, and the median that launches find."""
    work = rank.work
    launched = work.launch_row >= 0
    share = np.zeros(len(QUEUE_EDGES))
    if launched.sum() < 2:
        return share, None
    asked, begun = np.sort(rank.trace["ts_ns"][work.launch_row[launched]]), np.sort(work.start_ns[launched])
    moments = np.concatenate((asked, begun))
    order = np.argsort(moments, kind="stable")
    length = np.cumsum(np.repeat((1, -1), (len(asked), len(begun)))[order])
    lasts = np.diff(moments[order])
    bins = np.searchsorted(QUEUE_EDGES, np.maximum(length[:-1], 0), side="right") - 1
    spent = np.bincount(bins, lasts, minlength=len(QUEUE_EDGES))
    whole = spent.sum()
    found = np.arange(len(asked)) - np.searchsorted(begun, asked)
    return (spent / whole if whole else share), median(np.maximum(found, 0))
