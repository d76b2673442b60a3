"""Every name of the toolkit, with a number that the test computes by itself."""

import contextlib
import io
import json
import random
import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.job_environment import python_path
from tests.two_ranks import two_ranks

import stepscope
from stepscope.cli.main import main
from stepscope.contract.run_folder import steps_file
from stepscope.errors import UsageError
from stepscope.lab.guides import COMMANDS, INSTEAD, SAME

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


def test_mfu_is_unknown_for_an_unknown_chip_and_questioned_above_the_peak() -> None:
    with pytest.warns(UserWarning, match="not in the hardware table"):
        assert stepscope.calculate_mfu(1e12, 1, 1.0, 1, "Some Chip 9000") is None
    with pytest.warns(UserWarning, match="impossible"):
        assert stepscope.calculate_mfu(2e15, 1, 1.0, 1, 1e15) == 2.0
    with pytest.raises(UsageError, match="step_time_seconds"):
        stepscope.calculate_mfu(1e12, 1, 0.0, 1, 1e15)


def test_overlap_is_time_of_both_over_the_shorter() -> None:
    tracker = stepscope.OverlapEfficiencyTracker()
    assert tracker.overlap_efficiency() is None
    tracker.record_step(compute_ms=100, comm_ms=40, step_ms=110)  # 30 of 40 hidden
    assert tracker.overlap_efficiency() == pytest.approx(0.75)
    tracker.record_step(100, 40, 150, other_ms=50)  # all of it hidden, 50 ms of loading
    assert tracker.overlap_efficiency() == pytest.approx(70 / 80)
    tracker.record_step(100, 40, 200)  # 60 ms are something else: no negative overlap
    with pytest.warns(UserWarning, match="do not fit into 90 ms"):
        tracker.record_step(100, 40, 90)
    report = tracker.report()
    assert report["overlap_efficiency"] == pytest.approx(70 / 120) and report["impossible_steps"] == 1
    assert report["unexplained_ms"] == 60 and report["theoretical_min_ms"] == 300


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ({"forward": 10, "backward": 20, "allreduce": 37}, "communication-bound"),
        ({"forward": 10, "backward": 20, "allreduce": 30}, "balanced"),
        ({"forward": 10, "backward": 20, "optimizer": 2, "allreduce": 5}, "compute-bound"),
        ({"forward": 10, "backward": 20, "data_loading": 40}, "data-bound"),
        ({"forward": 10, "backward_with_allreduce": 50, "gradient_sync": 2, "logging": 3}, "compute-bound"),
    ],
)
def test_bottleneck(times: dict[str, float], verdict: str) -> None:
    analyzer = stepscope.BottleneckAnalyzer()
    for factor in (0.9, 1.1):
        for phase, duration_ms in times.items():
            analyzer.record(phase, factor * duration_ms)
    found = analyzer.analyze()
    assert found["verdict"] == verdict and found["total_ms"] == pytest.approx(sum(times.values()))
    forward = found["phases"]["forward"]
    assert forward["mean_ms"] == pytest.approx(10) and forward["std_ms"] == pytest.approx(1)
    assert forward["share_pct"] == pytest.approx(1000 / sum(times.values()))


@pytest.mark.parametrize("name", ["low_mfu", "slow_communication", "memory_pressure"])
def test_check_lists_are_measured_or_say_why_not(name, tmp_path, monkeypatch, capsys):
    diagnose = getattr(stepscope, f"diagnose_{name}")
    monkeypatch.delenv("TORCH_TRACE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    unknown = diagnose()
    assert unknown and all(i["status"] == "not measured" and i["reason"] and i["remedy"] for i in unknown)
    printed = capsys.readouterr().out
    assert unknown[0]["id"] in printed and len(printed.splitlines()) <= 1 + len({i["reason"] for i in unknown})
    monkeypatch.setenv("TORCH_TRACE_DIR", str(DATA / "gloo-ddp"))
    assert [i["id"] for i in diagnose()] == [i["id"] for i in unknown]


def test_slow_communication_of_a_run_is_that_of_the_report() -> None:
    run = stepscope.load(DATA / "gloo-ddp")
    items = {i["id"]: i for i in stepscope.diagnose_slow_communication(run)}
    assert items["overlap_pct"]["value"] == pytest.approx(100 * run.document["step"]["overlap_efficiency"], abs=0.01)
    assert items["stragglers"]["value"] == 1 and items["stragglers"]["status"] == "fail"


def test_clock_offsets_are_recovered(tmp_path: Path) -> None:
    import gzip

    shift_us = 5000.0
    for rank in range(2):
        trace = json.loads(gzip.decompress((DATA / "gloo-ddp" / f"rank{rank}.json.gz").read_bytes()))
        for event in trace["traceEvents"]:
            if rank == 1 and "ts" in event:
                event["ts"] += shift_us
        (tmp_path / f"rank_{rank}").mkdir()
        (tmp_path / f"rank_{rank}" / "trace.json").write_text(json.dumps(trace))
    before, after = (stepscope.align_timelines(folder) for folder in (DATA / "gloo-ddp", tmp_path))
    assert set(after) == {0, 1} and before[1] is not None and after[1] is not None
    assert after[1] - before[1] == pytest.approx(-shift_us, abs=300)


def test_every_name_and_command_of_the_guides_is_here_or_mapped() -> None:
    pytest.importorskip("torch")
    page = (ROOT / "docs" / "lab" / "guides.md").read_text()
    for name in SAME:
        assert callable(getattr(stepscope, name)) and f"`{name}`" in page
    for name, instead in INSTEAD.items():
        with pytest.raises(AttributeError, match=re.escape(f"{name!r}; see {instead}")):
            getattr(stepscope, name)
        assert f"`{name}`" in page and instead in page
        assert all(hasattr(stepscope, other) for other in re.findall(r"stepscope\.(\w+)", instead))
    assert all(theirs in page and ours in page for theirs, ours in COMMANDS.items())
    for line in (*re.findall(r"`(stepscope [^`]+)`", " ".join(INSTEAD.values())), *COMMANDS.values()):
        for command in line.split("; "):
            words = shlex.split(command.partition(" -- ")[0].replace(" ...", ""))[1:]
            options = {word for word in words if word.startswith("--")}
            assert options <= set(re.findall(r"--[\w-]+", help_of(words))), command


def help_of(words: list[str]) -> str:
    kinds = words[: 2 if words[0] in ("bench", "predict") else 1]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main([*kinds, "--help"])
    return out.getvalue()


def test_two_configurations_differ_by_what_was_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    clock, noise, step_s = [0.0], random.Random(0), [0.0]
    monkeypatch.setattr("stepscope.lab.bench.measure.perf_counter", lambda: clock[0])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def train() -> None:
        clock[0] += step_s[0] * noise.uniform(0.98, 1.02)

    ab = stepscope.ABProfiler()
    for name, seconds in (("fp32", 0.004), ("bf16", 0.003), ("fp32", 0.004), ("bf16", 0.003)):
        times = ab.profile_config(name, partial(step_s.__setitem__, 0, seconds), train, num_steps=20)
        assert len(times) == 20
    found = ab.compare()
    assert found["a_ms"] == pytest.approx(4.0, rel=0.02) and found["change_pct"] == pytest.approx(-25, abs=2)
    assert found["low_pct"] < found["change_pct"] < found["high_pct"] < 0 and found["significant"]
    with pytest.raises(UsageError, match="two configurations"):
        stepscope.ABProfiler().compare()


@pytest.mark.slow
def test_memory_snapshots_and_breakdown(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    profiler = stepscope.MemoryProfiler("cpu")
    profiler.reset_peak()
    before = profiler.snapshot("before")
    known = stepscope.memory_breakdown()["categories"]
    model = torch.nn.Linear(1000, 8000, bias=False)
    model(torch.ones(1, 1000)).sum().backward()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    profiler.snapshot("after")
    rows = profiler.report()
    assert [row["label"] for row in rows] == ["before", "after"] and rows[0]["host_GB"] == before.host_bytes / 1e9
    assert profiler.checkpoints == profiler.snapshots and re.search(r"after +[\d.]+ [MG]B", capsys.readouterr().out)
    found = stepscope.memory_breakdown()
    grown = {name: found["categories"][name] - known[name] for name in ("parameters", "gradients", "optimizer")}
    if found["device"] == "cpu":
        assert rows[1]["allocated_GB"] is None and found["reason"]
        assert rows[1]["host_GB"] > rows[0]["host_GB"]
        assert grown == {"parameters": 32_000_000, "gradients": 32_000_000, "optimizer": 64_000_004}
    assert re.search(r"gradients +\d+\.\d [MG]B", capsys.readouterr().out)
    steps = stepscope.profile_training_step(model, optimizer, torch.ones(1, 1000))
    assert [s.label for s in steps][::5] == ["before", "after zero_grad"]
    profiler.reset()
    assert profiler.checkpoints == []


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("toolkit")
    environ, modules = {"PYTHONPATH": python_path(ROOT / "src")}, "torch.distributed.fsdp torch.distributed.pipelining"
    said = two_ranks("tests/lab/toolkit_job.py", out, modules=modules, env=environ)
    assert "RESULT" not in said[1] and "own ms" not in said[1]  # rank 0 alone prints
    yield json.loads(said[0].partition("RESULT ")[2].splitlines()[0])


SLEEP_MS, WIDTH_BYTES = 30, 256 * 256 * 4  # of tests/lab/toolkit_job.py


@pytest.mark.job
def test_late_rank_is_named_by_its_own_time(job: dict[str, Any]) -> None:
    health, late = job["health"], job["late"]
    for stragglers, own in (
        (late["stragglers"], [late["own_ms"][rank] for rank in "01"]),
        (health["stragglers"], [rank["own_ms"] for rank in health["ranks"]]),
    ):
        assert own[1] >= SLEEP_MS
        assert (1 in stragglers) == (own[1] >= 1.1 * own[0])  # a busy machine may slow rank 0 as much
    assert all(rank["step_ms"] >= SLEEP_MS for rank in health["ranks"])  # the other rank waits for its gradients
    assert health["reason"] is None and [len(rank["times_ms"]) for rank in health["ranks"]] == [7, 7]
    assert job["statistics"]["loss"] == {"mean": 2.0, "min": 1.0, "max": 3.0, "std": 1.0}
    assert not any(job["gradients_left"]) and set(job["matmuls"]) == {"0", "1"}


@pytest.mark.job
def test_all_reduces_are_counted_and_timed(job: dict[str, Any]) -> None:
    found, size = job["all_reduces"], 5 * 4 * 2**20
    assert found["calls"] == 5 and found["first"] == 2**5 and found["total_bytes_GB"] == pytest.approx(size / 1e9)
    assert 0 < found["total_time_ms"] <= found["outside_ms"]
    assert found["avg_bandwidth_GBps"] == pytest.approx(size / found["total_time_ms"] / 1e6)
    assert found["bus_bandwidth_GBps"] == pytest.approx(found["avg_bandwidth_GBps"])  # 2 (2-1)/2 = 1
    assert found["best_bus_bandwidth_GBps"] >= found["bus_bandwidth_GBps"]
    line = job["alpha_beta"]
    assert line["alpha_us"] >= 0 and line["beta_gbps"] > 0 and Path(line["plot"]).read_text().startswith("<svg")
    assert all(
        m["relative_error"] == pytest.approx(abs(m["fitted"] / m["time"] - 1)) for m in line["measurements"]
    ) and line["max_relative_error"] == max(m["relative_error"] for m in line["measurements"])
    assert job["efficiency"] == pytest.approx(0.8)  # 2 (2-1)/2 of 10 GB/s on 12.5


@pytest.mark.job
def test_recorded_runs_hold_all_ranks(job: dict[str, Any]) -> None:
    trained, synchronized = (stepscope.load(job[name]).document for name in ("folder", "synchronized"))
    assert [rank["num_steps"] for rank in trained["ranks"]] == [3, 3]
    assert [rank["num_steps"] for rank in synchronized["ranks"]] == [4, 4]
    lines = (Path(job["folder"]) / steps_file(1)).read_text().splitlines()[1:]
    steps = [json.loads(line) for line in lines]
    assert len(steps) == 5 and all(step["regions"]["data_loading"]["ns"] >= SLEEP_MS * 1e6 for step in steps)
    assert sum(c["count"] for c in synchronized["collectives"] if c["op"] == "all_reduce") == 4


@pytest.mark.job
def test_buckets_of_ddp(job: dict[str, Any]) -> None:
    found = job["ddp"]
    assert found["num_buckets"] == 2 and [b["size_bytes"] for b in found["buckets"]] == [2 * WIDTH_BYTES] * 2
    for bucket in found["buckets"]:
        assert bucket["wait_ms"] + bucket["transfer_ms"] == pytest.approx(bucket["time_ms"], rel=0.01)
        assert bucket["bus_bandwidth_GBps"] == pytest.approx(2 * WIDTH_BYTES / bucket["transfer_ms"] / 1e6)
    step = found["step"]
    extra = step["backward_with_allreduce_ms"] - step["backward_ms"]
    assert step["forward_ms"] > 0 and step["exposed_allreduce_ms"] == pytest.approx(max(0.0, extra))


@pytest.mark.job
def test_overlap_of_a_model_is_that_of_its_trace(job: dict[str, Any]) -> None:
    found = job["overlap"]
    assert 0 <= found["overlap_efficiency"] <= 1 and found["comm_only_ms"] > 0
    assert found["sequential_ms"] == pytest.approx(found["compute_only_ms"] + found["comm_only_ms"])


@pytest.mark.job
def test_layer_of_tensor_parallelism(job: dict[str, Any]) -> None:
    found = job["tensor_parallel"]
    assert found["by_op"] == {"all_reduce": {"calls": 1.0, "bytes": 32 * 256 * 4.0}}
    layer = found["layer"]
    assert 0 < layer["exposed_comm_ms"] <= layer["comm_ms"] and layer["total_ms"] > 0
    assert found["communication_fraction"] == pytest.approx(layer["exposed_comm_ms"] / layer["profiled_ms"])


@pytest.mark.job
def test_pipeline_schedule(job: dict[str, Any]) -> None:
    found = job["pipeline"]
    assert found["schedule"] == "gpipe" and found["stage"] == 0 and found["reason"] is None
    assert found["forward_ms"] > 0 and found["backward_ms"] > 0 and found["send_ms"] > 0
    assert 0 < found["bubble_fraction"] < 1


@pytest.mark.job
def test_gathers_of_sharded_parameters(job: dict[str, Any]) -> None:
    found = job["sharded"]
    assert found["gathers"] == 4 and found["gathered_bytes"] == 4 * WIDTH_BYTES
    assert found["compute_ms"] > 0 and 0 < found["exposed_gather_ms"] <= found["gather_ms"]
    assert found["stragglers"] is None and "FSDP" in found["reason"]
