"""Start the ranks of a benchmark on this machine, watch them, and return what they measured whatever happens.

    launch(plan, world_size=2, backend="gloo", out=folder, limit_s=600)
    launch(plan, ..., launched=launched_by())               this process's rank of a job that a launcher started

    torchrun --nproc-per-node 2 -m stepscope bench ddp        so do accelerate launch and Ray Train: RANK, WORLD_SIZE
    srun --ntasks 16 stepscope bench ddp                      SLURM_PROCID, SLURM_STEP_NUM_TASKS
    mpirun -n 8 stepscope bench ddp                           OMPI_COMM_WORLD_RANK, PMI_RANK

Each rank is `python -m stepscope.lab.bench.rank` and streams its samples to a file. A rank that dies ends the others at
once, with the reason in one line; so do the time limit and Ctrl-C. Under a launcher every process starts one rank of
each session, and rank 0 writes the results. Standard library only: torch is needed by the ranks, not here.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from stepscope.contract.run_folder import atomic_write, first_node, rank_file
from stepscope.errors import UsageError
from stepscope.lab.bench.results import LAUNCHER_VARIABLE, REFUSED, SAMPLES, SESSION_VARIABLE, STORE_VARIABLE
from stepscope.units import json_text

_PLAN = "plan.json"
_POLL_S = 0.05
_GRACE_S = 1.0  # for the other ranks to end after one has failed
_KILL_AFTER_S = 5.0
_ERROR_BYTES = 100_000
_STOPPED = "stopped by Ctrl-C; results up to then are saved"

# Variables of rank, world size, rank and ranks on this machine. A batch script of Slurm has SLURM_PROCID and
# SLURM_NTASKS too, though it runs alone: only the tasks of the step that srun started count.
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
_JOB_IDS = ("SLURM_JOB_ID", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_ID")
_FIRST_PORT, _PORTS = 20_000, 10_000

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class LauncherPlace:
    """This process's place among the ranks of a launcher; `variables` are those that torchrun would set."""

    launcher: str
    rank: int
    world_size: int
    variables: dict[str, str]

    @property
    def writes(self) -> bool:
        """Return whether this process writes the results."""
        return self.rank == 0

    def of_session(self, number: int) -> dict[str, str]:
        """Return the variables for the ranks of one session, with a port or keys that no other session uses."""
        port = self.variables["MASTER_PORT"]
        if self.variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            port = str(int(port) + number)
        return {**self.variables, "MASTER_PORT": port, SESSION_VARIABLE: str(number)}


def launched_by(environ: Mapping[str, str] | None = None) -> LauncherPlace | None:
    """Return the place that a launcher gave this process; None where it is alone."""
    env = os.environ if environ is None else environ
    for launcher, (rank, world_size, local_rank, local_size) in _LAUNCHERS.items():
        if not (_is_number(env.get(rank)) and _is_number(env.get(world_size))) or int(env[world_size]) < 2:
            continue
        found = {"RANK": env[rank], "WORLD_SIZE": env[world_size], "LOCAL_RANK": env.get(local_rank, "0")}
        if _is_number(env.get(local_size)):
            found["LOCAL_WORLD_SIZE"] = env[local_size]
        if agent := env.get("TORCHELASTIC_USE_AGENT_STORE"):
            found["TORCHELASTIC_USE_AGENT_STORE"] = agent
        found |= _meeting_place(env, found, launcher)
        return LauncherPlace(launcher, int(env[rank]), int(env[world_size]), found)
    return None


def _meeting_place(env: Mapping[str, str], found: Mapping[str, str], launcher: str) -> dict[str, str]:
    address = env.get("MASTER_ADDR")
    if address is None and (nodes := env.get("SLURM_STEP_NODELIST")):
        address = first_node(nodes)
    if address is None and found.get("LOCAL_WORLD_SIZE") == found["WORLD_SIZE"]:
        address = "127.0.0.1"
    if address is None:
        raise UsageError(f"{launcher} does not provide rank 0's address; set MASTER_ADDR to its host and MASTER_PORT")
    job = "".join(env.get(name, "") for name in _JOB_IDS)  # two jobs may share a machine
    port = env.get("MASTER_PORT") or str(_FIRST_PORT + crc32(job.encode()) % _PORTS)
    if not _is_number(port):
        raise UsageError(f"MASTER_PORT is {port!r}; set it to the number of a free port")
    return {"MASTER_ADDR": address, "MASTER_PORT": port}


def _is_number(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdigit() and len(text) < 10


@dataclass(frozen=True)
class LaunchResult:
    """How the ranks ended, and everything they wrote until then.

    Exit codes below 0 are signals, None: ended by us. `message` is one line about the error, None if there is none.
    """

    exit_codes: tuple[int | None, ...]
    records: tuple[Records, ...]
    message: str | None
    interrupted: bool

    @property
    def complete(self) -> bool:
        """Return whether every rank did all of its job."""
        return self.message is None


def launch(
    plan: dict[str, Any], *, world_size: int, backend: str, out: Path, limit_s: float = 3600.0,
    on_record: Callable[[dict[str, Any]], None] | None = None, on_line: Callable[[str], None] | None = None,
    environ: Mapping[str, str] | None = None, launched: LauncherPlace | None = None, session: int = 0,
) -> LaunchResult:  # fmt: skip
    """Return what the ranks measured, after running the plan's `job` with its `settings` on all of them.

    `on_record` gets each record of rank 0 as it comes, `on_line` each line that rank 0 prints; `environ` changes the
    ranks' environment. With `launched` only this process's rank is started here, as one of the launcher's, and only its
    records are returned; `session` counts the launches of one command.
    """
    deadline_s = time.monotonic() + limit_s
    here = range(world_size) if launched is None else (launched.rank,)
    with tempfile.TemporaryDirectory(prefix="stepscope-bench-") as folder:
        # A rank on another machine may not see rank 0's folder.
        place = out if 0 in here else Path(folder)
        path = _write_plan({**plan, "backend": backend, "out": str(out.absolute())}, place, out, here)
        ranks = []
        for rank in here:
            own = launched.of_session(session) if launched else _place(rank, world_size, folder)
            ranks.append(_Rank(rank, path, {**_environment(own), **(environ or {})}, Path(folder), out))
        follow = []
        if 0 in here and on_record:
            follow.append(_Follower(out / rank_file(0, SAMPLES), lambda line: on_record(json.loads(line))))
        if 0 in here and on_line:
            follow.append(_Follower(ranks[0].said, lambda line: on_line(line.rstrip("\n"))))
        interrupted = False
        try:
            message = _wait_for_ranks(ranks, follow, deadline_s=deadline_s, limit_s=limit_s)
        except KeyboardInterrupt:
            message, interrupted = _STOPPED, True
        finally:
            _end(ranks)
        try:
            for one in follow:
                one.read()
        except KeyboardInterrupt:  # pressed again, or raised by a callback: the records are read from the files below
            message, interrupted = _STOPPED, True
    records = tuple(records_of(out, rank) for rank in here)
    if all(map(_is_done, records)):
        message = None  # a process that fails while it ends, after its last record, has lost nothing
    return LaunchResult(tuple(rank.exit_code for rank in ranks), records, message, interrupted)


def _is_done(records: Records) -> bool:
    return any(r["what"] == "done" for r in records)


def records_of(out: Path, rank: int) -> Records:
    """Return the records that a rank has written so far, without a line cut short by its end."""
    try:
        text = (out / rank_file(rank, SAMPLES)).read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]


def _write_plan(plan: dict[str, Any], place: Path, out: Path, here: Sequence[int]) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob(f"rank*.{SAMPLES}" if 0 in here else rank_file(here[0], SAMPLES)):
            old.unlink(missing_ok=True)  # its rank may be on the way, and clears it as well
        with atomic_write(place / _PLAN) as f:
            f.write((json_text(plan, indent=1) + "\n").encode())
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror}; choose another --out") from error
    return place / _PLAN


def _place(rank: int, world_size: int, folder: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        STORE_VARIABLE: f"file://{folder}/store",
    }


def _environment(place: Mapping[str, str]) -> dict[str, str]:
    path = [str(Path(__file__).parents[3]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        **place,
        LAUNCHER_VARIABLE: str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "KINETO_LOG_LEVEL": "99",
    }


class _Rank:
    def __init__(self, rank: int, plan: Path, environ: dict[str, str], folder: Path, records: Path) -> None:
        self.rank, self.ended_by_us, self._records = rank, False, records
        self.said, self._errors = folder / f"{rank}.out", folder / f"{rank}.err"
        with self.said.open("wb") as out, self._errors.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stepscope.lab.bench.rank", str(plan)],
                env=environ,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C is for us: we end the ranks after reading what they have
            )

    @property
    def exit_code(self) -> int | None:
        return None if self.ended_by_us else self.process.poll()

    @property
    def done(self) -> bool:
        return _is_done(records_of(self._records, self.rank))

    @property
    def reason(self) -> str:
        text = self._errors.read_bytes()[-_ERROR_BYTES:].decode(errors="replace")
        said = [re.sub(r"^\[rank\d+\]:\s?", "", line.rstrip()) for line in text.splitlines()]  # torch's prefix
        refused = [line.partition(": ")[2] for line in said if line.startswith("refused: ")]
        code = self.exit_code or 0
        if refused:
            return refused[-1]
        if code < 0:
            return f"rank {self.rank} was killed by signal {-code}"
        noise = (" ", "[W", "[E", "frame #", "Exception raised")
        errors = [line for line in said if line and not line.startswith(noise)]
        return f"rank {self.rank} ended with exit code {code}: {errors[-1] if errors else 'no message'}"


class _Follower:
    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self._path, self._on_line, self._at = path, on_line, 0

    def read(self) -> None:
        with suppress(FileNotFoundError), self._path.open("rb") as f:
            f.seek(self._at)
            while (line := f.readline()).endswith(b"\n"):
                self._at += len(line)
                self._on_line(line.decode(errors="replace"))


def _wait_for_ranks(
    ranks: Sequence[_Rank], follow: Sequence[_Follower], *, deadline_s: float, limit_s: float
) -> str | None:
    while any(rank.process.poll() is None for rank in ranks) and not _failed(ranks):
        if time.monotonic() > deadline_s:
            return f"not finished after {limit_s:.0f} s; raise --limit-s or ask for fewer steps"
        for one in follow:
            one.read()
        time.sleep(_POLL_S)
    if not any(rank.process.poll() for rank in ranks):
        return None
    until_s = time.monotonic() + _GRACE_S
    while time.monotonic() < until_s and any(rank.process.poll() is None for rank in ranks):
        time.sleep(_POLL_S)
    return min((rank for rank in ranks if rank.process.poll()), key=_blame).reason


def _failed(ranks: Sequence[_Rank]) -> bool:
    # One that fails while it ends, after its last record, does not keep the others from writing theirs.
    failed = [rank for rank in ranks if rank.process.poll()]
    return any(not rank.done for rank in failed) or (bool(failed) and all(rank.done for rank in ranks))


def _blame(rank: _Rank) -> tuple[int, int]:
    code = rank.exit_code or 0
    lost = any(word in rank.reason for word in ("onnect", "Timed out", "recv"))
    return (0 if code == REFUSED else 1 if code < 0 else 3 if lost else 2, rank.rank)


def _end(ranks: Sequence[_Rank]) -> None:
    running = [rank for rank in ranks if rank.process.poll() is None]
    for rank in running:
        rank.ended_by_us = True
        rank.process.terminate()
    until_s = time.monotonic() + _KILL_AFTER_S
    for rank in running:
        try:
            rank.process.wait(timeout=max(until_s - time.monotonic(), 0.1))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # Ctrl-C again: it is not waited for
            rank.process.kill()
            rank.process.wait()
