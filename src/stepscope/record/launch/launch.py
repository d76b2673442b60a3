"""Run a command so that every PyTorch process in it records itself; its exit code and signals are untouched.

    environment   STEPSCOPE_RECORD: the settings     PYTHONPATH: the folder with our `sitecustomize`, first
                  STEPSCOPE_SEEN: a local folder in which processes leave word of how far they got

Standard library only: torch is needed by the job, not here.
"""

import ctypes
import errno
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from stepscope.contract.run_folder import LAUNCH, RUN_JSON, SCHEMA, json_object_in, rank_of, trace_file
from stepscope.errors import UsageError
from stepscope.record.config import KINETO_SETTINGS, RecordConfig
from stepscope.record.failsafe import DONE, ERRNO, FOLDERS, HELPER, SAID, SEEN_VARIABLE
from stepscope.record.helper.claim import folders_of_launch
from stepscope.record.helper.scratch import make_scratch, remove_scratch
from stepscope.record.launch.outside_tool import UNDER_TOOL, exported, is_one_process, keep_outputs, under_tool
from stepscope.record.nccl_log import debug_environment
from stepscope.record.window.trace_file import is_alive, place_whole
from stepscope.side_file import open_private, refuse_output, why_no_folder


@dataclass(frozen=True)
class RecordedRun:
    """One run: which ranks left a step log, the number of steps, and the outcome of the profiled window."""

    folder: Path
    ranks: tuple[int, ...]
    steps: int  # in the log of the rank with the most
    steps_ended: int  # of the rank with the most, whether their lines could be written or not
    described: bool  # there is a run.json, written after the last step
    traces: int
    window: str | None  # the profiled steps of the run, e.g. "10-14" or "10-14, 16-19"
    shortened: str | None  # why they are not the requested ones
    trouble: str | None  # why there is no trace
    not_written: str | None  # how often writing failed and what it cost
    unit: str | None = None  # what one step is
    is_without_rank: bool = False  # one process without a rank in its environment
    warnings: tuple[str, ...] = ()


def recorded_in(folder: Path) -> RecordedRun:
    """Return what is in the folder so far."""
    logs = sorted(folder.glob("rank*.steps.jsonl"))
    ranks = tuple(rank for log in logs if (rank := rank_of(log.name)) is not None)
    description = json_object_in(folder / RUN_JSON)
    windows = description.get("windows") or []
    of_ranks = list((description.get("ranks") or {}).values())
    in_log = max((_steps(log) for log in logs), default=0)
    per_rank = [w for window in windows for w in window["ranks"].values()]
    written = [w for w in per_rank if w.get("status") == "written" and w["last_step"] > w["first_step"]]
    return RecordedRun(
        folder=folder,
        ranks=ranks,
        steps=in_log,
        steps_ended=max((r["steps"]["count"] for r in of_ranks), default=in_log),
        described=bool(description.get("ended")),
        traces=sum((folder / trace_file(rank)).exists() for rank in ranks),
        window=_profiled_steps(written[0]) if written else None,
        shortened=_why_shortened(written[0]) if written else None,
        trouble=next((str(w["reason"]) for w in per_rank if w.get("reason")), None),
        not_written=_not_written(of_ranks),
        unit=description.get("step_unit"),
        is_without_rank=description.get("world_size") == 1 and "RANK" not in (description.get("environment") or {}),
        warnings=tuple(description.get("warnings") or ()),
    )


def _profiled_steps(window: dict[str, Any]) -> str:
    left_out = [int(step) for step in window.get("left_out") or ()]
    edges = [int(window["first_step"]) - 1, *left_out, int(window["last_step"])]
    return ", ".join(f"{a + 1}-{b - 1}" for a, b in itertools.pairwise(edges) if b - a > 1)


def _why_shortened(window: dict[str, Any]) -> str | None:
    left_out = [str(step) for step in window.get("left_out") or ()]
    steps = f"step{'s' if len(left_out) > 1 else ''} {', '.join(left_out)}"
    whys = [f"not profiled: {steps}, because of an evaluation before the step"] if left_out else []
    whys += [f"the window ended early: {window['cut']}"] if window.get("cut") else []
    return "; ".join(whys) or None


def _not_written(of_ranks: list[dict[str, Any]]) -> str | None:
    failed = [r["writing"] for r in of_ranks if r.get("writing")]
    if not failed:
        return None
    lines = sum(w["lost_lines"] for w in failed)
    files = [name for w in failed for name in w["lost_files"]]
    lost = [*([f"{lines} lines of the step logs"] if lines else []), *files]
    writes = sum(w["failed_writes"] for w in failed)
    what = f"lost: {', '.join(lost)}" if lost else "nothing was lost"
    return f"writing failed {writes} times ({failed[0]['reason']}) and was tried again; {what}"


def _steps(log: Path) -> int:
    with log.open("rb") as f:
        return max(0, sum(1 for _ in f) - 1)  # the first line is the header


def trouble_of_helpers(seen: Path) -> str | None:
    """Return why a helper process has not written its run, after a moment for those of killed processes."""
    until = time.monotonic() + 10.0
    while any(words == {""} and is_alive(pid) for pid, words in _helpers(seen)) and time.monotonic() < until:
        time.sleep(0.05)
    alive = {pid for pid, _ in _helpers(seen) if is_alive(pid)}  # first: one that ends now has left its last word
    helpers = _helpers(seen)
    numbers = [int(word.removeprefix(ERRNO)) for _, words in helpers for word in words if word.startswith(ERRNO)]
    unfinished = [pid for pid, words in helpers if DONE not in words]
    at_work = not alive.isdisjoint(unfinished)
    begun = [seen / f"{HELPER}{pid}" for pid in unfinished if pid not in alive]
    ranks = sorted({file.read_text() for file in begun if file.exists()})
    if errno.ENOENT in numbers:
        return "the run folder or its step log was removed while the job ran"
    if numbers:
        then = "a helper process keeps trying for a minute" if at_work else "what was not written is lost"
        return f"writing failed: {os.strerror(numbers[0])}; {then}"
    if not unfinished:
        return None
    killed = f"the helper process of rank {', '.join(ranks)} was killed" if ranks else ""
    return "; ".join(filter(None, [killed, "the helper process that writes the run is still at work" * at_work]))


def _helpers(seen: Path) -> list[tuple[int, set[str]]]:
    found: dict[int, set[str]] = {}
    for path in sorted(seen.glob(f"{HELPER}*")):
        pid, _, word = path.name.removeprefix(HELPER).partition(".")
        found.setdefault(int(pid), set()).add(word)
    return list(found.items())


_ASKED_S = 10.0
_PROC = Path("/proc")


class BoundedRun:
    """How to run one job; call it with the command and its environment."""

    def __init__(self, output: Path, *, limit_s: float, run_id: str, folder: Path | None = None) -> None:
        self.timed_out = False
        self._output, self._limit_s, self._run_id, self._folder = output, limit_s, run_id, folder

    def __call__(self, command: Sequence[str], env: dict[str, str]) -> int:
        refuse_output(self._output)
        with os.fdopen(open_private(self._output), "wb") as said, sigterm_raises():
            out = said.fileno()
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            job = _popen(command, env=env, cwd=self._folder, start_new_session=True, **streams)
            try:
                return job.wait(timeout=self._limit_s)
            except subprocess.TimeoutExpired:
                self.timed_out = True
                return _end(job)
            finally:
                if job.poll() is None:
                    _end(job)
                end_processes_of(self._run_id)


def _popen(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(command, **options)
    except OSError as e:
        raise UsageError(f"cannot run {command[0]!r}: {e.strerror}; check its name") from e


def end_processes_of(words: str) -> None:
    """End the processes of a launch, as `processes_of` finds them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in processes_of(words):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        until = time.monotonic() + _ASKED_S
        while processes_of(words) and time.monotonic() < until:
            time.sleep(0.05)


def is_recorded_to(out: Path) -> bool:
    """Return whether a process of this launch runs on this machine, recording or not yet."""
    return bool(processes_of(f'"out": {json.dumps(str(out.absolute()))}'))


def processes_of(words: str) -> list[int]:
    """Return the processes whose environment holds the id of a launch, or other words of its settings."""
    return [pid for pid in _other_processes() if words.encode() in _about(pid, "environ")]


def is_launching() -> bool:
    """Return whether a `stepscope record` runs on this machine, which may not have started its job yet."""
    commands = (_about(pid, "cmdline").split(b"\0") for pid in _other_processes())
    return any(b"record" in words[1:] and b"stepscope" in b" ".join(words[:3]) for words in commands)


def _other_processes() -> list[int]:
    own = os.getpid()
    return [int(e.name) for e in _PROC.iterdir() if e.name.isdigit() and int(e.name) != own] if _PROC.is_dir() else []


def _about(pid: int, what: str) -> bytes:
    try:
        return (_PROC / str(pid) / what).read_bytes()
    except OSError:  # it has ended, or is another user's
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
def sigterm_raises() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGTERM as well, on the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with handled([signal.SIGTERM] if threading.current_thread() is threading.main_thread() else [], stop):
        yield


@contextmanager
def handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle these signals, except for those that were ignored: `nohup` ignores one, and the job inherits that."""
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


# Pass a signal on to the job only if it did not reach the job directly.
#
# Ctrl-C, `timeout` and a batch system's time limit signal every process of a group at once; `kill PID` and a
# container's stop signal one. A job that gets a signal twice (once from them, once from us) may abort its orderly
# shutdown, and one that never gets it runs on. So a canary, a process that only waits, runs next to the job: a signal
# that it gets too was sent to the group.

_PASSED = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
    if hasattr(signal, name)
)


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

    try:
        with handled(_PASSED, take):
            yield job_started
    finally:
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
            try:
                signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED)
                parent = os.getppid()
                while os.getppid() == parent:
                    got = signal.sigtimedwait(_PASSED, 1.0)
                    if got is not None:
                        os.write(there, bytes([got.si_signo]))
            finally:
                os._exit(0)
        os.close(there)

    def got(self, number: int) -> bool:
        """Return whether the canary got this signal as well, just now."""
        while select.select([self._pipe], [], [], 0.1)[0]:
            said = os.read(self._pipe, 1)
            if not said:
                return False
            if said[0] == number:
                return True
        return False

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._pipe)


INJECT = Path(__file__).parent / "inject"
_PYTHON = re.compile(r"^python[\d.]*$")
_DEAF = re.compile(r"^-[a-zA-Z]*[IES]")


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
        config,
        command=tuple(command),
        out=str(Path(config.out).absolute()),
        run_id=config.run_id or os.urandom(16).hex(),
        launched_ns=time.time_ns(),
    )
    seen = _seen_folder()
    try:
        config = _with_outside_folder(config)
        env = job_environment(config, os.environ if environ is None else environ)
        if config.outside_tool is not None and is_one_process(command, env):
            command, env = under_tool(command, config, rank=0), {**env, UNDER_TOOL: "1"}
        exit_code = (run or _run)(command, {**env, SEEN_VARIABLE: str(seen)} if seen else env)
        ended_ns = time.time_ns()
        trouble = trouble_of_helpers(seen) if seen is not None else None
        files = seen.glob(f"{FOLDERS}*") if seen is not None else ()
        told = [Path(line) for file in files for line in file.read_text().splitlines()]
        folders = tuple(sorted({*told, *folders_of_launch(config.out, str(config.run_id))}))
        _note_end(folders, config, ended_ns=ended_ns, exit_code=exit_code)
        outputs = keep_outputs(config, folders) if config.outside_tool is not None else []
        return LaunchOutcome(
            exit_code,
            folders=folders,
            python_seen=seen is None or (seen / "python").exists(),
            torch_seen=seen is None or (seen / "torch").exists(),
            said=seen is not None and any(seen.glob(f"{SAID}*")),
            trouble=trouble,
            outputs=(*outputs, *exported(outputs)),
        )
    finally:
        if seen is not None:
            remove_scratch(seen)


def _note_end(folders: Sequence[Path], config: RecordConfig, *, ended_ns: int, exit_code: int) -> None:
    """Note in the newest folder when the job ended and how, where that can be written."""
    newest = max(folders, key=lambda folder: (len(folder.name), folder.name), default=None)
    if newest is not None:
        about = {"launch_id": config.run_id, "launched_ns": config.launched_ns, "ended_ns": ended_ns}
        with suppress(OSError):
            text = json.dumps({"schema": SCHEMA, **about, "exit_code": exit_code}) + "\n"
            place_whole(text.encode(), newest / LAUNCH)


def _seen_folder() -> Path | None:
    try:
        return make_scratch(None)
    except OSError:
        return None


def job_environment(config: RecordConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which every Python process records itself."""
    path = [str(INJECT), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    debug = debug_environment(config.debug, environ=environ).variables
    return {**KINETO_SETTINGS, **environ, **debug, **config.to_env(), "PYTHONPATH": os.pathsep.join(path)}


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
            if option in ("-X", "-W", "--check-hash-based-pycs"):
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
        job = _popen(command, env=env, preexec_fn=_end_with_launcher if sys.platform == "linux" else None)
        job_started(job)
        return job.wait()


def _end_with_launcher() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
