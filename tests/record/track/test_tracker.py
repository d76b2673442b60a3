"""Throughput, MFU and alerts of a loop, and the same scalars in every place they are sent to."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stepscope.contract.run_folder import steps_file  # noqa: E402
from stepscope.record.tracker import (  # noqa: E402
    Alert,
    PerformanceTracker,
    RunFollower,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_throughput_and_mfu_follow_from_what_was_fed() -> None:
    clock, batch = Clock(), {"input_ids": torch.zeros(4, 100, dtype=torch.long)}
    tracker = PerformanceTracker(flops_per_token=1e9, peak_tflops=2.0, world_size=2, clock=clock)
    for _ in range(3):
        clock.now_s += 0.5
        found = tracker.step(batch, loss=1.5)
    assert found["step/ms"] == pytest.approx(500) and found["loss"] == 1.5
    assert found["throughput/samples_per_s"] == pytest.approx(16)
    assert found["throughput/tokens_per_s"] == pytest.approx(1600)
    assert found["efficiency/mfu"] == pytest.approx(400e9 / 0.5 / 2e12)
    assert tracker.summary()["why_not"] == {}


def test_alerts_are_said_once_while_they_last() -> None:
    clock = Clock()
    heard: list[Alert] = []
    tracker = PerformanceTracker(window=40, clock=clock, on_alert=heard.append)
    for step in range(60):
        clock.now_s += 0.1 if step < 30 else 0.15
        tracker.step(samples=1)
    assert [alert.id for alert in heard] == ["slower"]
    clock.now_s += 1.0
    tracker.step(samples=1)
    assert heard[-1].id == "long-step" and "1000.0 ms" in heard[-1].text


class FakeRun:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.artefacts: list[Any] = []
        self.finished = False

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def log_artifact(self, artefact: Any) -> None:
        self.artefacts.append(artefact)

    def finish(self) -> None:
        self.finished = True


class FakeArtifact(SimpleNamespace):
    def __init__(self, name: str, type: str) -> None:
        super().__init__(name=name, type=type, files=[])

    def add_file(self, path: str) -> None:
        self.files.append(Path(path).read_text())


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    module, run = ModuleType("wandb"), FakeRun()
    module.run, module.init, module.Artifact = None, lambda project: run, FakeArtifact  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return run


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    module, run = ModuleType("mlflow"), FakeRun()
    module.active_run, module.set_experiment = lambda: None, lambda name: None  # type: ignore[attr-defined]
    module.start_run, module.end_run = lambda: run, run.finish  # type: ignore[attr-defined]
    module.log_metrics = run.log  # type: ignore[attr-defined]
    module.log_artifact = lambda path: run.artefacts.append(Path(path).read_text())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return run


def test_every_place_gets_the_same_scalars_and_the_report(tmp_path: Path, wandb: FakeRun, mlflow: FakeRun) -> None:
    (tmp_path / "report.html").write_text("<p>the report")
    clock, mine = Clock(), []
    places = [f"tensorboard:{tmp_path / 'tb'}", "wandb:p", "mlflow:e", lambda step, values: mine.append((step, values))]
    tracker = PerformanceTracker(clock=clock, log_to=places)
    for _ in range(2):
        clock.now_s += 0.25
        tracker.step(samples=8)
    tracker.close(report=tmp_path / "report.html")
    assert wandb.logged == mlflow.logged == mine and [step for step, _ in mine] == [0, 1]
    assert mine[1][1]["throughput/samples_per_s"] == pytest.approx(32)
    assert wandb.finished and mlflow.finished
    assert wandb.artefacts[0].files == mlflow.artefacts == ["<p>the report"]
    assert (tmp_path / "tb" / "report.html").read_text() == "<p>the report"
    (events,) = (tmp_path / "tb").glob("events.out.tfevents.*")
    assert b"throughput/samples_per_s" in events.read_bytes()


def test_a_recorded_job_is_followed_through_its_files(tmp_path: Path) -> None:
    def lines(sync_ns: int) -> str:
        line = {"dur_ns": 20_000_000, "device_ns": None, "memory": {"host_bytes": 2_000_000_000}}
        regions = {"gradient_sync": {"ns": sync_ns, "n": 1}}
        steps = [json.dumps({"step": n, **line, "regions": regions}) for n in range(5)]
        return "\n".join(['{"schema": 1}', *steps, '{"step": 5, "dur'])

    (tmp_path / steps_file(0)).write_text(lines(12_000_000))
    (tmp_path / steps_file(1)).write_text(lines(1_000_000))
    heard: list[tuple[int, dict[str, float]]] = []
    follower = RunFollower(
        [lambda step, values: heard.append((step, values))],
        folder=lambda: tmp_path,
        world_size=lambda: 2,
        batch=lambda: {"samples_per_step": 4, "tokens_per_step": None},
        period_s=60.0,
    )
    follower.on_step_end(0)
    follower.on_close(tmp_path, 0)
    ((step, values),) = heard
    assert step == 4 and values["step/ms"] == pytest.approx(20) and values["memory/host_gb"] == pytest.approx(2)
    assert values["throughput/samples_per_s"] == pytest.approx(2 * 4 / 0.02)
    assert values["own_ms/rank1"] == pytest.approx(19) and values["late_ms/rank1"] == pytest.approx(11)
    assert "throughput/tokens_per_s" not in values
