"""Whether a line's value flows into training, and which block a recording skipped, by the source text."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.analyze.owner_lines import feeds_training, skipped_line
from stepscope.run.side_files import SourceText

LOOP = """\
def train(model, data, opt):
    history, scale = [], 1.0
    for step, (x, y) in enumerate(data):
        {line}
        loss = scale * criterion(model(x), y)
        loss.backward()
        opt.step()
        history.append(loss.detach())
        if step % 100 == 0:
            with open("log") as out:
                out.write(str(history))
"""
TRAINS = (5, 6, 7)


def source(folder: Path, text: str) -> SourceText:
    (folder / "source").mkdir()
    (folder / "source" / "train.py").write_text(text)
    return SourceText(folder)


def known(*trains: int) -> Any:
    work = SimpleNamespace(has_backward=True, optimizes=False)
    return SimpleNamespace(lines={("train.py", number): work for number in trains})


@pytest.mark.parametrize(
    ("line", "feeds"),
    [
        ("stats = norms(model)", False), ("stats = norms(model); print(stats)", False),
        ("history.append(norms(model))", False), ("scale = 1 / norms(model)", True), ("x = tokenise(x)", True),
        ("a = norms(model); b = a + 1; scale = b", True), ("self.seen = norms(model)", None),
        ("return norms(model)", None),
    ],
)  # fmt: skip
def test_value_is_followed_to_training_lines(tmp_path: Path, line: str, feeds: bool | None) -> None:
    found = source(tmp_path, LOOP.format(line=line))
    assert feeds_training(found, known(*TRAINS), ("train.py", 4)) is feeds


def test_what_training_is_inside_of_feeds_it(tmp_path: Path) -> None:
    body = "with cast():\n            loss = model(x)\n        if good(x):\n            opt.step()"
    text = f"def train():\n    for x in data:\n        {body}\n"
    found = source(tmp_path, text)
    assert [feeds_training(found, known(4, 6), ("train.py", number)) for number in (3, 5)] == [True, True]


def test_nothing_is_known_without_source_or_training_lines(tmp_path: Path) -> None:
    assert feeds_training(SourceText(None), known(*TRAINS), ("train.py", 4)) is None
    found = source(tmp_path, LOOP.format(line="stats = 1"))
    assert feeds_training(found, known(), ("train.py", 4)) is None
    assert feeds_training(found, known(*TRAINS), ("other.py", 4)) is None


def test_the_block_of_every_nth_step_is_found_below_the_line_before_it(tmp_path: Path) -> None:
    found = source(tmp_path, LOOP.format(line="if debug: print(x)"))
    assert skipped_line(found, ("train.py", 8), {2, 3, 5, 6, 7, 8}) == 11
    assert skipped_line(found, ("train.py", 8), {2, 3, 5, 6, 7, 8, 9, 10, 11}) is None


@pytest.mark.parametrize("text", ["def f(:\n", "(" * 5000, "\0"])
def test_source_that_is_no_python_shows_nothing(tmp_path: Path, text: str) -> None:
    assert feeds_training(source(tmp_path, text), known(1), ("train.py", 1)) is None
