"""Cases on several processes, each watched from outside: none may hang, crash or fill the memory for the rest."""

import hashlib
import multiprocessing
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from tools.fuzz.case import Case, make_files
from tools.fuzz.oracle import MAX_SECONDS, STARTS_NO_JOBS, UNFORESEEN, Outcome, place_of

from stepscope.cli.main import main
from stepscope.errors import StepscopeError

DEBUG = "STEPSCOPE_DEBUG"
_CANARY = "work/tmp/stepscope-20241115-results/keep.txt"
"""a user's folder that looks like scratch of ours: nobody may touch it"""
_MAX_READ = 20_000_000
_MAX_WRITTEN = 2 << 30


def prepare_process() -> None:
    """Make this process one that calls commands: no jobs are started, no server waits for Ctrl-C."""
    from stepscope.cli import view, watch

    view._wait_until_stopped = lambda: None
    watch._pause = _stopped
    start = subprocess.Popen.__init__

    def guarded(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        if list(args) != ["true"]:
            raise StepscopeError(STARTS_NO_JOBS)
        start(self, args, *rest, **options)

    subprocess.Popen.__init__ = guarded  # type: ignore[method-assign]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _stopped(seconds: float) -> None:
    """Stand for a reader who stops watching after one look."""
    raise KeyboardInterrupt


def run_case(
    case: Case, scratch: Path, *, in_process: bool = True, begun: Callable[[], None] = lambda: None
) -> Outcome:
    """Return what the command did; `begun` is called when all is made and the command starts."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        (folder / _CANARY).parent.mkdir(parents=True)
        (folder / _CANARY).write_text("keep")
        size = make_files(case, folder / "work")
        before = _fingerprints(folder)
        begun()
        started, worked = time.monotonic(), time.process_time()
        call = _called if in_process and case.stdout == "file" else _started
        found = call(case, folder)
        if UNFORESEEN in found.get("stderr", "") and call is _called:
            found["unforeseen"] = _where_from(case, scratch)
        return Outcome(
            **found,
            took_s=time.monotonic() - started,
            worked_s=time.process_time() - worked,
            input_bytes=size,
            written=_written(folder / "work", before),
            changed=tuple(_changed(case, folder, before)),
        )
    finally:
        _remove(folder)


def _where_from(case: Case, scratch: Path) -> str:
    """Return the place of an error that is said in one sentence, from a second call that shows the traceback."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        (folder / _CANARY).parent.mkdir(parents=True)
        make_files(case, folder / "work")
        os.environ[DEBUG] = "1"
        found = _called(case, folder)
        return place_of(found["stderr"] or found["raised"])
    finally:
        del os.environ[DEBUG]
        _remove(folder)


def _called(case: Case, folder: Path) -> dict[str, Any]:
    """Return the outcome of `main` in this process."""
    _reset_peak()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_WRITTEN, most))
    raised, code = "", None
    with _at_home(folder):
        try:
            code = main(list(case.argv))
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        except BaseException:  # noqa: BLE001  whatever leaves `main` is the finding
            raised = traceback.format_exc()
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    return {
        "exit_code": code,
        "raised": raised,
        "stdout": _text(folder / "stdout"),
        "stderr": _text(folder / "stderr"),
        "peak_bytes": _peak(),
    }


@contextmanager
def _at_home(folder: Path) -> Iterator[None]:
    """Stand in the case's folder, with its own temporary folder and output."""
    home, kept = Path.cwd(), [os.dup(n) for n in (0, 1, 2)]
    streams = sys.stdin, sys.stdout, sys.stderr
    environ = dict(os.environ)
    os.chdir(folder / "work")
    os.environ.update(_environ(folder))
    tempfile.tempdir = None
    for number, name in enumerate((Path("/dev/null"), folder / "stdout", folder / "stderr")):
        opened = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (open(n, m, closefd=False) for n, m in ((0, "r"), (1, "w"), (2, "w")))  # noqa: SIM115
    cast(TextIOWrapper, sys.stderr).reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(environ)
        tempfile.tempdir = None
        os.chdir(home)


def _environ(folder: Path) -> dict[str, str]:
    return {"TMPDIR": str(folder / "work" / "tmp"), "HOME": str(folder), "COLUMNS": "100"}


def _started(case: Case, folder: Path) -> dict[str, Any]:
    """Return the outcome of the command as a process of its own."""
    environ = {**os.environ, **_environ(folder)}
    if case.stdout == "ascii":
        environ["PYTHONIOENCODING"] = "ascii"
    out = "/dev/full" if case.stdout == "full" else folder / "stdout"
    with Path(out).open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        words = [sys.executable, "-m", "stepscope", *case.argv]
        if case.stdout == "closed":
            words = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *words]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        child = subprocess.Popen.__new__(subprocess.Popen)
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr}
        _START(child, words, cwd=folder / "work", env=environ, preexec_fn=_limit_cpu, **streams)
        try:
            code = child.wait(MAX_SECONDS * (_PATIENCE - 1))  # others may need the machine as well
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return {"exit_code": None, "ended_by": f"hang over {MAX_SECONDS} s"}
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {
        "exit_code": code if code >= 0 else None,
        "ended_by": f"signal {-code}" if code < 0 else "",
        "stdout": "" if case.stdout == "full" else _text(folder / "stdout"),
        "stderr": _text(folder / "stderr"),
        "peak_bytes": 1024 * peak if peak > before else 0,
    }


_START = subprocess.Popen.__init__


def _limit_cpu() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak() -> int:
    """Return the most memory that was in use since the peak was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _text(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as f:
        return f.read(_MAX_READ).decode(errors="replace")


def _fingerprints(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return what each file below `folder` is: kind, device, target or content."""
    found = {}
    for where, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(where, name)
            status = path.lstat()
            kind = stat.S_IFMT(status.st_mode)
            content: Any = None
            if stat.S_ISREG(kind):
                small = status.st_blocks * 512 <= _MAX_READ and status.st_size <= _MAX_READ
                content = hashlib.sha256(path.read_bytes()).digest() if small else status.st_size
            elif stat.S_ISLNK(kind):
                content = path.readlink()
            found[str(path.relative_to(folder))] = (kind, status.st_rdev, content)
    return found


def _changed(case: Case, folder: Path, before: dict[str, tuple[Any, ...]]) -> Iterator[str]:
    """Yield what happened to files that were there, and temporary files that stayed."""
    after = _fingerprints(folder)
    allowed = tuple(f"work/{name}" for name in case.outputs)
    for name, was in before.items():
        if name.startswith(allowed):
            continue
        if name not in after:
            yield f"{name} is gone"
        elif after[name] != was:
            yield f"{name} was changed"
    new = [name for name in after if name not in before]
    yield from (f"{name} was left" for name in new if name.endswith(".tmp"))
    yield from (f"{name} was put where a link leads" for name in new if name.startswith("work/elsewhere"))


def _written(folder: Path, before: dict[str, tuple[Any, ...]]) -> dict[str, str]:
    """Return the texts that the command wrote: pages and JSON."""
    new = [p for p in folder.rglob("*") if p.suffix in (".html", ".svg", ".json") and p.is_file()]
    return {p.name: _text(p) for p in new if f"work/{p.relative_to(folder)}" not in before}


def _remove(folder: Path) -> None:
    for where, folders, _ in os.walk(folder):
        for name in folders:
            if not Path(where, name).is_symlink():
                Path(where, name).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


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
