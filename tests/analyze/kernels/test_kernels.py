"""Kernels held against a chip with round numbers: 1000 TFLOP/s in bf16, 100 in fp32, 1000 GB/s."""

from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.products import FP32_KERNEL, add, matmul
from tests.diagnose.matched import matched

from stepscope.analyze.account import account_of
from stepscope.analyze.kernels import SHORT_NS, kernel_costs, kernel_table
from stepscope.analyze.operators import call_costs
from stepscope.cost.chips import Chip
from stepscope.records import Row
from stepscope.run.load import Run, load

DATA = Path(__file__).parents[2] / "data"
CHIP = Chip("round", ("round",), {"bf16": 1000.0, "fp32": 100.0}, source="made up", memory_gb_per_s=1000.0)


def table_of(run: Run, chip: Chip | None = CHIP) -> Row:
    return kernel_table([kernel_costs(call_costs(rank)) for rank in run.ranks], chip=chip)


def only(tmp_path: Path, r: RankTrace, chip: Chip | None = CHIP) -> Row:
    (kernel,) = table_of(built_run(tmp_path, [r]), chip).kernels
    return kernel


def test_achieved_rate_of_a_product(tmp_path: Path) -> None:
    r = RankTrace()
    matmul(r, 0, m=10_000, n=10_000, k=10_000, start=100, end=4100)  # 2e12 FLOPs in 4 ms
    kernel = only(tmp_path, r)
    assert kernel.tflops == pytest.approx(500)
    assert kernel.gb_per_s == pytest.approx(3 * 1e8 * 2 / 4e6)
    assert (kernel.bound, kernel.bound_from) == ("compute-bound", "shapes")
    assert (kernel.family, kernel.tensor_core, kernel.precision) == ("gemm", True, "bf16")


def test_achieved_bandwidth_of_an_elementwise_kernel(tmp_path: Path) -> None:
    r = RankTrace()
    add(r, 0, elements=10_000_000, start=100, end=300)  # 120 MB in 0.2 ms
    kernel = only(tmp_path, r)
    assert kernel.tflops is None
    assert kernel.gb_per_s == pytest.approx(600)
    assert (kernel.bound, kernel.tensor_core, kernel.precision) == ("memory-bound", False, None)


def test_counts_times_and_shares(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 400)
    r.step(1, 400, 1000)
    r.kernel("a", at=10, start=100, end=190)
    r.kernel("a", at=500, start=600, end=610)
    r.kernel("b", at=510, start=700, end=705)
    r.kernel("b", at=None, start=0, end=5)
    table = table_of(built_run(tmp_path, [r]))
    a, b = table.kernels
    assert (a.name, a.count, a.total_ns, a.mean_ns, a.max_ns) == ("a", 2, 100_000, 50_000, 90_000)
    assert (b.share, table.total_ns) == (10 / 110, 110_000)
    assert (table.kernels_per_step, table.launches_per_step) == (1.5, 1.5)
    assert SHORT_NS == 10_000
    assert (table.short_count_share, table.short_time_share) == (0.5, 10 / 110)


def test_shares_of_tensor_cores_and_of_memory_bound_time(tmp_path: Path) -> None:
    r = RankTrace()
    matmul(r, 0, m=4096, n=4096, k=4096, start=100, end=130)
    matmul(r, 20, start=130, end=140, kernel=FP32_KERNEL, kind="float")
    add(r, 40, elements=10**7, start=200, end=320)
    table = table_of(built_run(tmp_path, [r]))
    assert table.tensor_core_share == pytest.approx(0.75)
    assert table.memory_bound_share == pytest.approx(120 / 160)


def test_no_product_of_a_real_run_beats_the_chip() -> None:
    run = load(DATA / "h200-python-stacks", cache=False)
    table = table_of(run, None)
    products = [k for k in table.kernels if k.family == "gemm" and k.tflops]
    assert products and all(0 < (k.tflops or 0) < 989.4 for k in products)
    assert table.tensor_core_share == 1


NODE = "autograd::engine::evaluate_function: "
STORE = "torch::autograd::AccumulateGrad"
CAST = 200
"""us of every kernel"""


def node(trace: RankTrace, name: str, at: float, *kernels: str) -> None:
    """Add an autograd node of 10 us with kernels that run 1000 us later, one after the other."""
    trace.ran(f"{NODE}{name}", at, at + 10)
    for i, kernel in enumerate(kernels):
        began = at + 1 + 4 * i
        with trace.op("aten::copy_", began, began + 3):
            start = 1000 + (at + 4 * i) * 50
            trace.kernel(kernel, at=began + 1, start=start, end=start + CAST)


def backward_run(folder: Path, *, stores: bool = True) -> RankTrace:
    """Return a step of which the first and the third cast end in a gradient, where the engine `stores` it."""
    trace = RankTrace(0)
    for number in range(3):
        begin = number * 10_000.0
        node(trace, "ToCopyBackward0", begin + 10, "elementwise_kernel")
        trace.ran(f"{NODE}{STORE if stores else 'ViewBackward0'}", begin + 22, begin + 26)
        node(trace, "ToCopyBackward0", begin + 30, "elementwise_kernel")
        node(trace, "ToCopyBackward0", begin + 50, "elementwise_kernel")
        trace.ran(f"{NODE}{STORE if stores else 'ViewBackward0'}", begin + 62, begin + 66)
        node(trace, "NativeLayerNormBackward0", begin + 70, "layer_norm_grad_input", "GammaBetaBackwardCUDAKernel")
        trace.ran(f"{NODE}{STORE}", begin + 82, begin + 86)
        trace.step(number, begin, begin + 9_000)
    return trace


@pytest.mark.parametrize(("stores", "kernels"), [(True, 2), (False, 4)])
def test_only_chained_kernels_are_counted_and_fused(tmp_path: Path, stores: bool, kernels: int) -> None:
    account = account_of(built_run(tmp_path, [backward_run(tmp_path, stores=stores)]))
    (found,) = (c.match for c in matched(account, "memory-bound-kernels", "not fused"))
    assert found.cost_ns == pytest.approx(kernels * CAST * 1000)
    assert found.change is not None
