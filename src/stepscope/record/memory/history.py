"""The CUDA allocator's own history of the window (`--memory`): every allocation with its Python stack, as a pickle.

The history is switched on where the window begins and off where it ends. It is left alone where the job records one
of its own: ours would replace it. The file is what `torch.cuda.memory._dump_snapshot` writes, so every viewer of such
snapshots reads it too.
"""

import pickle
import time
from pathlib import Path
from typing import Any

import torch

from stepscope.contract.run_folder import atomic_write, rank_file
from stepscope.record.failsafe import explain, say

MAX_ENTRIES = 100_000  # bounds memory (about 100 MB with stacks) and the time that the dump takes


class MemoryHistory:
    """A sampler that captures the allocator's history in the window. `memory` is `torch.cuda.memory`."""

    def __init__(self, *, memory: Any = None, max_entries: int = MAX_ENTRIES) -> None:
        self._memory = torch.cuda.memory if memory is None else memory
        self._max_entries = max_entries
        self._recording = False
        self._captured: Any = None
        self.dump_ms: float | None = None
        self.why_not: str | None = None

    def on_window_start(self) -> None:
        """Switch the history on, unless CUDA is not in use or the job has its own."""
        if not torch.cuda.is_initialized():
            self._stay_out("CUDA is not in use in this process")
        elif history_is_on():
            self._stay_out("the job records a memory history of its own")
        else:
            self._guarded(self._switch_on)

    def on_window_end(self) -> None:
        """Take the snapshot and switch the history off."""
        if self._recording:
            self._recording = False
            self._guarded(self._capture)

    def after_window(self, folder: str | Path, rank: int) -> None:
        """Write the capture as `rank00000.memory.pickle`; a second window's replaces the first one's."""
        snapshot, self._captured = self._captured, None
        if snapshot is None:
            return
        since_ns = time.perf_counter_ns()
        with atomic_write(Path(folder) / rank_file(rank, "memory.pickle")) as f:
            pickle.dump(snapshot, f, protocol=4)
        self.dump_ms = (time.perf_counter_ns() - since_ns) / 1e6

    def on_close(self, folder: str | Path, rank: int) -> None:
        """Keep what a window that never ended has recorded."""
        self.on_window_end()
        self.after_window(folder, rank)

    def _switch_on(self) -> None:
        self._memory._record_memory_history(
            enabled="all", context="alloc", stacks="python", max_entries=self._max_entries
        )
        self._recording = True

    def _capture(self) -> None:
        try:
            self._captured = self._memory._snapshot()
        finally:
            self._memory._record_memory_history(enabled=None)

    def _guarded(self, act: Any) -> None:
        try:
            act()
        except Exception as e:  # noqa: BLE001 - the allocator's interface is private and changes
            self._stay_out(explain(e))

    def _stay_out(self, reason: str) -> None:
        if self.why_not is None:
            self.why_not = reason
            say(f"no memory history: {reason}")


def history_is_on() -> bool:
    """Return whether somebody in this process records the allocator's history already."""
    asked = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(asked()) if asked is not None else False
