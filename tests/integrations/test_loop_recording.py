"""A loop recorded from inside its process: steps and regions found, other profilers respected; Slurm's variables."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.record.script_runs import step_lines
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepscope
from stepscope.contract.run_folder import first_node, trace_file
from stepscope.errors import UsageError
from stepscope.integrations.deepspeed import recorded as engine_recorded
from stepscope.integrations.slurm import launcher_variables
from stepscope.integrations.torchrun import recorded

WINDOW: dict[str, Any] = {"wait": 2, "warmup": 1, "active": 2, "others_grace_s": 20.0}
STEPS = 7


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).square().mean()


def batches(count: int = STEPS) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(4 * count, 8)), batch_size=4)


def trained(model: nn.Module | None = None) -> list[float]:
    model = model if model is not None else Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for (x,) in batches():
        loss = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def regions_of(folder: Path | None) -> list[dict[str, int]]:
    assert folder is not None
    return [{name: found["n"] for name, found in line["regions"].items()} for line in step_lines(folder)]


def test_inside_stepscope_profile_that_recorder_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with stepscope.profile(out=tmp_path / "outer", **WINDOW) as outer:
        with recorded(out=tmp_path / "inner", **WINDOW) as inner:
            outer.step()
        assert inner.run_folder == outer.run_folder
    assert "already recorded" in capfd.readouterr().err
    assert not (tmp_path / "inner").exists()


def test_own_profiler_of_a_framework_goes_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    with recorded(out=tmp_path / "run", **WINDOW) as recording, accelerator.profile() as theirs:
        trained()
    assert theirs.key_averages()
    said = capfd.readouterr().err
    assert said.count("another profiler is active in this process; ours stays out of its way") == 1
    assert len(regions_of(recording.run_folder)) == STEPS
    assert not (tmp_path / "run" / trace_file(0)).exists()


@pytest.mark.slow
def test_handler_for_accelerate_takes_what_profile_kwargs_takes(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from stepscope.integrations.accelerate import StepscopeKwargs

    handler = StepscopeKwargs(
        activities=["cpu"],
        schedule_option={"skip_first": 1, "wait": 1, "warmup": 1, "active": 2, "repeat": 0},
        record_shapes=True,
        output_trace_dir=str(tmp_path / "run"),
        settings={"others_grace_s": 20.0},
    )
    accelerator = accelerate.Accelerator(cpu=True, kwargs_handlers=[handler])
    with accelerator.profile() as recording:
        trained()
        recording.step()
    config = recording.config
    assert (config.wait, config.warmup, config.active, config.repeat) == (2, 1, 2, 1)
    assert (config.record_shapes, config.activities) == (True, ("cpu",))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]
    with pytest.raises(UsageError, match="schedule_option: there is no"):
        StepscopeKwargs(schedule_option={"first": 1}).build()


class Engine(nn.Module):
    """What of a DeepSpeed engine a loop uses: backward with its own reduction, a step every second micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.micro = Net(), 0
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def is_gradient_accumulation_boundary(self) -> bool:
        return self.micro % 2 == 1

    def allreduce_gradients(self) -> None:
        pass

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()
        if self.is_gradient_accumulation_boundary():
            self.allreduce_gradients()

    def step(self) -> None:
        if self.is_gradient_accumulation_boundary():
            self.optimizer.step()
        self.micro += 1


@pytest.mark.slow
def test_engine_of_deepspeed_has_one_step_per_accumulation(tmp_path: Path) -> None:
    engine = Engine()
    with engine_recorded(engine, out=tmp_path / "run", **WINDOW) as recording:
        for (x,) in batches(2 * STEPS):
            loss = engine(x)
            engine.backward(loss)
            engine.step()
    twice = dict.fromkeys(("data_loading", "forward_pass", "backward_pass"), 2)
    assert regions_of(recording.run_folder)[1:] == [{**twice, "gradient_sync": 1, "optimizer_step": 1}] * (STEPS - 1)
    assert not {"backward", "step", "allreduce_gradients"} & set(vars(engine))


TASK = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "41234"}


def test_task_becomes_a_rank() -> None:
    found = launcher_variables({**TASK, "SLURM_JOB_NODELIST": "gpu[07-09,12]"})
    assert found == {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu07", "MASTER_PORT": "21234"}


def test_variables_of_torchrun_and_a_given_address_hold() -> None:
    assert launcher_variables({**TASK, "RANK": "0", "WORLD_SIZE": "2"}) == {}
    assert "MASTER_ADDR" not in launcher_variables({**TASK, "MASTER_ADDR": "elsewhere"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("login1", "login1"),
        ("a,b", "a"),
        ("gpu[3,7]", "gpu3"),
        ("gpu-a[001-064]-ib,b", "gpu-a001-ib"),
        ("rack2-n[10]", "rack2-n10"),
    ],
)
def test_first_node_of_a_short_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first
