"""Collectives as they happen: count, bytes, time, algorithm and bus bandwidth per operation and process group.

Three sources, each for what it alone knows:

    the tap              every collective that Python issues: exact count and bytes, and its time
    sequence numbers     how many collectives a group issued, C++ included: one call per group and step
    the flight recorder  what the C++ ones were (DDP's reducer, functional collectives), and NCCL's own times of all;
                         dear to read, so it is read early in the run and then rarely, off the training thread

Times include the wait for later ranks; `best` is the fastest one seen. Nothing here waits for a device or a rank.
"""

import contextlib
import json
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stepscope.contract.run_folder import SCHEMA, atomic_write, rank_file
from stepscope.record.collectives.flight_recorder import newest_collectives
from stepscope.record.collectives.groups import process_groups
from stepscope.record.collectives.ledger import Ledger, Row
from stepscope.record.collectives.per_step import StepVolume
from stepscope.record.collectives.tap import Call, CollectiveTap, sequence_number
from stepscope.record.failsafe import explain
from stepscope.record.rank import initialized_distributed

_FIRST_STEPS = 50  # have a look each
_PERIOD_NS = 100_000_000
_EARLY_STEPS = (2, 4, 8, 16)  # the recorder is nearly empty then, and reading it nearly free
_TIMES_ITS_COST = 2_000  # how long it is left alone after a read: reading takes 0.05 % of the time
_NOTHING_RECORDED = (
    "collectives issued in C++ (DDP's reducer, functional collectives) are counted but their bytes are unknown: "
    "torch's flight recorder holds nothing; set TORCH_FR_BUFFER_SIZE=2000"
)

_NOT_TIMED = (
    "operations without a time were issued in C++ on a backend that keeps no times (gloo), or waited for late by "
    "the job; their times are in the trace"
)


class LiveCollectives:
    """A sampler for the step log. `entries` is how the flight recorder is read."""

    def __init__(self, *, entries: Callable[[], list[dict[str, Any]]] = newest_collectives) -> None:
        self.ledger = Ledger()
        self.volume = StepVolume()
        self._entries = entries
        self._tap = CollectiveTap(seen=self._note_call, timed=self._note_time, in_python=self.volume.in_python)
        self._process_groups: list[dict[str, Any]] | None = None  # kept, because they may be gone at the end
        self._groups: list[tuple[Any, str, int]] = []  # (weak reference, name, size)
        self._named: Any = {}  # torch's own table of groups
        self._reader: threading.Thread | None = None
        self._wake = threading.Event()
        self._over = False
        self._next_read_ns = 0
        self._looked_ns = 0

    def install(self) -> None:
        """Begin to listen where torch.distributed is up; `on_step_end` does so too."""
        dist = initialized_distributed()
        if self._reader is None and not self._over and dist is not None:
            self._named = dist.distributed_c10d._world.pg_names
            self._tap.install()
            self._reader = threading.Thread(target=self._read_now_and_then, name="stepscope-collectives", daemon=True)
            self._reader.start()

    def table(self) -> list[Row]:
        """Return what is known so far, one row per operation and group, most bytes first."""
        return self.ledger.rows(self.volume.group_sizes)

    def on_begin(self) -> None:
        """Begin to listen with the first step, where the process group is up by then."""
        self.install()
        if self._reader is not None:
            self.volume.end_of_step(self._numbers(), now_ns=time.time_ns())

    def on_step_end(self, step: int) -> dict[str, Any]:
        """Return the step's count and bytes; bytes None while those of C++ are not known.

        Short steps share a look, which costs 30 us with cold caches: every tenth of a second a line has the sums of
        the `steps` steps that end with it.
        """
        if self._reader is None:
            self.install()
            if self._reader is None:
                return {}
        now_ns = time.time_ns()
        if step >= _FIRST_STEPS and 0 <= now_ns - self._looked_ns < _PERIOD_NS:
            self.volume.share_a_look()
            return {}
        self._looked_ns = now_ns
        if self._tap.is_timing:
            self._tap.read_events()
        line = self.volume.end_of_step(self._numbers(), now_ns=now_ns)
        if step in _EARLY_STEPS or now_ns >= self._next_read_ns:
            self._next_read_ns = now_ns + 10**10  # until the reader knows better
            self._wake.set()
        return {} if line is None else {"collectives": line}

    def on_steps_passed(self, count: int) -> None:
        """Let steps that nobody looked at share the next look."""
        self.volume.share_a_look(count)

    def on_window_end(self) -> None:
        """Read the flight recorder: after the window the step is disturbed anyway."""
        self._wake.set()

    def after_window(self, folder: str | Path, rank: int) -> None:
        """Write `rank00000.collectives.jsonl` as far as it goes: a header, then a line per operation and group."""
        with atomic_write(Path(folder) / rank_file(rank, "collectives.jsonl")) as f:
            f.writelines(json.dumps(line).encode() + b"\n" for line in self._lines(rank))

    def on_close(self, folder: str | Path, rank: int) -> None:
        """Put the original methods back, read the flight recorder once more and write the file again."""
        self._tap.remove()
        self._over = True
        self._wake.set()
        if self._reader is None:
            return
        self._reader.join(timeout=5.0)
        self._read()
        self.after_window(folder, rank)

    def _numbers(self) -> list[tuple[str, int, int]]:
        """Return `(name, size, sequence number)` of every group."""
        if len(self._named) != len(self._groups):
            self._look_at_groups()
        return [
            (name, size, sequence_number(group))
            for reference, name, size in self._groups
            if (group := reference()) is not None
        ]

    def _look_at_groups(self) -> None:
        """Take in groups that came or went since the last step."""
        self._groups = [(weakref.ref(group), name, group.size()) for group, name in self._named.items()]
        if self._groups:
            self._process_groups = process_groups()
        for group in list(self._named):
            _ask_for_times(group)

    def _note_call(self, call: Call) -> None:
        self.ledger.count(call.operation, call.group, size_bytes=call.bytes)
        self.volume.group_sizes.setdefault(call.group, call.group_size)
        self.volume.call(call.operation, call.bytes)

    def _note_time(self, call: Call, dur_ns: int) -> None:
        self.ledger.time(call.operation, call.group, size_bytes=call.bytes, dur_ns=dur_ns)

    def _read_now_and_then(self) -> None:
        while not self._over:
            self._wake.wait()
            self._wake.clear()
            if not self._over:
                self._read()

    def _read(self) -> None:
        try:
            since_ns = time.time_ns()
            entries = self._entries()
            in_cpp = self.volume.from_cpp(entries)
            self.volume.learn(in_cpp)
            self.ledger.add(in_cpp, group_sizes=self.volume.group_sizes)
            self._take_times(entries)
            if not entries:
                self.ledger.note(_NOTHING_RECORDED)
            now_ns = time.time_ns()
            self._next_read_ns = now_ns + _TIMES_ITS_COST * (now_ns - since_ns)
        except Exception as e:  # noqa: BLE001 - a private interface, and training comes first
            self._next_read_ns = 1 << 62
            self.ledger.note(f"the flight recorder cannot be read: {explain(e)}")

    def _take_times(self, entries: list[dict[str, Any]]) -> None:
        """Prefer the backend's own times: they are of the collective alone and of every one, where it takes them."""
        timed = [e for e in entries if e.get("duration_ms") is not None]
        if timed and self._tap.device_events:
            self._tap.device_events = False
            self.ledger.forget_times({e["process_group"][0] for e in timed})
        self.ledger.add_times(timed, group_sizes=self.volume.group_sizes)

    def _lines(self, rank: int) -> list[dict[str, Any]]:
        rows = self.table()
        if any(row.timed_count == 0 and row.bytes for row in rows):
            self.ledger.note(_NOT_TIMED)
        header = {
            "schema": SCHEMA,
            "rank": rank,
            "groups": self._process_groups,
            "issued": {name: number for name, number in self.volume.issued.items() if number},
            "notes": self.ledger.notes,
        }
        return [header, *(row.as_dict() for row in rows)]


def _ask_for_times(group: Any) -> None:
    """Let NCCL record an event before each collective as well, so that its duration becomes known."""
    with contextlib.suppress(RuntimeError, AttributeError, ValueError):
        if "nccl" in str(torch.distributed.get_backend(group)):
            group._enable_collectives_timing()
