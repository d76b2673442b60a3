"""Which operators took the time and the memory, on the host and on the device?

Self is what an operator did itself; total includes the operators it called. Totals count each stretch of time once:
an operator that calls itself (`aten::to` within `aten::to`) has the outer call's time, not both. Device time belongs
to the innermost operator around the launch. Memory is what an operator itself allocated minus what it freed.
"""

from collections.abc import Sequence
from dataclasses import field, fields
from enum import Enum

import numpy as np

from stepscope.analyze.host_calls import Floats, HostCalls, Mask, host_calls, sum_by
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.load import side_by_side
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct, distinct_places
from stepscope.trace.classify import EventKind, of_kinds
from stepscope.trace.table import NO_STRING, Int64s

_HOST_DEVICE_TYPE = 0
# slots for each key up to which a table of all possible keys is quicker than sorting them
_MAX_SPREAD = 32


class GroupBy(Enum):
    """What makes two calls the same operator."""

    NAME = "name"
    NAME_AND_SHAPE = "name and shape"


@dataclass(frozen=True)
class Operator:
    """One operator over the whole window: means per rank, so that 8 ranks read like one."""

    name: str
    #: input shapes as recorded: of all its calls when grouped by shape, else of the most expensive one
    shapes: str | None
    calls: float
    host_self_ns: float
    host_total_ns: float
    device_self_ns: float
    device_total_ns: float
    #: allocated minus freed; None where memory was not recorded
    host_memory_bytes: float | None
    device_memory_bytes: float | None


@dataclass(frozen=True)
class OperatorTable:
    """All operators of a run, by device time, then host time. Times are means per rank."""

    operators: tuple[Operator, ...]
    #: time in which a thread was inside an operator, all threads added: what the self times sum to
    host_busy_ns: float
    #: duration of all device work, streams added
    device_busy_ns: float
    #: of it: launched before the window or outside of any operator
    device_without_operator_ns: float

    def top(self, count: int, *, by: str = "device_self_ns") -> tuple[Operator, ...]:
        """Return the `count` operators that are largest in one of their numbers."""
        return tuple(sorted(self.operators, key=lambda o: -(getattr(o, by) or 0))[:count])


# What `OperatorTable.top` can sort by.
SORTABLE = tuple(f.name for f in fields(Operator) if f.name not in ("name", "shapes"))


def operator_table(
    ranks: Sequence[Rank],
    *,
    calls_of: Sequence[HostCalls] | None = None,
    group_by: GroupBy = GroupBy.NAME,
    jobs: int = 1,
) -> OperatorTable:
    """Return the operators of all ranks in one table; `calls_of` are their calls, where those are known already, and
    so many `jobs` ranks are added up at once.
    """
    sums: dict[Group, _Sums] = {}
    host = device = orphan = 0.0
    calls_of = calls_of or [host_calls(rank) for rank in ranks]
    for one in side_by_side(jobs, lambda rank, calls: _of_rank(rank, calls, group_by), ranks, calls_of):
        host += one.host_ns
        device += one.device_ns
        orphan += one.orphan_ns
        for group, numbers, cost, shapes in one.groups:
            sums.setdefault(group, _Sums()).add(numbers, cost, shapes)
    n = max(len(ranks), 1)
    rows = [one.mean(name, n) for (name, _), one in sums.items()]
    rows.sort(key=lambda o: (-o.device_self_ns, -o.host_self_ns, o.name))
    return OperatorTable(tuple(rows), host / n, device / n, orphan / n)


@dataclass
class _Sums:
    numbers: dict[str, float] = field(default_factory=dict)
    costliest: tuple[float, float] = (-1.0, -1.0)
    shapes: str | None = None

    def add(self, numbers: dict[str, float], cost: tuple[float, float], shapes: str | None) -> None:
        for name, value in numbers.items():
            self.numbers[name] = self.numbers.get(name, 0.0) + value
        if cost > self.costliest:
            self.costliest, self.shapes = cost, shapes

    def mean(self, name: str, num_ranks: int) -> Operator:
        means = {key: value / num_ranks for key, value in self.numbers.items()}
        return Operator(
            name=name,
            shapes=self.shapes,
            calls=means["calls"],
            host_self_ns=means["host_self_ns"],
            host_total_ns=means["host_total_ns"],
            device_self_ns=means["device_self_ns"],
            device_total_ns=means["device_total_ns"],
            host_memory_bytes=means.get("host_memory_bytes"),
            device_memory_bytes=means.get("device_memory_bytes"),
        )


# an operator's name, and the shapes where they tell operators apart
Group = tuple[str, str | None]
# an operator with its sums, what its costliest call took on device and host, and that call's shapes
GroupSums = tuple[Group, dict[str, float], tuple[float, float], str | None]


@dataclass(frozen=True, eq=False, repr=False)
class _RankSums(ArrayRecord):
    host_ns: float
    device_ns: float
    orphan_ns: float
    groups: list[GroupSums]


def _of_rank(rank: Rank, calls: HostCalls, group_by: GroupBy) -> _RankSums:
    keys, group, count = _keys(rank, calls, group_by)
    totals = {"calls": count.astype(float)}
    host_self = calls.self_ns()
    totals["host_self_ns"] = np.bincount(group, host_self, minlength=len(keys))
    host_ns = float(host_self.astype(float).sum())
    del host_self
    duration = rank.work.end_ns - rank.work.start_ns
    device_self = sum_by(calls.at_rows(rank.work.op_row), duration.astype(float), len(calls))
    totals["device_self_ns"] = np.bincount(group, device_self, minlength=len(keys))
    busy, device_ns = float(duration.sum()), float(device_self.sum())
    costly = {
        "device_total_ns": calls.with_called(device_self),
        "host_total_ns": (calls.end_ns - calls.start_ns).astype(float),
    }
    del device_self
    costliest = _costliest(group, costly["device_total_ns"], costly["host_total_ns"], len(keys))
    worst = list(zip(*(values[costliest].tolist() for values in costly.values()), strict=True))
    nested, _ = calls.inside_of_same(group, only=_may_nest(calls, group, len(keys)).take(group))
    for name, values in costly.items():
        values[nested] = 0
        totals[name] = np.bincount(group, values, minlength=len(keys))
    for name, values in _memory(rank, calls).items():
        totals[name] = np.bincount(group, values, minlength=len(keys))
    groups = _groups(rank, calls, keys, totals, costliest, worst, group_by)
    return _RankSums(host_ns=host_ns, device_ns=busy, orphan_ns=busy - device_ns, groups=groups)


def _memory(rank: Rank, calls: HostCalls) -> dict[str, Floats]:
    trace = rank.trace
    events = np.flatnonzero(of_kinds(rank.kinds, (EventKind.MEMORY,)))
    if not len(events):
        return {}
    at = calls.innermost_at(trace["tid"][events], trace["ts_ns"][events])
    size = trace.arg("alloc_bytes").at(events, missing=0).astype(float)
    on_host = trace.arg("alloc_device_type").at(events, missing=_HOST_DEVICE_TYPE) == _HOST_DEVICE_TYPE
    return {
        name: sum_by(np.where(mine, at, -1), size, len(calls))
        for name, mine in (("host_memory_bytes", on_host), ("device_memory_bytes", ~on_host))
    }


def _keys(rank: Rank, calls: HostCalls, group_by: GroupBy) -> tuple[Int64s, Int64s, Int64s]:
    """Return what makes calls the same operator: each key once, the place of every call among them, how often each is
    there.
    """
    key = calls.name.astype(np.int64)
    if group_by is GroupBy.NAME_AND_SHAPE:
        key *= len(rank.trace.strings) + 1
        key += rank.trace.arg("input_dims").at(calls.row, missing=NO_STRING) - NO_STRING
    return _grouped(key)


def _groups(
    rank: Rank,
    calls: HostCalls,
    keys: Int64s,
    totals: dict[str, Floats],
    costliest: Int64s,
    worst: Sequence[tuple[float, float]],
    group_by: GroupBy,
) -> list[GroupSums]:
    trace, by_shape = rank.trace, group_by is GroupBy.NAME_AND_SHAPE
    dims = trace.arg("input_dims").at(calls.row[costliest], missing=NO_STRING).tolist()
    rows = zip(*(values.tolist() for values in totals.values()), strict=True)
    found = []
    for one, worst_dims, cost, row in zip(keys.tolist(), dims, worst, rows, strict=True):
        name_id, shape = divmod(one, len(trace.strings) + 1) if by_shape else (one, 0)
        group_of = trace.strings[name_id], trace.text(shape + NO_STRING) if by_shape else None
        found.append((group_of, dict(zip(totals, row, strict=True)), cost, trace.text(worst_dims)))
    return found


def _grouped(key: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return each key once, ascending, the place of every one among them, and how often each is there.

    >>> [values.tolist() for values in _grouped(np.array([7, -1, 7, 9]))]
    [[-1, 7, 9], [1, 0, 1, 2], [1, 2, 1]]
    """
    low, high = int(key.min(initial=0)), int(key.max(initial=0))
    if high - low > _MAX_SPREAD * len(key):
        keys, place = distinct_places(key)
        return keys, place, np.bincount(place, minlength=len(keys))
    place = key - low
    count = np.bincount(place)
    there = np.flatnonzero(count)
    return there + low, (np.cumsum(count > 0) - 1).take(place), count[there]


def _may_nest(calls: HostCalls, group: Int64s, num_groups: int) -> Mask:
    """Return which groups may have calls inside calls of their own: those that stay when groups that call none, or that
    none calls, are left out again and again.
    """
    pairs = np.append(group, num_groups).take(calls.parent)  # in the last place: of no caller
    pairs *= num_groups
    pairs += group
    caller, called = np.divmod(distinct(pairs), max(num_groups, 1))
    stays = caller < num_groups
    while True:
        caller, called = caller[stays], called[stays]
        calls_some, is_called = np.zeros(num_groups, bool), np.zeros(num_groups, bool)
        calls_some[caller], is_called[called] = True, True
        may = calls_some & is_called
        stays = may[caller] & may[called]
        if stays.all():
            return may


def _costliest(group: Int64s, device: Floats, host: Floats, num_groups: int) -> Int64s:
    on_device = np.flatnonzero(device > 0)
    of, values = group.take(on_device), device.take(on_device)
    most_device = np.zeros(num_groups)
    np.maximum.at(most_device, of, values)
    out = np.empty(num_groups, np.int64)
    for calls in (None, on_device[values == most_device.take(of)]):  # of all first, then of those with a device's time
        of, values = (group, host) if calls is None else (group.take(calls), host.take(calls))
        most_host = np.zeros(num_groups)
        np.maximum.at(most_host, of, values)
        kept = np.flatnonzero(values == most_host.take(of))
        out[of.take(kept)] = kept if calls is None else calls.take(kept)
    return out
