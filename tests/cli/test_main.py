"""The command line itself: codes, one-line errors, help, pipes that close, interrupts."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests.limits import HANG_S

from stepscope.cli.main import COMMANDS, _without_how_much, command_parser, main
from stepscope.cli.messages import print_line, warn
from stepscope.errors import InputError
from stepscope.version import __version__

COMMAND = [sys.executable, "-m", "stepscope"]


def test_no_arguments_list_the_commands_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert all(name in said.err for name in COMMANDS)


def test_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repot", "x"]) == 2
    said = capsys.readouterr().err
    assert said == "stepscope: unknown command 'repot'; did you mean report?\n"


def test_command_like_none_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("stepscope: unknown command 'xyzzy'; use one of ") and said.count("\n") == 1


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


def test_verbose_says_where_an_error_came_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object) -> int:
        raise InputError("no such thing; give another")

    monkeypatch.delenv("STEPSCOPE_DEBUG", raising=False)
    monkeypatch.setattr("stepscope.cli.doctor.run", fail)
    assert main(["doctor", "-v"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["doctor"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_options_of_a_recorded_command_are_its_own() -> None:
    assert _without_how_much(["record", "-q", "--", "train", "-v"]) == (["record", "--", "train", "-v"], {"-q"})


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


def test_unknown_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--nonsense"])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_module_and_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(import_module(f"stepscope.cli.{name}").run)
    with pytest.raises(SystemExit) as exit_:
        main([name, "--help"])
    assert exit_.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: stepscope {name}")
    assert (command_parser(name).description or "").splitlines()[0][:40] in said


def test_wrong_arguments_of_a_command_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["report"])
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("stepscope report: ")
    assert "see `stepscope report --help`" in said


def test_our_errors_are_one_line_with_their_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise InputError("expected a\nfound \x1b[31mb")

    monkeypatch.setattr("stepscope.cli.doctor.run", fail)
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == "stepscope doctor: expected a\\nfound \\x1b[31mb\n"


def test_interrupt_is_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("stepscope.cli.doctor.run", interrupted)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "stepscope doctor: stopped\n"


def test_reader_that_leaves_is_no_error() -> None:
    with subprocess.Popen([*COMMAND, "doctor", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=HANG_S) == 0
    assert b"Traceback" not in errors


def test_paths_with_odd_characters_stay_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "a\nb\x1b[0m")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


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
