"""A step captured as one CUDA graph: its kernels are launched together, without the host in between."""

from collections.abc import Callable
from typing import Any

import torch

# before capture, on a side stream, as capture needs; real steps, so that training goes on as it would
_EAGER_STEPS = 3


class CudaGraphStep:
    """Runs a step eagerly three times, captures it, then replays it on copies of each batch."""

    def __init__(self, step: Callable[[Any], torch.Tensor]) -> None:
        self._step = step
        self._done = 0
        self._graph: Any = None
        self._stream = torch.cuda.Stream()
        self._batch: Any = None
        self._loss: torch.Tensor | None = None

    def __call__(self, batch: Any) -> torch.Tensor:
        if self._done < _EAGER_STEPS:
            self._done += 1
            return self._on_the_side(batch)
        if self._graph is None:
            self._capture(batch)
        _copy_batch(self._batch, batch)
        self._graph.replay()
        assert self._loss is not None
        return self._loss.clone()

    def _on_the_side(self, batch: Any) -> torch.Tensor:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self._step(batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _capture(self, batch: Any) -> None:
        self._batch = batch
        self._graph = torch.cuda.CUDAGraph()
        # Only this thread is watched: others, such as the process group's, may ask the device meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._loss = self._step(batch)


def _copy_batch(into: Any, batch: Any) -> None:
    if isinstance(batch, torch.Tensor):
        into.copy_(batch, non_blocking=True)
    elif isinstance(batch, dict):
        for name, value in batch.items():
            _copy_batch(into[name], value)
    elif isinstance(batch, list | tuple):
        for mine, value in zip(into, batch, strict=True):
            _copy_batch(mine, value)
