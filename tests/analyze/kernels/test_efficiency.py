"""FLOPs from shapes, MFU and HFU by their definitions, with every source and every unknown named."""

from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run
from tests.analyze.products import BF16_KERNEL, FORWARD, FP8_KERNEL, matmul, node, shapes

from stepscope.analyze.efficiency import GivenValues, efficiency, recorded_flops
from stepscope.analyze.kernels import KernelCosts, kernel_costs, run_chip
from stepscope.analyze.operators import CallCosts, call_costs
from stepscope.cost.chips import Chip, look_up
from stepscope.records import Row
from stepscope.run.load import Run, load

MM = 2 * 1024**3
STEP_NS = 1_000_000.0
H200 = look_up("NVIDIA H200").chip


def found(run: Run, *, step_ns: float | None = STEP_NS, **given: Any) -> Row:
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


def costs_of(tmp_path: Path, r: RankTrace) -> CallCosts:
    return call_costs(built_run(tmp_path, [r]).ranks[0])


def test_a_distributed_tensor_counts_its_local_part(tmp_path: Path) -> None:
    r = RankTrace()
    r.ran("aten::mm", 0, 100, **shapes([1024, 1024], [1024, 2048]))
    r.ran("PythonSubclass", 10, 90, **shapes([1024, 1024], [1024, 2048]))
    matmul(r, 20, start=100, end=200)
    assert costs_of(tmp_path, r).flops.sum() == MM


def test_gradients_of_gradients_are_not_taken_for_recomputation(tmp_path: Path) -> None:
    """With create_graph=True backward's own products run with gradients on; no forward has their shapes."""
    r = RankTrace()
    r.step(0, 0, 1000)
    matmul(r, 10, m=512, start=100, end=200, **FORWARD)
    node(r, "MmBackward0", 300, 400)
    matmul(r, 310, k=512, start=400, end=500, thread=AUTOGRAD, **FORWARD)
    assert not costs_of(tmp_path, r).recomputed.any()


def test_impossible_shapes_are_unknown_not_an_error(tmp_path: Path) -> None:
    r = RankTrace()
    r.ran("aten::mm", 0, 10, **shapes([10**300, 10], [10, 10**300]))
    assert not costs_of(tmp_path, r).counted.any()


DATA = Path(__file__).parents[2] / "data"


def kernel_costs_of(run: Run) -> list[KernelCosts]:
    return [kernel_costs(call_costs(rank)) for rank in run.ranks]


def flops_of(run: Run) -> Row:
    return recorded_flops(kernel_costs_of(run), world_size=run.world_size)


def trained(rank: int = 0, *, world_size: int = 1, steps: int = 3, products: int = 2) -> RankTrace:
    """Each step: products in forward, one of them again in backward, and twice as many gradients."""
    r = RankTrace(rank, world_size=world_size, clock_offset_us=100 * rank)
    for n in range(steps):
        t = 1000.0 * n
        r.step(n, t, t + 1000)
        for i in range(products):
            matmul(r, t + 20 * i, start=t + 100 + 10 * i, end=t + 110 + 10 * i, **FORWARD)
        node(r, "MmBackward0", t + 400, t + 900)
        matmul(r, t + 410, start=t + 510, end=t + 520, thread=AUTOGRAD, **FORWARD)
        for i in range(2 * products):
            at = t + 440 + 20 * i
            matmul(r, at, start=at + 100, end=at + 110, thread=AUTOGRAD)
    return r


def test_ranks_that_were_not_recorded_are_taken_as_the_mean_and_said_so(tmp_path: Path) -> None:
    found = flops_of(built_run(tmp_path, [trained(0, world_size=8)]))
    assert found.model == 8 * 6 * MM
    assert "not recorded" in found.notes[0]


def test_a_real_run_has_the_flops_of_its_model() -> None:
    """A GPT with 2 layers of 512, vocabulary 32768, 4 sequences of 256: 3 (24 L T H^2 + 4 L T S H + 2 T V H)."""
    layers, tokens, hidden, length, vocabulary = 2, 1024, 512, 256, 32768
    forward = layers * (24 * tokens * hidden**2 + 4 * tokens * length * hidden) + 2 * tokens * vocabulary * hidden
    found = flops_of(load(DATA / "h200-python-stacks", cache=False))
    assert found.model == 3 * forward
    assert found.recomputed == 0
