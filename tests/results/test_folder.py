"""Results of a benchmark as the comparison reads them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.compare.document import compare_bench
from stepscope.errors import InputError
from stepscope.results.folder import is_bench_folder, read_bench_results
from stepscope.run.sources import runs_in
from stepscope.units import ms


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
    assert is_bench_folder(tmp_path / "one") and not is_bench_folder(tmp_path)
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
    found = compare_bench([a], [read_bench_results(write(tmp_path / "b", series=[slow, flat]))])
    assert [s.name for s in found.series] == ["bucketed"] and found.only_b == ("flat",)
    assert found.series[0].step.significant and found.series[0].config == ("bucket_mb: 25 -> 50",)
    assert found.metrics[0].name == "bucketed.step_ms"


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
