"""`stepscope code`: source lines with their cost beside them, modules as a tree, JSON; names steer no terminal."""

import json
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.owners.owned_folder import owned_folder

from stepscope.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owned")
    owned_folder(path)
    return path


def row_of(text: str, ending: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.endswith(ending)]
    return line.removesuffix(ending).split()


def test_source_is_printed_with_what_it_costs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["code", str(folder), "--no-cache"]) == 0
    out = capsys.readouterr().out
    assert row_of(out, "    loss = net(x)")[:3] == ["10", "0.15", "0.05"]  # line, device, of it backward
    assert row_of(out, "    stat(net)")[:2] == ["12", "0.03"]
    assert row_of(out, "return self.up(x)")[0] == "3"
    assert "has no line" in out and "saves: the step without it" in out


def test_modules_are_a_tree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["code", str(folder), "--no-cache", "--modules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    tree = [line for line in lines if line.split()[:1] == ["0.15"]]
    assert [line.split()[-1] for line in tree] == ["blocks", "0", "up"]
    indents = [line.rindex(" ") for line in tree]
    assert indents == [indents[0], indents[0] + 2, indents[0] + 4]


def test_json_has_all_lines_and_modules(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["code", str(folder), "--no-cache", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1 and found["ranks"] == [0] and found["exact_lines"]
    assert {row["line"] for row in found["code"]} == {3, 9, 10, 11, 12}
    assert {row["module"] for row in found["modules"]} == {"blocks", "blocks.0", "blocks.0.up"}


def test_without_owners_it_says_how_to_get_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    r = RankTrace(0)
    r.step(0, 0, 100)
    r.kernel("k", at=10, start=20, end=40)
    built_run(tmp_path, [r])
    assert main(["code", str(tmp_path), "--no-cache"]) == 2
    error = capsys.readouterr().err
    assert "was not recorded; record again with stepscope record" in error and error.count("\n") == 1
