"""FSDP2 gathers and reduces in the precision of training, and keeps its shards in fp32."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from stepscope.bench.data_parallel.implementations.fsdp2 import Fsdp2Zero3, mixed_precision
from stepscope.bench.data_parallel.implementations.parallel import Options


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_parameters_are_gathered_in_the_precision_of_training(precision: str, dtype: torch.dtype) -> None:
    seen = []

    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(self.weight.dtype)
            return super().forward(x)

    parallel = Fsdp2Zero3(nn.Sequential(Layer(8, 8), Layer(8, 8)), Options(precision=precision))
    parallel.backward(parallel.model(torch.ones(2, 8)).float().sum())
    assert set(seen) == {dtype}
    assert {p.dtype for p in parallel.weights().values()} == {torch.float32}
    assert mixed_precision(precision).reduce_dtype == (None if precision == "fp32" else dtype)
