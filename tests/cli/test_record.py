"""`stepscope record`: the command around the job, without any torch: messages, signals, exit codes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.limits import HANG_S

from stepscope.cli.main import main
from stepscope.record.launch.launch import INJECT

COMMAND = [sys.executable, "-m", "stepscope.cli.main", "record"]
COUNTS_SIGNALS = """
import signal, sys, time
got = []
signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
print("ready", flush=True)
deadline = time.monotonic() + 600
while not got and time.monotonic() < deadline:
    time.sleep(0.02)
time.sleep(0.5)
print("terminated", len(got), flush=True)
sys.exit(5)
"""


def record(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **(env or {})}
    return subprocess.run([*COMMAND, *words], cwd=cwd, env=environ, capture_output=True, text=True, timeout=HANG_S)


def started(tmp_path: Path, script: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "--", sys.executable, "-c", script]
    job = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert job.stdout is not None and job.stdout.readline() == "ready\n"
    return job


@pytest.mark.job
def test_exit_code_and_output_are_the_commands(tmp_path: Path) -> None:
    done = record("--", sys.executable, "-c", "print('hello'); raise SystemExit(9)", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (9, "hello\n")
    assert "no training step was recorded: no process imported torch" in done.stderr


@pytest.mark.job
def test_a_signal_to_the_launcher_alone_reaches_the_job_once(tmp_path: Path) -> None:
    job = started(tmp_path, COUNTS_SIGNALS)
    job.send_signal(signal.SIGTERM)
    assert job.communicate(timeout=HANG_S)[0] == "terminated 1\n"
    assert job.returncode == 5


@pytest.mark.job
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGKILL])
def test_a_job_that_dies_of_a_signal_looks_the_same_from_outside(number: signal.Signals, tmp_path: Path) -> None:
    done = record("--", "sh", "-c", f"kill -{number} $$", cwd=tmp_path)
    assert done.returncode == -number


@pytest.mark.job
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has to tell the job")
def test_a_launcher_that_is_killed_takes_the_job_with_it(tmp_path: Path) -> None:
    job = started(tmp_path, COUNTS_SIGNALS)
    job.kill()
    assert job.communicate(timeout=HANG_S)[0] == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "the job's command is missing"),
        (["--"], "the job's command is missing"),
        (["--steps", "5", "--", "true"], "write FIRST:LAST"),
        (["--steps", "5:5", "--", "true"], "the first step has to come before the last"),
        (["--ranks", "first", "--", "true"], "'all' or numbers such as 0,3"),
        (["--", "no-such-command-here"], "cannot run 'no-such-command-here'"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(words, expected, capsys):
    assert main(["record", *words]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1


@pytest.mark.job
def test_a_folder_that_cannot_be_made_is_said_and_the_job_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = record("--out", "file/run", "--", sys.executable, "-c", "print('ran')", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "file is not a folder, so nothing will be recorded; give another folder with --out" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "no training step was recorded" in last and last.endswith("file is not a folder")


@pytest.mark.job
def test_python_that_ignores_our_path_is_said_and_the_job_runs(tmp_path: Path) -> None:
    done = record("--", sys.executable, "-I", "-c", "print('ran')", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "python -I ignores PYTHONPATH" in done.stderr
    assert "no Python that reads PYTHONPATH was started" in done.stderr


@pytest.mark.job
def test_a_torch_too_old_is_said_and_the_job_runs(tmp_path: Path) -> None:
    (old := tmp_path / "torch").mkdir()
    (old / "__init__.py").write_text("__version__ = '1.13.1'")
    done = record("--", sys.executable, "-c", "import torch; print(torch.__version__)", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1.13.1\n"), done.stderr
    assert "recording needs torch 2.4 or newer, found 1.13.1; this process runs unrecorded" in done.stderr


@pytest.mark.job
def test_the_jobs_own_packages_stay_what_they_are(tmp_path: Path) -> None:
    """Nothing but `stepscope` itself becomes importable: the recorder's neighbours may be other versions."""
    script = "import sys; print([p for p in sys.path if 'stepscope' in p], 'stepscope' in sys.modules)"
    done = record("--", sys.executable, "-S", "-c", script, cwd=tmp_path)
    assert done.stdout == f"[{str(INJECT)!r}] False\n"
