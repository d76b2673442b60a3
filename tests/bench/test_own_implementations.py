"""Our own implementations on one rank in this process: gradients kept, models freed, parameters nobody used."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from stepscope.bench.data_parallel.agreement import Outcome, agreement  # noqa: E402
from stepscope.bench.data_parallel.implementations.parallel import Options  # noqa: E402
from stepscope.bench.data_parallel.strategies import parallel  # noqa: E402

OWN = ("ddp", "ddp_individual", "ddp_individual_v2", "ddp_bucketed")


@pytest.fixture(autouse=True)
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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
        found = made.gradients()
        assert set(found) == {"used.weight", "used.bias", "unused.weight", "unused.bias"}
        assert torch.equal(found["used.bias"], torch.full((4,), 2.0))
        assert not found["unused.weight"].any()
        made.optimizer.zero_grad(set_to_none=True)


@pytest.mark.parametrize("name", OWN)
def test_gradients_add_up_over_micro_batches(name: str) -> None:
    made = parallel(name, Branches(), Options())
    for last in (False, False, True):
        made.exchange = last
        made.backward(made.model(torch.ones(2, 4)).sum())
    made.finish()
    assert torch.equal(made.gradients()["used.bias"], torch.full((4,), 6.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", (*OWN, "pytorch_ddp"))
def test_model_is_freed_with_its_implementation(name: str) -> None:
    made = parallel(name, Branches(), Options())
    made.backward(made.model(torch.ones(2, 4)).sum())
    made.finish()
    alive = weakref.ref(made.model)
    del made
    gc.collect()
    assert alive() is None


def test_agreement_is_judged_by_the_precision() -> None:
    weights = {"w": torch.ones(100)}
    reference = Outcome(weights, weights, (1.0, 0.5), steps=2)
    off = Outcome({"w": torch.ones(100) * 1.001}, weights, (1.0, 0.5), steps=2)
    assert agreement(off, reference, precision="bf16").agrees
    in_fp32 = agreement(off, reference, precision="fp32")
    assert not in_fp32.agrees and in_fp32.gradient_error == pytest.approx(1e-3, rel=1e-3)
    assert agreement(reference, reference, precision="fp32").equal
