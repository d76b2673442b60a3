"""What the device was doing beside the steps, so that a slow one has a reason: `rank00000.telemetry.jsonl`.

A thread of its own asks NVML once a second, and ten times a second inside the window; the training thread only tells
it when. Without NVML there is one note and nothing else.

    {"kind": "device", "name": "...", "max_sm_clock_mhz": 1980, "power_limit_w": 700.0}
    {"kind": "state", "time_ns": ..., "step": 12, "utilization_pct": 97, "sm_clock_mhz": 1755, "power_w": 640.2,
     "temperature_c": 61, "throttle_reasons": ["power_cap"]}
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stepscope.contract.run_folder import atomic_write, rank_file
from stepscope.record.failsafe import explain, say
from stepscope.record.samplers.nvml import Nvml

PERIOD_S = 1.0
WINDOW_PERIOD_S = 0.1
_MAX_SAMPLES = 100_000  # over a day at one a second; the oldest go first


class Telemetry:
    """A sampler with a thread, which starts at the first step that finds CUDA in use."""

    def __init__(
        self,
        *,
        nvml: Callable[[], Any] = Nvml,
        period_s: float = PERIOD_S,
        window_period_s: float = WINDOW_PERIOD_S,
        cuda_in_use: Callable[[], bool] = torch.cuda.is_initialized,
    ) -> None:
        self._nvml, self._cuda_in_use = nvml, cuda_in_use
        self._periods_s = (period_s, window_period_s)
        self._in_window = False
        self._step = 0
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._over = False
        self._device: dict[str, Any] = {}
        self._states: deque[dict[str, Any]] = deque(maxlen=_MAX_SAMPLES)
        self.why_not: str | None = None

    def on_window_start(self) -> None:
        """Look ten times as often from here on."""
        self._in_window = True
        self._wake.set()

    def on_window_end(self) -> None:
        """Return to one look a second."""
        self._in_window = False

    def on_step_end(self, step: int) -> dict[str, Any]:
        """Note the step, for the thread to write beside its samples."""
        self._step = step + 1
        if self._thread is None and self._cuda_in_use():
            device = _torch_device()
            self._thread = threading.Thread(target=self._watch, args=(device,), name="stepscope-telemetry", daemon=True)
            self._thread.start()
        return {}

    def on_close(self, folder: str | Path, rank: int) -> None:
        """End the thread and write all that it saw."""
        self._over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
        self.after_window(folder, rank)

    def after_window(self, folder: str | Path, rank: int) -> None:
        """Write what was seen so far."""
        if self._states:
            rows = [{"kind": "device", **self._device}, *list(self._states)]
            path = Path(folder) / rank_file(rank, "telemetry.jsonl")
            with atomic_write(path) as f:
                f.writelines(json.dumps(row).encode() + b"\n" for row in rows)

    def _watch(self, device: dict[str, Any]) -> None:
        try:
            nvml = self._nvml()
            handle = nvml.device(uuid=device["uuid"], index=device["index"])
            self._device = {**device, **nvml.limits(handle)}
            while not self._over:
                self._states.append(
                    {"kind": "state", "time_ns": time.time_ns(), "step": self._step, **nvml.state(handle)}
                )
                self._wake.wait(self._periods_s[self._in_window])
                self._wake.clear()
            nvml.close()
        except Exception as e:  # noqa: BLE001 - a thread of ours must not end in a traceback
            self.why_not = f"no device telemetry: {explain(e)}"
            say(self.why_not)


def _torch_device() -> dict[str, Any]:
    """Return the current CUDA device as torch knows it; CUDA must be in use."""
    if not torch.cuda.is_initialized():
        return {"index": 0, "name": None, "uuid": None}
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return {"index": index, "name": properties.name, "uuid": None if uuid is None else f"GPU-{uuid}"}
