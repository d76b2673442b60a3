"""Kernels that make nothing but a parameter's gradient take no part in a chain that could be fused."""

from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.diagnose.matched import matched

from stepscope.analyze.account import account_of
from stepscope.analyze.phases import parameter_gradients

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


def test_casts_before_a_stored_gradient_and_scales_of_norms_are_gradients(tmp_path: Path) -> None:
    rank = built_run(tmp_path, [backward_run(tmp_path)]).ranks[0]
    in_order = parameter_gradients(rank)[rank.work.start_ns.argsort()]
    assert in_order.tolist() == [True, False, True, False, True] * 3


def test_without_a_stored_gradient_only_the_name_tells(tmp_path: Path) -> None:
    rank = built_run(tmp_path, [backward_run(tmp_path, stores=False)]).ranks[0]
    assert parameter_gradients(rank).sum() == 3


@pytest.mark.parametrize(("stores", "kernels"), [(True, 2), (False, 4)])
def test_only_chained_kernels_are_counted_and_fused(tmp_path: Path, stores: bool, kernels: int) -> None:
    account = account_of(built_run(tmp_path, [backward_run(tmp_path, stores=stores)]))
    (found,) = (c.match for c in matched(account, "memory-bound-kernels", "not fused"))
    assert found.cost_ns == pytest.approx(kernels * CAST * 1000)
    assert found.change is not None
