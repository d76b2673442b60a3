"""Kernels held against a chip with round numbers: 1000 TFLOP/s in bf16, 100 in fp32, 1000 GB/s."""

from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.products import FP32_KERNEL, add, matmul

from stepscope.analyze.kernel_costs import call_costs, kernel_costs
from stepscope.analyze.kernels import SHORT_NS, Kernel, KernelTable, kernel_table
from stepscope.cost.chips import Chip
from stepscope.run.load import Run, load

DATA = Path(__file__).parents[2] / "data"
CHIP = Chip("round", ("round",), {"bf16": 1000.0, "fp32": 100.0}, source="made up", memory_gb_per_s=1000.0)


def table_of(run: Run, chip: Chip | None = CHIP) -> KernelTable:
    return kernel_table([kernel_costs(call_costs(rank)) for rank in run.ranks], chip=chip)


def only(tmp_path: Path, r: RankTrace, chip: Chip | None = CHIP) -> Kernel:
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


def test_a_thin_product_is_memory_bound(tmp_path: Path) -> None:
    r = RankTrace()
    matmul(r, 0, m=1, n=10_000, k=10_000, start=100, end=400)
    assert only(tmp_path, r).bound == "memory-bound"


def test_a_short_kernel_far_from_its_roof_is_bound_by_latency(tmp_path: Path) -> None:
    r = RankTrace()
    add(r, 0, elements=1000, start=100, end=105)
    assert only(tmp_path, r).bound == "latency"


def test_without_a_chip_rates_are_known_and_bounds_follow_the_family(tmp_path: Path) -> None:
    r = RankTrace()
    matmul(r, 0, m=1, n=10_000, k=10_000, start=100, end=400)
    kernel = only(tmp_path, r, chip=None)
    assert kernel.gb_per_s is not None
    assert (kernel.bound, kernel.bound_from) == ("compute-bound", "family")


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


def test_occupancy_is_weighted_by_time(tmp_path: Path) -> None:
    r = RankTrace()
    r.kernel("a", at=10, start=100, end=130, **{"est. achieved occupancy %": 80})  # type: ignore[arg-type]
    r.kernel("a", at=20, start=200, end=210, **{"est. achieved occupancy %": 40})  # type: ignore[arg-type]
    assert only(tmp_path, r).occupancy_pct == pytest.approx(70)


@pytest.mark.parametrize(("shared", "expected"), [(213_188, None), (48 << 10, 0.0)])
def test_occupancy_of_0_with_much_shared_memory_is_unknown(tmp_path: Path, shared: int, expected: float | None) -> None:
    r = RankTrace()
    said = {"est. achieved occupancy %": 0, "shared memory": shared}
    r.kernel("nvjet_sm90_tst_128x256", at=10, start=100, end=130, **said)  # type: ignore[arg-type]
    found = only(tmp_path, r)
    assert (found.occupancy_pct, found.occupancy_from) == (expected, None if expected is None else "estimated")


def test_communication_has_no_bound(tmp_path: Path) -> None:
    ranks = [RankTrace(0, world_size=2), RankTrace(1, world_size=2, clock_offset_us=100)]
    for r in ranks:
        r.collective("allreduce", at=10, start=100, end=200)
    table = table_of(built_run(tmp_path, ranks))
    (kernel,) = table.kernels
    assert (kernel.family, kernel.bound, kernel.count) == ("communication", None, 1)
    assert table.memory_bound_share is None


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
