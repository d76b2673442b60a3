"""Lines of the code on two sides: one that takes longer is named, and found again where it has moved."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.analyze.owners.owned_folder import owned_folder

from stepscope.analysis import load
from stepscope.compare.document import line_changes
from stepscope.compare.sides import code_lines

LATE_US = 200.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    both = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")
    owned_folder(both[0])
    owned_folder(both[1], late_us=LATE_US)
    return both


def test_the_line_that_got_slower_comes_first(folders: tuple[Path, Path]) -> None:
    a, b = map(load, folders)
    document = a.compare(b).document
    first = document["code"][0]
    assert (first["file"], first["line"], first["source"]) == ("model.py", 3, "return self.up(x)")
    device_us = 150  # forward and what it caused in the backward pass; on A the host took longer
    assert first["b"] == pytest.approx((device_us + LATE_US) / 1000, rel=0.05) and first["a"] < 0.2
    assert first["what"] == "" and first["reason"] == "no interval: one run on a side"
    assert document["code_changed"] == len(document["code"])


def test_a_line_that_moved_is_the_same_line(folders: tuple[Path, Path]) -> None:
    lines = code_lines(load(folders[0]).account)
    assert lines is not None
    moved = {key: replace(row, line=row.line + 3) for key, row in lines.items()}
    assert line_changes([lines], [moved]) == ()
    gone = {key: row for key, row in moved.items() if row.source != "stat(net)"}
    assert [(c.what, c.row.source) for c in line_changes([lines], [gone])] == [("vanished", "stat(net)")]
    assert line_changes([lines], [None]) == ()


def test_page_has_lanes_of_both_sides(folders: tuple[Path, Path]) -> None:
    from stepscope.report.html.compare import side_by_side

    a, b = map(load, folders)
    lanes = side_by_side((a.account, a.diagnosis), (b.account, b.diagnosis))
    assert lanes is not None and [rank["rank"] for rank in lanes["ranks"]] == [0]
    longest = [max(dur for kind, _, dur, _ in side["slices"] if kind < 4) for side in lanes["ranks"][0]["sides"]]
    assert longest[1] - longest[0] == pytest.approx(LATE_US, rel=0.05)
    assert all("gemm" in side["names"] for side in lanes["ranks"][0]["sides"])
    assert a.compare(b).to_html().startswith("<!doctype html>")
