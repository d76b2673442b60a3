"""The trainer on one and on two ranks: what it writes, that recording changes nothing, that it can be resumed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.two_ranks import two_ranks
from torch import nn

from stepscope.cli.main import main as stepscope_main
from stepscope.contract.run_folder import trace_file
from stepscope.errors import InputError, UsageError
from stepscope.lab.bench.trainer import Events, Trainer, TrainingResult, main

B3 = {
    "num_steps", "avg_step_time", "min_step_time", "max_step_time", "throughput_samples_per_sec", "tokens_per_sec",
    "avg_loss", "final_loss", "peak_memory_allocated_gb", "avg_memory_allocated_gb", "peak_memory_reserved_gb",
}  # fmt: skip
SMALL = [
    "workload.name=mlp", "workload.d_model=16", "workload.num_layers=2", "workload.batch_size=4", "train.steps=12",
    "train.lr=0.01", "train.grad_accum=2", "train.log_every=4", "scheduler.warmup_steps=3", "profile.wait=4",
    "profile.warmup=1", "profile.active=2",
]  # fmt: skip


def trained(out: Path, *more: str, profile: bool = False, resume: bool = False, **own: Any) -> TrainingResult:
    trainer = Trainer(overrides=[*SMALL, f"output.dir={out}", *more], device="cpu", **own)
    return trainer.train(profile=profile, resume=resume)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingResult, list[str]]:
    said: list[str] = []
    return trained(tmp_path_factory.mktemp("trainer") / "out", profile=True, say=said.append), said


def test_trace_step_log_summary_and_tensorboard_are_written(recorded: tuple[TrainingResult, list[str]]) -> None:
    done, _ = recorded
    assert done.run_folder == done.folder / "run"
    assert (done.run_folder / trace_file(0)).stat().st_size > 1000
    assert json.loads((done.folder / "summary.json").read_text()) == json.loads(json.dumps(done.summary))
    assert "stepscope report" in (done.folder / "summary.txt").read_text()
    (events,) = (done.folder / "tensorboard").iterdir()
    assert all(tag in events.read_bytes() for tag in (b"loss", b"learning_rate", b"samples_per_sec"))


def test_summary_counts_only_steps_without_profiler_and_warm_up(recorded: tuple[TrainingResult, list[str]]) -> None:
    found = recorded[0].summary
    assert found is not None
    assert set(found["summary"]) >= B3
    assert (found["steps_taken"], found["strategy"]) == (12, "single")
    # without the warm-up of the rate, the profiler's warm-up and window, and the two steps after it: FLOPs and frames
    assert found["summary"]["num_steps"] == 12 - 3 - 3 - 2


def test_parts_of_a_step_are_of_the_same_steps_and_sum_to_it(recorded: tuple[TrainingResult, list[str]]) -> None:
    done, _ = recorded
    assert done.summary is not None and done.run_folder is not None
    lines = map(json.loads, (done.run_folder / "rank00000.steps.jsonl").read_text().splitlines())
    logged = {line["step"]: line["regions"] for line in lines if "regions" in line}
    counted = (3, 9, 10, 11)  # after the warm-up of the rate, without profiler, FLOP count and frames
    parts = done.summary["regions_ms"]
    for name in ("forward_pass", "backward_pass", "optimizer_step"):
        assert parts[name] == pytest.approx(sum(logged[step][name]["ns"] for step in counted) / 4e6)
    assert sum(parts.values()) == pytest.approx(done.summary["summary"]["avg_step_time"])
    clipped = [regions["gradient_clipping_warmup"]["ns"] for step, regions in logged.items() if step < 3]
    assert done.summary["other_regions"] == {
        "gradient_clipping_warmup": {"ms": pytest.approx(sum(clipped) / 3e6), "steps": 3}
    }
    assert "in each of 3 other steps" in (done.folder / "summary.txt").read_text()


def test_recording_changes_no_loss(recorded: tuple[TrainingResult, list[str]], tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain")
    assert plain.losses == recorded[0].losses
    assert plain.losses[-1] < plain.losses[0]
    assert (plain.run_folder, (tmp_path / "plain" / "run").exists()) == (None, False)


def test_resumed_training_is_the_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole")
    first = trained(tmp_path / "parts", "train.steps=7", "train.checkpoint_every=7")
    rest = trained(tmp_path / "parts", resume=True)
    assert first.losses + rest.losses == whole.losses
    with pytest.raises(UsageError, match=r"train\.steps: 7 is not more than the 7"):
        trained(tmp_path / "parts", "train.steps=7", resume=True)
    with pytest.raises(InputError, match="not a checkpoint of the configured model"):
        trained(tmp_path / "parts", "workload.d_model=8", resume=True)


def test_own_model_data_and_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    data = torch.utils.data.TensorDataset(x, x @ torch.ones(4, 1))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    settings = ("optimizer.name=sgd", "optimizer.momentum=0.9", "train.steps=30", "train.clip=always")
    done = trained(tmp_path / "dataset", *settings, model=nn.Linear(4, 1), data=data, loss=loss)
    assert done.losses[-1] < done.losses[0] / 2
    batches = list(torch.utils.data.DataLoader(data, batch_size=4))
    assert len(trained(tmp_path / "list", model=nn.Linear(4, 1), data=batches, loss=loss).losses) == 12


def test_what_cannot_be_trained_is_refused(tmp_path: Path, recorded: tuple[TrainingResult, list[str]]) -> None:
    with pytest.raises(UsageError, match="already exists"):
        trained(recorded[0].folder)
    with pytest.raises(UsageError, match="data is missing; give model, data and loss together"):
        trained(tmp_path, model=nn.Linear(1, 1), loss=lambda m, b: m(b))
    with pytest.raises(UsageError, match="no batches are left"):
        trained(tmp_path, model=nn.Linear(1, 1), data=[], loss=lambda m, b: m(b))
    with pytest.raises(InputError, match="no checkpoint to resume"):
        trained(tmp_path, resume=True)
    with pytest.raises(UsageError, match=r"train\.clip_norm has to be none with strategy deepspeed_zero1"):
        Trainer(overrides=["train.strategy=deepspeed_zero1"])


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"output\.dir: cannot write to .*/file/out: Not a directory"):
        trained(tmp_path / "file" / "out")


def test_full_disk_ends_the_logs_and_not_the_training(tmp_path, monkeypatch, capfd):
    def full(self: Events, step: int, values: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Events, "scalars", full)
    assert len(trained(tmp_path / "out").losses) == 12
    assert capfd.readouterr().err.count("no more TensorBoard logs; training continues: No space left") == 1


def test_flags_on_the_command_line_change_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--workload", "mlp", "--d-model", "8", "--num-layers", "1", "--num-epochs", "3", "--warmup-epochs", "1"]
    assert main([*flags, "--no-profile", "--lr", "0.5", "--out", str(tmp_path / "out")]) == 0
    assert "step     3 of 3  training  lr 5.000e-01" in capsys.readouterr().out
    assert main([*flags, "--lr", "fast"]) == 2
    assert "stepscope: --set: train.lr has to be a number above 0, not 'fast'" in capsys.readouterr().err


JOB = Path(__file__).parent / "trainer_job.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trainer")
    two_ranks(JOB, out, modules="torch.distributed.fsdp torch._dynamo")
    return out


def losses(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"losses{rank}.json").read_text())


@pytest.mark.job
@pytest.mark.parametrize("rank", [0, 1])
def test_all_strategies_and_a_resumed_training_have_the_same_losses(folder: Path, rank: int) -> None:
    found = losses(folder, rank)
    assert len(found) == 6
    for name, values in found.items():
        assert values == pytest.approx(found["ddp"], rel=1e-5), name


@pytest.mark.job
def test_report_reads_the_run_of_both_ranks(folder: Path) -> None:
    assert stepscope_main(["report", str(folder / "ddp_bucketed" / "run"), "--json", str(folder / "report.json")]) == 0
    report = json.loads((folder / "report.json").read_text())
    assert (report["run"]["num_ranks"], report["run"]["num_steps"]) == (2, 2)
    assert report["run"]["strategy"] == "ddp"
    assert report["step"]["unprofiled_ms"] > 0


@pytest.mark.job
def test_summary_is_of_the_whole_job(folder: Path) -> None:
    found = json.loads((folder / "ddp" / "summary.json").read_text())
    assert found["world_size"] == 2
    rate = found["summary"]["tokens_per_sec"] * found["summary"]["avg_step_time"] / 1000
    assert rate == pytest.approx(2 * 2 * 2 * 8)  # ranks, micro-batches, samples, tokens
