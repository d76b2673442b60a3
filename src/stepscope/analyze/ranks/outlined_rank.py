"""What is kept of a rank whose tables are not: all that other ranks need of it.

    kept       steps, collectives, joins, the window's intervals, what its own time follows from (0.3 MB)
    dropped    events, strings, kinds and device work (7 MB of a trace with 50,000 events)

So clocks, matching, waits, late ranks and the collectives of a job are of all its ranks. Whatever asks such a rank for
events finds none: analyses of single ranks are never asked of it.
"""

from functools import cached_property

import numpy as np

from stepscope.analyze.ranks.own_time import OwnTime, own_time
from stepscope.analyze.ranks.window import RankAccount, rank_account
from stepscope.dataclass import dataclass
from stepscope.run.device_name import Device
from stepscope.run.device_work import DeviceWork
from stepscope.run.rank import Rank
from stepscope.trace.schema import DENSE
from stepscope.trace.table import Trace

_KEPT_OF_HEADER = ("host_name", "hostname", "trace_id", "nsight")


@dataclass(frozen=True, eq=False, repr=False)
class OutlinedRank(Rank):
    """A rank without its tables."""

    events: int
    on_device: bool
    its_device: Device
    window: RankAccount | None
    own: OwnTime

    @property
    def num_events(self) -> int:
        """Return how many events its trace had."""
        return self.events

    @property
    def has_device(self) -> bool:
        """Return whether anything ran on a device."""
        return self.on_device

    @cached_property
    def device(self) -> Device:
        """Return the device and how it is known."""
        return self.its_device


def outlined(rank: Rank) -> OutlinedRank:
    """Return what is kept of a rank."""
    return OutlinedRank(
        rank=rank.rank,
        rank_source=rank.rank_source,
        trace=_without_events(rank.trace),
        kinds=rank.kinds[:0].copy(),
        steps=rank.steps,
        work=_NO_WORK,
        collectives=rank.collectives,
        joins=rank.joins,
        events=rank.num_events,
        on_device=rank.has_device,
        its_device=rank.device,
        window=rank_account(rank),
        own=own_time(rank),
    )


def window_of(rank: Rank) -> RankAccount | None:
    """Return the account of a rank's window, which is kept of an outlined one."""
    return rank.window if isinstance(rank, OutlinedRank) else rank_account(rank)


def own_time_of(rank: Rank) -> OwnTime:
    """Return what a rank's own time follows from, which is kept of an outlined one."""
    return rank.own if isinstance(rank, OutlinedRank) else own_time(rank)


def _without_events(trace: Trace) -> Trace:
    header = {key: trace.header[key] for key in _KEPT_OF_HEADER if key in trace.header}
    info = trace.header.get("distributedInfo")
    if isinstance(info, dict):  # without the list of all ranks of all groups, which every rank of the job has
        header["distributedInfo"] = {key: value for key, value in info.items() if key != "pg_config"}
    columns = {c.name: np.empty(0, c.dtype) for c in DENSE}
    return Trace(trace.path, trace.raw_bytes, header, [], columns, {}, trace.quality, trace.from_cache)


_NOTHING = np.empty(0, np.int64)
_NO_WORK = DeviceWork(
    row=_NOTHING,
    kind=np.empty(0, np.uint8),
    start_ns=_NOTHING,
    end_ns=_NOTHING,
    name=np.empty(0, np.int32),
    device=_NOTHING,
    stream=_NOTHING,
    launch_row=_NOTHING,
    op_row=_NOTHING,
    step=np.empty(0, np.int32),
)
