"""The process of one rank of a benchmark: joins the others, runs the plan's job, streams what it measures.

python -m stepscope.bench.session.rank PLAN.json                      started by `launch`, which sets the variables
torchrun --nproc-per-node 8 -m stepscope.bench.session.rank PLAN.json                 or on the ranks of a cluster

PLAN.json    {"job": "package.module:function", "backend": "gloo", "out": "folder", "settings": {...}}
function     called as `function(bench: Bench, settings: dict)` on every rank
out          rank00000.samples.jsonl: one line per `bench.emit(...)`, on the disk before the next step begins
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from stepscope.bench.session.failure import Listener, first_told, tell
from stepscope.bench.session.machine import machine
from stepscope.contract.run_folder import rank_file
from stepscope.errors import StepscopeError, UsageError

_SAMPLES = "samples.jsonl"
_STORE_VARIABLE = "STEPSCOPE_BENCH_STORE"
_LAUNCHER_VARIABLE = "STEPSCOPE_BENCH_LAUNCHER"
_SESSION_VARIABLE = "STEPSCOPE_BENCH_SESSION"
# exit code of a rank that says in one line what is wrong with the plan
_REFUSED = 2
# exit code of a rank whose last record says why it could not go on
_GAVE_UP = 3
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Bench:
    """What a job needs of the rank it runs on."""

    rank: int
    world_size: int
    device: torch.device
    out: Path
    stream: IO[str]
    #: where ranks of a launcher hear of each other's end
    store: Any = None

    def emit(self, **record: Any) -> None:
        """Write one record to this rank's stream, at once."""
        self.stream.write(json.dumps(record) + "\n")
        self.stream.flush()

    def give_up(self, **record: Any) -> None:
        """End this process with a last record, which reaches the other ranks: none waits for it in a collective."""
        known = first_told(self.store, record)
        self.emit(**known)
        tell(self.store, known)
        os._exit(_GAVE_UP)


def main(arguments: list[str]) -> int:
    """Return the exit code of this rank."""
    _end_with_launcher()
    plan = json.loads(Path(arguments[0]).read_text())
    try:
        _run_plan(plan)
    except StepscopeError as error:
        print(f"refused: {error}", file=sys.stderr)  # noqa: T201 - the launcher reads it
        return _REFUSED
    return 0


def _run_plan(plan: dict[str, Any]) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    out = Path(plan["out"])
    device = _device(plan["backend"], share=bool(plan.get("share_devices")))
    job = _job(plan["job"])
    torch.set_num_threads(int(plan.get("threads", 1)))
    timeout = timedelta(seconds=float(plan.get("collective_timeout_s", 120)))
    by_launcher = _SESSION_VARIABLE in os.environ
    store = _store(rank, world_size, timeout)
    dist.init_process_group(plan["backend"], store=store, rank=rank, world_size=world_size, timeout=timeout)
    try:
        with (out / rank_file(rank, _SAMPLES)).open("a") as stream:
            bench = Bench(rank, world_size, device, out, stream, store if by_launcher else None)
            bench.emit(what="machine", **machine(device))
            _run_job(job, bench, plan["settings"])
            dist.barrier()  # a rank that closes its connections while another still works aborts that one
            bench.emit(what="done")
        if by_launcher:
            _gather_streams(out, rank, world_size, device)
    finally:
        dist.destroy_process_group()


def _run_job(job: Callable[[Bench, dict[str, Any]], None], bench: Bench, settings: dict[str, Any]) -> None:
    if bench.store is None:
        job(bench, settings)
        return
    with Listener(bench.store, on_failure=lambda record: _end_with(bench, record)):
        try:
            job(bench, settings)
        except StepscopeError:
            raise  # the same on all ranks
        except Exception as error:
            tell(bench.store, {"what": "failed", "reason": f"{type(error).__name__}: {error}"[:300]})
            raise


def _end_with(bench: Bench, record: dict[str, Any]) -> None:
    bench.emit(**record)
    print(f"another rank ended: {record['reason']}", file=sys.stderr, flush=True)  # noqa: T201 - the launcher reads it
    os._exit(_GAVE_UP)


def _store(rank: int, world_size: int, timeout: timedelta) -> Any:
    place = os.environ.get(_STORE_VARIABLE, "env://")
    store, _, _ = next(rendezvous(place, rank, world_size, timeout=timeout))
    return dist.PrefixStore(f"stepscope-bench-{os.environ.get(_SESSION_VARIABLE, '0')}", store)


def _gather_streams(out: Path, rank: int, world_size: int, device: torch.device) -> None:
    streams: list[Any] | None = [None] * world_size if rank == 0 else None
    dist.gather_object((out / rank_file(rank, _SAMPLES)).read_text(), streams, dst=0)
    for other, text in enumerate(streams or ()):
        path = out / rank_file(other, _SAMPLES)
        if not path.exists():
            path.write_text(text)
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def _device(backend: str, *, share: bool) -> torch.device:
    if backend != "nccl":
        return torch.device("cpu")
    found, wanted = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if found == 0:
        raise UsageError("--backend nccl needs a CUDA device, and there is none; use --backend gloo")
    if wanted > found:
        if not share:
            raise UsageError(
                f"{wanted} NCCL ranks need {wanted} devices, and there are {found}; use --world-size {found}, or "
                "--share-devices to let ranks share one"
            )
        _look_like_hosts()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % found)
    torch.cuda.set_device(device)
    return device


def _look_like_hosts() -> None:
    os.environ["NCCL_HOSTID"] = f"rank{os.environ['RANK']}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_IB_DISABLE", "1")


def _end_with_launcher() -> None:
    if sys.platform == "linux" and _LAUNCHER_VARIABLE in os.environ:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(os.environ[_LAUNCHER_VARIABLE]):
            sys.exit("the launcher is gone")


def _job(name: str) -> Callable[[Bench, dict[str, Any]], None]:
    module, _, function = name.partition(":")
    found: Callable[[Bench, dict[str, Any]], None] = getattr(import_module(module), function)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
