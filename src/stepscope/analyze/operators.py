"""Which operators took the time and the memory, on the host and on the device?

Self is what an operator did itself; total includes the operators it called. Totals count each stretch of time once:
an operator that calls itself (`aten::to` within `aten::to`) has the outer call's time, not both. Device time belongs
to the innermost operator around the launch. Memory is what an operator itself allocated minus what it freed.
"""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.host_calls import Floats, HostCalls, Mask, host_calls, sum_by
from stepscope.dataclass import dataclass
from stepscope.run.load import side_by_side
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct, distinct_places
from stepscope.trace.classify import EventKind, of_kinds
from stepscope.trace.table import NO_STRING, Int64s

# slots for each key up to which a table of all possible keys is quicker than sorting them
_MAX_SPREAD = 32


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
    #: duration of all device work, streams added
    device_busy_ns: float

    def top(self, count: int) -> tuple[Operator, ...]:
        return self.operators[:count]


def operator_table(
    ranks: Sequence[Rank], *, calls_of: Sequence[HostCalls] | None = None, jobs: int = 1
) -> OperatorTable:
    """Return the operators of all ranks, `jobs` ranks at a time; `calls_of` are their calls where known already."""
    sums: dict[str, dict[str, float]] = {}
    costliest: dict[str, tuple[tuple[float, float], str | None]] = {}
    for groups in side_by_side(jobs, _of_rank, ranks, calls_of or [host_calls(rank) for rank in ranks]):
        for name, numbers, cost, shapes in groups:
            mine = sums.setdefault(name, {})
            for key, value in numbers.items():
                mine[key] = mine.get(key, 0.0) + value
            if name not in costliest or cost > costliest[name][0]:
                costliest[name] = cost, shapes
    rows = []
    for name, mine in sums.items():
        means = {"host_memory_bytes": None, "device_memory_bytes": None} | {k: v / len(ranks) for k, v in mine.items()}
        rows.append(Operator(name=name, shapes=costliest[name][1], **means))  # type: ignore[arg-type]
    rows.sort(key=lambda o: (-o.device_self_ns, -o.host_self_ns, o.name))
    busy_ns = sum(float((rank.work.end_ns - rank.work.start_ns).sum()) for rank in ranks)
    return OperatorTable(tuple(rows), busy_ns / max(len(ranks), 1))


# an operator with its sums, what its costliest call took on device and host, and that call's shapes
_GroupSums = tuple[str, dict[str, float], tuple[float, float], str | None]


def _of_rank(rank: Rank, calls: HostCalls) -> list[_GroupSums]:
    keys, group, count = _grouped(calls.name.astype(np.int64))
    totals = {"calls": count.astype(float), "host_self_ns": np.bincount(group, calls.self_ns(), minlength=len(keys))}
    duration = (rank.work.end_ns - rank.work.start_ns).astype(float)
    device_self = sum_by(calls.at_rows(rank.work.op_row), duration, len(calls))
    totals["device_self_ns"] = np.bincount(group, device_self, minlength=len(keys))
    costly = {
        "device_total_ns": calls.with_called(device_self),
        "host_total_ns": (calls.end_ns - calls.start_ns).astype(float),
    }
    costliest = _costliest(group, costly["device_total_ns"], costly["host_total_ns"], len(keys))
    worst = list(zip(*(values[costliest].tolist() for values in costly.values()), strict=True))
    nested, _ = calls.inside_of_same(group, only=_may_nest(calls, group, len(keys)).take(group))
    for name, values in costly.items():
        values[nested] = 0
        totals[name] = np.bincount(group, values, minlength=len(keys))
    for name, values in _memory(rank, calls).items():
        totals[name] = np.bincount(group, values, minlength=len(keys))
    trace = rank.trace
    dims = trace.arg("input_dims").at(calls.row[costliest], missing=NO_STRING).tolist()
    rows = zip(*(values.tolist() for values in totals.values()), strict=True)
    return [
        (trace.strings[key], dict(zip(totals, row, strict=True)), cost, trace.text(shapes))
        for key, shapes, cost, row in zip(keys.tolist(), dims, worst, rows, strict=True)
    ]


def _memory(rank: Rank, calls: HostCalls) -> dict[str, Floats]:
    trace = rank.trace
    events = np.flatnonzero(of_kinds(rank.kinds, (EventKind.MEMORY,)))
    if not len(events):
        return {}
    at = calls.innermost_at(trace["tid"][events], trace["ts_ns"][events])
    size = trace.arg("alloc_bytes").at(events, missing=0).astype(float)
    on_host = trace.arg("alloc_device_type").at(events, missing=0) == 0  # CPU
    return {
        name: sum_by(np.where(mine, at, -1), size, len(calls))
        for name, mine in (("host_memory_bytes", on_host), ("device_memory_bytes", ~on_host))
    }


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
