"""Jobs for the tests of the launcher: they do nothing but what their name says."""

import atexit
import errno
import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist

from stepscope.lab.bench.rank import Bench


def counts(bench: Bench, settings: dict[str, Any]) -> None:
    for number in range(settings["count"]):
        total = torch.tensor([float(bench.rank)])
        dist.all_reduce(total)
        bench.emit(what="number", number=number, sum=float(total))


def one_is_killed(bench: Bench, settings: dict[str, Any]) -> None:
    bench.emit(what="number", number=0)
    dist.barrier()
    if bench.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    bench.emit(what="number", number=1)


def one_fails(bench: Bench, settings: dict[str, Any]) -> None:
    if bench.rank == 1:
        raise ValueError("the planted error")
    dist.barrier()


def disk_is_full(bench: Bench, settings: dict[str, Any]) -> None:
    bench.emit(what="number", number=0)

    def full(text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bench.stream.write = full  # type: ignore[method-assign]
    bench.emit(what="number", number=1)


def hangs(bench: Bench, settings: dict[str, Any]) -> None:
    bench.emit(what="number", number=0)
    time.sleep(600)


def aborts_while_it_ends(bench: Bench, settings: dict[str, Any]) -> None:
    """Do all of the job; the last rank's process then fails on its way out."""
    counts(bench, settings)
    if bench.rank == bench.world_size - 1:
        atexit.register(os.abort)
