"""FLOPs per step from shapes: recovered where they were put in, and refused where shapes do not tell."""

from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run
from tests.analyze.products import BF16_KERNEL, FORWARD, FP8_KERNEL, FP32_KERNEL, matmul, node

from stepscope.analyze.efficiency import RecordedFlops, precision_shares, recorded_flops
from stepscope.analyze.kernel_costs import KernelCosts, call_costs, kernel_costs
from stepscope.run.load import Run, load

DATA = Path(__file__).parents[2] / "data"
MM = 2 * 1024**3


def costs_of(run: Run) -> list[KernelCosts]:
    return [kernel_costs(call_costs(rank)) for rank in run.ranks]


def flops_of(run: Run) -> RecordedFlops:
    return recorded_flops(costs_of(run), world_size=run.world_size)


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


def test_model_and_recomputed_flops_are_told_apart(tmp_path: Path) -> None:
    found = flops_of(built_run(tmp_path, [trained()]))
    assert (found.model, found.recomputed) == (6 * MM, MM)
    assert (found.coverage, found.reason, found.notes) == (1.0, None, ())


def test_ranks_that_were_not_recorded_are_taken_as_the_mean_and_said_so(tmp_path: Path) -> None:
    found = flops_of(built_run(tmp_path, [trained(0, world_size=8)]))
    assert found.model == 8 * 6 * MM
    assert "not recorded" in found.notes[0]


def test_on_a_rank_without_a_device_the_hosts_products_count(tmp_path: Path) -> None:
    r = RankTrace(backend="gloo")
    r.step(0, 0, 100)
    r.ran("aten::mm", 10, 20, **{"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]})  # type: ignore[arg-type]
    found = flops_of(built_run(tmp_path, [r]))
    assert (found.model, found.coverage) == (2 * 64**3, None)


def test_products_without_shapes_make_it_unknown(tmp_path: Path) -> None:
    r = trained()
    r.kernel(BF16_KERNEL, at=200, start=250, end=290)
    found = flops_of(built_run(tmp_path, [r]))
    assert found.model is None
    assert found.reason and "not recorded" in found.reason and "--flops-per-step" in found.reason


def test_a_trace_without_any_shapes_says_how_to_record_them(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 1000)
    with r.op("aten::mm", 0, 10):
        r.kernel(BF16_KERNEL, at=2, start=20, end=90)
    found = flops_of(built_run(tmp_path, [r]))
    assert found.model is None
    assert found.reason and "record_shapes=True" in found.reason


def test_cuda_graphs_are_named_as_the_reason() -> None:
    found = flops_of(load(DATA / "h200-cuda-graphs", cache=False))
    assert (found.model, found.recomputed) == (None, None)
    assert found.reason and "CUDA graphs" in found.reason


def test_a_real_run_has_the_flops_of_its_model() -> None:
    """A GPT with 2 layers of 512, vocabulary 32768, 4 sequences of 256: 3 (24 L T H^2 + 4 L T S H + 2 T V H)."""
    layers, tokens, hidden, length, vocabulary = 2, 1024, 512, 256, 32768
    forward = layers * (24 * tokens * hidden**2 + 4 * tokens * length * hidden) + 2 * tokens * vocabulary * hidden
    found = flops_of(load(DATA / "h200-python-stacks", cache=False))
    assert found.model == 3 * forward
    assert found.recomputed == 0


@pytest.mark.parametrize(
    ("products", "expected"),
    [
        ([(BF16_KERNEL, "c10::BFloat16")], {"bf16": 1.0}),
        ([(FP32_KERNEL, "float"), (BF16_KERNEL, "c10::BFloat16"), (BF16_KERNEL, "c10::BFloat16")], {"bf16": 2 / 3}),
        ([(FP8_KERNEL, "c10::Float8_e4m3fn")], {"fp8": 1.0}),
    ],
)
def test_precisions_share_the_products_by_flops(
    tmp_path: Path, products: list[tuple[str, str]], expected: dict[str, float]
) -> None:
    r = RankTrace()
    for i, (kernel, kind) in enumerate(products):
        matmul(r, 20 * i, start=100 + 100 * i, end=110 + 100 * i + 50 * (i == 0), kernel=kernel, kind=kind)
    shares = precision_shares(costs_of(built_run(tmp_path, [r])))
    first = next(iter(shares))
    assert {first: pytest.approx(shares[first])} == expected
