"""How many samples and tokens does a batch hold?

    token ids, the first integer tensor   (8, 128)                    8 samples, 1024 tokens
    with an attention mask of 900 ones                                8 samples,  900 tokens: padding is no token
    packed into one row, cu_seqlens       (1, 1024), [0, 300, 1024]   2 samples, 1024 tokens
    a PackedSequence of 8 sequences                                   8 samples, the tokens in it
    labels of a classifier                (8,)                        8 samples, tokens unknown
    no integer tensor, the first one      (8, 3, 32, 32)              8 samples, tokens unknown
    one token id, labels or pixels that are not tensors               both unknown

A guess from shapes and usual names, and marked as one. Data on a device is not read, since that would synchronise:
padding then counts as tokens.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence

_BOUNDS = ("cu_seqlens", "cu_seq_lens", "cu_seq_lens_q")


class BatchContents(NamedTuple):
    """The contents of one batch, None where unknown."""

    samples: int | None
    tokens: int | None


def contents_of(batch: Any) -> BatchContents:
    """Return the samples and tokens of a batch."""
    if isinstance(batch, PackedSequence):
        tokens = None if batch.data.is_floating_point() else int(batch.data.shape[0])
        return BatchContents(int(batch.batch_sizes[0]), tokens)
    tensors = _tensors(batch, depth=0)
    integers = [t for t in tensors if t.ndim and not t.is_floating_point() and t.dtype != torch.bool]
    if not integers:
        return BatchContents(tensors[0].shape[0] if tensors and tensors[0].ndim else None, None)
    ids = integers[0]
    if ids.ndim != 2 or ids.dtype == torch.uint8:
        return BatchContents(ids.shape[0], None)
    return BatchContents(_packed_samples(batch) or ids.shape[0], _unpadded(batch, ids))


def _packed_samples(batch: Any) -> int | None:
    bounds = next((batch[name] for name in _BOUNDS if name in batch), None) if isinstance(batch, Mapping) else None
    return bounds.numel() - 1 if isinstance(bounds, torch.Tensor) and bounds.numel() > 1 else None


def _unpadded(batch: Any, ids: torch.Tensor) -> int:
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if isinstance(mask, torch.Tensor) and mask.device.type == "cpu" and mask.shape == ids.shape:
        return int(mask.count_nonzero())
    return ids.numel()


def _tensors(value: Any, *, depth: int) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if depth > 3:
        return []
    if isinstance(value, Mapping):  # dictionaries, and the batches of tokenizers
        value = [part for name, part in value.items() if name not in _BOUNDS]
    if isinstance(value, list | tuple):
        return [tensor for part in value[:16] for tensor in _tensors(part, depth=depth + 1)]
    return []
