"""A bar only where somebody watches and has waited for a second."""

import io
import re
from collections.abc import Callable

import pytest

from stepscope.cli.progress import reading_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        """Return the last line drawn, without what steers the terminal."""
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
        return [line for line in re.split(r"[\r\n]", text) if line.strip()][-1]


Watch = Callable[[], Terminal]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("stepscope.cli.progress.time.monotonic", found)
    return found


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Return what puts a terminal in place of standard error; pytest swaps its own in between fixture and test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    def put() -> Terminal:
        found = Terminal()
        monkeypatch.setattr("sys.stderr", found)
        return found

    return put


def test_no_bar_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with reading_progress() as progress:
        assert progress is None


def test_bar_after_a_second_with_rate_and_remaining_time(watch: Watch, clock: Clock) -> None:
    terminal = watch()
    with reading_progress() as progress:
        assert progress is not None
        progress(10_000_000, 100_000_000)
        assert terminal.getvalue() == ""
        clock.now_s += 2
        progress(50_000_000, 100_000_000)
        assert terminal.shown().startswith("reading ")
        assert terminal.shown().rstrip().endswith("50 % 20.0 MB/s, 0:03 left")
    assert terminal.getvalue().endswith("\x1b[1A\x1b[2K"), "the bar wipes itself"


def test_what_is_printed_meanwhile_goes_where_it_belongs(
    watch: Watch, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = watch()
    with reading_progress() as progress:
        assert progress is not None
        clock.now_s += 2
        progress(1, 2)
        print("the answer")
    assert capsys.readouterr().out == "the answer\n"
    assert "the answer" not in terminal.getvalue()
