"""`stepscope.profile` and `stepscope.region` in one process.

T1, T2, ... in names number the faults that recording has to survive; `fault_runs.py` has their scenarios.
"""

import gzip
import json
from typing import Any

import pytest
import torch
from tests.record.script_runs import step_lines

import stepscope
from stepscope.record import session
from stepscope.record.config import RecordConfig, place_of_process
from stepscope.record.session import Recorder
from stepscope.record.steps import StepLog

pytestmark = pytest.mark.job


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "STEPSCOPE_RECORD"):
        monkeypatch.delenv(name, raising=False)


def train(recording: stepscope.profile, *, steps: int = 8) -> None:
    layer = torch.nn.Linear(8, 8)
    for _ in range(steps):
        with recording.region("forward_pass"):
            loss = layer(torch.randn(4, 8)).sum()
        with stepscope.region("backward_pass"):
            loss.backward()
        recording.step()


def test_default_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_TRACE_DIR", str(tmp_path / "traces"))
    with stepscope.profile(wait=1, warmup=1, active=2) as recording:
        train(recording)
    assert recording.run_folder == tmp_path / "traces"
    assert (tmp_path / "traces" / "rank00000.pt.trace.json.gz").exists()
    assert session.current() is None


def test_switches_reach_the_trace(tmp_path):
    switches: dict[str, Any] = {"record_shapes": True, "with_stack": True, "profile_memory": True}
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with stepscope.profile(out=tmp_path / "run", wait=0, warmup=1, active=1, activities=cpu, **switches) as recording:
        train(recording)
    with gzip.open(tmp_path / "run" / "rank00000.pt.trace.json.gz") as f:
        trace = json.load(f)
    assert trace["record_shapes"] == trace["with_stack"] == trace["profile_memory"] == 1
    assert any("Input Dims" in e.get("args", {}) for e in trace["traceEvents"])
    assert any(e.get("cat") == "python_function" for e in trace["traceEvents"])
    assert trace["stepscope"] == {"window": 0, "first_step": 1, "last_step": 2}
    assert {e["name"] for e in trace["traceEvents"]} >= {"forward_pass", "backward_pass", "ProfilerStep#1"}


def test_own_callback_replaces_the_export(tmp_path):
    seen: list[Any] = []
    with stepscope.profile(out=tmp_path / "run", wait=0, warmup=0, active=2, on_trace_ready=seen.append) as recording:
        train(recording)
    seen[0].export_chrome_trace(str(tmp_path / "mine.json"))
    assert "aten::addmm" in seen[0].key_averages().table()
    assert len(seen) == 1 and (tmp_path / "mine.json").stat().st_size > 1000
    assert not list((tmp_path / "run").glob("*.gz"))


def test_unwritable_folder_is_one_line_and_training_goes_on(tmp_path, capsys):
    (tmp_path / "file").touch()
    with stepscope.profile(out=tmp_path / "file" / "run") as recording:
        train(recording)
    said = [x for x in capsys.readouterr().err.splitlines() if x.startswith("stepscope:")]
    assert len(said) == 1 and "--out" in said[0]
    assert recording.run_folder is None


def test_region_in_compiled_code_changes_nothing(tmp_path):
    def double(x: torch.Tensor) -> torch.Tensor:
        with stepscope.region("forward_pass"):
            return x * 2

    x = torch.arange(3.0)
    with stepscope.profile(out=tmp_path / "run", light=True):
        assert torch.equal(torch.compile(double, backend="eager", fullgraph=True)(x), x * 2)


def test_second_profile_in_a_recorded_job_keeps_its_hands_off(tmp_path):
    recorder = Recorder.start(RecordConfig(out=str(tmp_path / "outer"), light=True))
    with stepscope.profile(out=tmp_path / "inner") as recording:
        recording.step()
    assert recorder.step == 0 and session.current() is recorder
    recorder.close()
    assert list(tmp_path.iterdir()) == []  # no step, no files


def test_failing_sampler_is_left_out_with_one_warning(tmp_path, capsys):
    class Bad:
        def on_step_end(self, step: int) -> dict[str, Any]:
            raise KeyError("x")

    class Good:
        def on_step_end(self, step: int) -> dict[str, Any]:
            return {"seen": step}

    recorder = Recorder.start(RecordConfig(out=str(tmp_path / "run"), light=True))
    recorder.add_sampler(Bad())
    recorder.add_sampler(Good())
    for _ in range(3):
        recorder.step_end()
    recorder.close()
    assert capsys.readouterr().err.count("Bad is off") == 1
    assert [x["seen"] for x in step_lines(tmp_path / "run")] == [0, 1, 2]


def test_recorder_that_fails_goes_off_and_says_so_once(tmp_path, monkeypatch, capsys):
    recorder = Recorder.start(RecordConfig(out=str(tmp_path / "run"), wait=1, warmup=0))
    for _ in range(2):
        recorder.step_end()
    assert torch.autograd._profiler_enabled()
    monkeypatch.setattr(StepLog, "add", lambda *_: 1 / 0)
    for _ in range(3):
        recorder.step_end()
    assert not torch.autograd._profiler_enabled()  # nothing of ours goes on
    recorder.close()
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1


def test_nothing_of_ours_runs_after_the_window(tmp_path):
    with stepscope.profile(out=tmp_path / "run", wait=4, warmup=1, active=3, count_flops=False) as recording:
        for _ in range(20):
            torch.nn.Linear(4, 4)(torch.ones(2, 4))
            recording.step()
            recorder = session.current()
            if recorder is not None and recorder.step > 10:
                assert not torch.autograd._profiler_enabled() and recorder.regions.marker is None
    assert [x["phase"] for x in step_lines(tmp_path / "run")].count("after") > 8


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, None, "alone")),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (3, 8, 1, "RANK")),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "2"}, (5, 6, 2, "SLURM_PROCID")),
        ({"RANK": "x", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2, None, "SLURM_PROCID")),
        ({"RANK": "1"}, (0, 1, None, "alone")),
    ],
)
def test_rank_comes_from_the_launchers_variables(environ, expected):
    place = place_of_process(environ)
    assert (place.rank, place.world_size, place.local_rank, place.source) == expected


def test_a_job_too_short_for_the_window_is_told_which_would_do(tmp_path, capfd):
    with stepscope.profile(out=tmp_path / "run") as recording:
        train(recording, steps=6)
    said = [line for line in capfd.readouterr().err.splitlines() if "no trace" in line]
    assert said == [
        "stepscope: no trace: 6 steps were taken, and the profiled ones begin after step 10; "
        "use wait=1, warmup=1, active=4"
    ]
    with stepscope.profile(out=tmp_path / "again", wait=1, warmup=1, active=4) as recording:
        train(recording, steps=6)
    assert (tmp_path / "again" / "rank00000.pt.trace.json.gz").exists()
    assert "no trace" not in capfd.readouterr().err
