"""Run a command so that every PyTorch process in it records itself; its exit code and signals are untouched.

    environment   STEPSCOPE_RECORD: the settings     PYTHONPATH: the folder with our `sitecustomize`, first
                  STEPSCOPE_SEEN: a local folder in which processes leave word of how far they got

Standard library only: torch is needed by the job, not here.
"""

import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from stepscope.errors import UsageError
from stepscope.output_path import why_no_folder
from stepscope.record.config import RecordConfig
from stepscope.record.helper.claim import folders_of_launch
from stepscope.record.helper.scratch import make_scratch, remove_scratch
from stepscope.record.launch.outcome import trouble_of_helpers
from stepscope.record.launch.outside_tool import UNDER_TOOL, exported, is_one_process, keep_outputs, under_tool
from stepscope.record.nccl_log import debug_environment
from stepscope.record.progress_notes import FOLDERS, SAID, SEEN_VARIABLE
from stepscope.record.window.kineto import KINETO_SETTINGS

# Pass a signal on to the job if, and only if, it did not reach the job by itself.
#
# Ctrl-C, `timeout` and a batch system's end of time signal every process of a group at once; `kill PID` and a
# container's stop signal one. A job that gets a signal twice (once from them, once from us) may give up its orderly
# end, and one that never gets it runs on. So a canary, a process that only waits, sits beside the job: what it gets
# too was meant for all.

_PASSED = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
    if hasattr(signal, name)
)
_CANARY_S = 0.1


@contextmanager
def _pass_signals() -> Iterator[Any]:
    canary = Canary()
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def take(number: int, _: FrameType | None) -> None:
        if not started:
            early.append(number)
        elif not canary.got(number):
            started[0].send_signal(number)

    def job_started(job: subprocess.Popen[bytes]) -> None:
        started.append(job)
        for number in early:
            job.send_signal(number)

    before = {number: signal.signal(number, take) for number in _PASSED}
    try:
        yield job_started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        canary.end()


class Canary:
    """A process in our group that reports every signal it gets."""

    def __init__(self) -> None:
        self._pipe, there = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._pipe)
            _wait_and_report(there)
        os.close(there)

    def got(self, number: int) -> bool:
        """Return whether the canary got this signal as well, just now."""
        while select.select([self._pipe], [], [], _CANARY_S)[0]:
            said = os.read(self._pipe, 1)
            if not said:
                return False
            if said[0] == number:
                return True
        return False

    def end(self) -> None:
        """End the canary."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._pipe)


def _wait_and_report(there: int) -> None:
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED)
        parent = os.getppid()
        while os.getppid() == parent:
            got = signal.sigtimedwait(_PASSED, 1.0)
            if got is not None:
                os.write(there, bytes([got.si_signo]))
    finally:
        os._exit(0)


INJECT = Path(__file__).parent / "inject"
_AT_START = dict(KINETO_SETTINGS)  # what the job sets itself holds
_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PYTHON = re.compile(r"^python[\d.]*$")
_DEAF = re.compile(r"^-[a-zA-Z]*[IES]")
_TAKES_VALUE = ("-X", "-W", "--check-hash-based-pycs")


@dataclass(frozen=True)
class LaunchOutcome:
    """How a job ended, and what is known of what it recorded."""

    exit_code: int  # negative: ended by that signal
    folders: tuple[Path, ...]
    python_seen: bool  # a Python process found our `sitecustomize`
    torch_seen: bool
    said: bool = False  # a process wrote a line of ours to the job's stderr
    trouble: str | None = None  # why a helper process has not written its run, or not yet
    outputs: tuple[Path, ...] = ()  # of an outside tool


def launch(
    command: Sequence[str],
    config: RecordConfig,
    *,
    environ: Mapping[str, str] | None = None,
    run: Callable[[Sequence[str], dict[str, str]], int] | None = None,
) -> LaunchOutcome:
    """Return how the command ended, after running it under the recorder; `run` runs it in another way."""
    config = replace(
        config, command=tuple(command), out=str(Path(config.out).absolute()), run_id=config.run_id or uuid.uuid4().hex
    )
    seen = _seen_folder()
    try:
        config = _with_outside_folder(config)
        env = job_environment(config, os.environ if environ is None else environ)
        if config.outside_tool is not None and is_one_process(command, env):
            command, env = under_tool(command, config, rank=0), {**env, UNDER_TOOL: "1"}
        exit_code = (run or _run)(command, {**env, SEEN_VARIABLE: str(seen)} if seen else env)
        trouble = trouble_of_helpers(seen) if seen is not None else None
        folders = _folders(config, seen)
        return LaunchOutcome(
            exit_code,
            folders=folders,
            python_seen=seen is None or (seen / "python").exists(),
            torch_seen=seen is None or (seen / "torch").exists(),
            said=seen is not None and any(seen.glob(f"{SAID}*")),
            trouble=trouble,
            outputs=_outputs(config, folders),
        )
    finally:
        if seen is not None:
            remove_scratch(seen)


def _outputs(config: RecordConfig, folders: Sequence[Path]) -> tuple[Path, ...]:
    kept = keep_outputs(config, folders) if config.outside_tool is not None else []
    return (*kept, *exported(kept))


def _seen_folder() -> Path | None:
    try:
        return make_scratch(None)
    except OSError:
        return None


def job_environment(config: RecordConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which every Python process records itself."""
    path = [str(INJECT), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    debug = debug_environment(config.debug, environ=environ).variables
    return {**_AT_START, **environ, **debug, **config.to_env(), "PYTHONPATH": os.pathsep.join(path)}


def _with_outside_folder(config: RecordConfig) -> RecordConfig:
    if config.outside_tool is None or why_not_writable(config.out) is not None:
        return replace(config, outside_tool=None, tool="torch") if config.outside_tool else config
    out = Path(config.out)
    folder = out.parent / f".{out.name}.{config.outside_tool}-{config.run_id}"
    folder.mkdir(parents=True)
    return replace(config, outside_folder=str(folder))


def deaf_option(command: Sequence[str]) -> str | None:
    """Return the option by which a Python in the command ignores PYTHONPATH or `sitecustomize`, None without one.

    `python -I x.py` -> "-I", `srun python -Bs -m pkg -E` -> None: options after the script are the script's own.
    """
    words = iter(command)
    for word in words:
        if not _PYTHON.match(Path(word).name):
            continue
        for option in words:
            if option in _TAKES_VALUE:
                next(words, None)
            elif not option.startswith("-") or option in ("-m", "-c", "-"):
                break
            elif _DEAF.match(option) and not option.startswith(("-X", "-W")):
                return option
    return None


def why_not_writable(out: str) -> str | None:
    """Return why a run folder cannot be made at `out`, None if it can."""
    place = Path(out).absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        return f"{place} is not a folder"
    if why_not := why_no_folder(out):
        return why_not
    return None if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written"


def _run(command: Sequence[str], env: dict[str, str]) -> int:
    with _pass_signals() as job_started:
        try:
            job = subprocess.Popen(command, env=env, preexec_fn=_end_with_launcher if _LINUX else None)
        except OSError as e:
            raise UsageError(f"cannot run {command[0]!r}: {e.strerror}; check its name") from e
        job_started(job)
        return job.wait()


def _end_with_launcher() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _folders(config: RecordConfig, seen: Path | None) -> tuple[Path, ...]:
    assert config.run_id is not None
    files = seen.glob(f"{FOLDERS}*") if seen is not None else ()
    told = [Path(line) for file in files for line in file.read_text().splitlines()]
    found = [*told, *folders_of_launch(config.out, config.run_id)]
    return tuple(sorted(set(found)))
