"""What every Python thread was doing, at moments spread over the whole run: `rank00000.samples.jsonl`.

A thread of ours wakes every 100 ms at first and every 500 ms in a long run, at random moments, so that it meets lines
that run in some steps only. It notes the training thread's stack and those of all others. Three more readings show
which thread waited for which:

    gil_wait   how much later than planned our own thread ran, beyond its wait for a core: another held the GIL
    cpu        CPU time of each thread so far: the holder of the GIL ran
    on         whether the training thread's CPU time rose while ours had the GIL: it ran outside of Python

It takes no sample while a profiler of the recorder is on. Early samples are handed over while the job runs.

    {"schema": 1, "rank": 0, "root": "/home/u/project", "epoch_ns": ..., "threads": ["MainThread", "writer"],
     "frames": [["train.py", 40, "step", "loss = model(x)", 1], ...], "stacks": [[0, 3], ...], outermost first
     "preempted": how often the training thread lost its core meanwhile,
     "samples": [[at_us, gil_wait_us, on, stack, cpu_us, [[thread, stack, cpu_us], ...]], ...]}
"""

import json
import linecache
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from types import FrameType
from typing import Any

from stepscope.contract.run_folder import atomic_write, rank_file
from stepscope.contract.step_line import FIRST_STEPS
from stepscope.record.failsafe import explain, say
from stepscope.record.owners.event_tree import LIBRARY, USER, Places, below, main_folder, project_root

_NAME = "stepscope-samples"
_SHORTEST_NS, _LONGEST_NS, _SAMPLES_AT_FIRST = 100_000_000, 500_000_000, 300
_PART_OF_TIME = 1_000  # at most a thousandth of the time is ours, where a sample takes less than half a millisecond
_MAX_SAMPLES = 8_192  # more are thinned out
_SAVED_AT = (32, 64, 128, 256, 512)  # samples: a job that is killed has those; more would take milliseconds to write
_MAX_THREADS = 16  # of a sample
_MAX_NAMES = 64
_MAX_STACKS = 4_000
_MAX_DEPTH = 100
_MAX_KEPT_FRAMES = 16
_MAX_TEXT = 160
_IDLE_NS = 100_000  # a thread that used no more since the last sample and is where it was then has not moved
_LATE_NS = 1_000_000  # a wait for which to check whether it was for a core

# at, wait for the GIL, whether the training thread ran, its stack, its CPU time, other threads: who, stack, CPU time
_Seen = tuple[int, int, bool, int, int, tuple[tuple[int, int, int], ...]]
KeptFrame = tuple[str, int, str, bool]


class ThreadSamples:
    """A sampler with a thread, which starts after the first steps."""

    def __init__(self, *, with_text: bool = True) -> None:
        self._with_text = with_text
        self._thread: threading.Thread | None = None
        self._hand_over: Callable[[Callable[[Path, int], None]], object] | None = None
        self._training_thread, self._native_id, self._main_folder = 0, 0, ""
        self._is_over = False
        self._over = threading.Lock()  # held until the end
        self._pause: threading.Lock | None = None  # held while a profiler is on
        self._samples: list[_Seen] = []
        self._preempted: int | None = None
        self._stacks = _StackNumbers()
        self._names: dict[str, int] = {}  # -1 for our own
        # by thread: where it was, its stack, its CPU time
        self._last: dict[int, tuple[tuple[int, int], int, int]] = {}
        self._epoch_ns = time.time_ns() - perf_counter_ns()
        self._random = random.Random(0)  # the job's generator is not touched

    def on_open(self, hand_over: Callable[[Callable[[Path, int], None]], object]) -> None:
        """Learn how files are handed over: by a function of a folder and the rank that writes them."""
        self._hand_over = hand_over

    def on_step_end(self, step: int) -> dict[str, Any]:
        """Start after the first steps."""
        if self._thread is None and step >= FIRST_STEPS:
            self._training_thread, self._main_folder = threading.get_ident(), main_folder()
            self._native_id = threading.get_native_id()
            self._over.acquire()
            self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)
            self._thread.start()
        return {}

    def on_watch(self, watched: bool) -> None:
        """Pause while a profiler of the recorder watches a step; called before each step where that may change."""
        pause = self._pause
        if watched and pause is None:
            pause = threading.Lock()
            pause.acquire()
            self._pause = pause
        elif not watched and pause is not None:
            self._pause = None
            pause.release()

    def on_close(self, folder: str | Path, rank: int) -> None:
        """End the thread and write what it saw."""
        self._is_over = True
        self.on_watch(False)
        if self._thread is None:
            return
        self._over.release()
        self._thread.join(timeout=2.0)
        if self._samples:
            self._write(Path(folder), rank)

    def _write(self, folder: Path, rank: int) -> None:
        with atomic_write(folder / rank_file(rank, "samples.jsonl")) as f:
            f.write(json.dumps(self._document(rank), separators=(",", ":")).encode() + b"\n")

    def _run(self) -> None:
        try:
            self._take_samples()
        except Exception as e:  # noqa: BLE001 - a thread of ours must not end in a traceback
            say(f"threads are not sampled from here on: {explain(e)}")

    def _take_samples(self) -> None:
        began_ns = perf_counter_ns()
        own, training = KernelCounts(threading.get_native_id()), KernelCounts(self._native_id)
        preempted, own_delay_ns, cost_ns, number = training.preempted(), own.delay_ns() or 0, 0, 0
        while not self._is_over:
            now_ns = perf_counter_ns()
            usual_ns = max(
                _SHORTEST_NS, (now_ns - began_ns) // _SAMPLES_AT_FIRST, cost_ns // max(number, 1) * _PART_OF_TIME
            )
            planned_ns = now_ns + round(min(usual_ns, _LONGEST_NS) * (0.5 + self._random.random()))
            if self._over.acquire(timeout=(planned_ns - now_ns) / 1e9):
                break
            now_ns = perf_counter_ns()
            if (pause := self._pause) is not None:
                pause.acquire()
                continue
            used_ns = time.thread_time_ns()
            seen = self._sample(now_ns, max(0, now_ns - planned_ns))
            if seen is None:  # the training thread has ended
                break
            if seen[1] > _LATE_NS:
                last_ns, own_delay_ns = own_delay_ns, own.delay_ns() or 0
                seen = (seen[0], max(0, seen[1] - (own_delay_ns - last_ns)), *seen[2:])
            self._samples.append(seen)
            if len(self._samples) >= _MAX_SAMPLES:
                del self._samples[::2]
            if number + 1 in _SAVED_AT and self._hand_over is not None:
                self._hand_over(self._write)
            cost_ns, number = cost_ns + time.thread_time_ns() - used_ns, number + 1
        now = training.preempted()
        self._preempted = now - preempted if now is not None and preempted is not None else None

    def _sample(self, now_ns: int, late_ns: int) -> _Seen | None:
        """Return the state of all threads, which do not run Python code meanwhile."""
        frames = sys._current_frames()
        frame = frames.get(self._training_thread)
        if frame is None:
            return None
        clock_of, now_of = time.pthread_getcpuclockid, time.clock_gettime_ns
        clock = clock_of(self._training_thread)
        cpu_ns = now_of(clock)
        stack = self._stacks.of(frame)
        others: list[tuple[int, int, int]] = []
        if len(self._last) > 4 * _MAX_THREADS:
            self._last.clear()
        for thread, frame in frames.items():
            known = threading._active.get(thread)  # type: ignore[attr-defined]
            number = self._thread_number("a thread of a library" if known is None else known.name)
            if number >= 0 and thread != self._training_thread and len(others) < _MAX_THREADS:
                used_ns = now_of(clock_of(thread))
                at, last = (id(frame), frame.f_lasti), self._last.get(thread)
                moved = last is None or last[0] != at or used_ns - last[2] > _IDLE_NS
                where = self._stacks.of(frame) if last is None or moved else last[1]
                self._last[thread] = at, where, used_ns
                others.append((number, where, used_ns))
        del frame, frames
        ran_ns = now_of(clock) - cpu_ns
        return now_ns, late_ns, 2 * ran_ns > perf_counter_ns() - now_ns, stack, cpu_ns, tuple(others)

    def _thread_number(self, name: str) -> int:
        known = self._names.get(name)
        if known is None and len(self._names) >= _MAX_NAMES:  # a job that starts threads again and again
            known = self._names.setdefault("other threads", _MAX_NAMES)
        elif known is None:
            known = self._names[name] = -1 if name.startswith("stepscope") else len(self._names)
        return known

    def _document(self, rank: int) -> dict[str, Any]:
        frames, stacks = self._stacks.table()
        root = project_root([file for file, _, _, is_user in frames if is_user], self._main_folder)
        return {
            "schema": 1,
            "rank": rank,
            "root": root,
            "epoch_ns": self._epoch_ns,
            "threads": list(self._names),
            "preempted": self._preempted,
            "frames": [
                [below(file, root), line, function, self._text_of(file, line) if is_user else "", int(is_user)]
                for file, line, function, is_user in frames
            ],
            "stacks": stacks,
            "samples": [
                [at // 1000, late // 1000, int(on), stack, cpu // 1000, [[n, s, ns // 1000] for n, s, ns in others]]
                for at, late, on, stack, cpu, others in self._samples
            ],
        }

    def _text_of(self, file: str, line: int) -> str:
        return linecache.getline(file, line).strip()[:_MAX_TEXT] if self._with_text else ""


class _StackNumbers:
    """Stacks by number: the user's frames and the outermost of a library's below them; else a library's innermost."""

    def __init__(self) -> None:
        self._places = Places()
        self._known: dict[tuple[int, ...], int] = {}
        self._codes: dict[int, Any] = {}  # referenced, so that their addresses are not reused
        self._numbers: dict[tuple[KeptFrame, ...], int] = {(): 0}

    def of(self, frame: FrameType | None) -> int:
        """Return the number of a frame's stack, 0 for one without a name."""
        innermost, places = frame, list[int]()
        while frame is not None and len(places) < 2 * _MAX_DEPTH:
            places += (id(frame.f_code), frame.f_lasti)
            frame = frame.f_back
        key = tuple(places)
        known = self._known.get(key)
        return self._add(key, innermost) if known is None else known

    def _add(self, key: tuple[int, ...], frame: FrameType | None) -> int:
        kept: list[KeptFrame] = []
        library: KeptFrame | None = None
        innermost: KeptFrame | None = None
        codes = []
        for _ in range(_MAX_DEPTH):
            if frame is None:
                break
            code = frame.f_code
            codes.append(code)
            if len(kept) >= _MAX_KEPT_FRAMES:
                frame = frame.f_back
                continue
            path, kind = self._places.of(code.co_filename)
            if kind == USER:
                if not kept and library is not None:
                    kept.append(library)
                kept.append((path, frame.f_lineno, code.co_name, True))
            elif kind == LIBRARY and not kept:
                library = (path, frame.f_lineno, code.co_name, False)
                innermost = innermost or library
            frame = frame.f_back
        if not kept and innermost is not None:
            kept.append(innermost)
        if len(self._numbers) >= _MAX_STACKS:
            return self._numbers.get(tuple(reversed(kept)), 0)
        number = self._numbers.setdefault(tuple(reversed(kept)), len(self._numbers))
        if len(self._known) < 4 * _MAX_STACKS:
            self._known[key] = number
            self._codes |= {id(code): code for code in codes}
        return number

    def table(self) -> tuple[list[KeptFrame], list[list[int]]]:
        frames: dict[KeptFrame, int] = {}
        stacks = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack in self._numbers]
        return list(frames), stacks


class KernelCounts:
    """What the kernel counts for a thread; None where it does not, or the thread has ended."""

    def __init__(self, native_id: int) -> None:
        self._folder = f"/proc/self/task/{native_id}"

    def delay_ns(self) -> int | None:
        """Return how long it was ready to run and had no core."""
        found = self._read("schedstat").split()
        return int(found[1]) if len(found) == 3 and found[0] != b"0" else None

    def preempted(self) -> int | None:
        """Return how often it lost its core to others."""
        found = self._read("status").rpartition(b"nonvoluntary_ctxt_switches:")[2].strip()
        return int(found) if found.isdigit() else None

    def _read(self, name: str) -> bytes:
        try:
            file = os.open(f"{self._folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.read(file, 8192)
        except OSError:
            return b""
        finally:
            os.close(file)
