"""MFU and HFU by their definitions, with every source and every unknown named."""

from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.kernels.test_flops_in_trace import trained
from tests.analyze.products import BF16_KERNEL, FP8_KERNEL, matmul

from stepscope.analyze.efficiency import Efficiency, GivenValues, efficiency
from stepscope.analyze.kernel_costs import call_costs, kernel_costs, run_chip
from stepscope.cost.chips import Chip, look_up
from stepscope.run.load import Run

MM = 2 * 1024**3
STEP_NS = 1_000_000.0
H200 = look_up("NVIDIA H200").chip


def found(run: Run, *, step_ns: float | None = STEP_NS, **given: Any) -> Efficiency:
    costs = [kernel_costs(call_costs(rank)) for rank in run.ranks]
    return efficiency(run, costs, chip=run_chip(run.ranks), step_ns=step_ns, given=GivenValues(**given))


def peak(chip: Chip | None, precision: str) -> float:
    assert chip
    return chip.tflops[precision]


def test_mfu_is_model_flops_over_what_all_devices_could_do(tmp_path: Path) -> None:
    ranks = [trained(r, world_size=2) for r in range(2)]
    e = found(built_run(tmp_path, ranks))
    available = peak(H200, "bf16") * 1e12 * 2 * 1e-3
    assert e.mfu == pytest.approx(2 * 6 * MM / available)
    assert e.hfu == pytest.approx(2 * 7 * MM / available)
    assert (e.flops_per_step, e.flops_source, e.num_devices) == (2 * 6 * MM, "recorded shapes", 2)
    assert e.peak_source and "H200" in e.peak_source
    assert (e.precision, e.notes) == ("bf16", ())


def test_the_worked_example_of_the_docs(tmp_path: Path) -> None:
    """450 of 989 TFLOP/s are 45 %, not 23 %; full recomputation makes the HFU 4/3 of the MFU."""
    run = built_run(tmp_path, [trained()])
    e = found(run, step_ns=1e9, flops_per_step=450e12, peak_tflops=989)
    assert e.mfu == pytest.approx(0.455, abs=1e-3)


def test_given_goes_before_the_description_and_that_before_the_trace(tmp_path: Path) -> None:
    run = built_run(tmp_path, [trained()], description={"flops_per_step": 5 * MM, "tokens_per_step": 100})
    assert (found(run).flops_per_step, found(run).flops_source) == (5 * MM, "run.json")
    e = found(run, flops_per_step=4 * MM, peak_tflops=100)
    assert (e.flops_per_step, e.flops_source) == (4 * MM, "given")
    assert (e.peak_tflops, e.peak_source) == (100, "given")
    assert e.mfu == pytest.approx(4 * MM / (100e12 * 1e-3))


def test_the_peak_is_eight_bit_only_where_eight_bit_products_dominate(tmp_path: Path) -> None:
    r = trained()
    assert found(built_run(tmp_path, [r])).peak_tflops == peak(H200, "bf16")
    for i in range(30):
        at = 300 + 2 * i
        matmul(r, at, start=at, end=at + 1, kernel=FP8_KERNEL, kind="c10::Float8_e4m3fn")
    e = found(built_run(tmp_path, [r]))
    assert (e.peak_tflops, e.precision) == (peak(H200, "fp8"), "fp8")


def test_an_unknown_chip_gives_no_mfu_and_says_why(tmp_path: Path) -> None:
    r = trained()
    r.device = "Somebody's chip"
    e = found(built_run(tmp_path, [r]))
    assert (e.mfu, e.hfu, e.peak_tflops) == (None, None, None)
    assert e.flops_per_step == 6 * MM
    assert "Somebody's chip" in e.notes[0]


def test_unknown_flops_give_no_mfu_and_say_why(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 1000)
    r.kernel(BF16_KERNEL, at=2, start=20, end=90)
    e = found(built_run(tmp_path, [r]))
    assert (e.mfu, e.flops_per_step, e.flops_source) == (None, None, None)
    assert e.peak_tflops == peak(H200, "bf16")
    assert "FLOPs unknown" in e.notes[0]
    given = found(built_run(tmp_path, [r]), flops_per_step=MM)
    assert given.mfu and given.hfu is None
    assert "HFU unknown" in given.notes[0]


def test_more_than_all_is_called_out(tmp_path: Path) -> None:
    e = found(built_run(tmp_path, [trained()]), flops_per_step=1e15)
    assert e.mfu and e.mfu > 1
    assert "cannot be right" in e.notes[-1]
