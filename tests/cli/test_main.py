"""The command line itself: codes, one-line errors, help, pipes that close, interrupts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.limits import HANG_S

from stepscope.cli.main import COMMANDS, main
from stepscope.cli.messages import print_line, warn
from stepscope.version import __version__


def test_no_arguments_list_the_commands_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert all(name in said.err for name in COMMANDS)


@pytest.mark.parametrize("words", [["-q", "doctor"], ["doctor", "--quiet"]])
def test_quiet_leaves_out_what_is_said_beside_the_answer(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(args: object) -> int:
        print_line("answer")
        warn("something is missing")
        return 0

    monkeypatch.setattr("stepscope.cli.doctor.run", answer)
    assert main(["doctor"]) == 0
    assert capsys.readouterr() == ("answer\n", "warning: something is missing\n")
    assert main(words) == 0
    assert capsys.readouterr() == ("answer\n", "")


@pytest.mark.parametrize("option", ["--help", "--version", "-V"])
def test_help_and_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([option])
    assert exit_.value.code == 0
    said = capsys.readouterr().out
    assert (
        (f"stepscope {__version__}" in said)
        if option in ("--version", "-V")
        else all(name in said for name in COMMANDS)
    )


def test_interrupt_is_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("stepscope.cli.doctor.run", interrupted)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "stepscope doctor: stopped\n"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted as Linux lists them")
def test_a_report_starts_no_threads_of_blas_and_leaves_no_variable_for_what_comes_after() -> None:
    run = Path(__file__).parents[1] / "data" / "h200-fsdp2"
    code = (
        "import os, sys; from stepscope.cli.main import main; code = main(sys.argv[1:]);"
        "print(code, os.environ.get('OPENBLAS_NUM_THREADS'), len(os.listdir('/proc/self/task')), file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, "report", str(run), "--json", "-", "--no-cache"]
    variables = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, env=variables, check=True)
    assert done.stderr.splitlines()[-1] == "0 None 1"
