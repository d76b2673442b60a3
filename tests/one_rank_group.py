"""A process group of one rank in the process of the tests."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from stepscope.record.hooks.install import let_gloo_finish


@contextmanager
def one_rank_group(backend: str = "gloo") -> Iterator[None]:
    """Have a process group meanwhile."""
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        let_gloo_finish()  # or a DDP model that ends hangs in C, GIL held: no time limit of a test reaches it
        dist.destroy_process_group()
