"""Every command ends in an exit code and at most one sentence; a progress bar only where somebody watches."""

import errno
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.limits import HANG_S

from stepscope.cli.main import main
from stepscope.cli.outputs import reading_progress
from stepscope.errors import InputError


def recursion() -> None:
    recursion()


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "recursion": (recursion, "RecursionError"),
    "memory": (raising(MemoryError()), "out of memory; give fewer ranks"),
    "key": (raising(KeyError("a\nb\x1b[31m")), "KeyError"),
    "assertion": (raising(AssertionError("x" * 10_000)), "AssertionError"),
    "import": (raising(ModuleNotFoundError("No module named 'gone'")), "gone"),
    "forbidden": (lambda: Path("/proc/1/no-such-file").read_bytes(), "cannot use /proc/1/no-such-file"),
    "permission": (raising(PermissionError(errno.EACCES, "Permission denied", "a/b")), "cannot use a/b: Permission"),
    "disk full": (raising(OSError(errno.ENOSPC, "No space left on device")), "cannot write the output"),
    "bytes name": (raising(OSError(errno.EIO, "Input/output error", b"a\xff")), "Input/output error"),
    "no errno": (raising(OSError("odd")), "OSError: odd"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_any_exception_is_one_sentence_and_2(fault, monkeypatch, capsys):
    monkeypatch.delenv("STEPSCOPE_DEBUG", raising=False)
    fail, part = FAULTS[fault]
    monkeypatch.setattr("stepscope.cli.doctor.run", lambda _: fail())
    assert main(["doctor", "-v"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("stepscope doctor: ") and part in said.err
    assert said.err.count("\n") == 1 and said.err.rstrip("\n").isprintable()
    assert len(said.err) < 2100


@pytest.mark.parametrize("error", [ZeroDivisionError("here"), InputError("here")])
def test_traceback_is_shown_where_it_is_asked_for(error, monkeypatch, capsys):
    monkeypatch.setenv("STEPSCOPE_DEBUG", "1")
    monkeypatch.setattr("stepscope.cli.doctor.run", lambda _: raising(error)())
    assert main(["doctor"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said and "here" in said.splitlines()[-1]


def test_warnings_of_libraries_stay_off_the_terminal(monkeypatch, capsys):
    def run(_: object) -> int:
        np.float64(1) / np.float64(0)
        raise InputError("expected a, found b")

    monkeypatch.setattr("stepscope.cli.doctor.run", run)
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == "stepscope doctor: expected a, found b\n"


def shell(words: str, **environ: str) -> tuple[int, str]:
    """Return exit code and standard error of a command line, `stepscope` being ours."""
    line = words.replace("stepscope", f"'{sys.executable}' -m stepscope", 1)
    kept = {k: v for k, v in os.environ.items() if k not in ("STEPSCOPE_DEBUG", "PYTHONIOENCODING", "PYTHONUTF8")}
    done = subprocess.run(["bash", "-c", line], env={**kept, **environ}, capture_output=True, timeout=HANG_S)
    return done.returncode, done.stderr.decode()


OUTPUTS = ("report {run}", "report {run} --json -", "report {run} --html -")


@pytest.mark.slow
def test_closed_streams_do_not_end_up_in_the_outputs(folder: Path, tmp_path: Path) -> None:
    for closed in ("<&-", ">&- 2>&-", "<&- >&- 2>&-"):
        target = tmp_path / "report.json"
        shell(f"stepscope report {folder} --json {target} --force {closed}")
        assert target.read_text().startswith("{") and target.read_text().endswith("}\n")


@pytest.mark.slow
@pytest.mark.parametrize("words", OUTPUTS)
def test_reader_that_leaves_is_no_error(words: str, folder: Path) -> None:
    code, said = shell(f"set -o pipefail; stepscope {words.format(run=folder)} | head -c 1 > /dev/null")
    assert (code, said) == (0, "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_after_a_second_with_rate_and_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, terminal = 100.0, Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("stepscope.cli.outputs.time.monotonic", lambda: now_s)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with reading_progress() as progress:
        assert progress is None, "no bar in a pipe"
    monkeypatch.setattr("sys.stderr", terminal)
    with reading_progress() as progress:
        assert progress is not None
        progress(10_000_000, 100_000_000)
        assert terminal.getvalue() == ""
        now_s += 2
        progress(50_000_000, 100_000_000)
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
        assert re.search(r"reading .*50 % 25.0 MB/s, 0:02 left\s*$", shown)
    assert terminal.getvalue().endswith("\r\x1b[K"), "the bar wipes itself"
