"""Pack gradients into buckets and average each bucket as soon as it is full, while backward goes on.

    backward  ==========
    exchange     --- ----                      hides like one by one, with few large all-reduces instead of many small

A bucket is one flat tensor; afterwards the gradients are views of it, so nothing is copied back. The first bucket is
small, so that the exchange begins early. Buckets larger than the model leave nothing to overlap, tiny ones pay the
latency of each all-reduce: `stepscope bench buckets` finds the best size.
"""

from typing import Any
from weakref import proxy

import torch
from torch import nn

from stepscope.bench.data_parallel.implementations.averaging import gradient, start_mean
from stepscope.bench.data_parallel.implementations.parallel import Options, Parallel, trainable
from stepscope.bench.data_parallel.implementations.start_order import StartOrder

_FIRST_BUCKET_MB = 1.0
_MB = 2**20


class DdpBucketed(Parallel):
    """One all-reduce per bucket of gradients, started by the hook that fills it."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        super().__init__(model, options)
        self._buckets = [_Bucket(p) for p in partition(trainable(model)[::-1], size_mb=options.bucket_size_mb)]
        self._turns = StartOrder(len(self._buckets))
        me = proxy(self)  # hooks are kept by the parameters: holding us, they would keep the model for ever
        for place, bucket in enumerate(self._buckets):
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(lambda _, place=place: me._on_gradient(place))

    def finish(self) -> None:
        """Exchange the buckets that backward did not fill, then wait for all."""
        for place in self._turns.rest():
            self._buckets[place].start()
        for bucket in self._buckets:
            bucket.finish()

    def _on_gradient(self, place: int) -> None:
        if self.exchange and self._buckets[place].count_gradient():
            for each in self._turns.ready(place):
                self._buckets[each].start()


class _Bucket:
    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self._missing = len(parameters)
        self._flat = torch.empty(
            sum(p.numel() for p in parameters), dtype=parameters[0].dtype, device=parameters[0].device
        )
        parts = self._flat.split([p.numel() for p in parameters])
        self._views = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
        self._work: Any = None

    def count_gradient(self) -> bool:
        self._missing -= 1
        return self._missing == 0

    def start(self) -> None:
        torch._foreach_copy_(self._views, [gradient(p) for p in self.parameters])
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view
        self._work = start_mean(self._flat)

    def finish(self) -> None:
        self._work.wait()
        self._missing = len(self.parameters)


def partition(parameters: list[nn.Parameter], *, size_mb: float) -> list[list[nn.Parameter]]:
    """Return the parameters in buckets, in order: one is closed once it has reached its size or the kind changes."""
    buckets: list[list[nn.Parameter]] = []
    size_bytes, limit_bytes = 0.0, 0.0
    for parameter in parameters:
        if size_bytes >= limit_bytes or _kind(buckets[-1][0]) != _kind(parameter):
            limit_bytes = _MB * (size_mb if buckets else min(_FIRST_BUCKET_MB, size_mb))
            buckets.append([])
            size_bytes = 0.0
        buckets[-1].append(parameter)
        size_bytes += parameter.numel() * parameter.element_size()
    return buckets


def _kind(parameter: nn.Parameter) -> tuple[torch.dtype, torch.device]:
    return parameter.dtype, parameter.device
