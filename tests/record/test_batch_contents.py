"""Samples and tokens of batches as people feed them: plain, padded, packed, images, text."""

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from stepscope.record.batch_contents import contents_of

TOKENS = torch.ones(4, 128, dtype=torch.long)
IMAGES, LABELS = torch.zeros(8, 3, 4, 4), torch.zeros(8, dtype=torch.long)
PADDED = torch.tensor([[1] * 128, [1] * 28 + [0] * 100, [1] * 64 + [0] * 64, [1] * 100 + [0] * 28])
PACKED = {"cu_seqlens": torch.tensor([0, 300, 512], dtype=torch.int32), "input_ids": TOKENS.view(1, 512)}


@pytest.mark.parametrize(
    ("batch", "samples", "tokens"),
    [
        (TOKENS, 4, 512),
        ({"input_ids": TOKENS, "attention_mask": TOKENS}, 4, 512),
        ({"input_ids": TOKENS, "attention_mask": PADDED}, 4, 320),
        ({"input_ids": TOKENS, "attention_mask": PADDED.bool()}, 4, 320),
        ({"input_ids": TOKENS, "attention_mask": PADDED[:, None, None]}, 4, 512),
        (PACKED, 2, 512),
        (pack_sequence([torch.arange(5), torch.arange(3), torch.arange(2)]), 3, 10),
        (pack_sequence([torch.zeros(5, 7), torch.zeros(3, 7)]), 2, None),
        ([IMAGES, LABELS], 8, None),
        (IMAGES, 8, None),
        (IMAGES.to(torch.uint8), 8, None),
        ({"x": {"ids": (TOKENS,)}}, 4, 512),
        ((torch.tensor(1.0),), None, None),
        ("text", None, None),
        (None, None, None),
    ],
)
def test_contents_of_a_batch(batch: Any, samples: int | None, tokens: int | None) -> None:
    assert contents_of(batch) == (samples, tokens)
