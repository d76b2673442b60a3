"""Logs of the libraries beneath: NCCL's own, one file per rank (`--nccl-log`), and debug switches of torch.

All of them are environment variables that are read once, at the first use, so they are set before training begins.
The user's own settings are not changed. NCCL writes to a local file; at the end it becomes `rank00000.nccl.log`.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from stepscope.contract.run_folder import rank_file
from stepscope.errors import UsageError
from stepscope.record.config import initialized_distributed
from stepscope.record.failsafe import say

_FOLDER = "stepscope-nccl-"

# INIT and GRAPH: topology, channels, rings and trees; TUNING: algorithm and protocol; COLL: a line per collective.
_NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING,COLL"}

SWITCHES: Mapping[str, Mapping[str, str]] = {
    "nccl": _NCCL_LOG,
    # DDP's and the process groups' own messages.
    "distributed": {"TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO"},
    # Every collective is checked against the other ranks: finds mismatches, and slows the job.
    "distributed-detail": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "INFO"},
    # Why torch.compile breaks graphs and compiles again.
    "compile": {"TORCH_LOGS": "graph_breaks,recompiles"},
    "compile-detail": {"TORCH_LOGS": "+dynamo,graph_breaks,recompiles,perf_hints"},
}


@dataclass(frozen=True)
class Additions:
    """Variables to add to an environment, and remarks on those that the user has set otherwise."""

    variables: dict[str, str]
    remarks: tuple[str, ...]


def debug_environment(switches: Iterable[str], *, environ: Mapping[str, str]) -> Additions:
    """Return the variables that the named switches add to `environ`; those already set are not changed."""
    variables: dict[str, str] = {}
    remarks = []
    for switch in switches:
        if switch not in SWITCHES:
            raise UsageError(f"there is no debug switch {switch!r}; use {', '.join(SWITCHES)}")
        for name, value in SWITCHES[switch].items():
            if name not in environ:
                variables[name] = value
            elif environ[name] != value:
                remarks.append(f"{name}={environ[name]} is already set and not changed; {switch} would set {value}")
    return Additions(variables, tuple(remarks))


def turn_on_nccl_log(environ: MutableMapping[str, str]) -> None:
    """Let NCCL log to a local file of each process, except for settings by the user. Safe to call again.

    Call it before the first communicator is made: at the start of the process.
    """
    environ.update(debug_environment(["nccl"], environ=environ).variables)
    if "NCCL_DEBUG_FILE" not in environ:
        folder = tempfile.mkdtemp(prefix=_FOLDER)
        environ["NCCL_DEBUG_FILE"] = str(Path(folder, "%p.log"))  # a child that inherits this has its own file


class NcclLog:
    """A sampler that keeps NCCL's log with the run."""

    def __init__(self, *, environ: MutableMapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        dist = initialized_distributed()
        self._was_up = dist is not None and "nccl" in str(dist.get_backend())
        turn_on_nccl_log(self._environ)
        level = self._environ["NCCL_DEBUG"]
        self.why_not: str | None = None
        if level.upper() not in ("INFO", "ABORT", "TRACE"):
            self.why_not = f"NCCL_DEBUG={level} is already set, which logs little; unset it or set NCCL_DEBUG=INFO"

    def after_window(self, folder: str | Path, rank: int) -> None:
        """Copy the log so far to `rank00000.nccl.log`."""
        log = log_of_process(self._environ["NCCL_DEBUG_FILE"], pid=os.getpid())
        if log.is_file():
            shutil.copyfile(log, Path(folder) / rank_file(rank, "nccl.log"))

    def on_close(self, folder: str | Path, rank: int) -> None:
        """Copy the whole log; a file of the user's choice stays where it is, ours is removed."""
        self.after_window(folder, rank)
        if self.why_not is not None:
            say(self.why_not)
        log = log_of_process(self._environ["NCCL_DEBUG_FILE"], pid=os.getpid())
        if not log.is_file():
            say(
                (
                    "no NCCL log: NCCL reads its settings once, and started before the recording; "
                    "start the job with `stepscope record --nccl-log`, or begin the recording before init_process_group"
                )
                if self._was_up
                else "no NCCL log: NCCL wrote none in this process"
            )
        if log.parent.name.startswith(_FOLDER):
            with contextlib.suppress(OSError):
                log.unlink(missing_ok=True)
                log.parent.rmdir()  # the last process to leave empties it


def log_of_process(pattern: str, *, pid: int) -> Path:
    """Return the file that NCCL writes for NCCL_DEBUG_FILE=`pattern`: %p is the process, %h the host's name."""
    return Path(pattern.replace("%p", str(pid)).replace("%h", os.uname().nodename))
