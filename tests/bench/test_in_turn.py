"""Collectives start in one order on every rank, whatever the order of the gradients."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from stepscope.bench.data_parallel.implementations.ddp_bucketed import partition  # noqa: E402
from stepscope.bench.data_parallel.implementations.start_order import StartOrder  # noqa: E402
from stepscope.bench.data_parallel.training import PEAK_LR  # noqa: E402
from stepscope.bench.learning_rate import learning_rate  # noqa: E402


def test_things_ready_early_wait_for_their_turn() -> None:
    turns = StartOrder(4)
    assert turns.ready(2) == []
    assert turns.ready(0) == [0]
    assert turns.ready(1) == [1, 2]
    assert turns.rest() == [3]


def test_every_step_begins_anew() -> None:
    turns = StartOrder(2)
    assert turns.ready(0) + turns.rest() == [0, 1]
    assert turns.ready(1) == []
    assert turns.ready(0) == [0, 1]


def parameters(*sizes_mb: float, dtype: Any = torch.float32) -> list[nn.Parameter]:
    size = torch.empty(0, dtype=dtype).element_size()
    return [nn.Parameter(torch.empty(int(mb * 2**20) // size, dtype=dtype)) for mb in sizes_mb]


def test_buckets_close_at_their_size_and_the_first_at_one_megabyte() -> None:
    assert [len(b) for b in partition(parameters(0.6, 0.6, 2, 2, 2, 2), size_mb=4)] == [2, 2, 2]


def test_kinds_are_never_mixed_in_a_bucket() -> None:
    mixed = parameters(0.1) + parameters(0.1, dtype=torch.bfloat16)
    assert [len(b) for b in partition(mixed, size_mb=25)] == [1, 1]


def test_every_parameter_is_in_one_bucket() -> None:
    given = parameters(*([0.3] * 11))
    assert [p for bucket in partition(given, size_mb=1) for p in bucket] == given


def test_learning_rate_rises_linearly_from_zero_and_stays() -> None:
    rates = [learning_rate(step, peak=PEAK_LR, warmup_steps=5) for step in range(8)]
    assert rates[0] == 0 and rates[5:] == [0.001] * 3
    assert rates[3] == pytest.approx(0.0006)
