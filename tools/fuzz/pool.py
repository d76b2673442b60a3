"""Cases on several processes, each watched from outside: none may hang, crash or fill the memory for the rest."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tools.fuzz.case import Case
from tools.fuzz.oracle import MAX_SECONDS, Outcome
from tools.fuzz.worker import prepare_process, run_case

_FORK = multiprocessing.get_context("fork")
_MAX_CASES = 400
"""of one process: what a command leaves behind in it must not decide over too many others"""
_KILL_BYTES = 4_000_000_000
_PATIENCE = 6
"""times the limit that a busy machine may take"""
_WAITS_SHARE = 0.01
"""of a processor: who uses less for that long waits for something that does not come"""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
Job = tuple[Case, bool]
"""a case, and whether it runs inside the worker"""


def outcomes(jobs: Iterable[Job], scratch: Path, *, workers: int) -> Iterator[tuple[Case, Outcome]]:
    """Yield each case with what became of it, in the order they end."""
    todo = iter(jobs)
    pool = [_Worker(scratch) for _ in range(workers)]
    try:
        busy = {w.pipe: w for w in pool if w.take(next(todo, None))}
        while busy:
            ready = wait(list(busy), timeout=0.2)
            for worker in list(busy.values()):
                outcome = worker.answer() if worker.pipe in ready else worker.overdue()
                if outcome is None:
                    continue
                assert worker.job is not None
                yield worker.job[0], outcome
                del busy[worker.pipe]
                worker.renew(dead=bool(outcome.ended_by))
                if worker.take(next(todo, None)):
                    busy[worker.pipe] = worker
    finally:
        for worker in pool:
            worker.end()


class _Worker:
    """One process that runs cases, one at a time."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.job: Job | None = None
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = _FORK.Pipe()
        self.process = _FORK.Process(target=_work, args=(theirs, self.scratch), daemon=True)
        self.process.start()
        theirs.close()
        self.done = 0

    def take(self, job: Job | None) -> bool:
        """Send a case to the process; False where there is none."""
        self.job, self.since, self.worked_s = job, time.monotonic(), self._cpu_s()
        if job is not None:
            self.pipe.send(job)
        return job is not None

    def answer(self) -> Outcome | None:
        """Return what the process says, or how it died; None where it only says that the command starts now."""
        try:
            outcome = self.pipe.recv()
            self.since, self.worked_s = time.monotonic(), self._cpu_s()
            return outcome
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode or 0
            return Outcome(None, ended_by=f"signal {-code}" if code < 0 else f"the process left with {code}")

    def overdue(self) -> Outcome | None:
        """Return an outcome, after killing the process, where the case takes too long or too much memory."""
        took = time.monotonic() - self.since
        if took > MAX_SECONDS and self._hangs(took):
            return self._killed(f"hang over {MAX_SECONDS} s", took)
        try:
            resident = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            return None
        return self._killed(f"memory over {_KILL_BYTES / 1e9:.0f} GB", took) if resident > _KILL_BYTES else None

    def _hangs(self, took: float) -> bool:
        """Return whether the command is to blame for its time, and not a machine that is busy with others."""
        assert self.job is not None
        if not self.job[1] or self.job[0].stdout != "file":  # a process of its own, which has a limit of its own
            return took > _PATIENCE * MAX_SECONDS
        worked = self._cpu_s() - self.worked_s
        waits = worked < _WAITS_SHARE * took and not self._wants_to_run()
        return worked > MAX_SECONDS or waits or took > _PATIENCE * MAX_SECONDS

    def _wants_to_run(self) -> bool:
        """Return whether a thread of the process could go on if it were given a processor."""
        states = []
        for thread in Path(f"/proc/{self.process.pid}/task").glob("*/stat"):
            with suppress(OSError):
                states.append(thread.read_text().rpartition(")")[2].split()[0])
        return "R" in states

    def _cpu_s(self) -> float:
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def _killed(self, why: str, took: float) -> Outcome:
        self.process.kill()
        self.process.join()
        return Outcome(None, ended_by=why, took_s=took)

    def renew(self, *, dead: bool) -> None:
        """Start a new process where this one is dead or has done enough."""
        self.done += 1
        if dead or self.done >= _MAX_CASES:
            self.end()
            self._start()

    def end(self) -> None:
        """End the process."""
        self.pipe.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def _work(pipe: Connection, scratch: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare_process()
    while True:
        try:
            case, in_process = pipe.recv()
        except EOFError:
            os._exit(0)
        pipe.send(run_case(case, scratch, in_process=in_process, begun=lambda: pipe.send(None)))
