"""FLOPs of one step, against torch's own counter."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from stepscope.record.config import RecordConfig
from stepscope.record.window.budget import TypicalStep
from stepscope.record.window.guards import ProfilerGuard
from stepscope.record.window.watched_step import StepCensus


class Small(torch.nn.Module):
    """A convolution, its transpose, a linear layer and a batched product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1, dilation=1)
        self.up = torch.nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.linear = torch.nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(self.conv(x))
        q = self.linear(x).unflatten(-1, (2, 16)).transpose(1, 2).flatten(0, 1)
        return q @ q.transpose(-1, -2)


def census_of(step: object) -> dict[str, int]:
    census = StepCensus(ProfilerGuard(), RecordConfig(), TypicalStep())
    census.begin()
    step()  # type: ignore[operator]
    found = census.counts()
    assert found is not None
    return found


def test_convolutions_and_products_agree_with_torch() -> None:
    model, x = Small(), torch.randn(2, 3, 16, 16)
    counter = FlopCounterMode(display=False)
    with counter:
        model(x)
    forward = counter.get_total_flops()
    with counter:
        model(x).sum().backward()
    found = census_of(lambda: model(x).sum().backward())
    assert found["forward"] == forward
    assert found["total"] == counter.get_total_flops()


def test_attention_is_counted_in_full() -> None:
    b, h, s, d = 2, 4, 16, 8
    q, k, v = (torch.randn(b, h, s, d, requires_grad=True) for _ in range(3))
    found = census_of(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward())
    assert found["forward"] == 4 * b * h * s * s * d
    assert found["total"] == found["forward"] * (1 + 2.5)  # backward computes the scores once more


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_in_the_total_and_not_in_the_forward(reentrant: bool) -> None:
    layer = torch.nn.Linear(8, 8)
    x = torch.randn(4, 8, requires_grad=True)
    once = 2 * 4 * 8 * 8
    found = census_of(lambda: checkpoint(layer, x, use_reentrant=reentrant).sum().backward())
    assert (found["forward"], found["total"]) == (once, 4 * once)
