"""Two jobs that run in turn, a few steps each: while one runs, all processes of the other are stopped.

    job          after its first steps and after every turn each rank reports to its socket and waits
    controller   once all ranks of a job wait, stops its processes and lets the other job take its turn

Ranks wait between two steps, so no collective is under way while they are stopped, and the pause is in no step. All of
them stop after the same step without asking each other: a turn is a number of steps, the same for every rank. Loader
workers and other children are stopped with them: they can neither prepare batches during the pause nor disturb the
other job.

On a GPU each rank waits for its device first, so all its kernels and collectives have ended when it reports; it then
waits in a read and is not stopped, as a stopped process could hold up others that use the device through the same
server. Both jobs stay in the device's memory; one whose allocator had to free memory for the other ends the turns.
"""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_POLL_S = 0.1
# from the first rank that waits to the last
_ARRIVAL_S = 60.0


def steps_of_turn(address: str, **report: Any) -> int:
    """Wait for this job's turn and return its number of steps; 0 if the controller ended the trial or has exited.

    `report` has world size, process id, the last step's time, whether it runs on a device, and the device's retries.
    """
    try:
        with socket.socket(socket.AF_UNIX) as waiting, waiting.makefile("rb") as answer:
            waiting.connect(address)
            waiting.sendall(json.dumps(report).encode() + b"\n")
            return int(answer.readline() or 0)
    except OSError:
        return 0


class TurnsError(Exception):
    """The jobs cannot run in turn; the message is the reason."""


class Turns:
    """Starts two jobs and lets them run in turn; `jobs` are functions of the address to give to the job's ranks."""

    def __init__(self, jobs: Sequence[Callable[[str], Any]]) -> None:
        self._folder = tempfile.mkdtemp(prefix="stepscope-")
        self._jobs = [_Job(job, str(Path(self._folder, str(k)))) for k, job in enumerate(jobs)]
        # lives longer than a controller that is killed, whose jobs would stay stopped for ever
        guard = [sys.executable, "-m", __name__, *(job.address for job in self._jobs)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)

    def __enter__(self) -> "Turns":
        for job in self._jobs:
            job.start()
        try:
            for job in self._jobs:
                job.wait_for_pause()
        except BaseException:
            self.__exit__()
            raise
        return self

    @property
    def step_ns(self) -> int:
        """The slower job's last step before its pause."""
        return max(job.step_ns for job in self._jobs)

    def run(self, index: int, steps: int) -> None:
        """Let one job take its turn; returns when all of its ranks wait again."""
        self._jobs[index].go_on(steps)
        self._jobs[index].wait_for_pause()

    def __exit__(self, *_: object) -> None:
        for job in self._jobs:
            job.end()
        self._guard.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def outcomes(self) -> list[Any]:
        """What the functions of both jobs returned; None for one that raised an error."""
        return [job.outcome for job in self._jobs]


class _Job:
    def __init__(self, run: Callable[[str], Any], address: str) -> None:
        self.outcome: Any = None
        self.step_ns = 0
        self._paused = False
        self._error: BaseException | None = None
        self._run, self.address = run, address
        self._thread = threading.Thread(target=self._launch, daemon=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._waiting: list[socket.socket] = []
        self._on_device: set[int] = set()
        self._listener.bind(address)
        self._listener.listen(1024)

    def start(self) -> None:
        self._thread.start()

    def _launch(self) -> None:
        try:
            self.outcome = self._run(self.address)
        except BaseException as error:  # noqa: BLE001 - raised again in the controller's thread
            self._error = error

    def wait_for_pause(self) -> None:
        world_size, until_s = 0, 0.0
        while not self._waiting or len(self._waiting) < world_size:
            if not self._thread.is_alive():
                if self._error is not None:
                    raise self._error
                raise TurnsError("a job ended before its turns were over")
            if self._waiting and time.monotonic() > until_s:
                raise TurnsError(f"{len(self._waiting)} of {world_size} ranks paused after the same step")
            if select.select([self._listener], [], [], _POLL_S)[0]:
                rank, _ = self._listener.accept()
                with rank.makefile("rb") as words:
                    report = json.loads(words.readline())
                self._waiting.append(rank)
                world_size, self.step_ns = report["world_size"], report["step_ns"]
                if report["on_device"]:
                    self._on_device.add(report["pid"])
                if report["retries"]:
                    raise TurnsError("both versions do not fit into the GPU's memory at once")
                until_s = time.monotonic() + _ARRIVAL_S
        self._paused = True
        self._signal(signal.SIGSTOP, spared=self._on_device)

    def go_on(self, steps: int) -> None:
        self._signal(signal.SIGCONT)
        self._release(steps)

    def end(self) -> None:
        from stepscope.record.launch.launch import end_processes_of

        self._signal(signal.SIGCONT)
        if not self._paused:  # interrupted in a turn, or before the first
            end_processes_of(self.address)
        self._release(0)
        self._listener.close()
        self._thread.join()

    def _release(self, steps: int) -> None:
        for rank in self._waiting:
            with suppress(OSError), rank:
                rank.sendall(b"%d\n" % steps)
        self._waiting, self._paused = [], False

    def _signal(self, number: signal.Signals, *, spared: Collection[int] = ()) -> None:
        _signal_all(self.address, number, spared=spared)


def _signal_all(address: str, number: signal.Signals, *, spared: Collection[int] = ()) -> None:
    from stepscope.record.launch.launch import processes_of

    for pid in set(processes_of(address)) - set(spared):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


if __name__ == "__main__":
    sys.stdin.read()
    for given in sys.argv[1:]:
        _signal_all(given, signal.SIGCONT)
