"""Memory through a step (`--memory`): a labelled snapshot at both edges of every region, and the peak by category.

Outside the window only the allocator's counters are read at region edges, to know *where* the peak last rose. In the
window each edge is a full snapshot with the bytes per category. It ends as `rank00000.memory.jsonl`:

    {"kind": "snapshot", "step": 10, "label": "end forward_pass", "allocated_bytes": ..., "parameters_bytes": ...}
    {"kind": "peak", "peak_bytes": ..., "activations_bytes": ..., "between": ["begin backward_pass", ...]}
    {"kind": "storage", "address": ..., "size_bytes": ..., "device": "cuda:0", "category": "parameters"}

The storages say what the addresses in a memory snapshot of the same rank (`rank00000.memory.pickle`) belong to.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from stepscope.record.memory import MemorySnapshot, device_stats, memory_snapshot
from stepscope.record.memory_categories import CATEGORIES, Storage, at_peak, live_objects, storages_of, totals
from stepscope.run_folder import rank_file, written_whole

_MOST_SNAPSHOTS = 2_000
_FIRST_STEP, _LAST_STEP = 2, 5  # looked at closely where there is no window
NO_DEVICE = "the host's allocator keeps no counters: activations and temporary memory are known on CUDA only"


class MemoryTimeline:
    """A sampler that follows regions. `stats`, `snapshot` and `objects` are how memory is looked at.

    Light mode has no window: there a few early steps are looked at closely.
    """

    def __init__(
        self,
        *,
        stats: Callable[[], Mapping[str, Any]] = device_stats,
        snapshot: Callable[[str], MemorySnapshot] = memory_snapshot,
        objects: Callable[[], tuple[list[Any], list[Any]]] = live_objects,
        has_window: bool = True,
    ) -> None:
        self._stats, self._snapshot, self._objects = stats, snapshot, objects
        self._step = 0
        self._has_window = has_window
        self._in_window = False
        self._models: tuple[list[Any], list[Any]] = ([], [])
        self._storages: list[Storage] = []
        self._lines: list[dict[str, Any]] = []
        self._last_edge = "start"
        self._peak_bytes = 0
        self._peak_between = ("start", "start")

    def on_window_start(self) -> None:
        """Find the models and optimizers, and look closely from here on."""
        self._in_window = True
        self._models = self._objects()

    def on_region_begin(self, name: str) -> None:
        """Look at the memory where a region begins."""
        self._edge(f"begin {name}")

    def on_region_end(self, name: str) -> None:
        """Look at the memory where a region ends."""
        self._edge(f"end {name}")

    def on_step_end(self, step: int) -> dict[str, Any]:
        """Count steps; the step log's own memory numbers come from `MemorySampler`."""
        self._edge("end of step")
        self._step = step + 1
        if not self._has_window and self._step == _FIRST_STEP:
            self.on_window_start()
        elif not self._has_window and self._step == _LAST_STEP:
            self.on_window_end()
        return {}

    def on_window_end(self) -> None:
        """Stop looking closely; remember whose the addresses are, and let go of the models."""
        self._in_window = False
        self._storages = storages_of(self._models[0], optimizers=self._models[1])
        self._models = ([], [])

    def on_close(self, folder: str | Path, rank: int) -> None:
        """Write once more, with what came after the window."""
        self.after_window(folder, rank)

    def after_window(self, folder: str | Path, rank: int) -> None:
        """Write `rank00000.memory.jsonl`."""
        if not self._lines:
            return
        rows = [*self._lines, self._peak(), *({"kind": "storage", **asdict(s)} for s in self._storages)]
        path = Path(folder) / rank_file(rank, "memory.jsonl")
        with written_whole(path) as f:
            f.writelines(json.dumps(row).encode() + b"\n" for row in rows)

    def _edge(self, label: str) -> None:
        peak = (self._stats().get("allocated_bytes") or {"all": {"peak": 0}})["all"]["peak"]
        if peak > self._peak_bytes:
            self._peak_bytes, self._peak_between = peak, (self._last_edge, label)
        self._last_edge = label
        if self._in_window and len(self._lines) < _MOST_SNAPSHOTS:
            self._lines.append(self._line(label))

    def _line(self, label: str) -> dict[str, Any]:
        seen = self._snapshot(label)
        device = "cpu" if seen.allocated_bytes is None else f"cuda:{torch.cuda.current_device()}"
        known = totals(storages_of(self._models[0], optimizers=self._models[1]), device=device)
        return {
            "kind": "snapshot",
            "step": self._step,
            **asdict(seen),
            "fragmentation": seen.fragmentation,
            "device": device,
            **{f"{category}_bytes": known[category] for category in CATEGORIES},
        }

    def _peak(self) -> dict[str, Any]:
        edges = [row for row in self._lines if row["label"] in self._peak_between]
        edges = [row for row in edges if row["allocated_bytes"] is not None]
        if not edges:
            return {"kind": "peak", "peak_bytes": None, "reason": self._why_no_peak()}
        fullest = max(edges, key=lambda row: int(row["allocated_bytes"]))
        known = {category: fullest[f"{category}_bytes"] for category in CATEGORIES}
        peak = at_peak(self._peak_bytes, edge=(fullest["allocated_bytes"], known), between=self._peak_between)
        return {"kind": "peak", **asdict(peak)}

    def _why_no_peak(self) -> str:
        if any(row["allocated_bytes"] is not None for row in self._lines):
            return f"the peak lies between '{' and '.join(self._peak_between)}', which is not in the window"
        return NO_DEVICE
