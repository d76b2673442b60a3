"""The helper process: reads lines and messages from a pipe and writes the run folder.

It needs the standard library only and never talks to torch. One runs for every rank, at low priority. When its pipe
ends without a `close` the training process was killed: it then finishes the folder with what it has, so that even a run
that died has a step log, its traces and a `run.json`. Where storage fails (a full disk) it goes on: failed writes are
retried, and those that never succeed are counted in `run.json`.

Messages, one JSON object per line after the letter `m` (lines after `s` go to the step log as they are):

    {"do": "claim", "out", "run_id", "launch_id", "attempt"}  choose a folder and write there -> {"folder"} or {"error"}
    {"do": "launch", "out", "launch_id", "attempt"}    by which a folder is found after an early end
    {"do": "run", "folder"}                            write to rank 0's folder
    {"do": "trace", "plain", "name", "about": {...}}   verify, compress and move one exported trace
    {"do": "file", "plain", "name"}                    move one finished file as it is
    {"do": "flight", "plain", "name", "process_groups"}  the flight recorder's dump, to be written as JSON lines
    {"do": "facts", ...}                               what run.json shall know of this rank
    {"do": "checkpoint", "entry"}                      a checkpoint begins or ends: [what, begin, end or null, path]
    {"do": "where", "frames", "region", "collective"}  where the training thread is; sent on request
    {"do": "close"}                                    training is over

It sends {"storage": reason} where a write fails that the training process waits for.

It also checks for requested windows, and for a rank that takes no steps (`live`).
"""

import contextlib
import datetime
import errno
import json
import os
import queue
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from stepscope.contract.lateness import median
from stepscope.contract.redaction import redacted
from stepscope.contract.run_folder import (
    CORE_WAITS,
    RUN_JSON,
    SCHEMA,
    TELEMETRY,
    facts_file,
    json_object_in,
    rank_file,
    steps_file,
)
from stepscope.errors import StepscopeError
from stepscope.record.failsafe import DONE, ERRNO, HELPER, HELPER_VARIABLE, leave_word
from stepscope.record.groups import flight_lines
from stepscope.record.helper.claim import FULL, claim_folder, folder_of_attempt
from stepscope.record.helper.scratch import hold_scratch, remove_scratch
from stepscope.record.live.live import Live
from stepscope.record.step_statistics import StepStatistics
from stepscope.record.window.trace_file import compress_into, place_whole, sweep, trouble_with_export
from stepscope.side_file import open_private
from stepscope.units import ms

# `run.json`: the description of a run, assembled by rank 0's helper from the facts that every rank left in the folder.
#
#     rank00000.facts.jsonl, rank00001.facts.jsonl, ...  ->  run.json
#
# Standard library only, no torch: it runs in the helper process. What is not known is None with its reason in
# `reasons`; a rank that left no facts is in `missing_ranks`. Per-rank entries are keyed by the rank's number as text.

Facts = dict[str, Any]

# Facts of the job, equal on all ranks: taken from the lowest rank that has one.
_OF_THE_JOB = (
    "run_id",
    "command",
    "backend",
    "strategy",
    "device",
    "versions",
    "config",
    "environment",
    "commit",
    "model",
    "optimizer",
    "ddp",
    "step_unit",
)
# Facts of a rank that run.json repeats.
_OF_A_RANK = (
    "host",
    "pid",
    "local_rank",
    "device",
    "cores",
    "loader_workers",
    "boot_id",
    "ended",
    "clock_probes",
    "network",  # GB/s of each port of the host
    "energy_unknown",  # why the device or the host has no energy counter
    "warnings",
    "launch_ns",  # what a kernel launch takes the host before the first window and after the last profiler
    "lines_dropped",  # before they reached the helper
    "writing",  # what the helper could not write, at once or at all
)


def run_description(found: Sequence[Facts], *, world_size: int, ended: bool) -> Facts:
    """Return the content of run.json from the facts of the ranks that left some, in order of rank."""
    job = {name: next((f[name] for f in found if f.get(name) is not None), None) for name in _OF_THE_JOB}
    created_ns = min((f["created_ns"] for f in found if "created_ns" in f), default=time.time_ns())
    flops = _flops(found, world_size)
    tokens = {name: _whole_job(found, name, world_size) for name in ("tokens_per_step", "samples_per_step")}
    failure = _first_failure(found)
    return {
        "schema": SCHEMA,
        "created": datetime.datetime.fromtimestamp(created_ns / 1e9, tz=datetime.UTC).isoformat(timespec="seconds"),
        "created_ns": created_ns,
        "ended": ended,
        "finished": ended and failure is None,
        "failure": failure,
        **job,
        "world_size": world_size,
        "missing_ranks": sorted(set(range(world_size)) - {f["rank"] for f in found}),
        "hosts": _hosts(found),
        "process_groups": _groups(found),
        **flops,
        **tokens,
        **_unprofiled(found),
        "windows": _windows(found),
        "warnings": [*([failure] if failure else []), *_changed_steps(found)],
        "ranks": {
            str(f["rank"]): {**{name: f.get(name) for name in _OF_A_RANK}, "flops": f.get("flops"), "steps": f["steps"]}
            for f in found
        },
        "reasons": _reasons(job, flops, tokens, found),
    }


def _hosts(found: Sequence[Facts]) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = {}
    for f in found:
        hosts.setdefault(str(f.get("host")), []).append(f["rank"])
    return hosts


def _groups(found: Sequence[Facts]) -> list[Facts]:
    groups: dict[tuple[str, tuple[int, ...]], Facts] = {}
    for f in found:
        for group in f.get("process_groups") or []:
            groups.setdefault((group["name"], tuple(group["ranks"])), group)
    return sorted(groups.values(), key=lambda g: (-len(g["ranks"]), g["name"], g["ranks"]))


def _flops(found: Sequence[Facts], world_size: int) -> Facts:
    """Return the job's FLOPs per step: the sum over ranks of what each was seen to do in one step.

    `flops_per_step` are the model's: a backward pass of at most twice its forward, so that recomputation is left
    out. `hardware_flops_per_step` is all that was executed.
    """
    counted = [f["flops"] for f in found if f.get("flops")]
    if len(counted) < world_size:
        return {"flops_per_step": None, "hardware_flops_per_step": None}
    total = sum(c["total"] for c in counted)
    model = sum(min(c["total"], 3 * c["forward"]) if c["forward"] else c["total"] for c in counted)
    return {"flops_per_step": model, "hardware_flops_per_step": total}


def _whole_job(found: Sequence[Facts], name: str, world_size: int) -> int | None:
    known = [f[name] for f in found if f.get(name) is not None]
    if len(known) < world_size:
        return None
    per_replica = max((f.get("ranks_per_replica") or 1 for f in found), default=1)
    return int(sum(known)) // int(per_replica)


def _unprofiled(found: Sequence[Facts]) -> Facts:
    """Return the step's time without and with the profiler: the median over ranks of each rank's median.

    By device events where there are any (a host that runs ahead does not take as long as the step does).
    """
    out: Facts = {}
    for name, part in (("unprofiled_step_ms", "unprofiled"), ("profiled_step_ms", "window")):
        out[name] = _median_ms([f["steps"][part] for f in found if f["steps"].get(part)])
    for part in ("before", "after"):
        known = [f["steps"][part] for f in found if f["steps"].get(part)]
        out[f"unprofiled_{part}"] = {
            "steps": min((k["steps"] for k in known), default=0),
            "median_ms": _median_ms(known),
        }
    return out


# ranks that one signal ends are gone within this
_TOGETHER_NS = 10_000_000


def _first_failure(found: Sequence[Facts]) -> str | None:
    """Return how training failed: the rank that ended first, and how; None where all ranks ended by themselves."""
    ended = [f for f in found if f.get("ended_ns") and (f["ended"] == "killed" or f.get("failure"))]
    ended.sort(key=lambda f: f["ended_ns"])
    if not ended:
        return None
    first, later = ended[0], ended[1:]
    steps = f"after {first['steps']['count']} steps"
    if first["ended"] != "killed":
        return f"rank {first['rank']} failed with {first['failure']}, {steps}"
    together = [f for f in later if f["ended"] == "killed" and f["ended_ns"] - first["ended_ns"] < _TOGETHER_NS]
    if together:
        return f"{1 + len(together)} ranks were killed at the same time, {steps}"
    return f"rank {first['rank']} was killed{' first' if later else ''}, {steps}"


def _changed_steps(found: Sequence[Facts]) -> list[str]:
    compared = [(f, f["steps"]["after_to_before"]) for f in found if f["steps"].get("after_to_before")]
    beyond = [(f, c) for f, c in compared if abs(c["ratio"] - 1) > 0.02 and not c["low"] <= 1 <= c["high"]]
    if not beyond or 2 * len(beyond) <= len(compared):
        return []
    ratio = median(c["ratio"] for _, c in beyond)
    low, high = min(c["low"] for _, c in beyond), max(c["high"] for _, c in beyond)
    longer = "longer" if ratio > 1 else "shorter"
    why = _profiler_left(found) if ratio > 1 else None
    why = why or next((c["why"] for _, c in beyond if c["why"]), "the job changed on the way, or the machine did")
    return [
        f"steps after the window are {100 * abs(ratio - 1):.1f} % {longer} than those before it "
        f"({100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %): {why}; those before it are used"
    ]


# how much longer a launch takes after the window where CUPTI is still attached: 1.5 times, by its own a tenth at most
_ATTACHED = 1.25


def _profiler_left(found: Sequence[Facts]) -> str | None:
    """Return that the profiler is still attached, where launches of most ranks that timed them show it."""
    timed = [f["launch_ns"] for f in found if {"before", "after"} <= set(f.get("launch_ns") or ())]
    slower = [one for one in timed if one["after"] > _ATTACHED * one["before"]]
    if not timed or 2 * len(slower) <= len(timed):
        return None
    before, after = (median(one[when] for one in slower) / 1000 for when in ("before", "after"))
    return (
        f"a launch takes {after:.1f} us, {before:.1f} before: "
        "CUPTI is still attached (this torch or driver does not detach it)"
    )


def _median_ms(parts: list[Facts]) -> float | None:
    device = [p["device_median_ns"] for p in parts if p.get("device_median_ns") is not None]
    host = [p["median_ns"] for p in parts]
    return ms(median(device or host)) if parts else None


def _windows(found: Sequence[Facts]) -> list[Facts]:
    windows: dict[int, Facts] = {}
    for f in found:
        traces = {w["name"]: w for w in f["files"] if w.get("kind") == "trace"}
        for outcome in f.get("windows") or []:
            window = windows.setdefault(outcome["window"], {"window": outcome["window"], "ranks": {}})
            window["ranks"][str(f["rank"])] = {**outcome, **traces.get(outcome.get("name"), {})}
    return [windows[k] for k in sorted(windows)]


def _reasons(job: Facts, flops: Facts, tokens: Facts, found: Sequence[Facts]) -> dict[str, str]:
    said = {name: why for f in found for name, why in (f.get("reasons") or {}).items()}
    unknown = [name for name, value in {**job, **flops, **tokens}.items() if value is None]
    missing_files = {name: said[name] for name in ("owners",) if name in said}
    return {**{name: said.get(name, "not every rank reported it") for name in unknown}, **missing_files}


# A file that grows by whole lines, on storage that may fail for a while.
#
# Lines that cannot be written wait in memory, within a bound, and are written later in their order; those past the
# bound and those left at the end are counted as lost. The file never ends in half a line: one that was cut by a full
# disk is taken back.


MAX_WAITING_BYTES = 64 << 20


class GrowingLog:
    """One process's log; the file must not exist yet."""

    def __init__(self, path: Path) -> None:
        self._file = open_private(path, os.O_EXCL)
        self._waiting = bytearray()
        self._size_bytes = 0
        self._whole_bytes = 0  # up to the last line's end
        self._refused = 0

    def add(self, line: bytes) -> bool:
        """Take in a line, to be written by the next `flush`; return False where there is no room to keep it."""
        if len(self._waiting) + len(line) >= MAX_WAITING_BYTES:
            self._refused += 1
            return False
        self._waiting += line + b"\n"
        return True

    def flush(self) -> None:
        """Write what waits; on failure raise OSError, and the rest waits on."""
        while self._waiting:
            done = os.write(self._file, self._waiting)
            newline = self._waiting.rfind(b"\n", 0, done)
            if newline >= 0:
                self._whole_bytes = self._size_bytes + newline + 1
            self._size_bytes += done
            del self._waiting[:done]

    def close(self) -> int:
        """Return how many lines were lost, after leaving the file with whole lines only."""
        lost = self._refused + self._waiting.count(b"\n")
        if self._size_bytes > self._whole_bytes:
            os.ftruncate(self._file, self._whole_bytes)
        os.close(self._file)
        return lost


# One file of the training process, brought from local disk into the run folder: traces, dumps, files of samplers.
#
# Standard library only: it runs in the helper process. What storage refuses is raised, for the helper to try again.


def _move_file(job: dict[str, Any], folder: Path, rank: int) -> dict[str, Any]:
    plain, target = Path(job["plain"]), folder / job["name"]
    folder.stat()  # one that was removed is not made again, without its step log
    target.parent.mkdir(parents=True, exist_ok=True)
    if job["do"] == "file":
        place_whole(plain.read_bytes(), target)
        return {"status": "written", "bytes": target.stat().st_size}
    if job["do"] == "flight":
        place_whole(flight_lines(plain.read_bytes(), rank=rank, groups=job["process_groups"]), target)
        return {"kind": "flight", "status": "written", "bytes": target.stat().st_size}
    if trouble := trouble_with_export(plain):
        return {"status": "failed", "reason": trouble}
    return {"status": "written", "bytes": compress_into(plain, target)}


# Writing to storage that fails for a while: transient errors are retried, and every failure is counted.
#
# A full disk has space again after a clean-up, a quota is raised, a file server restarts. The helper process has time:
# while training runs nothing waits for it. Standard library only.

_PASSING = FULL | {errno.EIO, errno.EAGAIN, errno.EBUSY, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT}
_Done = TypeVar("_Done")


def may_pass(error: BaseException | None) -> bool:
    """Return whether the same write may succeed later."""
    return isinstance(error, OSError) and error.errno in _PASSING


class Retries:
    """How long this process retries, and the failures so far. Used by several threads."""

    def __init__(self, while_running_s: float, *, on_failure: Callable[[OSError], None] = lambda _: None) -> None:
        self.failed_writes = 0
        self.lost_lines = 0
        self.lost_files: list[str] = []
        self._reason: str | None = None
        self._while_running_s = while_running_s
        self._ends_at: float | None = None
        self._ending = threading.Event()
        self._on_failure = on_failure

    def end_within(self, seconds: float) -> None:
        """Limit all remaining work to `seconds`: training is over."""
        self._ends_at = time.monotonic() + seconds
        self._ending.set()

    def note_failure(self, error: OSError) -> None:
        self.failed_writes += 1
        self._reason = error.strerror or str(error)
        self._on_failure(error)

    def until_done(self, act: Callable[[], _Done], *, within_s: float | None = None) -> _Done:
        """Return `act()`, tried again where its failure may pass; the last failure is raised."""
        began, pause_s = time.monotonic(), 0.1
        while True:
            try:
                return act()
            except OSError as e:
                self.note_failure(e)
                if not may_pass(e) or time.monotonic() + pause_s > self._latest(began, within_s):
                    raise
            if self._ending.is_set():
                time.sleep(pause_s)
            else:
                self._ending.wait(pause_s)
            pause_s = min(2 * pause_s, 2.0)

    def summary(self) -> dict[str, Any] | None:
        """Return what was not written at once or at all, None where all was."""
        if not self.failed_writes:
            return None
        return {
            "failed_writes": self.failed_writes,
            "lost_lines": self.lost_lines,
            "lost_files": self.lost_files,
            "reason": self._reason,
        }

    def _latest(self, began: float, within_s: float | None) -> float:
        if within_s is not None:
            return began + within_s
        return began + self._while_running_s if self._ends_at is None else self._ends_at


_READ_BYTES = 1 << 16
_NAP_S = 0.2  # lines are gathered, so that the helper wakes a few times a second at most
_CLAIM_S = 20.0  # for a folder on storage that fails; the training process waits 30
_FIND_S = 5.0  # for the folder of the other ranks, after a process that was killed early
_CLAIMED_BEFORE_NS = 60 * 10**9  # by a rank that started earlier than this one
_MAX_CHECKPOINTS = 1_000  # the newest: they show which steps a restart has to repeat
_LAST_TRIES_S = 60.0  # for all that is left when training is over


def main() -> None:
    """Run the helper: settings as JSON in a variable, lines on standard input."""
    settings = json.loads(os.environ.pop(HELPER_VARIABLE))
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    writer = Writer(settings)

    def end() -> None:
        remove_scratch(Path(settings["scratch"]))
        _leave_word(DONE)

    try:
        writer.read_to_the_end(sys.stdin.fileno())
        _end_after(settings["write_timeout_s"], end)
        writer.finish()
    finally:
        end()


class Writer:
    """What one rank leaves behind, and how far it has got."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.parent = os.getppid()
        self.began_ns = time.time_ns()
        self.launch: dict[str, Any] = {}
        self.folder: Path | None = None
        self.has_folder = threading.Event()
        self.rank: int = settings["rank"]
        self.world_size: int = settings["world_size"]
        self.closed = False
        self.ending = False
        self.early: list[bytes] = []
        self.log: GrowingLog | None = None
        self.retries = Retries(settings["write_timeout_s"], on_failure=self._note_failure)
        self.facts: dict[str, Any] = {}
        self.files: list[dict[str, Any]] = []
        self.checkpoints: deque[list[Any]] = deque(maxlen=_MAX_CHECKPOINTS)
        self.ended_ns: int | None = None
        self.steps = StepStatistics()
        self.live = Live(
            {**settings.get("live", {}), "pid": self.parent}, rank=self.rank, world_size=self.world_size, tell=_reply
        )
        self.telemetry: Any = None
        self.core_waits: Any = None
        self.jobs: queue.Queue[dict[str, Any] | None] = queue.Queue()
        hold_scratch(Path(settings["scratch"]))  # it outlives the process that made it
        self.packer = threading.Thread(target=self._pack_all, daemon=True)
        self.packer.start()

    def read_to_the_end(self, pipe: int) -> None:
        """Take in lines until the pipe ends or the training process has exited."""
        rest = b""
        hang_up = select.poll()
        hang_up.register(pipe, 0)  # wakes where the training process ends, not for lines
        while True:
            self._watch(self.live.look)
            if not select.select([pipe], [], [], min(2.0, self.live.look_s))[0]:
                if os.getppid() != self.parent:  # it was killed, and one of its children still holds the pipe
                    return
                self._flush_log()
                continue
            data = os.read(pipe, _READ_BYTES)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.take(line)
            self._flush_log()
            if self.telemetry is None and self.settings.get("telemetry") and "device" in self.facts:
                self._watch(self._begin_telemetry)
            if not self.closed and len(data) < _READ_BYTES:
                hang_up.poll(1e3 * _NAP_S)

    def take(self, line: bytes) -> None:
        """Act on one line; one that cannot be understood is counted, not fatal."""
        try:
            if line[:1] == b"s":
                self._step(line[1:])
            elif line[:1] == b"m":
                self._message(json.loads(line[1:]))
        except (ValueError, KeyError, TypeError, OSError) as e:
            self.facts.setdefault("warnings", []).append(f"writer: {type(e).__name__}: {e}")

    def finish(self) -> None:
        """Complete this rank's files; on rank 0 wait for the other ranks, within limits, and write run.json."""
        self.ending, self.ended_ns = True, time.time_ns()
        if self.telemetry is not None:
            self.telemetry.end()
        self._watch(partial(self.live.ends, closed=self.closed))
        self.retries.end_within(_LAST_TRIES_S)
        if self.folder is None and not self.closed and self.world_size > 1:
            self._find_folder()
        self.has_folder.set()  # or will never have one
        self.jobs.put(None)
        self.packer.join()
        if self.folder is None:
            return
        self._close_log()
        try:
            self.retries.until_done(self._write_readings)
        except OSError:
            self.retries.lost_files.append(rank_file(self.rank, TELEMETRY))
        with contextlib.suppress(OSError):  # no process is left to report to; run.json then lacks this rank
            self.retries.until_done(partial(self._write_facts, over=True))
        _reply({"own_files": "done"})
        if self.rank == 0:
            found = self._facts_of_all(over=True)
            self.retries.end_within(_LAST_TRIES_S)
            self.retries.until_done(partial(self._write_run_json, found, over=True))

    def _note_failure(self, error: OSError) -> None:
        if error.errno != errno.ENOENT:  # else a file of the training process may be missing: reported by `files`
            _leave_word(f"{ERRNO}{error.errno}")
        if self.ending or self.folder is None:
            _reply({"storage": error.strerror})

    def _watch(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as e:  # noqa: BLE001 - the run comes first
            noted = self.facts.setdefault("warnings", [])
            if (line := f"live: {type(e).__name__}: {e}") not in noted:
                noted.append(line)

    def _message(self, message: dict[str, Any]) -> None:
        do = message.pop("do")
        if do == "claim":
            self._claim(message)
        elif do == "launch":
            self.launch = message
        elif do == "run":
            if trouble := self._open_folder(Path(message["folder"])):
                _reply({"error": trouble})
        elif do in ("trace", "file", "flight"):
            self.jobs.put({"do": do, **message})
        elif do == "facts":
            self.facts.update(message)
            self.live.facts(message)
            if message.pop("window_complete", False):
                if self.core_waits is not None:
                    self.core_waits.end()
                self.jobs.put({"do": "report"})
        elif do == "window soon":
            self._watch_core(message["thread"])
        elif do == "checkpoint":
            if self.checkpoints and self.checkpoints[-1][:2] == message["entry"][:2]:  # the same one, which has ended
                self.checkpoints.pop()
            self.checkpoints.append(message["entry"])
        elif do == "where":
            self.live.where(message)
        elif do == "close":
            self.closed = True

    def _begin_telemetry(self) -> None:
        # not at the start: the helper has to be there soon
        from stepscope.record.helper.telemetry import Telemetry, network_speeds

        self.facts["network"] = network_speeds()
        self.telemetry = Telemetry(self.facts["device"], reads_host=not self.facts.get("local_rank"))
        self.live.meter(self.telemetry.reading)

    def _watch_core(self, native_id: int) -> None:
        if self.world_size > 1 or (self.facts.get("device") or {}).get("kind") != "cpu":
            return  # what a device computes needs no core, and ranks need one clock for all
        from stepscope.record.helper.core_waits import CoreWaits

        self.core_waits = self.core_waits or CoreWaits()
        self.core_waits.begin(self.parent, native_id)

    def _claim(self, message: dict[str, Any]) -> None:
        try:
            folder = self.retries.until_done(partial(_claim_folder, message), within_s=_CLAIM_S)
        except StepscopeError as e:
            _reply({"error": str(e)})
            return
        except OSError as e:
            _reply({"error": f"{message['out']}: {e.strerror} for {_CLAIM_S:g} s; make room, or give --out"})
            return
        trouble = self._open_folder(folder)
        _reply({"folder": str(folder)} if trouble is None else {"error": trouble})

    def _find_folder(self) -> None:
        """Find the folder of the other ranks: the training process was killed before it learned of it."""
        until = time.monotonic() + _FIND_S
        while self.launch.get("launch_id") and self.folder is None and time.monotonic() < until:
            since_ns = self.began_ns - _CLAIMED_BEFORE_NS
            with contextlib.suppress(OSError):
                if folder := folder_of_attempt(**self.launch, since_ns=since_ns):
                    self._open_folder(folder)
                    return
            time.sleep(_NAP_S)

    def _open_folder(self, folder: Path) -> str | None:
        try:
            self.log = self.retries.until_done(partial(self._open, folder), within_s=_CLAIM_S)
        except FileExistsError:
            return f"{folder}: another process has written as rank {self.rank} of this run; this one does not"
        except OSError as e:
            return f"{folder}: cannot write there: {e.strerror}"
        self.folder = folder
        self.has_folder.set()
        self.live.opens(folder)
        for line in self.early:
            self.log.add(line)
        self.early = []
        return None

    def _open(self, folder: Path) -> GrowingLog:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        return GrowingLog(folder / steps_file(self.rank))

    def _step(self, line: bytes) -> None:
        if self.log is not None:
            self.log.add(line)
        elif len(self.early) < 100_000:
            self.early.append(line)
        found = json.loads(line)
        self.steps.add(found)
        self.live.step(found)
        if self.telemetry is not None:
            self.telemetry.step(found)

    def _flush_log(self) -> None:
        if self.log is not None:
            try:
                self.log.flush()
            except OSError as e:
                self.retries.note_failure(e)  # the lines wait for the next time

    def _close_log(self) -> None:
        if self.log is None or self.folder is None:
            return
        if not (self.folder / steps_file(self.rank)).exists():
            _leave_word(f"{ERRNO}{errno.ENOENT}")
        with contextlib.suppress(OSError):  # counted
            self.retries.until_done(self.log.flush)
        with contextlib.suppress(OSError):
            self.retries.lost_lines = self.log.close()

    def _pack_all(self) -> None:
        self.has_folder.wait()
        while (job := self.jobs.get()) is not None:
            if self.folder is None:
                continue
            if job["do"] == "report":
                try:
                    self._write_readings()
                    self._write_facts(over=False)
                    if self.rank == 0:
                        self._write_run_json(self._facts_of_all(over=False), over=False)
                except OSError as e:
                    self.retries.note_failure(e)
            else:
                before = [file for file in self.files if file["name"] != job["name"]]  # samples come again, with more
                self.files = [*before, self._pack_file(job, self.folder)]

    def _pack_file(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        about = {"name": job["name"], **job.get("about", {})}
        try:
            return {**about, **self.retries.until_done(partial(_move_file, job, folder, self.rank))}
        except (OSError, ValueError) as e:
            self.retries.lost_files.append(job["name"])
            return {**about, "status": "failed", "reason": f"{job['name']}: {getattr(e, 'strerror', None) or e}"}
        finally:
            with contextlib.suppress(OSError):
                Path(job["plain"]).unlink()

    def _write_readings(self) -> None:
        if self.telemetry is not None and self.folder is not None:
            self.facts["energy_unknown"] = self.telemetry.reasons or None
            self.telemetry.write(self.folder / rank_file(self.rank, TELEMETRY))
        if self.core_waits is not None and self.folder is not None:
            self.core_waits.write(self.folder / rank_file(self.rank, CORE_WAITS))

    def _write_facts(self, *, over: bool) -> None:
        assert self.folder is not None
        text = {
            "schema": SCHEMA,
            "rank": self.rank,
            "world_size": self.world_size,
            **redacted(self.facts),
            "files": self.files,
            "steps": self.steps.summary(),
            "ended": ("closed" if self.closed else "killed") if over else "running",
            "ended_ns": self.ended_ns,
            "checkpoints": list(self.checkpoints),
            "writing": self.retries.summary(),
            "written_ns": time.time_ns(),
        }
        place_whole(json.dumps(text).encode() + b"\n", self.folder / facts_file(self.rank))

    def _write_run_json(self, found: list[dict[str, Any]], *, over: bool) -> None:
        assert self.folder is not None
        text = run_description(found, world_size=self.world_size, ended=over)
        place_whole(json.dumps(text, indent=1).encode() + b"\n", self.folder / RUN_JSON)

    def _facts_of_all(self, *, over: bool) -> list[dict[str, Any]]:
        assert self.folder is not None
        deadline = time.monotonic() + self.settings["other_ranks_wait_s"]
        done: dict[int, dict[str, Any]] = {}
        while True:
            last_look = time.monotonic() > deadline or (self.ending and not over)
            there = {path.name for path in self.folder.iterdir()}
            for rank in range(self.world_size):
                name = facts_file(rank)
                facts = json_object_in(self.folder / name) if rank not in done and name in there else {}
                if facts and (
                    last_look
                    or facts["ended"] != "running"
                    or (
                        not over
                        and (not facts.get("windows") or len(facts["windows"]) >= len(self.facts.get("windows") or ()))
                    )
                ):
                    done[rank] = facts
            if last_look or len(done) == self.world_size:
                return [done[rank] for rank in sorted(done)]
            time.sleep(_NAP_S + (self.world_size - len(done)) * 0.002)


def _leave_word(word: str) -> None:
    leave_word(f"{HELPER}{os.getpid()}.{word}")


def _reply(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def _claim_folder(message: dict[str, Any]) -> Path:
    try:
        return claim_folder(
            message["out"],
            run_id=message["run_id"],
            launch_id=message.get("launch_id"),
            attempt=message.get("attempt"),
        )
    except StepscopeError as e:
        if isinstance(e.__cause__, OSError) and may_pass(e.__cause__):
            raise e.__cause__ from None
        raise


def _end_after(timeout_s: float, last: Any) -> None:

    def leave() -> None:
        _leave_word(f"{ERRNO}{errno.ETIMEDOUT}")
        last()
        os._exit(1)

    timer = threading.Timer(timeout_s, leave)
    timer.daemon = True
    timer.start()
