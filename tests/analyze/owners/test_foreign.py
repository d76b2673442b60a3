"""Owners from `with_stack=True` traces of others, and from the text of lines that raise no call."""

from pathlib import Path

import numpy as np
import pytest

from stepscope.analysis import load
from stepscope.analyze.match_owners import MAX_LINES, with_operator_lines
from stepscope.analyze.owner_costs import CodeCosts
from stepscope.contract.run_folder import EXECUTING, TRAINING
from stepscope.run.side_files import Frame, OwnedThread, RankOwners, SourceText

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
    modules = {module.module: module for module in code.modules}
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


TEXT = """\
rows = torch.cat([d[:, None], e], 1)
if "outer" in names:
    products = (rows[:, :, None] * rows[:, None]).sum(-1)
at = self.pairs
flat = products[:, at[0], at[1]]
assert int(ids.max()) < 5
a = f(x)
b = a * 2
c = b * 3
g(c)
"""


def resolved(
    folder: Path, line: int, line_to: int, *operators: str, file: str = "job.py", text: str = TEXT, nested: bool = False
) -> Frame:
    (folder / "source").mkdir(exist_ok=True)
    (folder / "source" / "job.py").write_text(text)
    count = len(operators)
    ids, numbers, none = np.zeros(count, np.int32), np.zeros(count, np.int64), np.empty(0, np.int64)
    thread = OwnedThread(
        TRAINING, name=np.arange(count, dtype=np.int32), depth=np.arange(count, dtype=np.int32) if nested else ids,
        stack=ids, module=ids, sequence=numbers, step=numbers, gap_before=none, gap_stack=none.astype(np.int32),
        gap_ns=none, gap_calls=none,
    )  # fmt: skip
    frame = Frame(file, line, "forward", is_user=True, line_to=line_to)
    owners = RankOwners(0, EXECUTING, "", (frame,), ((0,),), (), operators, (thread,))
    return with_operator_lines(owners, SourceText(folder)).frames[0]


@pytest.mark.parametrize(
    ("line", "line_to", "operators", "expected"),
    [
        (1, 3, ("aten::slice", "aten::unsqueeze", "aten::mul"), (3, 3)),
        (4, 6, ("aten::select", "aten::index"), (5, 5)), (4, 6, ("aten::select",), (5, 5)),
        (4, 6, ("aten::lt",), (6, 6)), (7, 10, ("aten::mul_",), (8, 9)), (7, 10, ("aten::add",), (7, 10)),
        (7, 10, ("aten::dropout",), (7, 10)), (7, 10, (), (7, 10)),
    ],
)  # fmt: skip
def test_operator_is_on_the_line_that_holds_its_symbol(tmp_path, line, line_to, operators, expected):
    found = resolved(tmp_path, line, line_to, *operators)
    assert (found.line, found.line_to) == expected


@pytest.mark.parametrize(
    ("line", "line_to"), [(5, 5), (9, 7), (7, 0), (900, 901), (1, 2 + MAX_LINES), (1 << 40, (1 << 40) + 1)]
)
def test_line_that_no_text_tells_stays_as_it_is(tmp_path: Path, line: int, line_to: int) -> None:
    found = resolved(tmp_path, line, line_to, "aten::mul", text="x * y\n" * 100 if line_to > 60 else TEXT)
    assert (found.line, found.line_to) == (line, line_to)
