"""Side files of a run folder: device telemetry, live collectives, memory through a step, NCCL's log.

    rank00000.telemetry.jsonl    the device, its state every second, readings of energy counters  -> `Telemetry`
    rank00000.collectives.jsonl  a header, then a line per operation and group                     -> `Row`
    rank00000.samples.jsonl      stacks of all Python threads at moments spread over the run       -> `ThreadSamples`
    rank00000.memory.jsonl       snapshots at the edges of regions, the peak, whose storages       -> `Row`
    rank00000.nccl.log           NCCL's own log; of all ranks at once: `job.nccl.log`               -> `Row`
    *.nccl_inspector.jsonl       what NCCL inspector measured                                      -> `Row`
    window1/                     the second profiled window, and so on                             -> its name

Files grow while the job runs and may be cut: lines that are no JSON objects are left out and counted.
"""

import re
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import field, replace
from pathlib import Path, PurePosixPath
from sys import intern
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.contract.run_folder import (
    AUTOGRAD,
    EXECUTING,
    FUNCTIONS,
    INDUCTOR,
    MAX_SOURCE_FILE_BYTES,
    OTHER,
    OWNERS_SCHEMA,
    SOURCE_FOLDER,
    TELEMETRY,
    TRAINING,
    json_object,
    owners_file,
    rank_file,
    rank_of,
)
from stepscope.contract.step_line import EVALUATION, WARMUP, is_count
from stepscope.errors import InputError
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.formats import NCCL_LOG, beside, others_in
from stepscope.side_file import MAX_BYTES, is_number, parsed_json, read_side_file, side_file_lines
from stepscope.stats.robust import median, one_hiccup, recurring_long, slow_start
from stepscope.trace.table import Int64s
from stepscope.units import NS_PER_S, ms, ns_of_ms, readable_bytes

# Reading is bounded: all files together up to 128 MiB, each up to its even share. What is not read is reported.

_T = TypeVar("_T")
_MAX_FOLDER_BYTES, _MIN_SHARE_BYTES = 128 << 20, 64 << 10
_MAX_NAME = 200


# what the lines of one file became, how many are damaged, and why not all of it was read
KeptLines = tuple[tuple[_T, ...], int, list[str]]


def _kept_lines(
    path: Path, keep: Callable[[dict[str, Any]], _T | None], *, max_bytes: int, max_kept: int
) -> KeptLines[_T]:
    """Return what `keep` makes of each JSON object in a file, without the None among them.

    No more than `max_kept`: what a line becomes takes more memory than a short line does.
    """
    kept: list[_T] = []
    unread: list[str] = []
    damaged, last_is_damaged = 0, False
    for text in _text_lines(path, max_bytes=max_bytes, say=unread.append):
        if len(kept) >= max_kept:
            unread.append(f"{path.name}: only its first {max_kept:,} lines were read")
            break
        if not text.strip():
            continue
        line = json_object(text)
        last_is_damaged = line is None
        damaged += last_is_damaged
        made = keep(line) if line is not None else None
        if made is not None:
            kept.append(made)
    return tuple(kept), damaged - last_is_damaged, unread


def _text_lines(path: Path, *, max_bytes: int, say: Callable[[str], None]) -> Iterator[bytes]:
    left = max_bytes
    try:
        with closing(side_file_lines(path)) as found:
            for line in found:
                left -= len(line)
                if left < 0:
                    say(f"{path.name}: only its first {readable_bytes(max_bytes)} were read")
                    return
                yield line
    except OSError as error:
        say(f"{path.name}: {error.strerror or error}")


def number(value: object) -> float | None:
    """Return a finite number, None for anything else."""
    return float(value) if is_number(value) else None  # type: ignore[arg-type]


def _whole(value: object) -> int | None:
    return int(value) if is_number(value) else None  # type: ignore[call-overload]


def name(value: object) -> str:
    """Return a name of a length that names have, an empty one for what is none."""
    return value[:_MAX_NAME] if isinstance(value, str) else str(value)[:_MAX_NAME] if is_number(value) else ""


# Device telemetry as columns; a value of the wrong type is unknown.

# as many as the recorder keeps
_MAX_STATES = 100_000
_COLUMNS = (
    "time_ns", "step", "utilization_pct", "memory_utilization_pct", "sm_clock_mhz", "memory_clock_mhz", "power_w",
    "temperature_c", "memory_used_bytes",
)  # fmt: skip
_ENERGY = ("time_ns", "energy_j", "fresh", "power_w", "host_energy_j")
_LIMITS = ("index", "max_sm_clock_mhz", "max_memory_clock_mhz", "power_limit_w")

Reasons = frozenset[str] | None


@dataclass(frozen=True, eq=False, repr=False)
class Telemetry(ArrayRecord):
    """The states of one rank's device, as the recorder sampled them, by time."""

    rank: int
    #: name and uuid as text, highest clocks and power limit as numbers; what the driver did not give is missing
    device: dict[str, Any]
    #: by name, a value per sample, NaN where unknown
    columns: dict[str, npt.NDArray[np.float64]]
    #: why the clocks were held back at each sample, None where unknown
    reasons: tuple[Reasons, ...]
    #: which counters there are: `device` (nvml, rocm_smi) and `host` (rapl), and the host's name
    counters: dict[str, str] = field(default_factory=dict)
    #: readings of the counters by time, by name as in `columns`
    energy: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reasons)


def _read_telemetry(path: Path, *, rank: int, max_bytes: int) -> tuple[Telemetry, KeptLines[Any]]:
    found = _kept_lines(path, _telemetry_line, max_bytes=max_bytes, max_kept=_MAX_STATES + 1)
    by_kind: dict[str, list[Any]] = {"device": [], "counters": [], "state": [], "energy": []}
    for kind, line in found[0]:
        by_kind[kind].append(line)
    states = by_kind["state"]
    columns, order = _by_time([numbers for numbers, _ in states], _COLUMNS)
    return Telemetry(
        rank,
        device=next(iter(by_kind["device"]), {}),
        columns=columns,
        reasons=tuple(states[i][1] for i in order),
        counters=next(iter(by_kind["counters"]), {}),
        energy=_by_time(by_kind["energy"], _ENERGY)[0],
    ), found


def _by_time(rows: list[list[float]], names: tuple[str, ...]) -> tuple[dict[str, npt.NDArray[np.float64]], list[int]]:
    values = np.array(rows, np.float64).reshape(-1, len(names))
    order = np.argsort(np.nan_to_num(values[:, 0]), kind="stable")
    return {column: values[order, i] for i, column in enumerate(names)}, order.tolist()


def _telemetry_line(line: dict[str, Any]) -> tuple[str, Any] | None:
    kind = line.get("kind")
    if kind == "device":
        texts = {key: name(line[key]) for key in ("name", "uuid") if isinstance(line.get(key), str)}
        return kind, texts | {key: known for key in _LIMITS if (known := number(line.get(key))) is not None}
    if kind == "counters":
        return kind, {key: name(line[key]) for key in ("device", "host", "host_name") if isinstance(line.get(key), str)}
    if kind not in ("state", "energy"):
        return None
    columns = _COLUMNS if kind == "state" else _ENERGY
    numbers = [np.nan if n is None else n for n in (number(line.get(column)) for column in columns)]
    if kind == "energy":
        return kind, numbers
    reasons = line.get("throttle_reasons")
    if not isinstance(reasons, list):
        return kind, (numbers, None)
    return kind, (numbers, frozenset(name(reason) for reason in reasons[:32] if isinstance(reason, str)))


# Samples of all threads, in one line: what is not as the recorder writes it is refused as a whole.

_MAX_SAMPLES, _MAX_SAMPLED_THREADS = 100_000, 64


@dataclass(frozen=True)
class SampledFrame:
    """One line of a sampled stack."""

    file: str
    line: int
    function: str
    text: str
    is_user: bool


@dataclass(frozen=True, eq=False, repr=False)
class ThreadSamples(ArrayRecord):
    """What the Python threads of one rank were doing, by time."""

    rank: int
    threads: tuple[str, ...]
    frames: tuple[SampledFrame, ...]
    #: indices of frames, outermost first
    stacks: tuple[tuple[int, ...], ...]
    time_ns: Int64s
    #: how long the sampling thread itself waited for the GIL
    gil_wait_ns: Int64s
    #: whether the training thread ran, outside of Python
    on: npt.NDArray[np.bool_]
    stack: Int64s
    #: how often it lost its core
    preempted: int | None
    #: thread, stack and CPU time so far of each other thread
    others: tuple[tuple[tuple[int, int, int], ...], ...]

    def __len__(self) -> int:
        return len(self.stack)


def _read_samples(path: Path, *, rank: int, max_bytes: int, say: Callable[[str], None]) -> list[ThreadSamples]:
    try:
        text = read_side_file(path)
        _require(len(text) <= max_bytes, f"more than {readable_bytes(max_bytes)}")
        said = json_object(text)
        _require(said is not None and said.get("schema") == 1 and said.get("rank") == rank, "no samples of this rank")
        return [_samples(said or {}, rank)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        say(f"{path.name}: left out ({error})")
        return []


def _samples(said: dict[str, Any], rank: int) -> ThreadSamples:
    frames = tuple(SampledFrame(name(f), int(n), name(w), name(t), bool(u)) for f, n, w, t, u in said["frames"])
    stacks = tuple(tuple(int(i) for i in stack) for stack in said["stacks"])
    _require(all(0 <= i < len(frames) for stack in stacks for i in stack), "stacks")
    threads = tuple(name(one) for one in said["threads"])
    rows = said["samples"][:_MAX_SAMPLES]
    numbers = np.array([[int(x) for x in row[:5]] for row in rows], np.int64).reshape(-1, 5)
    at, waited, on, stack, _ = numbers.T
    others = tuple(tuple((int(t), int(s), 1000 * int(c)) for t, s, c in row[-1][:_MAX_SAMPLED_THREADS]) for row in rows)
    _require(bool(((stack >= 0) & (stack < len(stacks))).all()), "samples")
    _require(all(0 <= t < len(threads) and 0 <= s < len(stacks) for row in others for t, s, _ in row), "samples")
    return ThreadSamples(
        rank=rank,
        threads=threads,
        frames=frames,
        stacks=stacks,
        time_ns=int(said["epoch_ns"]) + at * 1000,
        gil_wait_ns=waited * 1000,
        on=on != 0,
        stack=stack,
        preempted=_whole(said.get("preempted")),
        others=others,
    )


_COLLECTIVES, _MEMORY, _NCCL = "collectives.jsonl", "memory.jsonl", "nccl.log"
_SAMPLES = "samples.jsonl"
_MAX_JOB_FILES = 1_000
_WINDOW = re.compile(r"^window(\d{1,6})$")
# of one line: categories of memory
_MAX_NAMES = 32
# of one rank
_MAX_EDGES = 10_000
# operations and groups of one rank
_MAX_LIVE = 2_000
_MAX_LIVE_OF_ALL = 200_000
_MAX_RECENT = 10_000


@dataclass(frozen=True)
class CollectiveTimes:
    """The newest collectives of one rank in its largest group, the wait for later ranks included."""

    group: str
    #: collectives of the group over the whole job
    count: int
    #: ns, by the number of the collective in its group
    ns_by_number: dict[int, int]


@dataclass(frozen=True, eq=False, repr=False)
class SideFiles(ArrayRecord):
    """All files next to the traces, by rank."""

    telemetry: tuple[Telemetry, ...] = ()
    samples: tuple[ThreadSamples, ...] = ()
    collectives: tuple[Row, ...] = ()
    #: by rank
    collective_times: dict[int, CollectiveTimes] = field(default_factory=dict)
    memory: tuple[Row, ...] = ()
    #: by rank: the peak by category, or the reason why it is unknown
    memory_peaks: dict[int, dict[str, Any]] = field(default_factory=dict)
    nccl: tuple[Row, ...] = ()
    #: folders of the second and later profiled windows
    windows: tuple[Path, ...] = ()
    lost_lines: int = 0
    #: files that were not read, or not to their end, with the reason
    unread: tuple[str, ...] = ()


def is_later_window(folder: Path) -> bool:
    """Return whether a folder is the second or a later window of the run folder around it."""
    return bool(_WINDOW.match(folder.name))


def window_number(folder: Path) -> int:
    """Return the number of a folder's window: 0 for a run folder, 2 for its `window2`."""
    found = _WINDOW.match(folder.name)
    return int(found.group(1)) if found else 0


def side_files(folder: Path, *, but: Collection[str] = ()) -> SideFiles:
    """Return the contents of a run folder except traces and step logs; files named in `but` are known to be traces."""
    kinds = (TELEMETRY, _COLLECTIVES, _MEMORY, _NCCL, _SAMPLES)
    named = [(rank_of(p.name), p.name.partition(".")[2], p) for p in sorted(folder.glob("rank*"))]
    there = [(rank, what, path) for rank, what, path in named if rank is not None and what in kinds]
    share = max(_MIN_SHARE_BYTES, _MAX_FOLDER_BYTES // max(len(there), 1))
    unread: list[str] = []
    telemetry: list[Telemetry] = []
    samples: list[ThreadSamples] = []
    collectives: list[Row] = []
    times: dict[int, CollectiveTimes] = {}
    edges: list[Row] = []
    peaks: dict[int, dict[str, Any]] = {}
    logs: list[Row] = []
    lost = 0
    for rank, what, path in there:
        if what == _NCCL:
            from stepscope.trace.nccl import nccl_log  # only where there is one

            logs.append(nccl_log(_text_lines(path, max_bytes=share, say=unread.append), rank=rank))
            continue
        if what == _SAMPLES:
            samples += _read_samples(path, rank=rank, max_bytes=share, say=unread.append)
            continue
        found: KeptLines[Any]
        if what == TELEMETRY:
            device, found = _read_telemetry(path, rank=rank, max_bytes=share)
            telemetry.append(device)
        elif what == _COLLECTIVES:
            found = _kept_lines(path, _groups_or_operation, max_bytes=share, max_kept=_MAX_LIVE)
            called = found[0][0].get("groups", {}) if found[0] else {}
            if found[0] and (recent := found[0][0].get("recent")) is not None:
                times[rank] = recent
            live = [Row(rank=rank, group_desc=called.get(x["group"], x["group"]), **x) for x in found[0] if "op" in x]
            collectives += live[: _MAX_LIVE_OF_ALL - len(collectives)]
        else:
            found = _kept_lines(path, _edge_or_peak, max_bytes=share, max_kept=_MAX_EDGES)
            known = [Row(rank=rank, **line["edge"]) for line in found[0] if "edge" in line]
            edges += known[: 200_000 - len(edges)]
            peaks |= dict([(rank, line["peak"]) for line in found[0] if "peak" in line][-1:])
        lost += found[1]
        unread += found[2]
    if others_in(folder, but=but):
        logs += _logs_of_all(folder, {log.rank for log in logs}, share, unread, but)
    measured, damaged = _inspected(folder, share, unread)
    collectives += measured[: _MAX_LIVE_OF_ALL - len(collectives)]
    lost += damaged
    return SideFiles(
        telemetry=tuple(telemetry),
        samples=tuple(samples),
        collectives=tuple(collectives),
        collective_times=times,
        memory=tuple(edges),
        memory_peaks=peaks,
        nccl=tuple(logs),
        windows=tuple(sorted(p for p in folder.glob("window*") if is_later_window(p) and p.is_dir())),
        lost_lines=lost,
        unread=tuple(unread),
    )


def _logs_of_all(folder: Path, known: set[int], max_bytes: int, unread: list[str], but: Collection[str]) -> list[Row]:
    found = []
    for path in [one.path for one in beside(folder, NCCL_LOG, but=but)][:_MAX_JOB_FILES]:
        if rank_of(path.name) is None:
            from stepscope.trace.nccl import nccl_logs  # only where there is one

            logs = nccl_logs(_text_lines(path, max_bytes=max_bytes, say=unread.append))
            found += [log for log in logs if log.rank not in known]
            known |= {log.rank for log in logs}
            if not logs:
                unread.append(f"{path.name}: a log of NCCL in which no rank names itself; import it with --rank")
    return found


def _inspected(folder: Path, max_bytes: int, unread: list[str]) -> tuple[list[Row], int]:
    found: list[Row] = []
    lost = 0
    for path in sorted(folder.glob(f"*.{'nccl_inspector.jsonl'}"))[:_MAX_JOB_FILES]:
        from stepscope.trace.nccl import inspected  # only where there is one

        rows, damaged = inspected(_text_lines(path, max_bytes=max_bytes, say=unread.append))
        lost += damaged
        found += rows
    return found, lost


def _groups_or_operation(line: dict[str, Any]) -> dict[str, Any] | None:
    groups = line.get("groups")
    if isinstance(groups, list):
        known = [g for g in groups[:10_000] if isinstance(g, dict)]
        return {
            "groups": {name(g.get("name")): name(g["desc"]) for g in known if g.get("desc")},
            "recent": _recent_times(line.get("recent_us"), line.get("issued")),
        }
    op, count = line.get("operation"), _whole(line.get("count"))
    if not isinstance(op, str) or count is None:
        return None
    return {
        "op": name(op),
        "group": name(line.get("group")),
        "group_size": _whole(line.get("group_size")),
        "count": count,
        "size_bytes": _whole(line.get("bytes")),
        "time_ns": ns_of_ms(line.get("time_ms")),
        **{key: number(line.get(key)) for key in ("algbw_gb_per_s", "busbw_gb_per_s", "best_busbw_gb_per_s")},
    }


def _recent_times(recent: Any, issued: Any) -> CollectiveTimes | None:
    """Return the times of the group with the most, None where there are none."""
    by_group = {g: pairs for g, pairs in recent.items() if isinstance(pairs, list)} if isinstance(recent, dict) else {}
    group = max(by_group, key=lambda g: len(by_group[g]), default=None)
    count = _whole(issued.get(group)) if isinstance(issued, dict) and group is not None else None
    if group is None or not count:
        return None
    pairs = [p for p in by_group[group][:_MAX_RECENT] if isinstance(p, list) and len(p) == 2]
    found = {_whole(at): _whole(us) for at, us in pairs}
    return CollectiveTimes(
        name(group), count, {at: 1_000 * us for at, us in found.items() if at is not None and us is not None}
    )


def _edge_or_peak(line: dict[str, Any]) -> dict[str, Any] | None:
    if line.get("kind") == "peak":
        return {"peak": {name(key): _plain(value) for key, value in list(line.items())[:_MAX_NAMES]}}
    if line.get("kind") != "snapshot":
        return None
    sizes = ((key.removesuffix("_bytes"), _whole(value)) for key, value in line.items() if key.endswith("_bytes"))
    known_sizes = [(name(key), value) for key, value in sizes if value is not None]
    step, label = _whole(line.get("step")), name(line.get("label"))
    return {"edge": {"step": step, "label": label, "bytes_by": dict(known_sizes[:_MAX_NAMES])}}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [name(one) for one in value[:_MAX_NAMES]]
    if isinstance(value, str):
        return name(value)
    return value if isinstance(value, bool) or number(value) is not None else None


# Step logs: every step of every rank, profiled or not, and the step time without the profiler.
#
#     rank00000.steps.jsonl   header line, then one line per step -> `StepLog`, columns instead of lines
#
# A log grows while the job runs and its writer may be killed: a last line that is cut off is normal and left out,
# any other line that is no step is counted.

# A line may hold numbers that no other line has, and a column for each would grow with the square of the log. So
# numbers are sparse while lines are read; the fullest become columns, up to 64 bytes for each number read.

MISSING = -1
# a column that every eighth step fills takes as much
_COLUMN_BYTES_PER_VALUE = 64
_COUNTS = ("step", "start_ns", "end_ns", "dur_ns")
_OWN_COLUMNS = frozenset((*_COUNTS, "device_ns", "profiled", "phase"))


class StepColumns:
    """The columns of the step lines added so far."""

    def __init__(self) -> None:
        self._counts = {name: array("q") for name in (*_COUNTS, "device_ns")}
        self._profiled = bytearray()
        self._phases: list[str] = []
        self._numbers: dict[str, tuple[array[int], array[float]]] = {}
        self._seen: set[int] = set()
        self._repeated_lines = 0
        self._left_out_values = 0

    def __len__(self) -> int:
        return len(self._profiled)

    def add(self, line: dict[str, Any]) -> bool:
        """Add a line; returns whether it is one of a step."""
        if not all(is_count(line.get(name)) for name in _COUNTS):
            return False
        if line["step"] in self._seen:
            self._repeated_lines += 1
            return True
        self._seen.add(line["step"])
        for name, column in self._counts.items():
            value = line.get(name)
            column.append(value if isinstance(value, int) and is_count(value) else MISSING)
        self._phases.append(intern(str(line.get("phase") or "")[:64]))
        for path, number in _leaves({k: v for k, v in line.items() if k not in _OWN_COLUMNS}):
            if path not in self._numbers and len(self._numbers) >= 4096:
                self._left_out_values += 1
                continue
            rows, values = self._numbers.setdefault(path, (array("q"), array("d")))
            rows.append(len(self))
            values.append(number)
        self._profiled.append(bool(line.get("profiled")))
        return True

    def log(self, *, rank: int, header: dict[str, Any], lost_lines: int) -> "StepLog":
        """Return the columns as a log; of the numbers those that most steps have, NaN where a step lacks one."""
        num_values = sum(len(rows) for rows, _ in self._numbers.values())
        left = max(64 << 20, _COLUMN_BYTES_PER_VALUE * num_values)
        numbers = dict.fromkeys(self._numbers, np.empty(0))
        for path in sorted(self._numbers, key=lambda path: -len(self._numbers[path][0])):
            rows, values = self._numbers[path]
            left -= 8 * len(self)
            if left < 0:
                self._left_out_values += len(rows)
                del numbers[path]
            else:
                numbers[path] = np.full(len(self), np.nan)
                numbers[path][np.array(rows, np.int64)] = np.array(values)
        return StepLog(
            rank=rank,
            header=header,
            **{name: np.array(column, np.int64) for name, column in self._counts.items()},
            profiled=np.frombuffer(bytes(self._profiled), np.uint8).astype(bool),
            phase=tuple(self._phases),
            numbers=numbers,
            lost_lines=lost_lines,
            repeated_lines=self._repeated_lines,
            left_out_values=self._left_out_values,
        )


def _leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        if depth < 16:
            for name, below in value.items():
                yield from _leaves(below, f"{path}.{name}" if path else str(name), depth + 1)
    elif is_number(value):
        yield path, float(value)


# time of forward passes without gradients between the steps of training
PASSES_NS = f"regions.{EVALUATION}.ns"


@dataclass(frozen=True, eq=False, repr=False)
class StepLog(ArrayRecord):
    """The steps of one rank in the order of the log."""

    rank: int
    header: dict[str, Any]
    step: Int64s
    start_ns: Int64s
    end_ns: Int64s
    dur_ns: Int64s
    #: time between the device's ends of two steps, MISSING where it was not measured
    device_ns: Int64s
    profiled: npt.NDArray[np.bool_]
    phase: tuple[str, ...]
    #: every other number by its path (`regions.forward_pass.ns`, `memory.allocated_bytes`); NaN where there is none
    numbers: dict[str, npt.NDArray[np.float64]]
    #: lines in the middle that are no steps; a cut last line is not among them
    lost_lines: int = 0
    #: lines of a step that came before
    repeated_lines: int = 0
    #: numbers under more names than steps can fill
    left_out_values: int = 0

    def __len__(self) -> int:
        return len(self.step)

    def column(self, path: str) -> npt.NDArray[np.float64]:
        """Return one number per step, NaN where the step lacks it."""
        return self.numbers.get(path, np.full(len(self), np.nan))

    @property
    def unprofiled(self) -> npt.NDArray[np.bool_]:
        """Return which steps ran without the profiler (its own warm-up included) and not right after it."""
        disturbed = self.profiled | (np.array(self.phase, str) == WARMUP)
        # nor the step after it: ranks still wait for each other's export
        return ~(disturbed | np.append(False, disturbed[:-1])[: len(disturbed)])


@dataclass(frozen=True)
class UnprofiledStep:
    """The step's time without the profiler."""

    #: median over ranks of each rank's median
    median_ns: int
    #: mean over ranks of each rank's mean
    mean_ns: int
    #: share of steps over 1.5 times the median, 0 where those are rare: else the mean is the step, not the median
    long_share: float
    #: steps that count, on the rank with the fewest
    num_steps: int
    #: left out at the start, on the rank with the most
    warm_up_steps: int
    #: duration of an excluded step that exceeds the sum of all others of its rank; 0 if there is none
    hiccup_ns: int = 0

    @property
    def uneven(self) -> str | None:
        """Return what to know where long steps recur, so that the mean is the step and not the median; else None."""
        if not self.long_share:
            return None
        longest = f"; one of {self.hiccup_ns / NS_PER_S:.3g} s, more than all others together, is excluded"
        return (
            f"{100 * self.long_share:.0f} % of the unprofiled steps take over 1.5 times their median of "
            f"{ms(self.median_ns):.2f} ms: the step is the mean of all, {ms(self.mean_ns):.2f} ms"
            f"{longest if self.hiccup_ns else ''}"
        )


_LOSSES = (
    ("lost_lines", "lines of the step log that are no steps are left out"),
    ("repeated_lines", "lines of the step log repeat a step; its first line counts"),
    ("left_out_values", "numbers of the step log are left out: more names than steps can fill"),
)


def log_since(log: StepLog, step: int) -> StepLog:
    """Return a log without the steps before this one."""
    kept = log.step >= step
    columns = {name: getattr(log, name)[kept] for name in (*_COUNTS, "device_ns", "profiled")}
    phases = tuple(phase for phase, keep in zip(log.phase, kept, strict=True) if keep)
    return replace(log, **columns, phase=phases, numbers={name: values[kept] for name, values in log.numbers.items()})


def step_logs(folder: str | Path) -> tuple[StepLog, ...]:
    """Return the step logs of a run folder by rank; none where it has none."""
    return readable_step_logs(folder)[0]


def readable_step_logs(folder: str | Path) -> tuple[tuple[StepLog, ...], list[str]]:
    """Return the step logs of a run folder that can be read, and a line for each loss."""
    logs, lines = [], []
    for path in sorted(p for p in Path(folder).glob(f"*{'.steps.jsonl'}") if rank_of(p.name) is not None):
        try:
            logs.append(read_step_log(path))
        except InputError as error:
            lines.append(f"left out: {error}")
    for log in logs:
        lines += [f"rank {log.rank}: {n:,} {what}" for name, what in _LOSSES if (n := getattr(log, name))]
    return tuple(logs), lines


def read_step_log(path: str | Path) -> StepLog:
    """Return one rank's log; an `InputError` where the file cannot be opened."""
    path = Path(path)
    try:
        header, columns, lost = _parsed(side_file_lines(path))
    except OSError as e:
        raise InputError(f"{path}: cannot read the step log: {e.strerror}; check the path") from e
    rank = header.get("rank")
    known = rank if isinstance(rank, int) and is_count(rank) and rank <= 1 << 30 else rank_of(path.name) or 0
    return columns.log(rank=known, header=header, lost_lines=lost)


def step_log_of(
    lines: Iterable[dict[str, Any]], *, rank: int, header: dict[str, Any] | None = None, lost_lines: int = 0
) -> StepLog:
    """Return the columns of these lines."""
    columns = StepColumns()
    for line in lines:
        columns.add(line)
    return columns.log(rank=rank, header=header or {}, lost_lines=lost_lines)


def unprofiled_step(logs: Iterable[StepLog]) -> UnprofiledStep | None:
    """Return the step's time without the profiler, from the steps after warm-up; None where no step ran without it."""
    known, hiccups = [], []
    for log in logs:
        unprofiled = log.dur_ns[log.unprofiled & (log.dur_ns > 0)]
        first = slow_start(unprofiled)
        if len(unprofiled) > first:
            settled = unprofiled[first:]
            hiccups.append(settled.max() * one_hiccup(settled).any())
            known.append((settled[~one_hiccup(settled)], first))
    if not known:
        return None
    medians = [median(settled) for settled, _ in known]
    return UnprofiledStep(
        median_ns=round(median(medians)),
        mean_ns=round(float(np.mean([settled.mean() for settled, _ in known]))),
        long_share=median([recurring_long(settled).mean() for settled, _ in known]),
        num_steps=min(len(settled) for settled, _ in known),
        warm_up_steps=max(left_out for _, left_out in known),
        hiccup_ns=int(max(hiccups)),
    )


def _parsed(lines: Iterable[bytes]) -> tuple[dict[str, Any], StepColumns, int]:
    header: dict[str, Any] = {}
    steps = StepColumns()
    lost = 0
    torn = False
    for line in lines:
        lost += torn  # what looked torn was not the last line
        torn = False
        found = json_object(line)
        if found is None:
            torn = bool(line.strip())
        elif steps.add(found):
            continue
        elif not len(steps) and not header:
            header = found
        else:
            lost += 1
    return header, steps, lost


# Owners that a rank recorded in a step with Python frames, read from `rank00000.owners.json.gz`.
#
# For the operators of one or two steps after the window, in order and by thread, the file has the user's stack and the
# module of each. Nothing of those steps is in any timing. The file is not trusted: its size is bounded, every index is
# checked, and an inconsistent file is refused as a whole with the name of the field.

_MAX_TEXT = 4096
_MAX_LINE = 1 << 31
_MAX_NS = 1 << 62

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    #: relative to the project's folder where it is below it
    file: str
    line: int
    function: str
    #: outside torch, the standard library and installed packages
    is_user: bool
    #: equal to `line` where that line is known to be executing; else it is after the call in `line` and not after the
    #: one in `line_to` (operator syntax raises no call), 0 where no call follows
    line_to: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class OwnedThread(ArrayRecord):
    """The operators of one thread in the steps with frames, by start. References are -1 for none."""

    role: str
    name: Int32s
    #: how many operators and ranges are around it
    depth: Int32s
    stack: Int32s
    module: Int32s
    #: autograd's number
    sequence: Int64s
    step: Int64s
    #: of stretches of Python in no operator: the operator that follows, the number of operators after the last
    gap_before: Int64s
    gap_stack: Int32s
    #: as measured with frames: only shares of one gap mean anything
    gap_ns: Int64s
    #: begins and ends of calls in it, each of which took longer for being watched; 0 where they were not counted
    gap_calls: Int64s

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, eq=False, repr=False)
class RankOwners(ArrayRecord):
    """What one rank's file of owners holds."""

    rank: int
    #: EXECUTING or FUNCTIONS
    lines: str
    root: str
    frames: tuple[Frame, ...]
    #: indices of frames, outermost first
    stacks: tuple[tuple[int, ...], ...]
    modules: tuple[str, ...]
    names: tuple[str, ...]
    threads: tuple[OwnedThread, ...]
    #: parameters of each gradient bucket
    buckets: tuple[tuple[str, ...], ...] | None = None
    #: dataset lines and their share of the samples
    loader: tuple[tuple[str, float], ...] | None = None
    #: why something is not known
    reasons: tuple[str, ...] = ()


def _require(is_sound: bool, field: str) -> None:
    if not is_sound:
        raise ValueError(field)


def read_owners(folder: Path, ranks: Iterable[int], *, of: str = "") -> tuple[tuple[RankOwners, ...], list[str]]:
    """Return the owners of these ranks where a run folder has them, and one line for each file that was refused."""
    found, refused = [], []
    for rank in ranks:
        path = folder / owners_file(rank, of=of)
        try:
            found.append(_owners(_document(path), rank))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, zlib.error) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            refused.append(f"{path.name} is left out ({why}): who owns the time of rank {rank} is unknown")
    return tuple(found), refused


#: kernel of a compiled graph, with its number -> the lines that it was made of: file, line, function
KernelLines = dict[str, tuple[tuple[str, int, str], ...]]
_MAX_KERNELS = 100_000


def read_kernel_lines(folder: Path, ranks: Iterable[int]) -> dict[int, tuple[KernelLines, ...]]:
    """Return the lines of compiled kernels by rank, one table per compiled graph; none where a file is damaged."""
    found = {}
    for rank in ranks:
        try:
            listed = parsed_json(read_side_file(folder / rank_file(rank, INDUCTOR))).value
            found[rank] = tuple(_kernel_lines(one) for one in listed[:_MAX_KERNELS])
        except (OSError, ValueError, TypeError, AttributeError):
            continue
    return found


def _kernel_lines(said: Any) -> KernelLines:
    lines: KernelLines = {}
    for name, stacks in list(said.items())[:_MAX_KERNELS]:
        innermost = [(str(f)[:_MAX_TEXT], int(n), str(of)[:_MAX_TEXT]) for stack in stacks for f, n, of in stack[-1:]]
        lines[str(name)] = tuple(dict.fromkeys(one for one in innermost if 0 < one[1] < _MAX_LINE))
    return lines


def _document(path: Path) -> dict[str, Any]:
    unpack = zlib.decompressobj(wbits=31)  # of a gzip stream
    text = unpack.decompress(read_side_file(path), MAX_BYTES)
    _require(not unpack.unconsumed_tail, f"more than {MAX_BYTES:,} bytes unpacked")
    _require(unpack.eof, "cut off")
    value = parsed_json(text).value
    _require(isinstance(value, dict), "no JSON object")
    return value


def _owners(said: dict[str, Any], rank: int) -> RankOwners:
    is_named = said.get("schema") == OWNERS_SCHEMA and said.get("rank") == rank
    _require(is_named, "schema or rank does not match its name")
    _require(said.get("lines") in (EXECUTING, FUNCTIONS), "lines")
    files = _texts(said, "files")
    frames = tuple(_frame(entry, files) for entry in _list(said, "frames"))
    stacks = tuple(_stack(entry, len(frames)) for entry in _list(said, "stacks"))
    _require(sum(map(len, stacks)) <= 1 << 22, "stacks")
    modules, names = _texts(said, "modules"), _texts(said, "names")
    sizes = {"name": len(names), "stack": len(stacks), "module": len(modules)}
    reasons = said.get("reasons")
    return RankOwners(
        rank=rank,
        lines=said["lines"],
        root=str(said.get("root") or "")[:_MAX_TEXT],
        frames=frames,
        stacks=stacks,
        modules=modules,
        names=names,
        threads=tuple(_thread(entry, sizes) for entry in _list(said, "threads")),
        buckets=_buckets(said),
        loader=_loader(said),
        reasons=tuple(f"{k}: {v}"[:_MAX_TEXT] for k, v in reasons.items()) if isinstance(reasons, dict) else (),
    )


def _list(said: dict[str, Any], field: str) -> list[Any]:
    value = said.get(field)
    _require(isinstance(value, list), field)
    return value  # type: ignore[return-value]


def _texts(said: dict[str, Any], field: str) -> tuple[str, ...]:
    found = _list(said, field)
    _require(all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in found), field)
    return tuple(found)


def _frame(entry: Any, files: tuple[str, ...]) -> Frame:
    _require(isinstance(entry, list) and len(entry) in (4, 5), "frames")
    file, line, function, is_user, line_to = (*entry, entry[1])[:5]
    indices = ((file, len(files)), (line, _MAX_LINE), (line_to, _MAX_LINE))
    _require(isinstance(function, str) and all(_is_index(i, size) for i, size in indices), "frames")
    own = bool(is_user) and "torchinductor_" not in files[file]  # torch.compile writes its code outside every library
    return Frame(files[file], line, function[:_MAX_TEXT], own, line_to)


def _stack(entry: Any, num_frames: int) -> tuple[int, ...]:
    is_sound = isinstance(entry, list) and len(entry) <= 512 and all(_is_index(i, num_frames) for i in entry)
    _require(is_sound, "stacks")
    return tuple(entry)


def _is_index(value: Any, size: int) -> bool:
    return type(value) is int and 0 <= value < size


def _thread(entry: Any, sizes: dict[str, int]) -> OwnedThread:
    _require(isinstance(entry, dict) and entry.get("role") in (TRAINING, AUTOGRAD, OTHER), "threads.role")
    name = _column(entry, "name", 0, sizes["name"])
    count = len(name)
    gaps = _list(entry, "python")
    _require(all(isinstance(gap, list) and len(gap) in (3, 4) for gap in gaps), "threads.python")
    by_part = {str(i): [(*gap, 0)[i] for gap in gaps] for i in range(4)}
    return OwnedThread(
        role=entry["role"],
        name=name.astype(np.int32),
        depth=_column(entry, "depth", 0, 1 << 20, count).astype(np.int32),
        stack=_column(entry, "stack", -1, sizes["stack"], count).astype(np.int32),
        module=_column(entry, "module", -1, sizes["module"], count).astype(np.int32),
        sequence=_column(entry, "sequence", -1, _MAX_NS, count),
        step=_column(entry, "step", -1, _MAX_NS, count),
        gap_before=_column(by_part, "0", 0, count + 1),
        gap_stack=_column(by_part, "1", -1, sizes["stack"]).astype(np.int32),
        gap_ns=_column(by_part, "2", 0, _MAX_NS),
        gap_calls=_column(by_part, "3", 0, _MAX_NS),
    )


def _column(said: dict[str, Any], field: str, low: int, high: int, count: int | None = None) -> Int64s:
    values = _list(said, field)
    column = np.array(values, np.int64) if set(map(type, values)) <= {int} else None
    is_sound = column is not None and count in (None, len(column))
    if column is None or not is_sound or (len(column) and not (low <= column.min() and column.max() < high)):
        raise ValueError(f"threads.{field}")
    return column


def _buckets(said: dict[str, Any]) -> tuple[tuple[str, ...], ...] | None:
    given = said.get("buckets")
    if given is None:
        return None
    _require(isinstance(given, list) and all(isinstance(bucket, list) for bucket in given), "buckets")
    names = (name for bucket in given for name in bucket)
    _require(all(isinstance(name, str) and len(name) <= _MAX_TEXT for name in names), "buckets")
    return tuple(map(tuple, given))


def _loader(said: dict[str, Any]) -> tuple[tuple[str, float], ...] | None:
    given = said.get("loader")
    if given is None:
        return None
    for entry in _list(said, "loader"):
        _require(isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str), "loader")
        _require(isinstance(entry[1], int | float) and 0 <= entry[1] <= 1, "loader")
    return tuple((name[:_MAX_TEXT], float(share)) for name, share in given)


# The text of the user's source files, as recorded below `source/` in the run folder.
#
# Files and names there are not trusted: a name that leads out of the folder, a link, a file that is not regular, too
# large or not text has no lines.

_TEXT = re.compile(r"""[rbfuRBFU]{0,2}("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|#.*""")


def code_of(line: str) -> str:
    """Return what of a line is code: texts and comments are a quote, and what is far to the right is cut off.

    >>> code_of("f('a[0]') + x[1]  # times 2")
    'f(") + x[1]  "'
    """
    return _TEXT.sub('"', line[:1000])


def code_text_has_comprehension(text: str) -> bool:
    """Return whether a line of source holds a comprehension as a whole.

    >>> lines = ("y = [f(x) for x in xs]", "for x in f(xs):", "g('[for x in')", "[f(x) for x")
    >>> [code_text_has_comprehension(s) for s in lines]
    [True, False, False, False]
    """
    depth, inside = 0, 0
    for token in re.findall(r"\w+|[\[\](){}]", code_of(text)):
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
            if 0 < inside > depth:
                return True
        elif token == "for" and depth > 0:
            inside = depth
    return False


@dataclass(frozen=True)
class SourceText:
    """The recorded source files of a run; each is read on first use."""

    #: the run folder, None where a run has none
    folder: Path | None = None
    _read: dict[str, tuple[str, ...] | None] = field(default_factory=dict, repr=False, compare=False)

    def lines(self, file: str) -> tuple[str, ...] | None:
        if file not in self._read:
            self._read[file] = self._lines(file)
        return self._read[file]

    def line(self, file: str, number: int) -> str | None:
        """Return one line, counted from 1, without surrounding blanks; None where it was not recorded."""
        found = self.lines(file)
        return found[number - 1].strip() if found is not None and 0 < number <= len(found) else None

    def _lines(self, file: str) -> tuple[str, ...] | None:
        named = PurePosixPath(file)
        if self.folder is None or named.is_absolute() or ".." in named.parts or "\0" in file or not named.parts:
            return None
        try:
            path = (self.folder.resolve() / SOURCE_FOLDER).joinpath(*named.parts)
            if path.resolve() != path:
                return None
            text = read_side_file(path, max_bytes=MAX_SOURCE_FILE_BYTES).decode("utf-8")
        except (OSError, RuntimeError, ValueError):
            return None
        return tuple(line.expandtabs(4) for line in text.split("\n"))
