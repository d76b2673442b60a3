"""A bar only where somebody watches and has waited for a second."""

import io

import pytest

from stepscope.cli.progress import reading_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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


def test_no_bar_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with reading_progress() as progress:
        assert progress is None


def test_bar_after_a_second_that_wipes_itself(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with reading_progress() as progress:
        assert progress is not None
        progress(10, 100)
        assert terminal.getvalue() == ""
        clock.now_s += 1.5
        progress(50, 100)
        assert terminal.getvalue() == f"\rreading [{'#' * 15}{'.' * 15}]  50 %"
        progress(51, 100)
        assert terminal.getvalue().count("\r") == 1, "at most ten times a second"
        clock.now_s += 0.2
        progress(500, 100)
        assert terminal.getvalue().endswith("100 %")
        clock.now_s += 0.2
        progress(5, 0)
        assert terminal.getvalue().endswith("  0 %")
    assert terminal.getvalue().endswith("\r" + " " * 60 + "\r")


def test_quick_work_shows_nothing(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with reading_progress() as progress:
        assert progress is not None
        progress(100, 100)
    assert terminal.getvalue() == ""
