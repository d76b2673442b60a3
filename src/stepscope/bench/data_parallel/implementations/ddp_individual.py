"""Average the gradients after backward, all started before the first is waited for.

backward  ==========
exchange            -------                the all-reduces overlap each other, but not the backward pass
"""

from stepscope.bench.data_parallel.implementations.averaging import gradient, start_mean
from stepscope.bench.data_parallel.implementations.parallel import Parallel, trainable


class DdpIndividual(Parallel):
    """One asynchronous all-reduce per parameter."""

    def finish(self) -> None:
        """Start all exchanges, then wait for all."""
        for work in [start_mean(gradient(parameter)) for parameter in trainable(self.model)]:
            work.wait()
