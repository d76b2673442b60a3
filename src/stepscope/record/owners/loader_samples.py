"""Which lines of the dataset do a loader's worker processes spend their time in? Sampled around the step with frames.

    training process                         each forked worker
    watch()      generation g in the first   its thread sees g and samples the worker's main thread every 5 ms:
                 byte of shared memory       the innermost line of the user's below torch's worker loop
    lines()      0 there; reads the slots    stops, its counts are in its slot
    retire()     255 there                   the thread ends

Until then the thread only reads one byte, fifty times a second; workers that start later have none. Workers that are
spawned instead of forked do not have the memory, and are not sampled. No file, no signal, nothing to clean up.
"""

import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from stepscope.record.owners.event_tree import USER, Places

_OFF, _RETIRED = 0, 255
_SLOTS = 64
_SLOT_BYTES = 8192
_SIZE = 4  # of a slot's length, before its text

Line = tuple[str, int]


class LoaderSamples:
    """Memory shared with the workers that this process forks from now on."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1 + _SLOTS * _SLOT_BYTES)
        self._generation = 0

    def watch(self) -> None:
        self._generation = self._generation % (_RETIRED - 1) + 1
        self._shared[0] = self._generation

    def lines(self) -> dict[Line, int]:
        """End sampling; return the samples of all workers by line, of those in which a worker ran any."""
        self._shared[0] = _OFF
        found: dict[Line, int] = {}
        for slot in range(_SLOTS):
            for file, line, count in self._read(slot):
                found[file, line] = found.get((file, line), 0) + count
        return found

    def retire(self) -> None:
        """End the workers' threads: there are no more requests."""
        self._shared[0] = _RETIRED

    def _read(self, slot: int) -> list[tuple[str, int, int]]:
        begin = 1 + slot * _SLOT_BYTES
        size = int.from_bytes(self._shared[begin : begin + _SIZE], "little")
        if not 0 < size <= _SLOT_BYTES - _SIZE:
            return []
        try:
            generation, rows = json.loads(self._shared[begin + _SIZE : begin + _SIZE + size])
            return [(str(f), int(n), int(c)) for f, n, c in rows] if generation == self._generation else []
        except (ValueError, TypeError):  # a worker was writing just now
            return []

    def in_worker(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch's worker loop with an extra thread that samples its own."""

        def _worker_loop(*args: Any, **given: Any) -> Any:
            try:
                if self._shared[0] != _RETIRED:
                    threading.Thread(
                        target=self._sample, args=(threading.get_ident(), code), daemon=True, name="stepscope"
                    ).start()
            except Exception:  # noqa: BLE001 - loading comes first
                pass
            return run(*args, **given)

        code = _worker_loop.__code__
        return _worker_loop

    def _sample(self, watched: int, outermost: CodeType) -> None:
        places = Places()
        counts: dict[Line, int] = {}
        last = taken = 0
        while (generation := self._shared[0]) != _RETIRED:
            if generation and generation != last:
                counts, last, taken = {}, generation, 0
            if not generation or taken >= 2_000:
                time.sleep(0.02)
                continue
            line = innermost_line(sys._current_frames().get(watched), outermost, places)
            if line is not None:
                counts[line] = counts.get(line, 0) + 1
            taken += 1
            if counts and taken % 8 == 0:
                self._publish(generation, counts)
            time.sleep(0.005)

    def _publish(self, generation: int, counts: dict[Line, int]) -> None:
        largest = sorted(counts.items(), key=lambda item: -item[1])[:60]
        text = b""
        while largest:
            text = json.dumps([generation, [[file, line, n] for (file, line), n in largest]]).encode()
            if len(text) <= _SLOT_BYTES - _SIZE:
                break
            largest = largest[: len(largest) // 2]
        begin = 1 + os.getpid() % _SLOTS * _SLOT_BYTES
        self._shared[begin : begin + _SIZE] = bytes(_SIZE)
        self._shared[begin + _SIZE : begin + _SIZE + len(text)] = text
        self._shared[begin : begin + _SIZE] = len(text).to_bytes(_SIZE, "little")


def innermost_line(frame: FrameType | None, outermost: CodeType, places: Places) -> Line | None:
    """Return the innermost line of the user's inside a frame; None where the worker waits or runs a library's alone."""
    for _ in range(200):
        if frame is None or frame.f_code is outermost:
            return None
        path, kind = places.of(frame.f_code.co_filename)
        if kind == USER:
            return path, frame.f_lineno
        frame = frame.f_back
    return None


# of this process: the hook that starts workers and the step with frames share it
SAMPLES = LoaderSamples()
