"""Kernels that Nsight Compute measured: which launch is which kernel, and what it changes in the table."""

import csv
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import account_of
from stepscope.analyze.nsight_kernels import measured_rows
from stepscope.diagnose.findings import diagnose
from stepscope.document.report import report_json
from stepscope.run.load import Run

_VECTORIZED = "vectorized_elementwise_kernel"
ADD = (
    f"void at::native::{_VECTORIZED}<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
RELU = (
    f"void at::native::{_VECTORIZED}<4, at::native::(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&)"
    "::{lambda()#1}, std::array<char*, 2ul> >(int)"
)
NCU_ADD = (
    f"void at::{_VECTORIZED}<(int)4, at::CUDAFunctor_add<float>, std::array<char *, (unsigned long)3>>(int, T2, T3)"
)
HEADER = ("ID", "Kernel Name", "Block Size", "Grid Size", "gpu__time_duration.sum",
          "sm__warps_active.avg.pct_of_peak_sustained_active", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
          "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
          "dram__throughput.avg.pct_of_peak_sustained_elapsed",
          "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", "dram__bytes.sum",
          "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
          "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio")  # fmt: skip
UNITS = ("", "", "", "", "ns", "%", "%", "%", "%", "%", "byte", "", "")


def launch(
    name: str, *, grid: str = "(64, 1, 1)", sm: float = 10, memory: float = 80, occupancy: float = 50,
    size: int = 10_000,
) -> tuple[Any, ...]:  # fmt: skip
    return name, "(128, 1, 1)", grid, 1000.0, occupancy, sm, memory, memory, 5.0, size, 3.0, 1.0


def job(
    folder: Path, launches: list[tuple[Any, ...]], *kernels: tuple[str, list[int]], file: str = "metrics.csv"
) -> Run:
    """Return a run whose kernels (name and grid) run one after the other, with a file of measured launches."""
    with (folder / file).open("w", newline="") as f:
        rows = csv.writer(f, quoting=csv.QUOTE_ALL)
        rows.writerows([HEADER, UNITS, *((i, *row) for i, row in enumerate(launches))])
    trace = RankTrace()
    trace.step(0, 0, 10_000)
    for i, (name, grid) in enumerate(kernels):
        trace.kernel(name, at=10 + 200 * i, start=20 + 200 * i, end=120 + 200 * i, grid=grid, block=[128, 1, 1])
    return built_run(folder, [trace])


def kernels_of(run: Run) -> dict[str, Any]:
    return {k.name: k for k in account_of(run).kernels.kernels}


def test_measured_kernel_has_its_metrics_in_the_table(tmp_path: Path) -> None:
    run = job(tmp_path, [launch(NCU_ADD)], (ADD, [64, 1, 1]), (RELU, [64, 1, 1]))
    add, relu = kernels_of(run)[ADD], kernels_of(run)[RELU]
    assert (add.bound, add.bound_from, add.measured_share) == ("memory-bound", "measured", 1.0)
    assert (add.occupancy_pct, add.occupancy_from, add.sm_pct, add.dram_pct, add.tensor_pct) == (
        50, "measured", 10, 80, 5,
    )  # fmt: skip
    assert (add.stall, add.stall_share) == ("long_scoreboard", 0.75)
    assert add.gb_per_s == pytest.approx(10.0)
    assert (relu.bound_from, relu.dram_pct, relu.measured_share) == ("family", None, 0.0)


def test_metrics_reach_the_report(tmp_path: Path) -> None:
    account = account_of(job(tmp_path, [launch("gemm", sm=90, memory=20)], ("gemm", [64, 1, 1])))
    (kernel,) = report_json(account, diagnose(account))["kernels"]
    assert (kernel["bound"], kernel["bound_from"], kernel["sm_pct"]) == ("compute-bound", "measured", 90)


def test_other_grid_is_another_kernel_and_said(tmp_path: Path) -> None:
    run = job(
        tmp_path, [launch("k", occupancy=10), launch("k", grid="(8, 1, 1)")], ("k", [64, 1, 1]), ("k", [32, 1, 1])
    )
    rows = measured_rows(run.ranks[0], run.measured)
    assert rows is not None and rows.launch.tolist() == [0, -1] and rows.unjoined == 1
    assert any("1 of 2 launches that Nsight Compute measured" in line for line in account_of(run).warnings)


def test_damaged_file_is_a_warning(tmp_path: Path) -> None:
    run = job(tmp_path, [], ("gemm", [64, 1, 1]))
    (tmp_path / "other.csv").write_text(
        '"ID","Kernel Name","gpu__time_duration.sum"\n"0","gemm","1.5"\n"1","gemm","1,5"\n'
    )
    run = job(tmp_path, [launch("gemm")], ("gemm", [64, 1, 1]))
    assert any("written in two ways" in line for line in run.warnings)
    assert kernels_of(run)["gemm"].bound_from == "measured"
