"""One rank: its trace with kinds, steps, device work and collectives joined. What the analyses work on."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.collectives import Collectives, device_collectives
from stepscope.run.device_work import DeviceWork, JoinCounts, Rows, device_work, with_possible_times
from stepscope.run.steps import Steps, recorded_steps
from stepscope.trace.classify import EventKind, Kinds, coded_rows, codes_of_names, event_kinds, labels, names_by_kind
from stepscope.trace.table import Trace

CPU = "CPU"
# labels of processes that say nothing of the chip
_NO_NAME = re.compile(r"^(GPU|CPU|python|pt_)", re.IGNORECASE)

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
    for field in (("metadata", "system", "gpu"), ("metadata", "gpu"), ("gpu_name",), ("device_name",)):
        names = set(_texts(_inside(trace.header, field)))
        if len(names) == 1:
            return names.pop()
    pids, count = np.unique(trace["pid"][work.row], return_counts=True)
    named = {pid: text for (pid, _), text in labels(trace, "process_name").items()}
    said = named.get(int(pids[count.argmax()])) if len(pids) else None
    return said if said and not _NO_NAME.match(said) else None


def _inside(header: dict[str, Any], path: Iterable[str]) -> object:
    value: object = header
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _texts(value: object) -> list[str]:
    values = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return [v.strip() for v in values if isinstance(v, str) and v.strip()]


# a world said to be larger is not believed
_MAX_RANKS = 1 << 20


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
    joins: JoinCounts

    @property
    def num_events(self) -> int:
        return self.trace.num_events

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
        return device_of(self.trace, self.work, launches=0 if self.has_device else self.joins.launches_without_work)

    @property
    def device_name(self) -> str | None:
        return self.device.name

    @property
    def device_unseen(self) -> bool:
        """Return whether work was launched on a device of which nothing was recorded: only the host is known."""
        return not self.has_device and self.joins.launches_without_work > 0

    @property
    def distributed(self) -> dict[str, Any]:
        info = self.trace.header.get("distributedInfo")
        return info if isinstance(info, dict) else {}

    @property
    def world_size(self) -> int | None:
        """Return the number of ranks in the job as this one knows it; None where the trace does not say."""
        return believable_world(self.distributed.get("world_size"))


def believable_world(said: object) -> int | None:
    """Return a number of ranks that was read somewhere, None where it is none."""
    return said if isinstance(said, int) and not isinstance(said, bool) and 0 < said <= _MAX_RANKS else None


def rank_of_trace(trace: Trace, *, rank: int, rank_source: str, flight_file: Path | None = None) -> Rank:
    """Return the rank with everything joined that its trace allows, and its flight recorder's file on gloo."""
    kinds = event_kinds(trace)
    steps = recorded_steps(trace, kinds)
    work, joins = device_work(trace, kinds, steps)
    repaired = with_possible_times(trace, work)
    if repaired is not None:
        trace, kinds = repaired, event_kinds(repaired)
        work, joins = device_work(trace, kinds, steps)
    if len(work):
        collectives = device_collectives(trace, work)
    else:
        from stepscope.run.collectives import (
            flight_calls,  # only for a rank without a device
            gloo_collectives,
        )

        flight = flight_calls(flight_file) if flight_file is not None else ()
        collectives = gloo_collectives(trace, kinds, steps, flight=flight)
    return Rank(rank, rank_source, trace, kinds, steps, work, collectives, joins)


# Warnings about losses in the traces.

_MAX_NAMED = 4

_COUNTED: tuple[tuple[Callable[[Rank], int], str], ...] = (
    (lambda r: r.trace.quality.malformed, "events that are no valid JSON are lost"),
    (lambda r: r.trace.quality.bad_time, "events dropped for a time that is missing or no finite number"),
    (lambda r: r.trace.quality.negative_duration, "events dropped for a negative duration"),
    (
        lambda r: r.trace.quality.far_times,
        "events left out for a time that overflows or lies far outside the window of all others",
    ),
    (lambda r: r.trace.quality.repaired, "events with bad JSON were repaired"),
    (lambda r: r.trace.quality.bad_text, "names with invalid characters, replaced"),
    (lambda r: r.trace.quality.shortened, "names longer than the limit, shortened"),
    (lambda r: r.trace.quality.bad_args, "argument values of the wrong type or out of range, left out"),
    (
        lambda r: r.joins.without_launch,
        "device operations without a launch in the trace (launched before the window): "
        "they are in the window but in no recorded step",
    ),
    (lambda r: r.joins.launches_without_work, "launches without device work in the trace"),
    (lambda r: r.collectives.unanswered, "collectives asked for whose execution is not in the trace"),
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
    return [*cut_off(ranks), *lines] + [f"rank {r.rank}: {note}" for r in ranks for note in r.trace.quality.notes]


def cut_off(ranks: Sequence[Rank]) -> list[str]:
    """Return the line that names the traces which end too early, if any do."""
    cut = [r.rank for r in ranks if r.trace.quality.truncated]
    if not cut:
        return []
    return [
        f"cut off: the trace of rank{'s' if len(cut) > 1 else ''} {rank_ranges(cut)}; "
        "what was readable is used, its last recorded step is left out"
    ]


def rank_ranges(numbers: Sequence[int]) -> str:
    """Return `0-3, 7` for [0, 1, 2, 3, 7]."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


def _where(counts: list[tuple[int, int]]) -> str:
    if len(counts) == 1:
        return ""
    worst = sorted((c for c in counts if c[0]), reverse=True)
    named = ", ".join(f"rank {rank}: {n:,}" for n, rank in worst[:_MAX_NAMED])
    return f" ({named}{', ...' if len(worst) > _MAX_NAMED else ''})"
