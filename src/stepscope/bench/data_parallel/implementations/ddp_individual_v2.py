"""Average each gradient as soon as backward has made it, while backward goes on.

    backward  ==========
    exchange    - -- - ---                     most of it hides; many small all-reduces, each with its own latency

On a device the exchange is queued on a stream of its own; on the CPU the backend's threads do it. Backward reaches the
last layers first, so the parameters are exchanged from the last to the first.
"""

from contextlib import nullcontext
from typing import Any
from weakref import proxy

import torch
from torch import nn

from stepscope.bench.data_parallel.implementations.averaging import gradient, start_mean
from stepscope.bench.data_parallel.implementations.parallel import Options, Parallel, trainable
from stepscope.bench.data_parallel.implementations.start_order import StartOrder


class DdpIndividualV2(Parallel):
    """One all-reduce per parameter, started by a hook on its gradient."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        super().__init__(model, options)
        self._parameters = trainable(model)[::-1]
        self._turns = StartOrder(len(self._parameters))
        self._works: list[Any] = []
        self._stream = torch.cuda.Stream() if self._parameters[0].is_cuda else None
        me = proxy(self)  # hooks are kept by the parameters: holding us, they would keep the model for ever
        for place, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, place=place: me._on_gradient(place))

    def finish(self) -> None:
        """Exchange what backward did not reach, then wait for all."""
        for place in self._turns.rest():
            self._start(place)
        with self._beside():
            for work in self._works:
                work.wait()
        self._works.clear()
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def _on_gradient(self, place: int) -> None:
        if self.exchange:
            for each in self._turns.ready(place):
                self._start(each)

    def _start(self, place: int) -> None:
        grad = gradient(self._parameters[place])
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())  # the gradient has to be there first
            grad.record_stream(self._stream)
        with self._beside():
            self._works.append(start_mean(grad))

    def _beside(self) -> Any:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
