"""Steps of every strategy are those of the plain step: the same gradients and losses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from stepscope.bench.data_parallel.implementations.fsdp2 import hybrid_shards  # noqa: E402
from stepscope.bench.sweeps import child  # noqa: E402
from stepscope.bench.sweeps.rank_step import RankStep  # noqa: E402
from stepscope.bench.sweeps.train_step import TrainStep  # noqa: E402
from stepscope.bench.workloads.build import workload  # noqa: E402
from stepscope.bench.workloads.workload import WorkloadSpec  # noqa: E402
from stepscope.errors import UsageError  # noqa: E402

SPEC = WorkloadSpec(d_model=16, num_layers=2, num_heads=2, seq_len=8, vocab_size=32, batch_size=4)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return child.check_first_steps(TrainStep(workload(SPEC, "cpu"), {}))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "pytorch_ddp"},
        {"strategy": "zero1"},
        {"strategy": "fsdp2_zero2"},
        {"strategy": "fsdp2_zero3"},
        {"strategy": "pytorch_ddp", "accumulation": 2},
        {"strategy": "pytorch_ddp", "accumulation": 2, "exchange_each": True},
        {"strategy": "fsdp2_zero3", "accumulation": 2},
    ],
)
def test_strategies_take_the_plain_step(settings: dict[str, Any], plain: dict[str, Any]) -> None:
    half = WorkloadSpec(**{**vars(SPEC), "batch_size": 2}) if "accumulation" in settings else SPEC
    step = RankStep(workload(half, "cpu"), settings, rank=0, world_size=1)
    found = child.check_first_steps(step)
    step.close()
    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    apart = torch.tensor(found["sketch"]) - torch.tensor(plain["sketch"])
    assert float(apart.norm()) <= 1e-5 * float(torch.tensor(plain["sketch"]).norm())
    assert step.fed.per_step(slice(None)) == (4, 32)


def test_hybrid_sharding_stays_on_a_machine() -> None:
    assert hybrid_shards(16, on_this_machine=8) == 8  # two machines of eight
    assert hybrid_shards(8, on_this_machine=8) == 4  # one machine: two groups
    assert hybrid_shards(4, on_this_machine=1) == 2  # a rank each: pairs of machines
    for few in (2, 3, 5):
        with pytest.raises(UsageError, match="hybrid"):
            hybrid_shards(few, on_this_machine=few)
