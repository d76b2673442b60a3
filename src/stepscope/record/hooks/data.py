"""Data loading: how long the training thread waits for each batch of a `DataLoader`."""

from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from stepscope.record.hooks.loop.batch_size import BatchSize
from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.patches import Patches


def install(loop: Loop, patches: Patches, batch_size: BatchSize) -> None:
    """Put the hook in. Worker processes do not come here: only the process that asks for batches does."""

    def watched(next_batch: Any) -> Any:
        def __next__(self: Any) -> Any:
            if not loop.data_begins():
                return next_batch(self)
            got_batch = False
            try:
                batch = next_batch(self)
                got_batch = True
            finally:
                loop.data_ends(got_batch=got_batch)
            if batch_size.looks:
                loop.safely(batch_size.loaded, batch)
            return batch

        return __next__

    patches.replace(_BaseDataLoaderIter, "__next__", watched)
