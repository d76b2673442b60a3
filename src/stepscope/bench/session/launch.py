"""Start the ranks of a benchmark on this machine, watch them, and keep what they measured whatever happens.

    launch(plan, world_size=2, backend="gloo", out=folder, limit_s=600)
    launch(plan, ..., launched=launched_by())               this process's rank of a job that a launcher started

Each rank is `python -m stepscope.bench.session.rank` and streams its samples to a file of its own. A rank that dies
ends the others at once, with the reason in one line; so do the time limit and Ctrl-C. Standard library only: torch is
needed by the ranks, not here.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from stepscope.bench.session.launcher import LauncherPlace
from stepscope.contract.run_folder import atomic_write, rank_file
from stepscope.errors import UsageError
from stepscope.json_text import json_text

_PLAN = "plan.json"
_SAMPLES = "samples.jsonl"
_POLL_S = 0.05
# for the other ranks to end by themselves after one has failed
_GRACE_S = 1.0
_KILL_AFTER_S = 5.0
_KEPT_LINES = 200
# torch puts it before each line of an uncaught error
_RANK_PREFIX = re.compile(r"^\[rank\d+\]:\s?")

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class LaunchResult:
    """How the ranks ended, and everything they wrote until then."""

    #: negative: ended by that signal; None: ended by us
    exit_codes: tuple[int | None, ...]
    #: by rank, in the order written
    records: tuple[Records, ...]
    #: one line that says what went wrong, None where nothing did
    message: str | None
    interrupted: bool
    took_s: float

    @property
    def complete(self) -> bool:
        """Return whether every rank did all of its job."""
        return self.message is None


def launch(
    plan: dict[str, Any],
    *,
    world_size: int,
    backend: str,
    out: Path,
    limit_s: float = 3600.0,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    on_line: Callable[[str], None] | None = None,
    environ: Mapping[str, str] | None = None,
    launched: LauncherPlace | None = None,
    session: int = 0,
) -> LaunchResult:
    """Return what the ranks measured, after running the plan's `job` with its `settings` on all of them.

    `on_record` gets each record of rank 0 as it comes, `on_line` each line that rank 0 prints; `environ` is what the
    ranks find in their environment instead of ours. With `launched` only this process's rank is started here, as one
    of the launcher's; `session` counts the launches of one command. Rank 0 gets the records of all.
    """
    begin_s = time.monotonic()
    whole = {**plan, "backend": backend, "out": str(out.absolute())}
    with tempfile.TemporaryDirectory(prefix="stepscope-bench-") as folder:
        if launched is None or launched.writes:
            path = _write_plan(whole, out)
        else:  # on a machine that may not see rank 0's folder
            path = _write_plan(whole, Path(folder))
            out.mkdir(parents=True, exist_ok=True)
            (out / rank_file(launched.rank, _SAMPLES)).unlink(missing_ok=True)
        here = range(world_size) if launched is None else (launched.rank,)
        given = {r: _place(r, world_size, folder) if launched is None else launched.of_session(session) for r in here}
        environs = {r: {**_environment(given[r]), **(environ or {})} for r in here}
        ranks = [_Rank(r, path, environs[r], on_line if r == 0 else None) for r in here]
        follow = _RecordFollower(out / rank_file(0, _SAMPLES), on_record if 0 in here else None)
        interrupted = False
        try:
            message = _wait_for_ranks(ranks, follow, deadline_s=begin_s + limit_s, limit_s=limit_s)
        except KeyboardInterrupt:
            message, interrupted = "stopped by Ctrl-C; what was measured until then is kept", True
        finally:
            _end(ranks)
        follow.look()
    records = tuple(records_of(out, r) for r in (range(world_size) if 0 in here else here))
    if all(any(r["what"] == "done" for r in mine) for mine in records):
        message = None  # a process that fails while it ends, after its last record, has lost nothing
    return LaunchResult(
        exit_codes=tuple(rank.exit_code for rank in ranks),
        records=records,
        message=message,
        interrupted=interrupted,
        took_s=time.monotonic() - begin_s,
    )


def records_of(out: Path, rank: int) -> Records:
    """Return the records that a rank has written so far; a line cut short by its end is left out."""
    path = out / rank_file(rank, _SAMPLES)
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]


def _write_plan(plan: dict[str, Any], out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob(f"rank*.{_SAMPLES}"):
            old.unlink(missing_ok=True)  # its rank may be on the way, and clears it as well
        with atomic_write(out / _PLAN) as f:
            f.write((json_text(plan, indent=1) + "\n").encode())
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror}; choose another --out") from error
    return out / _PLAN


class _Rank:
    def __init__(self, rank: int, plan: Path, environ: dict[str, str], on_line: Callable[[str], None] | None) -> None:
        self.rank = rank
        self.ended_by_us = False
        self._said: deque[str] = deque(maxlen=_KEPT_LINES)
        self._on_line = on_line
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stepscope.bench.session.rank", str(plan)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for us: we end the ranks after keeping what they have
        )
        self._readers = [Thread(target=self._read, args=(stream,), daemon=True) for stream in ("stdout", "stderr")]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        stream = getattr(self.process, name)
        for line in stream:
            if name == "stderr":
                self._said.append(line.rstrip())
            elif self._on_line:
                self._on_line(line.rstrip("\n"))

    def drain(self) -> None:
        for reader in self._readers:
            reader.join(timeout=2.0)

    @property
    def exit_code(self) -> int | None:
        return None if self.ended_by_us else self.process.poll()

    @property
    def reason(self) -> str:
        self.drain()
        refused = [line.partition(": ")[2] for line in self._said if line.startswith("refused: ")]
        if refused:
            return refused[-1]
        code = self.exit_code or 0
        if code < 0:
            return f"rank {self.rank} was killed by signal {-code}"
        lines = [_RANK_PREFIX.sub("", line) for line in self._said]
        errors = [
            line for line in lines if line and not line.startswith((" ", "[W", "[E", "frame #", "Exception raised"))
        ]
        return f"rank {self.rank} ended with exit code {code}: {errors[-1] if errors else 'no message'}"


def _place(rank: int, world_size: int, folder: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "STEPSCOPE_BENCH_STORE": f"file://{folder}/store",
    }


def _environment(place: Mapping[str, str]) -> dict[str, str]:
    package = str(Path(__file__).parents[3])
    path = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        **place,
        "STEPSCOPE_BENCH_LAUNCHER": str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "KINETO_LOG_LEVEL": "99",
    }


class _RecordFollower:
    def __init__(self, path: Path, on_record: Callable[[dict[str, Any]], None] | None) -> None:
        self._path, self._on_record = path, on_record
        self._at = 0

    def look(self) -> None:
        if self._on_record is None or not self._path.exists():
            return
        with self._path.open() as f:
            f.seek(self._at)
            while (line := f.readline()).endswith("\n"):
                self._at += len(line.encode())
                self._on_record(json.loads(line))


def _wait_for_ranks(
    ranks: Sequence[_Rank], follow: _RecordFollower, *, deadline_s: float, limit_s: float
) -> str | None:
    while any(rank.process.poll() is None for rank in ranks):
        if any(rank.process.poll() for rank in ranks):
            break
        if time.monotonic() > deadline_s:
            return f"not finished after {limit_s:.0f} s; raise --limit-s or ask for fewer steps"
        follow.look()
        time.sleep(_POLL_S)
    failed = [rank for rank in ranks if rank.process.poll()]
    if not failed:
        return None
    _wait_a_moment(ranks)
    return _first_cause(ranks).reason


def _wait_a_moment(ranks: Sequence[_Rank]) -> None:
    until_s = time.monotonic() + _GRACE_S
    while time.monotonic() < until_s and any(rank.process.poll() is None for rank in ranks):
        time.sleep(_POLL_S)


def _first_cause(ranks: Sequence[_Rank]) -> _Rank:

    def order(rank: _Rank) -> tuple[int, int]:
        code = rank.exit_code or 0
        lost = any(word in rank.reason for word in ("Connection", "connection", "onnect", "Timed out", "recv"))
        return (0 if code == 2 else 1 if code < 0 else 3 if lost else 2, rank.rank)

    return min((rank for rank in ranks if rank.process.poll()), key=order)


def _end(ranks: Sequence[_Rank]) -> None:
    running = [rank for rank in ranks if rank.process.poll() is None]
    for rank in running:
        rank.ended_by_us = True
        rank.process.terminate()
    until_s = time.monotonic() + _KILL_AFTER_S
    for rank in running:
        try:
            rank.process.wait(timeout=max(until_s - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            rank.process.kill()
            rank.process.wait()
    for rank in ranks:
        rank.drain()
