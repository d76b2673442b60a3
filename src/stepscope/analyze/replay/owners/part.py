"""What each rank did for a line or a module, as the part that a replay can take out or scale."""

from collections.abc import Callable, Sequence

from stepscope.analyze.owners.ownership import OwnedWork, Ownership
from stepscope.analyze.owners.selection import OwnerName
from stepscope.analyze.owners.stacks import Mask
from stepscope.analyze.owners.sums import COLUMNS, OwnerSums
from stepscope.analyze.replay.owners.removal import Part, with_plain_python
from stepscope.analyze.replay.replay import Replay
from stepscope.intervals import EMPTY, intersect
from stepscope.trace.classify import EventKind

_TIMES = [COLUMNS.index(name) for name in ("host_ns", "blocked_ns", "device_ns", "comm_ns")]


Choose = Callable[[Ownership, OwnedWork], Mask]
"""which of some owned things belong to a part"""


def part_of(owned: Ownership, name: OwnerName) -> Part:
    """Return what a rank did for an owner."""
    return part_for(owned, name.chosen)


def part_for(owned: Ownership, choose: Choose, *, device: bool = True) -> Part:
    """Return what a rank did for the chosen owners; without `device` kernels and copies stay."""
    rank = owned.rank
    calls, callers = owned.runtime_calls
    host = owned.running(choose(owned, owned.host.owner))
    work = choose(owned, owned.by_work)
    return Part(
        host=host,
        python=intersect(host, owned.long_python),
        work=work if device else work & (rank.work.kind == EventKind.COMM_KERNEL),
        collectives=choose(owned, owned.by_collective),
        calls=calls[choose(owned, callers)],
    )


def claimed_ns(owned: Ownership, sums: OwnerSums, name: OwnerName) -> float:
    """Return all the time per step that an owner takes on a rank, host and device together: it saves no more."""
    return float(sums.amount[name.chosen(owned, sums.owner)][:, _TIMES].sum())


def owned_replay(replay: Replay, ownership: Sequence[Ownership | None]) -> Replay:
    """Return the replay of a run whose long stretches of Python are known: the profiler did not stretch them."""
    return with_plain_python(replay, [EMPTY if one is None else one.long_python for one in ownership])
