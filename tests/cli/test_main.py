"""The command line itself: help, completion, doctor, demo, codes, one-line errors, interrupts."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.limits import HANG_S

from stepscope.cli import demo
from stepscope.cli.doctor import Check, checks
from stepscope.cli.main import COMMANDS, full_parser, main
from stepscope.cli.outputs import print_line, warn
from stepscope.version import __version__


def test_no_arguments_list_the_commands_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert all(name in said.err for name in COMMANDS)


@pytest.mark.parametrize("words", [["-q", "doctor"], ["doctor", "--quiet"]])
def test_quiet_leaves_out_what_is_said_beside_the_answer(words, monkeypatch, capsys):
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


def test_interrupt_is_130_without_a_traceback(monkeypatch, capsys):
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("stepscope.cli.doctor.run", interrupted)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "stepscope doctor: stopped\n"


@pytest.mark.slow
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


def test_one_parser_for_completion_has_every_command_kind_and_option() -> None:
    commands = choices_of(full_parser())
    assert list(commands) == list(COMMANDS)
    options = choices_of(commands["bench"])["scaling"]._option_string_actions
    assert "strong" in (options["--mode"].choices or ())
    run = next(action for action in commands["report"]._actions if action.dest == "run")
    assert run.complete["zsh"] == "_files"  # type: ignore[attr-defined]


def choices_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next(a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))


def by_name() -> dict[str, Check]:
    return {check.what: check for check in checks()}


def test_everything_needed_works_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "trace reader" in said
    assert "reads exactly" in said
    assert " NO " not in said


def test_missing_package_is_told_and_fails_only_if_needed(monkeypatch, capsys):
    from importlib.metadata import PackageNotFoundError, version

    def without(*names: str) -> None:
        def found(name: str) -> str:
            if name in names:
                raise PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr("importlib.metadata.version", found)

    without("torch", "duckdb")
    assert main(["doctor"]) == 0
    assert by_name()["torch"].found == "not installed"
    without("numpy")
    assert main(["doctor"]) == 2
    assert "NO" in capsys.readouterr().out


@pytest.mark.job
@pytest.mark.slow
def test_the_planted_straggler_is_named(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Longer than the sleep of the demo, which a machine with much else to do hides in its noise.
    monkeypatch.setattr(demo, "SLOW_MS", 500.0)
    monkeypatch.setattr(demo, "STEPS", 30)
    monkeypatch.setattr(demo, "_RECORDED_STEPS", 8)
    code = main(["demo", "--out", "demo"])
    out, err = capfd.readouterr()
    assert code == 0, out + err
    assert re.search(r"Found       rank 1 is late and costs \d+ ms per step \(\d+ to \d+\), because of its host", out)
    own_ms = [int(n) for n in re.findall(r"rank \d (\d+) ms", out.split("Step log")[1])]
    assert len(own_ms) == 2
    assert own_ms[1] - own_ms[0] > demo.SLOW_MS / 2
    assert "stepscope report demo" in out
    assert ("\nCounted     " in out) == ("Overloaded machine" in out)


def test_without_torch_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr("stepscope.cli.demo.find_spec", lambda name: None)
    assert main(["demo"]) == 2
    assert "torch is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "expected"), [(["--ranks", "1"], "--world-size: the demo needs at least 2")])
def test_wrong_usage_is_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *words]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("command", [*COMMANDS, None])
def test_help_fits_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*([command] if command else []), "--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_wrong_option_gives_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "run", "--hmtl", "page.html"])
    assert "did you mean --html?" in capsys.readouterr().err
