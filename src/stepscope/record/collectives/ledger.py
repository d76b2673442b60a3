"""The account of live collectives: totals per operation and group, and the bandwidths that follow from them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stepscope.contract import collectives as ops
from stepscope.record.collectives import volume


@dataclass(frozen=True)
class Row:
    """One operation of one process group. Bandwidths in GB/s (10^9), None where nothing was timed.

    `time_ms` is the time of the `timed_count` collectives that were timed, the wait for later ranks included, so the
    mean bandwidths are lower bounds of what the link did; `best_busbw_gb_per_s` is the fastest single collective.
    """

    operation: str
    group: str
    group_size: int | None
    count: int
    bytes: int | None
    timed_count: int
    timed_bytes: int
    time_ms: float | None
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None
    best_busbw_gb_per_s: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


class _Totals:
    __slots__ = ("best_bytes_per_ns", "bytes", "bytes_known", "count", "time_ns", "timed_bytes", "timed_count")

    def __init__(self) -> None:
        self.count = self.bytes = self.timed_count = self.timed_bytes = self.time_ns = 0
        self.bytes_known = True
        self.best_bytes_per_ns = 0.0


class Ledger:
    """Totals that only grow. Entries of the flight recorder may come again; each is counted once."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._totals: dict[tuple[str, str], _Totals] = {}
        self._counted_to: dict[tuple[str, str], int] = {}  # per backend and group: the newest entry counted
        self._timed: set[tuple[str, int]] = set()  # entries whose time was taken

    def count(self, operation: str, group: str, *, size_bytes: int | None) -> None:
        """Count one collective."""
        totals = self._of(operation, group)
        totals.count += 1
        if size_bytes is None:
            totals.bytes_known = False
        else:
            totals.bytes += size_bytes

    def time(self, operation: str, group: str, *, size_bytes: int, dur_ns: int) -> None:
        """Add the time of one collective that was counted."""
        totals = self._of(operation, group)
        totals.timed_count += 1
        totals.timed_bytes += size_bytes
        totals.time_ns += dur_ns
        if dur_ns > 0:
            totals.best_bytes_per_ns = max(totals.best_bytes_per_ns, size_bytes / dur_ns)

    def add(self, in_cpp: Iterable[Mapping[str, Any]], *, group_sizes: Mapping[str, int]) -> None:
        """Count the flight recorder's entries that are new; they come in order."""
        for entry in in_cpp:
            backend, group = entry["profiling_name"].split(":")[0], entry["process_group"][0]
            if entry["record_id"] > self._counted_to.get((backend, group), -1):
                self._counted_to[backend, group] = entry["record_id"]
                size = volume.entry_bytes(entry, group_size=group_sizes.get(group, 1))
                self.count(volume.operation_of(entry["profiling_name"]), group, size_bytes=size)

    def add_times(self, entries: Iterable[Mapping[str, Any]], *, group_sizes: Mapping[str, int]) -> None:
        """Take the backend's own times from entries that have one and were not seen before."""
        present = {(e["profiling_name"].split(":")[0], e["record_id"]): e for e in entries}
        for key, entry in present.items():
            group = entry["process_group"][0]
            size = volume.entry_bytes(entry, group_size=group_sizes.get(group, 1))
            if key not in self._timed and size is not None:
                operation = volume.operation_of(entry["profiling_name"])
                self.time(operation, group, size_bytes=size, dur_ns=round(entry["duration_ms"] * 1e6))
        self._timed = set(present)  # what the recorder has dropped will not come again

    def forget_times(self, groups: Collection[str]) -> None:
        """Drop the times of some groups, because a better source has come up."""
        for (_, group), totals in list(self._totals.items()):
            if group in groups:
                totals.timed_count = totals.timed_bytes = totals.time_ns = 0
                totals.best_bytes_per_ns = 0.0

    def note(self, text: str) -> None:
        """Keep a remark for the reader, once."""
        if text not in self.notes:
            self.notes.append(text)

    def rows(self, group_sizes: Mapping[str, int]) -> list[Row]:
        """Return one row per operation and group, most bytes first."""
        rows = [_row(*key, totals, group_sizes.get(key[1])) for key, totals in list(self._totals.items())]
        return sorted(rows, key=lambda row: (-(row.bytes or 0), row.operation, row.group))

    def _of(self, operation: str, group: str) -> _Totals:
        totals = self._totals.get((operation, group))
        if totals is None:
            totals = self._totals[operation, group] = _Totals()
        return totals


def _row(operation: str, group: str, totals: _Totals, group_size: int | None) -> Row:
    algbw = totals.timed_bytes / totals.time_ns if totals.time_ns and totals.timed_bytes else None
    factor = ops.bus_factor(operation, group_size) if group_size else None
    return Row(
        operation=operation,
        group=group,
        group_size=group_size,
        count=totals.count,
        bytes=totals.bytes if totals.bytes_known else None,
        timed_count=totals.timed_count,
        timed_bytes=totals.timed_bytes,
        time_ms=totals.time_ns / 1e6 if totals.timed_count else None,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=algbw * factor if algbw is not None and factor is not None else None,
        best_busbw_gb_per_s=totals.best_bytes_per_ns * factor if algbw is not None and factor is not None else None,
    )
