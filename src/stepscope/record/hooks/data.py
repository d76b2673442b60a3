"""Data loading: how long the training thread waits for each batch of a `DataLoader`, and for its workers to start.

Forked workers get a thread that can sample their lines around the step with frames (`owners/loader_samples`).
"""

from typing import Any

from torch.utils.data._utils import worker
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

from stepscope.record.hooks.loop.batch_size import BatchSize
from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.patches import Patches
from stepscope.record.own_frame import leave_out
from stepscope.record.owners.loader_samples import SAMPLES


def install(loop: Loop, patches: Patches, batch_size: BatchSize) -> None:
    """Put the hooks in. Those of batches are for the process that asks for them; workers do not come there."""

    def watched(next_batch: Any) -> Any:
        def __next__(self: Any) -> Any:
            counts, got_batch = not loop.backwards_left and loop.data_begins(), False
            try:
                batch = next_batch(self)
                got_batch = True
            except BaseException as e:
                leave_out(e)
                raise
            finally:
                if counts:
                    loop.data_ends(got_batch=got_batch)
            if counts and batch_size.looks:
                loop.safely(batch_size.loaded, batch)
            return batch

        return __next__

    def started(make_iterator: Any) -> Any:
        def __iter__(self: Any) -> Any:
            counts = loop.loader_begins()
            try:
                return make_iterator(self)
            except BaseException as e:
                leave_out(e)
                raise
            finally:
                if counts:
                    loop.loader_ends()

        return __iter__

    patches.replace(_BaseDataLoaderIter, "__next__", watched)
    patches.replace(DataLoader, "__iter__", started)
    patches.replace(worker, "_worker_loop", SAMPLES.in_worker)
