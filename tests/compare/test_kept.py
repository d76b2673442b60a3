"""What is compared of an unchanged run is kept: the second comparison is the first to the byte and reads no trace."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.simulate import SYNC, WAIT, collective, kernel, simulate

from stepscope.analyze import account
from stepscope.analyze.account import Account, account_of
from stepscope.cli.main import main
from stepscope.document import cache as kept
from stepscope.run.load import Run

STEP = [kernel(300), collective(500), kernel(200), WAIT, kernel(100), SYNC]
Comparison = Callable[..., tuple[str, int]]


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Return two runs that count as large, one of them with a rank that takes longer."""
    for name, late in (("a", STEP), ("b", [kernel(900), *STEP[1:]])):
        (tmp_path / name).mkdir()
        for trace in simulate(STEP, late, steps=6).traces:
            trace.write(tmp_path / name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kept, "MIN_RAW_BYTES", 1)
        yield tmp_path / "a", tmp_path / "b"


@pytest.fixture
def compared(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Comparison:
    """Return a function that gives what `stepscope compare` prints, and how many runs it had to analyse."""
    analysed: list[Run] = []

    def counted(run: Run, **given: Any) -> Account:
        analysed.append(run)
        return account_of(run, **given)

    monkeypatch.setattr(account, "account_of", counted)

    def run(*options: str) -> tuple[str, int]:
        analysed.clear()
        assert main(["compare", *map(str, folders), *options]) == 0
        return capsys.readouterr().out, len(analysed)

    return run


@pytest.mark.parametrize("options", [["--json", "-"], []])
def test_second_comparison_is_the_first_to_the_byte(compared: Comparison, options: list[str]) -> None:
    first, analysed = compared(*options)
    assert analysed == 2
    assert compared(*options) == (first, 0)
    assert compared(*options, "--no-cache") == (first, 2)


def test_only_the_run_that_changed_is_analysed_again(folders: tuple[Path, Path], compared: Comparison) -> None:
    first, _ = compared("--json", "-")
    path = sorted(folders[1].glob("*.json*"))[0]
    path.write_bytes(path.read_bytes())
    assert compared("--json", "-") == (first, 1)
    assert compared("--json", "-") == (first, 0)


@pytest.mark.slow
def test_step_time_given_by_hand_is_part_of_what_was_kept(compared: Comparison) -> None:
    compared("--json", "-")
    given, analysed = compared("--json", "-", "--unprofiled-step-ms-a", "1.0")
    assert analysed == 1
    assert json.loads(given)["a"] != json.loads(compared("--json", "-")[0])["a"]


def test_a_page_needs_the_runs_themselves(tmp_path: Path, compared: Comparison) -> None:
    compared()
    assert compared("--html", str(tmp_path / "page.html"))[1] == 2
