"""Results of benchmarks: how sure a time is, against series with known truth, and how folders are read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.cli.run import opener_of
from stepscope.errors import InputError
from stepscope.lab.cli import results as bench
from stepscope.lab.results.folder import compare_bench_json, read_bench_results
from stepscope.lab.results.times import bench_times, over, scaling
from stepscope.run.sources import runs_in
from stepscope.units import ms

RANDOM = np.random.default_rng(7)


def runs(mean: float, *, sigma: float = 0.01, count: int = 3, steps: int = 50) -> list[list[float]]:
    return [(mean * RANDOM.normal(1, sigma, steps)).tolist() for _ in range(count)]


def evidence(samples: list[list[float]], **more: int) -> str:
    times = bench_times(samples, **more)
    assert times is not None
    return "; ".join(doubt.evidence for doubt in times.doubts)


def test_runs_of_two_steps_give_the_range_of_the_steps() -> None:
    times = bench_times([[10.0, 12.0], [11.0, 14.0]])
    assert times is not None and (ms(times.low_ns), ms(times.high_ns)) == (10.0, 14.0)
    found = over([[10.0, 12.0]], [[5.0, 6.0]])
    assert (found.ratio, found.low, found.high) == pytest.approx((2.0, 10 / 6, 12 / 5))


def test_no_interval_leaves_the_steps_however_much_two_runs_differ() -> None:
    times = bench_times([[90.0 + k % 10 for k in range(50)], [300.0 + k % 20 for k in range(50)]])
    assert times is not None and (ms(times.low_ns), ms(times.high_ns)) == (90.0, 319.0)


def test_warm_up_that_was_too_short_is_seen_and_counted() -> None:
    samples = runs(20.0)
    samples[1][:6] = [80.0, 60, 50, 45, 40, 35]
    assert "first 6 measured steps" in evidence(samples, warmup_steps=10)
    assert "22 warm-up steps" in evidence(samples, warmup_steps=10)


def test_drift_of_whole_runs_cancels_in_the_ratio() -> None:
    drift = [1.0, 1.3, 1.7]
    a, b = runs(12.0), runs(10.0)
    drifting = [[[t * d for t in run] for run, d in zip(side, drift, strict=True)] for side in (a, b)]
    found = over(*drifting)
    assert found.ratio == pytest.approx(over(a, b).ratio)
    assert found.ratio == pytest.approx(1.2, rel=0.03) and found.high - found.low < 0.1


def row(mode: str, ranks: int, ms: float) -> dict[str, Any]:
    return {"config": {"mode": mode, "world_size": ranks}, "samples_ms": runs(ms)}


def test_efficiency_of_strong_and_weak_scaling() -> None:
    found = scaling([row("strong", 1, 100), row("strong", 4, 31.25), row("weak", 1, 100), row("weak", 4, 125)])
    by = {(s["mode"], s["world_size"]): s for s in found}
    assert by["strong", 4]["efficiency"] == pytest.approx(0.8, rel=0.02)
    assert by["strong", 4]["speedup"] == pytest.approx(3.2, rel=0.02)
    assert by["weak", 4]["efficiency"] == pytest.approx(0.8, rel=0.02)
    assert by["weak", 4]["low"] <= 0.8 <= by["weak", 4]["high"]


def write(folder: Path, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(folder.name))
    series = [
        {
            "name": "bucketed",
            "config": {"bucket_mb": 25},
            "samples_ms": [(10 + 0.2 * rng.standard_normal(40)).tolist() for _ in range(2)],
            "summary": {"avg_step_time": 10.0, "peak_memory_allocated_gb": 1.5, "memory_reason": None},
        }
    ]
    document = {"schema": 1, "kind": "bench", "command": "ddp", "environment": {}, "series": series, **more}
    (folder / "results.json").write_text(json.dumps(document))
    return folder


def test_series_come_back_with_their_runs(tmp_path: Path) -> None:
    found = read_bench_results(write(tmp_path / "one"))
    series = found.series["bucketed"]
    assert opener_of(str(tmp_path / "one")) is bench and opener_of(str(tmp_path)) is None
    assert [len(run) for run in series.samples_ns] == [40, 40]
    assert series.summary == {"avg_step_time": 10.0, "peak_memory_allocated_gb": 1.5}


def test_series_are_matched_by_name(tmp_path: Path) -> None:
    a = read_bench_results(write(tmp_path / "a"))
    flat = {"name": "flat", "config": {}, "samples_ms": [[1.0] * 5], "summary": {}}
    slow = {
        "name": "bucketed",
        "config": {"bucket_mb": 50},
        "samples_ms": [[1.2 * ms(t) for t in run] for run in a.series["bucketed"].samples_ns],
        "summary": {},
    }
    b = read_bench_results(write(tmp_path / "b", series=[slow, flat]))
    found = compare_bench_json([a], [b], judge=lambda metrics: [])
    (series,) = found["series"]
    assert series["name"] == "bucketed" and found["only_b"] == ["flat"]
    assert series["step_ms"]["significant"] and series["config_changes"] == ["bucket_mb: 25 -> 50"]
    assert found["metrics"][0]["name"] == "bucketed.step_ms"


@pytest.mark.parametrize(
    "more", [{"series": []}, {"series": [{"name": "x"}]}, {"series": 7}, {"schema": 99}, {"kind": "other"}]
)
def test_what_is_no_benchmark_is_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        read_bench_results(write(tmp_path / "odd", **more))


def test_times_that_are_none_are_left_out(tmp_path: Path) -> None:
    odd = {"name": "x", "samples_ms": [[1.0, None, "a", -1, float("nan"), 2.0], []], "config": None, "summary": None}
    assert read_bench_results(write(tmp_path / "odd", series=[odd])).series["x"].samples_ns == ((1_000_000, 2_000_000),)


def test_a_folder_of_runs_stands_for_its_runs(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "two")
    write(tmp_path / "runs" / "one")
    (tmp_path / "runs" / "notes").mkdir()
    assert [p.name for p in runs_in(str(tmp_path / "runs"))] == ["one", "two"]
    assert runs_in(str(tmp_path / "runs" / "one")) == [tmp_path / "runs" / "one"]
    assert runs_in("nowhere*.json") == [Path("nowhere*.json")]
