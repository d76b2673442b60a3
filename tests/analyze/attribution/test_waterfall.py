"""A step whose every microsecond is known, on a chip with 1000 TFLOP/s in bf16 and 100 in fp32.

One step of 1000 us: a bf16 product at half its peak (200), an fp32 product at half of its own (100), a product that
backward runs again (100), an addition (150), a copy (50), and 400 idle.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run
from tests.analyze.products import FORWARD, FP32_KERNEL, add, matmul, node

from stepscope.analyze.budget import budgets, step_budget
from stepscope.analyze.efficiency import ACHIEVED, LOSSES, GivenValues, efficiency, waterfall
from stepscope.analyze.kernels import kernel_costs, run_chip
from stepscope.analyze.operators import call_costs
from stepscope.cost.chips import Chip, Lookup
from stepscope.records import Row
from stepscope.run.aligned import aligned
from stepscope.run.load import Run, load
from stepscope.units import ns_of_ms

DATA = Path(__file__).parents[2] / "data"
CHIP = Chip("round", ("round",), {"bf16": 1000.0, "fp32": 100.0}, source="made up")
IDLE = ("data_loading", "launch_gaps", "host_sync", "other_idle")


def known_step(rank: int = 0, *, world_size: int = 1, steps: int = 4, jitter_us: Sequence[float] = ()) -> RankTrace:
    r = RankTrace(rank, world_size=world_size, clock_offset_us=50 * rank)
    for n in range(steps):
        t = 1000.0 * n
        more = jitter_us[n] if n < len(jitter_us) else 0.0
        r.step(n, t, t + 1000)
        matmul(r, t, m=5000, n=5000, k=2000, start=t + 20, end=t + 220, **FORWARD)
        matmul(r, t + 20, m=1000, n=1000, k=2500, start=t + 220, end=t + 320, kernel=FP32_KERNEL, kind="float")
        node(r, "MmBackward0", t + 40, t + 80)
        matmul(r, t + 50, m=5000, n=5000, k=2000, start=t + 320, end=t + 420, thread=AUTOGRAD, **FORWARD)
        add(r, t + 100, elements=10**6, start=t + 420, end=t + 570 + more)
        r.copy(at=t + 900, start=t + 950, end=t + 1000)
    return r


def analysed(
    run: Run, *, chip: Chip | None = CHIP, unprofiled_ms: float | None = None, given: GivenValues | None = None
) -> tuple[Row, Row]:
    found = budgets(aligned(run))
    step = step_budget(found, unprofiled_ns=ns_of_ms(unprofiled_ms))
    costs = [kernel_costs(call_costs(rank)) for rank in run.ranks]
    lookup = Lookup(chip, None if chip else "no such chip")
    used = efficiency(run, costs, chip=lookup, step_ns=step.step_ns if step else None, given=given)
    return used, waterfall(found, costs, step=step, efficiency=used, chip=chip)


def pct(found: Row) -> dict[str, float]:
    assert found.rows is not None
    return {row.loss: row.pct_of_peak for row in found.rows if row.pct_of_peak is not None}


def test_every_loss_is_what_was_put_in(tmp_path: Path) -> None:
    used, found = analysed(built_run(tmp_path, [known_step()]))
    rows = pct(found)
    assert tuple(rows) == LOSSES
    assert rows["non_matmul_kernels"] == pytest.approx(15)
    assert rows["recomputation"] == pytest.approx(10)
    assert rows["precision"] == pytest.approx(9)
    assert rows["matmul_below_peak"] == pytest.approx(10.5)
    assert rows["copies"] == pytest.approx(5)
    assert sum(rows[loss] for loss in IDLE) == pytest.approx(40)
    assert rows[ACHIEVED] == pytest.approx(10.5)
    assert used.mfu == pytest.approx(0.105)
    assert used.hfu == pytest.approx(0.205)


@pytest.mark.parametrize(("chip", "reason"), [(None, "no such chip"), (CHIP, "FLOPs unknown")])
def test_unknown_flops_or_peak_give_no_waterfall(tmp_path: Path, chip: Chip | None, reason: str) -> None:
    r = known_step()
    if chip:
        r.kernel(FP32_KERNEL, at=300, start=600, end=690)  # a product without shapes
    _, found = analysed(built_run(tmp_path, [r]), chip=chip)
    assert found.rows is None
    assert reason in found.notes[0]


@pytest.mark.parametrize("folder", ["h200-python-stacks", "h200-cuda-graphs"])
def test_real_runs_add_up(folder: str) -> None:
    run = load(DATA / folder, cache=False)
    chip = run_chip(run.ranks).chip
    _, found = analysed(run, chip=chip, given=GivenValues(flops_per_step=1e10))
    rows = pct(found)
    assert sum(rows.values()) == pytest.approx(100, abs=1e-9)
    assert min(rows.values()) >= 0


def test_a_rank_without_a_device_has_its_products_on_the_host(tmp_path: Path) -> None:
    r = RankTrace(backend="gloo")
    for n in range(3):
        t = 1000.0 * n
        r.step(n, t, t + 1000)
        shapes: dict[str, Any] = {"Input Dims": [[1000, 500], [500, 1000]], "Input type": ["float", "float"]}
        r.ran("aten::mm", t + 100, t + 500, **shapes)
        r.ran("aten::add", t + 500, t + 700)
    _, found = analysed(built_run(tmp_path, [r]), chip=None, given=GivenValues(peak_tflops=10))
    rows = pct(found)
    assert rows["non_matmul_kernels"] == pytest.approx(20, abs=0.1)
    assert rows["matmul_below_peak"] + rows[ACHIEVED] == pytest.approx(40, abs=0.1)
    assert rows[ACHIEVED] == pytest.approx(10)
