"""Our own implementations on one rank in this process: gradients kept, models freed, parameters nobody used."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.one_rank_group import one_rank_group  # noqa: E402
from torch import nn  # noqa: E402

from stepscope.errors import UsageError  # noqa: E402
from stepscope.lab.bench.implementations import Options, hybrid_shards, parallel  # noqa: E402

OWN = ("ddp", "ddp_individual", "ddp_individual_v2", "ddp_bucketed")


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    with one_rank_group():
        yield


class Branches(nn.Module):
    """Two layers, of which a batch may use only one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.used(x)


@pytest.mark.parametrize("name", OWN)
def test_parameters_that_no_batch_reached_get_zero_gradients(name: str) -> None:
    made = parallel(name, Branches(), Options(bucket_size_mb=1e-5))
    for _ in range(2):  # the second step finds everything as the first did
        made.backward(made.model(torch.ones(2, 4)).sum())
        made.finish()
        found = made.gradients() or {}
        assert set(found) == {"used.weight", "used.bias", "unused.weight", "unused.bias"}
        assert torch.equal(found["used.bias"], torch.full((4,), 2.0))
        assert not found["unused.weight"].any()
        made.optimizer.zero_grad(set_to_none=True)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_fsdp_gathers_parameters_in_the_precision_of_training(precision: str, dtype: Any) -> None:
    seen = []

    class Layer(nn.Linear):
        def forward(self, x: Any) -> Any:
            seen.append(self.weight.dtype)
            return super().forward(x)

    made = parallel("fsdp2_zero3", nn.Sequential(Layer(8, 8), Layer(8, 8)), Options(precision=precision))
    made.backward(made.model(torch.ones(2, 8)).float().sum())
    assert set(seen) == {dtype}
    assert {p.dtype for p in made.weights().values()} == {torch.float32}


def test_hybrid_sharding_stays_on_a_machine() -> None:
    assert hybrid_shards(16, on_this_machine=8) == 8  # two machines of eight
    assert hybrid_shards(4, on_this_machine=1) == 2  # a rank each: pairs of machines
    with pytest.raises(UsageError, match="hybrid"):
        hybrid_shards(5, on_this_machine=5)
