"""Work is counted once, and work that backward repeats is told apart."""

from pathlib import Path

import numpy as np
from tests.analyze.build import AUTOGRAD, RankTrace, built_run
from tests.analyze.products import FORWARD, matmul, node, shapes

from stepscope.analyze.kernel_costs import FAMILIES, PRECISIONS, CallCosts, call_costs
from stepscope.cost.kernel_names import Family

MM = 2 * 1024**3


def costs_of(tmp_path: Path, r: RankTrace) -> CallCosts:
    return call_costs(built_run(tmp_path, [r]).ranks[0])


def test_a_product_counts_two_per_multiply_add(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(3, 0, 1000)
    r.ran("aten::linear", 0, 50, **shapes([1024, 1024], [1024, 1024]))
    matmul(r, 10, start=100, end=200)
    costs = costs_of(tmp_path, r)
    assert costs.flops.sum() == MM
    (counted,) = np.flatnonzero(costs.counted)
    assert FAMILIES[costs.family[counted]] is Family.GEMM
    assert PRECISIONS[costs.operand[counted]] == "bf16"
    assert costs.step[counted] == 0


def test_a_distributed_tensor_counts_its_local_part(tmp_path: Path) -> None:
    r = RankTrace()
    r.ran("aten::mm", 0, 100, **shapes([1024, 1024], [1024, 2048]))
    r.ran("PythonSubclass", 10, 90, **shapes([1024, 1024], [1024, 2048]))
    matmul(r, 20, start=100, end=200)
    assert costs_of(tmp_path, r).flops.sum() == MM


def test_forward_operators_inside_backward_are_recomputed(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 1000)
    matmul(r, 10, start=100, end=200, **FORWARD)
    node(r, "MmBackward0", 300, 400)
    matmul(r, 310, start=400, end=500, thread=AUTOGRAD, **FORWARD)
    matmul(r, 330, start=500, end=600, thread=AUTOGRAD)
    matmul(r, 350, start=600, end=700, thread=AUTOGRAD)
    costs = costs_of(tmp_path, r)
    assert costs.flops[costs.recomputed].sum() == MM
    assert costs.flops[~costs.recomputed].sum() == 3 * MM


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
