"""Samples and tokens per step, guessed from the batches that the loader yields.

    first integer tensor of the batch   (8, 128)        8 samples, 1024 tokens       token ids: batch x sequence
                                        (8,)            8 samples, tokens unknown    labels of a classifier
    no integer tensor, the first one    (8, 3, 32, 32)  8 samples, tokens unknown

A guess, and said to be one. A step's value is the most frequent one of the steps seen so far: loops that load one
batch ahead show one batch too many in their first step.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from stepscope.record.hooks.loop.loop import Loop

_LOOK_STEPS = 8
_SOURCE = "guess: leading dimensions of the first integer tensor of the loader's batches"
_NO_LOADER = "no DataLoader was seen; say it with --tokens-per-step"
_NO_TOKENS = "the loader's batches hold no integer tensor of batch x sequence"


class BatchSize:
    """Counts what is loaded in each of the first steps, then `looks` no more."""

    def __init__(self) -> None:
        self._samples = self._tokens = 0
        self._seen: Counter[tuple[int, int]] = Counter()
        self.looks = True

    def loaded(self, batch: Any) -> None:
        """Count one batch that the training loop received."""
        samples, tokens = size_of_batch(batch)
        self._samples += samples
        self._tokens += tokens

    def step_ended(self, loop: Loop) -> None:
        """Close the count of one step."""
        if self.looks:
            self._seen[self._samples, self._tokens] += 1
            self._samples = self._tokens = 0
            self.looks = loop.steps < _LOOK_STEPS

    def facts(self) -> dict[str, Any]:
        """Return samples and tokens per step of this rank, None with a reason where unknown."""
        if not self._seen:
            return {}
        (samples, tokens), _ = self._seen.most_common(1)[0]
        reasons = {"samples_per_step": None if samples else _NO_LOADER}
        reasons["tokens_per_step"] = None if tokens else (_NO_TOKENS if samples else _NO_LOADER)
        return {
            "samples_per_step": samples or None,
            "tokens_per_step": tokens or None,
            "batch_source": _SOURCE if samples else None,
            "reasons": {name: why for name, why in reasons.items() if why},
        }


def size_of_batch(batch: Any) -> tuple[int, int]:
    """Return (samples, tokens) of a batch, 0 where it does not tell."""
    tensors = _tensors(batch, depth=0)
    integers = [t for t in tensors if t.ndim and not t.is_floating_point() and t.dtype != torch.bool]
    if integers:
        first = integers[0]
        return first.shape[0], first.numel() if first.ndim == 2 and first.dtype != torch.uint8 else 0
    return (tensors[0].shape[0], 0) if tensors and tensors[0].ndim else (0, 0)


def _tensors(value: Any, *, depth: int) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if depth > 3:
        return []
    if isinstance(value, Mapping):  # dictionaries, and the batches of tokenizers
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for part in value[:16] for tensor in _tensors(part, depth=depth + 1)]
    return []
