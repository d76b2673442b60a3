"""Run a job within a time limit, its output in a file, and leave no process of it behind.

The job has a session of its own, so that Ctrl-C ends us and we end the job: first asked (torchrun then ends its ranks),
then killed. Ranks that torchrun started have sessions of their own; they are known by the launch's id in their
environment. Our own helper processes do not carry it: they finish what they write and end by themselves.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from stepscope.errors import UsageError
from stepscope.output_path import open_private, refuse_output

_ASKED_S = 10.0
_LOOK_S = 0.05
_PROC = Path("/proc")


class BoundedRun:
    """How to run one job; call it with the command and its environment."""

    def __init__(self, output: Path, *, limit_s: float, run_id: str) -> None:
        self.timed_out = False
        self._output, self._limit_s, self._run_id = output, limit_s, run_id

    def __call__(self, command: Sequence[str], env: dict[str, str]) -> int:
        refuse_output(self._output)
        with os.fdopen(open_private(self._output), "wb") as said, _sigterm_raises():
            job = self._start(command, env, said.fileno())
            try:
                return job.wait(timeout=self._limit_s)
            except subprocess.TimeoutExpired:
                self.timed_out = True
                return _end(job)
            finally:
                if job.poll() is None:
                    _end(job)
                _end_left_behind(self._run_id)

    def _start(self, command: Sequence[str], env: dict[str, str], out: int) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        except OSError as e:
            raise UsageError(f"cannot run {command[0]!r}: {e.strerror}; check its name") from e


def _end_left_behind(run_id: str, *, asked_s: float = _ASKED_S) -> int:
    found = processes_of(run_id)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in processes_of(run_id):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        until = time.monotonic() + asked_s
        while processes_of(run_id) and time.monotonic() < until:
            time.sleep(_LOOK_S)
    return len(found)


def processes_of(run_id: str) -> list[int]:
    """Return the processes whose environment holds the launch's id."""
    if not _PROC.is_dir():
        return []
    wanted, own = run_id.encode(), os.getpid()
    numbers = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if pid != own and wanted in _environment(pid)]


def _environment(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "environ").read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return b""


def _end(job: "subprocess.Popen[bytes]") -> int:
    with suppress(ProcessLookupError):
        job.terminate()
    try:
        return job.wait(timeout=_ASKED_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        return job.wait()


@contextmanager
def _sigterm_raises() -> Iterator[None]:

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not on the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
