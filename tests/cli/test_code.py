"""`stepscope code`: source lines with their cost beside them, modules as a tree, JSON; names steer no terminal."""

import gzip
import io
import json
from pathlib import Path

import pytest
from rich.cells import cell_len
from tests.analyze.build import RankTrace, built_run
from tests.analyze.owners.owned_folder import owned_folder

from stepscope.analyze.account import account_of
from stepscope.cli.main import main
from stepscope.document.code import code_view
from stepscope.report.terminal import PlainConsole
from stepscope.report.text.code import print_code
from stepscope.report.text.summary import print_where


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


def test_forward_and_backward_apart_and_saving_in_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["code", str(folder), "--no-cache"]) == 0
    out = capsys.readouterr().out
    assert " line device    bwd   host   step  saves" in out  # no communication: no column for it
    assert len(row_of(out, "    loss = net(x)")) == 6
    assert len(row_of(out, "for x in data:")) == 5  # it is around the step: nothing to save


def test_sorted_by_device_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["code", str(folder), "--no-cache", "--sort", "device"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if ".py:" in line]
    assert rows[0].endswith("train.py:9  for x in data:") and rows[-1].endswith("train.py:12  stat(net)")


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


def test_a_rank_that_has_none_is_a_usage_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["code", str(folder), "--no-cache", "--rank", "3"]) == 2
    assert "--rank 3 recorded no owners; ranks that did: 0" in capsys.readouterr().err


def test_source_that_was_not_kept_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    owned_folder(tmp_path, sources={})
    assert main(["code", str(tmp_path), "--no-cache"]) == 0
    assert "(source not kept)" in capsys.readouterr().out


@pytest.mark.parametrize("sort", [None, "host"])
@pytest.mark.parametrize("modules", [False, True])
@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(tmp_path: Path, width: int, modules: bool, sort: str | None) -> None:
    long = {"train.py": "\n".join("    " * (n % 5) + f"値 = f({'x, ' * 90})" for n in range(20)), "model.py": "y" * 500}
    account = account_of(owned_folder(tmp_path, ranks=2, sources=long))
    view = code_view(account)
    assert view is not None
    out = io.StringIO()
    console = PlainConsole(file=out, width=width, force_terminal=True, color_system=None, highlight=False)
    print_code(account, view, console, modules=modules, sort=sort)
    print_where(account, console)
    assert max(cell_len(line) for line in out.getvalue().splitlines()) <= width


def test_hostile_names_and_source_steer_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[31m\x1b]0;title\x07[bold]\u202ename\r\n"
    owned_folder(tmp_path, sources={"train.py": hostile * 20}, file="tr\x1b[2Jain.py")
    (tmp_path / "source" / "model.py").write_text(hostile * 20)
    for words in ([], ["--sort", "host"], ["--modules"]):
        assert main(["code", str(tmp_path), "--no-cache", *words]) == 0
    out = capsys.readouterr().out
    assert not set("\x1b\x07\u202e\r") & set(out)
    assert "[bold]" in out and "\\x1b" in out


def test_lines_that_are_not_exact_say_between_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    owned_folder(tmp_path)
    path = tmp_path / "rank00000.owners.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    document["frames"] = [[*f, {10: 12, 12: 0}.get(f[1], f[1])] for f in document["frames"]]
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    assert main(["code", str(tmp_path), "--no-cache"]) == 0
    out = capsys.readouterr().out
    assert "loss = net(x)  [between lines 10 and 12]" in out and "stat(net)  [after line 12]" in out


def test_the_report_names_lines_only_where_owners_were_recorded(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(folder), "--no-cache"]) == 0
    out = capsys.readouterr().out
    assert "Where in the code" in out and "train.py:10" in out and "loss = net(x)" in out
    assert "train.py:9 " not in out  # around the step
    (tmp_path / "run").mkdir()
    for path in folder.glob("*.trace.json*"):
        (tmp_path / "run" / path.name).write_bytes(path.read_bytes())
    assert main(["report", str(tmp_path / "run"), "--no-cache"]) == 0
    assert "Where in the code" not in capsys.readouterr().out
