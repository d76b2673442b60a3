"""Before a job leaves its group, gloo's threads have Python's lock for a moment: else its end may wait forever."""

import sys
import threading
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: F401 - registers the backend "fake"

from stepscope.record.hooks.install import let_gloo_finish


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[None]:
    dist.init_process_group(request.param, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def has_lock_meanwhile() -> bool:
    """Return whether a thread that waits for Python's lock gets it, where the one that has it never gives way."""
    held, had = threading.Lock(), threading.Event()

    def wait() -> None:
        with held:
            had.set()

    before = sys.getswitchinterval()
    with held:
        waiting = threading.Thread(target=wait)
        waiting.start()
        sys.setswitchinterval(1000.0)
    try:
        let_gloo_finish()
        return had.is_set()
    finally:
        sys.setswitchinterval(before)
        waiting.join()


@pytest.mark.parametrize("group", ["gloo", "cpu:gloo,cuda:gloo"], indirect=True)
@pytest.mark.usefixtures("group")
def test_gloo_threads_get_the_lock_before_a_group_is_left() -> None:
    assert has_lock_meanwhile()
