"""One rank: its trace with kinds, steps, device work and collectives joined. What the analyses work on."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.collectives import Collectives, believable_world, device_collectives, flight_calls, gloo_collectives
from stepscope.run.device_work import DeviceWork, Rows, device_work, with_possible_times, with_times
from stepscope.run.steps import Steps, recorded_steps
from stepscope.trace.table import (
    DEVICE_PROCESS,
    EventKind,
    Int64s,
    Kinds,
    Trace,
    coded_rows,
    codes_of_names,
    event_kinds,
    labels,
    names_by_kind,
)
from stepscope.units import NS_PER_MS, rank_ranges

CPU = "CPU"
# reading a number from memory of the host never takes as long, unless the thread loses its core meanwhile
_WAITING_READ_NS = 20_000
_CONTEXT_NS = 1_000_000_000
# operators and ranges of libraries that only devices have
_DEVICE_LIBRARY = re.compile(
    r"cudnn|miopen|^[nr]ccl:|^aten::_(flash|efficient)_attention_|^triton_(poi|red|per|tem)_|^(aiter|flash_attn|sgl_kernel)::"
)
_RANGE_PROFILER = "cuda_profiler_range"
_APPLE = re.compile(r"^aten::(?:linear_backward$|_?mps_|\w+_mps)")

# First match wins.
_ARCHITECTURES = (
    (re.compile(r"(?<![a-z0-9])sm_?(\d{2,3})a?(?=[_.x]|$)", re.IGNORECASE), "NVIDIA GPU of compute capability {}"),
    (re.compile(r"(gfx\d+[a-z]?)"), "AMD GPU {}"),
    (re.compile(r"(?<![a-z])(volta|turing|ampere|hopper|blackwell)_"), "NVIDIA {} GPU"),
    (re.compile(r"(Cijk_)"), "AMD GPU"),
)


@dataclass(frozen=True)
class Device:
    """The device of a rank as its trace shows it."""

    #: as the driver gives it, `CPU` where nothing was launched; None where nothing names it
    name: str | None
    #: properties, kernels or metadata
    source: str | None
    #: the header's entry, empty where there is none
    properties: dict[str, Any]


def device_of(trace: Trace, work: DeviceWork, *, launches: int) -> Device:
    """Return the device of a rank that ran `work` and called `launches` launches whose work was not recorded."""
    found = trace.header.get("deviceProperties")
    listed = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    if not len(work) and not launches and not (listed and trace.quality.truncated):
        return Device(CPU, None, {})
    devices, count = np.unique(work.device, return_counts=True)
    properties = _entry(listed, int(devices[count.argmax()]) if len(work) else 0)
    name = str(properties.get("name") or "").strip()
    if name:
        return Device(name, "properties", properties)
    for said, source in ((_by_kernels(trace, work), "kernels"), (_by_metadata(trace, work), "metadata")):
        if said:
            return Device(said, source, properties)
    return Device(None, None, properties)


def _entry(listed: Sequence[dict[str, Any]], used: int) -> dict[str, Any]:
    own = next((entry for entry in listed if entry.get("id") == used), None)
    if own is not None:
        return own
    kinds = {(str(entry.get("name")), str(entry.get("totalGlobalMem")), str(entry.get("numSms"))) for entry in listed}
    names = {name for name, _, _ in kinds}
    if len(kinds) == 1:
        return listed[0]
    return {"name": listed[0].get("name")} if len(names) == 1 and listed else {}


def _by_kernels(trace: Trace, work: DeviceWork) -> str | None:
    ids, count = np.unique(work.name[work.name >= 0], return_counts=True)
    found: Counter[str | None] = Counter()
    for i, n in list(zip(ids.tolist(), count.tolist(), strict=True))[:20_000]:
        found[_architecture(trace.strings[i])] += n
    del found[None]
    return max(found, key=lambda said: found[said], default=None)


def _architecture(kernel: str) -> str | None:
    for pattern, words in _ARCHITECTURES:
        match = pattern.search(kernel)
        if match:
            digits = match.group(1)
            spelt = f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() else digits.capitalize()
            return words.format(digits if digits.startswith("gfx") else spelt)
    return None


def _by_metadata(trace: Trace, work: DeviceWork) -> str | None:
    for path in (("metadata", "system", "gpu"), ("metadata", "gpu"), ("gpu_name",), ("device_name",)):
        names = set(_texts(_inside(trace.header, path)))
        if len(names) == 1:
            return names.pop()
    pids, count = np.unique(trace["pid"][work.row], return_counts=True)
    named = {pid: text for (pid, _), text in labels(trace, "process_name").items()}
    said = named.get(int(pids[count.argmax()])) if len(pids) else None
    return said if said and DEVICE_PROCESS.search(said) else None


def _inside(header: dict[str, Any], path: Iterable[str]) -> object:
    value: object = header
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _texts(value: object) -> list[str]:
    values = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return [v.strip() for v in values if isinstance(v, str) and v.strip()]


@dataclass(frozen=True, eq=False, repr=False)
class Rank(ArrayRecord):
    """One rank of a run."""

    rank: int
    #: how the rank is known: `distributedInfo`, `file name` or `order`
    rank_source: str
    trace: Trace
    kinds: Kinds
    steps: Steps
    work: DeviceWork
    collectives: Collectives
    #: what could and could not be joined (`device_work`)
    joins: Row
    #: in the event table: device operations with an impossible duration, and with an impossible start; both estimated
    cut: Rows
    moved: Rows
    #: whether the recorder found no device in the job
    without_device: bool

    @property
    def num_events(self) -> int:
        return self.trace.num_events

    @property
    def estimated_ns(self) -> float:
        """Return the time per step of device operations whose recorded times were impossible."""
        took = self.trace["dur_ns"]
        return float(took[self.cut].sum() + took[self.moved].sum()) / max(len(self.steps), 1)

    @property
    def has_device(self) -> bool:
        """Return whether anything ran on a device; if not the host is what computed."""
        return len(self.work) > 0

    def names(self, *kinds: EventKind) -> list[str]:
        there = names_by_kind(self.trace)[list(kinds)].any(axis=0)
        return [self.trace.strings[i] for i in np.flatnonzero(there).tolist()]

    def rows_named(self, matches: Callable[[str], bool], *kinds: EventKind) -> Rows:
        return self.coded_rows(matches, *kinds)[0]

    def coded_rows(self, rule: Callable[[str], int], *kinds: EventKind) -> tuple[Rows, Kinds]:
        return coded_rows(self.trace, rule, kinds)

    def codes_of_names(self, rule: Callable[[str], int], *kinds: EventKind) -> Kinds:
        """Return the number that `rule` gives to each string that names rows of these kinds; 0 for all others, and in
        one more place for no name.
        """
        return codes_of_names(self.trace, rule, kinds)

    @property
    def host(self) -> str | None:
        name = self.trace.header.get("host_name") or self.trace.header.get("hostname")
        return str(name) if name else None

    @cached_property
    def device(self) -> Device:
        return device_of(self.trace, self.work, launches=0 if self.has_device else self._unseen_launches)

    @cached_property
    def _unseen_launches(self) -> int:
        """Return launches without device work; where no call was recorded, operators of libraries for devices, or most
        of the time of all reads of single values where the trace lists a device that they can have waited for.

        Reserving memory takes a second only where it creates a device's context. No other duration shows a device: a
        thread that loses its core is as slow in any operator.
        """
        if self.without_device:
            return 0
        of_library = self.rows_named(
            lambda name: bool(_DEVICE_LIBRARY.search(name)), EventKind.HOST_OP, EventKind.ANNOTATION
        )
        reserves = self.rows_named(lambda name: name.startswith("aten::empty"), EventKind.HOST_OP)
        contexts = int((self.trace["dur_ns"][reserves] >= _CONTEXT_NS).sum())
        known = self.joins.launches_without_work or len(of_library) or len(self._apple_operators) or contexts
        if known or not self.trace.header.get("deviceProperties"):
            return known
        took = self.trace["dur_ns"]
        waited = self.waiting_reads
        return len(waited) if 2 * took[waited].sum() > took[self._reads].sum() else 0

    @property
    def waiting_reads(self) -> Rows:
        """Return reads of single values that took longer than reading memory of the host."""
        return self._reads[self.trace["dur_ns"][self._reads] >= _WAITING_READ_NS]

    @cached_property
    def _reads(self) -> Rows:
        return self.rows_named(lambda name: name == "aten::_local_scalar_dense", EventKind.HOST_OP)

    @cached_property
    def _apple_operators(self) -> Rows:
        """Return operators that only Apple's devices have: others run a linear layer's backward as matrix products."""
        return self.rows_named(lambda name: bool(_APPLE.match(name)), EventKind.HOST_OP)

    @property
    def device_name(self) -> str | None:
        return self.device.name

    @property
    def device_unseen(self) -> bool:
        """Return whether a device was used of which nothing was recorded: only the host is known."""
        return not self.has_device and self.device_name != CPU

    @property
    def device_advice(self) -> str:
        """Return what records the device, by why nothing of it was recorded."""
        if self.trace.quality.truncated:
            return "the file is cut off: export it again"
        if len(self._apple_operators):
            return "its operators are those of Apple devices: use torch.mps.profiler and Instruments"
        if _RANGE_PROFILER in self.trace.strings:
            return "record without hardware counters: range profiling replaces the times of kernels"
        if self.joins.launches_without_work:
            return (
                "CUPTI lost the kernels of recorded launches: end other profilers, check driver permissions, avoid WSL"
            )
        return "record with ProfilerActivity.CUDA"

    @property
    def distributed(self) -> dict[str, Any]:
        info = self.trace.header.get("distributedInfo")
        return info if isinstance(info, dict) else {}

    @property
    def world_size(self) -> int | None:
        """Return the number of ranks in the job by this rank's trace; None where it is not recorded."""
        return believable_world(self.distributed.get("world_size"))


def rank_of_trace(trace: Trace, *, rank: int, rank_source: str, flight_file: Path | None = None) -> Rank:
    """Return the rank with everything joined that its trace allows, and its flight recorder's file on gloo."""
    kinds = event_kinds(trace)
    steps = recorded_steps(trace, kinds)
    work, joins = device_work(trace, kinds, steps)
    trace, cut, moved = with_possible_times(trace, work)
    if len(cut) or len(moved):
        work, joins = device_work(trace, kinds, steps)
    if len(work):
        collectives = device_collectives(trace, work)
    else:
        flight = flight_calls(flight_file) if flight_file is not None else ()
        collectives = gloo_collectives(trace, kinds, steps, flight=flight)
    return Rank(rank, rank_source, trace, kinds, steps, work, collectives, joins, cut, moved, False)


def with_collective_ends(rank: Rank, rows: Rows, end_ns: Int64s) -> Rank:
    """Return the rank with the ends of some collectives where the other ranks show them.

    A collective that was cut, or is too long, keeps its start; any other one keeps its duration.
    """
    c, at = rank.collectives, rank.work.row[rank.collectives.device_index[rows]]
    keeps_start = (
        (c.start_ns[rows] < end_ns) & (np.isin(at, rank.cut) | (c.end_ns[rows] > end_ns)) & ~np.isin(at, rank.moved)
    )
    start = np.where(keeps_start, c.start_ns[rows], end_ns - (c.end_ns - c.start_ns)[rows])
    note = f"collectives whose times the other ranks rule out, corrected: {len(rows):,}"
    trace = with_times(rank.trace, at, start, end_ns - start, note)
    work, joins = device_work(trace, rank.kinds, rank.steps)
    cut, moved = np.union1d(rank.cut, at[keeps_start]), np.union1d(rank.moved, at[~keeps_start])
    collectives = device_collectives(trace, work)
    return replace(rank, trace=trace, work=work, joins=joins, collectives=collectives, cut=cut, moved=moved)


# Warnings about losses in the traces.

_MAX_NAMED = 4

_COUNTED: tuple[tuple[Callable[[Rank], int], str], ...] = (
    (lambda r: r.trace.quality.malformed, "events that are no valid JSON are lost"),
    (lambda r: r.trace.quality.bad_time, "events dropped for a time that is missing or no finite number"),
    (lambda r: r.trace.quality.negative_duration, "events dropped for a negative duration"),
    (
        lambda r: r.trace.quality.far_times,
        "events skipped: time overflows or is far outside the window",
    ),
    (lambda r: r.trace.quality.repaired, "events with bad JSON were repaired"),
    (lambda r: r.trace.quality.bad_text, "names with invalid characters, replaced"),
    (lambda r: r.trace.quality.shortened, "names longer than the limit, shortened"),
    (lambda r: r.trace.quality.bad_args, "argument values of the wrong type or out of range, left out"),
    (
        lambda r: r.joins.without_launch,
        "device operations were launched before recording began and are not assigned to any step",
    ),
    (lambda r: r.joins.launches_without_work, "launches without device work in the trace"),
    (lambda r: r.collectives.unanswered, "collectives called but not executed within the trace"),
    (lambda r: r.joins.reused_correlation, "launches that share a correlation id with another"),
    (
        lambda r: r.collectives.unjoined,
        "communication operations without a record: their bytes and group are unknown",
    ),
)


def quality_warnings(ranks: Sequence[Rank]) -> list[str]:
    """Return one line per kind of loss, with its count and the ranks it is largest on."""
    lines = []
    for count, what in _COUNTED:
        counts = [(count(rank), rank.rank) for rank in ranks]
        total = sum(n for n, _ in counts)
        if total:
            lines.append(f"{total:,} {what}{_where(counts)}")
    lost = [(r.joins.lost_first, r.rank) for r in ranks if r.joins.lost_first]
    if lost:
        most_ns, total = max(r.joins.lost_first_ns for r in ranks), sum(n for n, _ in lost)
        lines.append(
            f"{total:,} launches before the first with device work, their records dropped by the driver: "
            f"up to {most_ns / NS_PER_MS:.3g} ms of device work per rank are missing and count as idle"
            f"{_where(lost) if len(ranks) > 1 else ''}"
        )
    return [*cut_off(ranks), *lines] + [f"rank {r.rank}: {note}" for r in ranks for note in r.trace.quality.notes]


def cut_off(ranks: Sequence[Rank]) -> list[str]:
    """Return the line that names the traces which end too early, if any do."""
    cut = [r.rank for r in ranks if r.trace.quality.truncated]
    if not cut:
        return []
    return [
        f"cut off: the trace of rank{'s' if len(cut) > 1 else ''} {rank_ranges(cut)}; "
        "what was readable is used, without an incomplete last step"
    ]


def _where(counts: list[tuple[int, int]]) -> str:
    if len(counts) == 1:
        return ""
    worst = sorted((c for c in counts if c[0]), reverse=True)
    named = ", ".join(f"rank {rank}: {n:,}" for n, rank in worst[:_MAX_NAMED])
    return f" ({named}{', ...' if len(worst) > _MAX_NAMED else ''})"
