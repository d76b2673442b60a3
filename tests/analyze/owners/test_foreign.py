"""Traces that somebody recorded with `with_stack=True` give the same account, by lines where functions are defined."""

from pathlib import Path

import pytest

from stepscope.analysis import load
from stepscope.analyze.owner_costs import CodeCosts

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def code() -> CodeCosts:
    found = load(DATA / "h200-python-stacks", cache=False).account.code
    assert found is not None
    return found


def test_all_of_a_recorded_gpt_has_owners(code: CodeCosts) -> None:
    assert code.unowned_device_share == 0
    assert code.unowned_host_share is not None and code.unowned_host_share < 0.01
    assert not code.exact_lines


def test_modules_nest_and_sum_up(code: CodeCosts) -> None:
    modules = {module.path: module for module in code.modules}
    blocks = [modules[f"GPT_0.Block_{k}"] for k in range(2)]
    assert blocks[0].inclusive.flops == blocks[1].inclusive.flops
    assert modules["GPT_0"].inclusive.device_ns > sum(block.inclusive.device_ns for block in blocks)
    for block in blocks:
        # The backward pass of a matrix product has twice the FLOPs of its forward pass.
        assert block.backward.flops is not None and block.inclusive.flops is not None
        assert 0.5 < block.backward.flops / block.inclusive.flops < 0.75


def test_backward_work_is_the_forward_lines(code: CodeCosts) -> None:
    forward = next(line for line in code.lines if line.function == "forward" and line.module)
    assert 0 < forward.backward.device_ns < forward.inclusive.device_ns
