"""A window for an outside tool: `cudaProfilerStart` and `Stop` around the same steps, which nsys and ncu wait for."""

from typing import Any

import torch


class CudaRange:
    """Has the shape of our own profiler, and leaves the recording to the tool that the job runs under."""

    def prepare(self) -> None:
        """Nothing to prepare: the tool is attached already."""

    def start(self) -> None:
        """Open the range."""
        torch.cuda.profiler.start()

    def stop(self, *, about: dict[str, Any]) -> None:
        """Close the range once the device has done the window's work."""
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()

    def cancel(self, *, prepared: bool) -> None:
        """Close the range where it is open."""
        if not prepared:
            torch.cuda.profiler.stop()
