"""Which samples each rank gets, and how they reach its device."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

_SAMPLES = 1 << 20


class RankBatches(Sampler[list[int]]):  # type: ignore[misc]
    """Endless batches of indices: step s of rank r takes the r-th part of the s-th global batch.

    A global batch is the same whether one rank takes it whole or several share it.
    """

    def __init__(self, *, batch_size: int, rank: int, world_size: int, count: int) -> None:
        self._batch, self._rank, self._world, self._count = batch_size, rank, world_size, count

    def __iter__(self) -> Iterator[list[int]]:
        first = self._rank * self._batch
        while True:
            yield [(first + i) % self._count for i in range(self._batch)]
            first += self._world * self._batch


class CountingText(Dataset[tuple[torch.Tensor, torch.Tensor]]):  # type: ignore[misc]
    """Tokens that count up by a step of their own, and the tokens that follow each: cheap, endless, learnable."""

    def __init__(self, *, seq_len: int, vocab_size: int, seed: int, cost_us: int = 0) -> None:
        self._seq_len, self._vocab, self._seed, self._cost_us = seq_len, vocab_size, seed, cost_us

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        _keep_busy(self._cost_us)
        own = torch.Generator().manual_seed(self._seed * _SAMPLES + index)
        start = torch.randint(self._vocab, (), generator=own)
        stride = torch.randint(1, 9, (), generator=own)
        tokens = (start + stride * torch.arange(self._seq_len + 1)) % self._vocab
        return tokens[:-1], tokens[1:]


class PlantedVectors(Dataset[tuple[torch.Tensor, torch.Tensor]]):  # type: ignore[misc]
    """Random vectors and a fixed smooth function of each: something to regress on."""

    def __init__(self, *, width: int, seed: int, cost_us: int = 0) -> None:
        self._width, self._seed, self._cost_us = width, seed, cost_us

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        _keep_busy(self._cost_us)
        own = torch.Generator().manual_seed(self._seed * _SAMPLES + index)
        x = torch.randn(self._width, generator=own)
        return x, torch.sin(x.roll(1))


def text_for(spec: Any, *, vocab_size: int | None = None) -> CountingText:
    """Return the text of a workload's description; its option `preprocess_us` makes each sample cost that much."""
    vocab_size = vocab_size or spec.vocab_size
    cost_us = spec.option("preprocess_us", 0)
    return CountingText(seq_len=spec.seq_len, vocab_size=vocab_size, seed=spec.seed, cost_us=cost_us)


def _keep_busy(cost_us: int) -> None:
    until_ns = time.perf_counter_ns() + 1000 * cost_us
    while time.perf_counter_ns() < until_ns:
        pass


def move_to_device(batch: Any, device: torch.device) -> Any:
    """Return the batch with all its tensors on the device; copies from pinned memory do not block."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: move_to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [move_to_device(value, device) for value in batch]
        return parts if isinstance(batch, list) else tuple(parts)
    return batch
