"""No hostile input brings a command down: those that once did, and some of one seed, so that what fails is the
change's; fresh seeds are for whoever changes a reader or an output.
"""

import dataclasses
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from tools.fuzz import run as pool
from tools.fuzz.case import Case, case_from, make_files, node, seed, text
from tools.fuzz.generators import (
    changed_fields,
    hostile_exports,
    mutated_traces,
    odd_arguments,
    odd_outputs,
    other_recordings,
    side_files,
)
from tools.fuzz.oracle import Outcome, complaints
from tools.fuzz.run import run_case

ROOT = Path(__file__).parents[1]
HOSTILE = ROOT / "tests" / "data" / "hostile"
GENERATORS = (
    *(mutated_traces, changed_fields, side_files, hostile_exports, other_recordings, odd_arguments, odd_outputs),
)
REPORT = Case(("report", "run", "--json", "-"))


def fuzz(*words: str, timeout_s: float) -> None:
    """Run the fuzzer and fail with all it printed, the seed first."""
    command = [sys.executable, str(ROOT / "tools" / "fuzz.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_inputs_that_once_brought_a_command_down_no_longer_do():
    fuzz("--replay", str(HOSTILE), timeout_s=880)


@pytest.mark.slow
def test_new_hostile_inputs(tmp_path):
    words = ("--seconds", "60", "--inputs", "250", "--seed", "1", "--out", str(tmp_path / "failures"))
    fuzz(*words, timeout_s=280)


@pytest.mark.parametrize("generator", GENERATORS)
def test_a_seed_gives_the_same_inputs_every_time(generator):
    first, second, other = (list(itertools.islice(generator(Random(n)), 30)) for n in (1, 1, 2))
    assert first == second != other
    assert [case_from(case.text) for case in first] == first, "saved and read again, a case is the same"


@pytest.mark.parametrize(
    ("outcome", "complaint"),
    [
        (Outcome(1), "exit code 1"),
        (Outcome(0, stderr="Exception in thread\nTraceback (most recent call last):\n  ...\nKeyError: 1"), "traceback"),
        (
            Outcome(None, raised='  File "x/stepscope/run/a.py", line 7, in f\nTypeError: no'),
            "TypeError at stepscope/run/a.py:7",
        ),
        (Outcome(2, stderr="one\ntwo\n"), "2 lines on stderr"),
        (Outcome(2), "0 lines on stderr"),
        (Outcome(None, ended_by="signal 11"), "signal 11"),
        (Outcome(0, stdout="{}", peak_bytes=2_000_000_000, input_bytes=1000), "memory 2.0 GB"),
        (Outcome(0, stdout='{"a": "\x1b[31m"}'), "escape sequence"),
        (Outcome(0, stdout="{}", stderr="fuzzmark"), "markup"),
        (Outcome(0, stdout="{"), "json"),
        (Outcome(0, stdout='{"a": Infinity}'), "json bare Infinity"),
        (Outcome(0, stdout='{"a": NaN}'), "json bare NaN"),
        (Outcome(0, stdout='{"step": {}, "findings": [], "ranks": [{"window_ms": -1.0}]}'), "window_ms is -1"),
        (Outcome(0, stdout='{"step": {}, "findings": [], "kernels": [{"sm_pct": 101.0}]}'), "sm_pct is 101"),
        (
            Outcome(0, stdout='{"step": {"unprofiled_ms": null, "profiled_ms": 9, "budget": [{"ms_per_step": 5}]}}'),
            "budget does not sum",
        ),
        (Outcome(0, stdout='{"waterfall": [{"pct_of_peak": 50}]}'), "waterfall does not sum"),
        (Outcome(0, stdout="{}", written={"a.html": "<script>fuzzed()</script>"}), "script in a page"),
        (Outcome(0, stdout="{}", changed=("work/run/run.json was changed",)), "file work/run/run.json was changed"),
    ],
)
def test_what_breaks_the_contract_is_noticed(outcome, complaint):
    found = complaints(REPORT, outcome)
    assert any(complaint in line for line in found), found


def test_what_keeps_the_contract_passes():
    assert complaints(REPORT, Outcome(0, stdout='{"ranks": [{"window_ms": 1.0}]}')) == []
    assert complaints(REPORT, Outcome(2, stderr="stepscope report: no trace in this folder\n")) == []
    assert complaints(Case(("compare", "a", "b", "--fail-on", "step_ms>5%")), Outcome(1, stderr="a\nb\n")) == []


def test_what_one_input_asks_for_in_particular_is_looked_at():
    asked = dataclasses.replace(REPORT, expect={"exit_code": [2], "says": "two traces"})
    assert len(complaints(asked, Outcome(0, stdout="{}"))) == 2
    assert complaints(asked, Outcome(2, stderr="found two traces")) == []


@pytest.mark.slow
def test_a_hang_a_crash_and_a_dead_process_are_outcomes_and_the_rest_goes_on(tmp_path, monkeypatch):
    def played(case, scratch, *, in_process, begun):
        begun()
        acts = {"hang": lambda: time.sleep(600), "crash": lambda: os.kill(os.getpid(), 9), "leave": lambda: os._exit(7)}
        acts.get(case.argv[0], lambda: None)()
        return Outcome(0)

    monkeypatch.setattr(pool, "run_case", played)
    monkeypatch.setattr(pool, "MAX_SECONDS", 1)
    monkeypatch.setattr(pool, "_PATIENCE", 300)  # a machine that is busy with others is none of the commands' fault
    jobs = [(Case((word,)), True) for word in ("hang", "fine", "crash", "fine", "leave", "fine")]
    ended = {(case.argv[0], outcome.ended_by) for case, outcome in pool.outcomes(jobs, tmp_path, workers=2)}
    assert ended == {
        ("hang", "hang over 1 s"),
        ("crash", "signal 9"),
        ("leave", "the process left with 7"),
        ("fine", ""),
    }


def test_a_case_touches_nothing_but_its_own_folder_and_says_what_the_command_touched(tmp_path, monkeypatch):
    files = {
        "kept": text("keep"),
        "out": node("link", "kept"),
        "pipe": node("fifo"),
        "a.json": seed("gloo-linear/run.json"),
    }

    def clumsy(argv):
        Path("kept").write_text("gone")
        Path("pipe").unlink()
        Path("x.tmp").write_text("left")
        print("words")
        return 0

    monkeypatch.setattr("tools.fuzz.run.main", clumsy)
    outcome = run_case(Case(("report",), files), tmp_path)
    assert sorted(outcome.changed) == ["work/kept was changed", "work/pipe is gone", "work/x.tmp was left"]
    assert outcome.stdout == "words\n"
    assert outcome.input_bytes > 1000
    assert not list(tmp_path.iterdir())


def test_a_recipe_is_made_as_it_says(tmp_path):
    files = {
        "run/@.json": {"text": "x@", "edits": [["numbered", 3]], "count": 2},
        "sparse": node("sparse", 1 << 40),
        "line": text('{"a": 1}\n{"b": 2}', ["set_line", 1, ["b"], "1e999"]),
        "bytes": text("abcd", ["replace", 1, 2, "\xff"], ["copy", 0, 1, 4], ["swap", 0, 1, 2], ["times", 2]),
    }
    make_files(Case((), files), tmp_path)
    assert (tmp_path / "run" / "00001.json").read_text() == "x0x1x2"
    assert (tmp_path / "sparse").stat().st_size == 1 << 40
    assert (tmp_path / "line").read_text().splitlines()[1] == '{"b": 1e999}'
    assert (tmp_path / "bytes").read_bytes() == b"\xffacda" * 2
