"""Memory through a step (`--memory`): a labelled snapshot at both edges of every region, and the peak by category.

Two steps are looked at closely, outside the profiled window, because a close look takes milliseconds; their lines in
the step log say `profiled`, so that nobody takes them for undisturbed. Before them only the allocator's counters are
read at region edges, to know *where* the peak last rose. It ends as `rank00000.memory.jsonl`:

    {"kind": "snapshot", "step": 10, "label": "end forward_pass", "allocated_bytes": ..., "parameters_bytes": ...}
    {"kind": "peak", "peak_bytes": ..., "activations_bytes": ..., "between": ["begin backward_pass", ...]}
    {"kind": "storage", "address": ..., "size_bytes": ..., "device": "cuda:0", "category": "parameters"}
    {"kind": "bucket", "size_bytes": ..., "device": "cuda:0"}

The storages say what the addresses in a memory snapshot of the same rank (`rank00000.memory.pickle`) belong to.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from stepscope.contract.run_folder import atomic_write, rank_file
from stepscope.record.memory.categories import (
    CATEGORIES,
    COMMUNICATION,
    Storage,
    at_peak,
    bucket_sizes,
    live_objects,
    storages_of,
    totals,
)
from stepscope.record.memory.snapshots import MemorySnapshot, device_stats, memory_snapshot

_MAX_SNAPSHOTS = 2_000
_CLOSE_STEPS = 2
NO_DEVICE = "the host's allocator keeps no counters: activations and temporary memory are known on CUDA only"


class MemoryTimeline:
    """A sampler that follows regions. `stats`, `snapshot` and `objects` are how memory is looked at."""

    def __init__(
        self,
        *,
        first_step: int,
        stats: Callable[[], Mapping[str, Any]] = device_stats,
        snapshot: Callable[[str], MemorySnapshot] = memory_snapshot,
        objects: Callable[[], tuple[list[Any], list[Any]]] = live_objects,
    ) -> None:
        self._stats, self._snapshot, self._objects = stats, snapshot, objects
        self._step = 0
        self._first_step, self._last_step = first_step, first_step + _CLOSE_STEPS
        self._looks_closely = False
        self._models: tuple[list[Any], list[Any]] = ([], [])
        self._storages: list[Storage] = []
        self._buckets: list[dict[str, Any]] = []
        self._lines: list[dict[str, Any]] = []
        self._last_edge = "start"
        self._peak_bytes = 0
        self._peak_between = ("start", "start")

    def on_region_begin(self, name: str) -> None:
        """Look at the memory where a region begins."""
        self._edge(f"begin {name}")

    def on_region_end(self, name: str) -> None:
        """Look at the memory where a region ends."""
        self._edge(f"end {name}")

    def on_step_end(self, step: int) -> dict[str, Any]:
        """Return that this step was disturbed, where it was; the log's own memory is `MemorySampler`'s."""
        if self._step >= self._last_step:
            return {}
        self._edge("end of step")
        was_close = self._looks_closely
        self._step = step + 1
        if self._step == self._first_step:
            self._models = self._objects()
            self._looks_closely = True
        elif self._step == self._last_step:
            self._let_go()
        return {"profiled": True} if was_close else {}

    def on_close(self, folder: str | Path, rank: int) -> None:
        """Write it where there was no window."""
        self.after_window(folder, rank)

    def after_window(self, folder: str | Path, rank: int) -> None:
        """Write `rank00000.memory.jsonl`."""
        if not self._lines:
            return
        rows = [*self._lines, self._peak(), *({"kind": "storage", **asdict(s)} for s in self._storages)]
        rows += self._buckets
        path = Path(folder) / rank_file(rank, "memory.jsonl")
        with atomic_write(path) as f:
            f.writelines(json.dumps(row).encode() + b"\n" for row in rows)

    def _let_go(self) -> None:
        """Remember whose the addresses are; the models are not ours to keep."""
        self._looks_closely = False
        self._storages = storages_of(self._models[0], optimizers=self._models[1])
        devices = sorted({storage.device for storage in self._storages})
        sizes = [(device, size) for device in devices for size in bucket_sizes(self._models[0], device=device)]
        self._buckets = [{"kind": "bucket", "size_bytes": size, "device": device} for device, size in sizes]
        self._models = ([], [])

    def _edge(self, label: str) -> None:
        if self._step >= self._last_step:
            return
        peak = (self._stats().get("allocated_bytes") or {"all": {"peak": 0}})["all"]["peak"]
        if peak > self._peak_bytes:
            self._peak_bytes, self._peak_between = peak, (self._last_edge, label)
        self._last_edge = label
        if self._looks_closely and len(self._lines) < _MAX_SNAPSHOTS:
            self._lines.append(self._line(label))

    def _line(self, label: str) -> dict[str, Any]:
        seen = self._snapshot(label)
        device = "cpu" if seen.allocated_bytes is None else f"cuda:{torch.cuda.current_device()}"
        known = totals(storages_of(self._models[0], optimizers=self._models[1]), device=device)
        known[COMMUNICATION] = sum(bucket_sizes(self._models[0], device=device))
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
            return f"the peak lies between '{' and '.join(self._peak_between)}', which was not looked at closely"
        return NO_DEVICE
