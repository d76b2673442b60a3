"""When did the device of a rank run work of other ranks of the job?

Several ranks can share one device (a test on one GPU, small stages of a pipeline). Work that a rank launched long ago
then lies queued while kernels of another rank run: that time has a cause, which no single trace shows. The recorder's
telemetry says by the device's uuid who shares one; ranks without telemetry share with nobody.
"""

from collections import defaultdict

import numpy as np

from stepscope.intervals import EMPTY, Intervals, union, union_of
from stepscope.run.aligned import AlignedRun


def others_on_device(shared: AlignedRun) -> tuple[Intervals, ...]:
    """Return per rank, on its own clock, when other ranks' work ran on its device."""
    ranks = shared.run.ranks
    alike: dict[str, list[int]] = defaultdict(list)
    uuid_of = {t.rank: t.device.get("uuid") for t in shared.run.beside.telemetry}
    for index, rank in enumerate(ranks):
        uuid = uuid_of.get(rank.rank)
        if uuid and rank.has_device and shared.clocks.known[index]:
            alike[uuid].append(index)
    out = [EMPTY] * len(ranks)
    for members in alike.values():
        busy = {index: _busy(shared, index) for index in members} if len(members) > 1 else {}
        for index in busy:
            others = union_of(*(busy[other] for other in members if other != index))
            out[index] = _on_clock_of(shared, index, others)
    return tuple(out)


def _busy(shared: AlignedRun, index: int) -> Intervals:
    """Return when a rank's work ran, on the shared clock."""
    work = shared.run.ranks[index].work
    return union(shared.clocks.shared(index, work.start_ns), shared.clocks.shared(index, work.end_ns))


def _on_clock_of(shared: AlignedRun, index: int, x: Intervals) -> Intervals:
    """Return times of the shared clock on a rank's own: the two differ by an offset, drift within a window is small."""
    if not len(x):
        return x
    at = shared.run.ranks[index].work.start_ns[:1]
    ahead = int((shared.clocks.shared(index, at) - at)[0]) if len(at) else 0
    return Intervals(np.asarray(x.start - ahead), np.asarray(x.end - ahead))
