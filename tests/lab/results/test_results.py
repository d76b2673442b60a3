"""Results of benchmarks: how sure a time is, against series with known truth, and how folders are read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stepscope.analyze.log_stragglers import late_ranks
from stepscope.cli.run import opener_of
from stepscope.errors import InputError
from stepscope.lab.cli import results as bench
from stepscope.lab.results.compare import compare_bench_json
from stepscope.lab.results.folder import read_bench_results
from stepscope.lab.results.times import bench_times, over, scaling
from stepscope.run.side_files import StepLog, step_log_of
from stepscope.run.sources import runs_in
from stepscope.stats import robust as stats_bootstrap
from stepscope.units import ms

RANDOM = np.random.default_rng(7)
TRIALS = 120
MIN_HELD = 107
"""95 % of 120 less three standard deviations"""

Floats = npt.NDArray[np.float64]


def runs(mean: float, *, sigma: float = 0.01, count: int = 3, steps: int = 50) -> list[list[float]]:
    return [(mean * RANDOM.normal(1, sigma, steps)).tolist() for _ in range(count)]


def evidence(samples: list[list[float]], **more: int) -> str:
    times = bench_times(samples, **more)
    assert times is not None
    return "; ".join(doubt.evidence for doubt in times.doubts)


NOISE = {"normal": (0.0, False), "correlated": (0.5, False), "skewed": (0.0, True), "both": (0.5, True)}
"""lag-1 autocorrelation, and whether most steps are alike and a few long"""


def noisy(rng: np.random.Generator, kind: str, *, median_ms: float, steps: int = 50) -> Floats:
    """Return steps of this median, 5 % noise."""
    r, skewed = NOISE[kind]
    z = rng.standard_normal(steps + 20)
    for i in range(1, len(z)):
        z[i] = r * z[i - 1] + np.sqrt(1 - r * r) * z[i]
    return np.asarray(median_ms * (1 + 0.05 * ((np.exp(0.7 * z) - 1) / 0.7 if skewed else z)[20:]))


@pytest.fixture
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the draws: the rates below are of many trials, not of one."""
    monkeypatch.setattr(stats_bootstrap, "_DRAWS", 199)


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_draws")
@pytest.mark.parametrize("apart", [None, 0.0, 0.03], ids=["one run", "equal runs", "runs 3 % apart"])
@pytest.mark.parametrize("kind", NOISE)
def test_interval_holds_the_truth_as_often_as_it_says(kind: str, apart: float | None) -> None:
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(TRIALS):
        levels = 20 * (1 + (apart or 0.0) * rng.standard_normal(1 if apart is None else 3))
        found = bench_times([noisy(rng, kind, median_ms=level).tolist() for level in levels])
        assert found is not None
        held += ms(found.low_ns) <= 20 <= ms(found.high_ns)
    assert held >= MIN_HELD


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_draws")
@pytest.mark.parametrize("apart", [0.0, 0.02], ids=["drift shared", "runs 2 % apart"])
@pytest.mark.parametrize("kind", NOISE)
def test_interval_of_the_ratio_holds_the_truth_as_often_as_it_says(kind: str, apart: float) -> None:
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(TRIALS):
        drift = 1 + 0.1 * rng.standard_normal(3)
        sides = [
            [noisy(rng, kind, median_ms=ms * d * (1 + apart * rng.standard_normal())).tolist() for d in drift]
            for ms in (24, 20)
        ]
        found = over(*sides)
        held += found.low <= 1.2 <= found.high
    assert held >= MIN_HELD


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


def log(rank: int, own_ms: float, step_ms: float, *, sigma: float = 0.01, steps: int = 60) -> StepLog:
    own = own_ms * RANDOM.normal(1, sigma, steps)
    lines = [
        {
            "step": i,
            "start_ns": 10**9 + int(i * step_ms * 1e6),
            "end_ns": 10**9 + int((i + 1) * step_ms * 1e6),
            "dur_ns": int(step_ms * 1e6),
            "regions": {"gradient_sync": {"ns": int((step_ms - t) * 1e6), "n": 1}},
        }
        for i, t in enumerate(own)
    ]
    return step_log_of(lines, rank=rank)


def test_late_rank_is_named_from_logs_though_all_steps_are_equally_long() -> None:
    for ranks in (2, 4):
        logs = [log(r, 70 if r == 1 else 50, 80) for r in range(ranks)]
        found = late_ranks(logs)
        assert [late.rank for late in found] == [1]
        assert ms(found[0].late_ns) == pytest.approx(20, rel=0.05) and found[0].slowdown == pytest.approx(1.4, rel=0.05)


def test_profiled_steps_do_not_count() -> None:
    logs = [log(r, 70 if r == 1 else 50, 180) for r in range(2)]
    for each in logs:
        each.profiled[20:50] = True
        each.numbers["regions.gradient_sync.ns"][20:50] = 0.0 if each.rank else 130e6
    assert ms(late_ranks(logs)[0].late_ns) == pytest.approx(20, rel=0.05)


def test_equal_ranks_are_not_late_however_noisy() -> None:
    assert late_ranks([log(r, 50, 80, sigma=0.2) for r in range(2)]) == []


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
