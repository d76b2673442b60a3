"""A report of an unchanged run is shown as it was; whatever changed, and whatever was planted, is analysed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.contract.run_folder import CACHE_FOLDER
from stepscope.document import cache as kept

Report = Callable[..., tuple[str, bool]]


@pytest.fixture
def report(large_folder: Path, analysed: list[Any], capsys: pytest.CaptureFixture[str]) -> Report:
    """Return a function that gives what `stepscope report` prints, and whether it had to analyse the run."""

    def run(*options: str) -> tuple[str, bool]:
        analysed.clear()
        assert main(["report", str(large_folder), *options]) == 0
        said = capsys.readouterr()
        assert not said.err
        return said.out, bool(analysed)

    return run


@pytest.mark.parametrize("options", [["--json", "-"], []])
def test_second_report_is_the_first_to_the_byte(report: Report, options: list[str]) -> None:
    first, analysed = report(*options)
    assert analysed
    assert report(*options) == (first, False)


def test_a_found_report_imports_nothing_heavy(large_folder: Path, report: Report) -> None:
    first, _ = report("--json", "-")
    code = (
        "import sys; from stepscope.cli.main import main; code = main(sys.argv[1:]);"
        "sys.exit(code or bool({'numpy', 'wasmtime', 'rich'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", code, "report", str(large_folder), "--json", "-"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONUTF8": "1"})
    assert done.stdout == first


def change_trace(folder: Path) -> None:
    path = sorted(folder.glob("*.json*"))[0]
    path.write_bytes(path.read_bytes())  # the same content at another time


def add_side_file(folder: Path) -> None:
    (folder / "run.json").write_text('{"schema": 1, "model": {"tokens_per_step": 7}}')


def add_window(folder: Path) -> None:
    (folder / "window1").mkdir()
    (folder / "window1" / "rank00000.pt.trace.json").write_text("{}")


@pytest.mark.parametrize("change", [change_trace, add_side_file, add_window])
def test_changed_run_is_analysed_again(large_folder, report, change):
    report("--json", "-")
    change(large_folder)
    assert report("--json", "-")[1]


def test_other_options_and_other_code_are_analysed_again(report, monkeypatch):
    report("--json", "-")
    with_tokens, analysed = report("--json", "-", "--tokens-per-step", "1000")
    assert analysed
    assert json.loads(with_tokens)["step"]["tokens_per_s"] is not None
    report("--json", "-")
    assert not report("--json", "-")[1]
    monkeypatch.setattr(kept, "code_key", lambda: "another version")
    assert report("--json", "-")[1]


def test_where_the_key_cannot_be_told_nothing_fits(large_folder, report, monkeypatch):
    report("--json", "-")
    (path,) = (large_folder / CACHE_FOLDER).glob("*.report")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"key": None}))
    monkeypatch.setattr(kept, "MAX_FILES", 0)
    assert report("--json", "-")[1]
