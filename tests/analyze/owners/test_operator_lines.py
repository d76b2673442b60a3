"""Operators that raise no call get the line whose text holds their symbol, between the calls around them."""

from pathlib import Path

import numpy as np
import pytest

from stepscope.analyze.frame_owners import MAX_LINES, with_operator_lines
from stepscope.contract.owners import EXECUTING, TRAINING
from stepscope.run.owners import Frame, OwnedThread, RankOwners
from stepscope.run.source_text import SourceText

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
        TRAINING,
        name=np.arange(count, dtype=np.int32),
        depth=np.arange(count, dtype=np.int32) if nested else ids,
        stack=ids,
        module=ids,
        sequence=numbers,
        step=numbers,
        gap_before=none,
        gap_stack=none.astype(np.int32),
        gap_ns=none,
    )
    frame = Frame(file, line, "forward", is_user=True, line_to=line_to)
    owners = RankOwners(0, EXECUTING, "", (frame,), ((0,),), (), operators, (thread,))
    return with_operator_lines(owners, SourceText(folder)).frames[0]


@pytest.mark.parametrize(
    ("line", "line_to", "operators", "expected"),
    [
        (1, 3, ("aten::slice", "aten::unsqueeze", "aten::mul"), (3, 3)),
        (4, 6, ("aten::select", "aten::index"), (5, 5)),
        (4, 6, ("aten::select",), (5, 5)),
        (4, 6, ("aten::lt",), (6, 6)),
        (7, 10, ("aten::mul_",), (8, 9)),
        (7, 10, ("aten::add",), (7, 10)),
        (7, 10, ("aten::dropout",), (7, 10)),
        (7, 10, (), (7, 10)),
    ],
)
def test_operator_is_on_the_line_that_holds_its_symbol(
    tmp_path: Path, line: int, line_to: int, operators: tuple[str, ...], expected: tuple[int, int]
) -> None:
    found = resolved(tmp_path, line, line_to, *operators)
    assert (found.line, found.line_to) == expected


@pytest.mark.parametrize(
    ("line", "line_to"), [(5, 5), (9, 7), (7, 0), (900, 901), (1, 2 + MAX_LINES), (1 << 40, (1 << 40) + 1)]
)
def test_line_that_no_text_tells_stays_as_it_is(tmp_path: Path, line: int, line_to: int) -> None:
    found = resolved(tmp_path, line, line_to, "aten::mul", text="x * y\n" * 100 if line_to > 60 else TEXT)
    assert (found.line, found.line_to) == (line, line_to)
