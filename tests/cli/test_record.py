"""`stepscope record`: the command around the job, without any torch: messages, signals, exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.limits import HANG_S

from stepscope.cli.main import main
from stepscope.cli.record import last_words
from stepscope.contract.run_folder import steps_file
from stepscope.record.config import RecordConfig
from stepscope.record.launch.launch import INJECT, LaunchOutcome, deaf_option, job_environment

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
def test_a_signal_to_the_whole_group_reaches_the_job_once(tmp_path: Path) -> None:
    job = started(tmp_path, COUNTS_SIGNALS)
    os.killpg(job.pid, signal.SIGTERM)
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


@pytest.mark.job
def test_nothing_is_left_running(tmp_path: Path) -> None:
    job = started(tmp_path, COUNTS_SIGNALS)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=HANG_S)
    with pytest.raises(ProcessLookupError):
        for _ in range(1200):  # whoever ends beside it has a moment
            os.killpg(job.pid, 0)
            time.sleep(0.05)


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
def test_wrong_usage_is_one_line_and_code_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
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
def test_options_without_effect_beside_light_are_said(tmp_path: Path) -> None:
    done = record("--light", "--shapes", "--steps", "3:5", "--", sys.executable, "-c", "", cwd=tmp_path)
    assert done.returncode == 0
    assert "--light profiles nothing, so --steps, --shapes will not be heeded; leave out --light" in done.stderr


@pytest.mark.parametrize(("exit_code", "how"), [(-9, "signal 9"), (7, "exit code 7")])
def test_a_job_that_ended_early_is_not_said_to_lack_an_optimizer(exit_code: int, how: str, tmp_path: Path) -> None:
    launched = LaunchOutcome(exit_code, folders=(), python_seen=True, torch_seen=True)
    (said,) = last_words(launched, RecordConfig(out=str(tmp_path)))
    assert said == f"no training step was recorded: the job ended with {how} before its first steps were written"


def test_ranks_that_the_job_does_not_have_are_said(tmp_path: Path) -> None:
    steps = [{"rank": 0}, *({"step": i} for i in range(20))]
    (tmp_path / steps_file(0)).write_text("".join(f"{json.dumps(line)}\n" for line in steps))
    launched = LaunchOutcome(0, folders=(tmp_path,), python_seen=True, torch_seen=True)
    said = last_words(launched, RecordConfig(out=str(tmp_path), ranks=(3, 5)))
    assert "no trace: --ranks 3,5 names none of this job's ranks, 0 to 0; give one of them, or all" in said


@pytest.mark.job
def test_python_that_ignores_our_path_is_said_and_the_job_runs(tmp_path: Path) -> None:
    done = record("--", sys.executable, "-I", "-c", "print('ran')", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "python -I does not look at PYTHONPATH" in done.stderr
    assert "no Python that looks at PYTHONPATH was started" in done.stderr


@pytest.mark.job
def test_a_torch_too_old_is_said_and_the_job_runs(tmp_path: Path) -> None:
    old = tmp_path / "torch"
    old.mkdir()
    (old / "__init__.py").write_text("__version__ = '1.13.1'")
    done = record("--", sys.executable, "-c", "import torch; print(torch.__version__)", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1.13.1\n")
    assert "recording needs torch 2.4 or newer, found 1.13.1; this process runs unrecorded" in done.stderr


@pytest.mark.job
def test_a_torch_that_does_not_import_fails_as_it_would_alone(tmp_path: Path) -> None:
    broken = tmp_path / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('libcudart not found')")
    script = "try:\n  import torch\nexcept ImportError as e:\n  print(e)\nimport torch"
    done = record("--", sys.executable, "-c", script, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "libcudart not found\n")
    assert done.stderr.count("Traceback") == 1


@pytest.mark.job
def test_the_jobs_own_packages_stay_what_they_are(tmp_path: Path) -> None:
    """Nothing but `stepscope` itself becomes importable: the recorder's neighbours may be other versions."""
    script = "import sys; print([p for p in sys.path if 'stepscope' in p], 'stepscope' in sys.modules)"
    done = record("--", sys.executable, "-S", "-c", script, cwd=tmp_path)
    assert done.stdout == f"[{str(INJECT)!r}] False\n"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("python -I train.py", "-I"),
        ("srun -n 4 /usr/bin/python3.11 -Es train.py", "-Es"),
        ("python -B -S train.py", "-S"),
        ("python -X importtime -E train.py", "-E"),
        ("python -W ignore train.py -E -I", None),
        ("python -m torch.distributed.run -I", None),
        ("torchrun --nproc-per-node=2 train.py -S", None),
        ("python -OO train.py", None),
        ("python -Xdev -WIgnore train.py", None),
    ],
)
def test_options_that_make_python_deaf(command: str, option: str | None) -> None:
    assert deaf_option(command.split()) == option


def test_the_users_path_and_settings_are_kept() -> None:
    from stepscope.record.config import RecordConfig

    env = job_environment(RecordConfig(), {"PYTHONPATH": "/a:/b", "KINETO_LOG_LEVEL": "1"})
    assert env["PYTHONPATH"] == f"{INJECT}:/a:/b"
    assert env["KINETO_LOG_LEVEL"] == "1"
    assert RecordConfig.from_env(env) == RecordConfig()
