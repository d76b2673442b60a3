"""The plainest data parallelism: after backward, average the gradients one by one.

backward  ==========
exchange            --- --- --- ---        every all-reduce is waited for before the next; nothing overlaps
"""

from stepscope.bench.data_parallel.implementations.averaging import gradient, start_mean
from stepscope.bench.data_parallel.implementations.parallel import Parallel, trainable


class Ddp(Parallel):
    """All-reduce after backward."""

    def finish(self) -> None:
        """Average every gradient."""
        for parameter in trainable(self.model):
            start_mean(gradient(parameter)).wait()
