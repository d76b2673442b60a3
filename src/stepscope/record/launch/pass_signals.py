"""Pass a signal on to the job if, and only if, it did not reach the job by itself.

Ctrl-C, `timeout` and a batch system's end of time signal every process of a group at once; `kill PID` and a
container's stop signal one. A job that gets a signal twice (once from them, once from us) may give up its orderly
end, and one that never gets it runs on. So a canary, a process that only waits, sits beside the job: what it gets
too was meant for all.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

PASSED = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
    if hasattr(signal, name)
)
_CANARY_S = 0.1


@contextmanager
def pass_signals() -> Iterator[Any]:
    """Yield a function to call with the started job; until the block ends its signals are passed on."""
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

    before = {number: signal.signal(number, take) for number in PASSED}
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
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED)
        parent = os.getppid()
        while os.getppid() == parent:
            got = signal.sigtimedwait(PASSED, 1.0)
            if got is not None:
                os.write(there, bytes([got.si_signo]))
    finally:
        os._exit(0)
