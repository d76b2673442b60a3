"""The process of one rank of a benchmark: joins the others, runs the plan's job, streams what it measures.

python -m stepscope.lab.bench.rank PLAN.json                      started by `launch`, which sets the variables
torchrun --nproc-per-node 8 -m stepscope.lab.bench.rank PLAN.json                 or on the ranks of a cluster

PLAN.json    {"job": "package.module:function", "backend": "gloo", "out": "folder", "settings": {...}}
function     called as `function(bench: Bench, settings: dict)` on every rank
out          rank00000.samples.jsonl: one line per `bench.emit(...)`, on the disk before the next step begins

A rank that fails ends the others: `launch` does so where it started them; ranks of a launcher learn of it through the
store instead of waiting in a collective.
"""

import ctypes
import json
import os
import platform
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from stepscope.contract.run_folder import rank_file
from stepscope.errors import StepscopeError, UsageError, debugging
from stepscope.lab.bench.results import LAUNCHER_VARIABLE, REFUSED, SAMPLES, SESSION_VARIABLE, STORE_VARIABLE
from stepscope.record.config import has_other_ranks
from stepscope.units import printable

# exit code of a rank whose last record reports why it could not continue
_GAVE_UP = 3
_PR_SET_PDEATHSIG = 1
_MAX_SENTENCE = 2000
_KEY = "failure"
_POLL_S = 0.5
_GRACE_S = 5.0  # for this rank to end on its own once the store is closed

Record = dict[str, Any]


def run_to_exit_code(name: str, program: Callable[[], int]) -> int:
    """Return the program's exit code; its own errors and those of the system are reported in one line.

    Anything else keeps its traceback: it comes from the user's own model or from torch, and they need to see where.
    """
    try:
        return program()
    except (StepscopeError, OSError) as error:
        if debugging():
            raise
        sys.stderr.write(f"{name}: {printable(str(error), width=_MAX_SENTENCE)}\n")
        return error.exit_code if isinstance(error, StepscopeError) else 2


def gathered(value: Any) -> list[Any]:
    """Return every rank's value, on every rank; without a process group this process is the only rank."""
    if not has_other_ranks():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def from_first(value: Any) -> Any:
    """Return rank 0's value."""
    if not has_other_ranks():
        return value
    found = [value]
    dist.broadcast_object_list(found, src=0)
    return found[0]


@dataclass(frozen=True)
class Bench:
    """What a job needs of the rank it runs on; `store` connects the ranks of a launcher."""

    rank: int
    world_size: int
    device: torch.device
    out: Path
    stream: IO[str]
    store: Any = None

    def emit(self, **record: Any) -> None:
        """Write one record to this rank's stream, at once."""
        self.stream.write(json.dumps(record) + "\n")
        self.stream.flush()

    def bring_to_rank_0(self, path: Path, base: Path) -> None:
        """Copy every rank's file below its `base` to rank 0's, where ranks of a launcher share no storage."""
        if self.store is None:
            return
        stat = path.stat()
        files = gathered((str(path.relative_to(base)), stat.st_size, stat.st_mtime_ns))
        wanted = [[rank for rank, file in enumerate(files) if rank and not _same_file(base, *file)]]
        dist.broadcast_object_list(wanted, src=0)
        for rank in wanted[0]:
            content: list[Any] = [zlib.compress(path.read_bytes(), 1) if self.rank == rank else None]
            if self.rank == rank:
                dist.send_object_list(content, dst=0)
            elif self.rank == 0:
                dist.recv_object_list(content, src=rank)
                (base / files[rank][0]).parent.mkdir(parents=True, exist_ok=True)
                (base / files[rank][0]).write_bytes(zlib.decompress(content[0]))

    def give_up(self, **record: Any) -> None:
        """End this process with a last record, which reaches the other ranks: none waits for it in a collective."""
        if self.store is not None and record["what"] == "failed":
            time.sleep(2 * _POLL_S)  # a lost connection may only be what another rank's end looks like here
            with suppress(RuntimeError):
                record |= self._failure() or {}
        self.emit(**record)
        self.report_failure(record)
        os._exit(_GAVE_UP)

    def report_failure(self, record: Record) -> None:
        """Let the other ranks of a launcher know."""
        if self.store is not None:
            with suppress(RuntimeError):  # the rank that holds the store has ended before
                self.store.set(_KEY, json.dumps(record))

    @contextmanager
    def ended_by_failures(self) -> Iterator[None]:
        """End this process once another rank has reported its failure."""
        over = threading.Event()

        def listen() -> None:
            while not over.wait(_POLL_S):
                try:
                    record = self._failure()
                except RuntimeError:
                    gone = {"what": "failed", "reason": "the rank that holds the store has exited"}
                    record = None if over.wait(_GRACE_S) else gone
                if record is not None and not over.is_set():
                    self.emit(**record)
                    print(f"another rank ended: {record['reason']}", file=sys.stderr, flush=True)  # noqa: T201
                    os._exit(_GAVE_UP)

        threading.Thread(target=listen, daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _failure(self) -> Record | None:
        return json.loads(self.store.get(_KEY)) if self.store.check([_KEY]) else None


def _same_file(base: Path, name: str, size: int, mtime_ns: int) -> bool:
    with suppress(OSError):
        found = (base / name).stat()
        return (found.st_size, found.st_mtime_ns) == (size, mtime_ns)
    return False


def main(arguments: list[str]) -> int:
    """Return the exit code of this rank."""
    if sys.platform == "linux" and LAUNCHER_VARIABLE in os.environ:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(os.environ[LAUNCHER_VARIABLE]):
            sys.exit("the launcher has ended")
    try:
        _run_plan(json.loads(Path(arguments[0]).read_text()))
    except StepscopeError as error:
        print(f"refused: {error}", file=sys.stderr)  # noqa: T201 - the launcher reads it
        return REFUSED
    return 0


def _run_plan(plan: dict[str, Any]) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    out = Path(plan["out"])
    device = _device(plan["backend"], share=bool(plan.get("share_devices")))
    module, _, function = plan["job"].partition(":")
    job = getattr(import_module(module), function)
    torch.set_num_threads(int(plan.get("threads", 1)))
    timeout = timedelta(seconds=float(plan.get("collective_timeout_s", 120)))
    by_launcher = SESSION_VARIABLE in os.environ
    # A launcher's store outlives a session, so each has its own keys.
    shared, _, _ = next(rendezvous(os.environ.get(STORE_VARIABLE, "env://"), rank, world_size, timeout=timeout))
    store = dist.PrefixStore(f"stepscope-bench-{os.environ.get(SESSION_VARIABLE, '0')}", shared)
    dist.init_process_group(plan["backend"], store=store, rank=rank, world_size=world_size, timeout=timeout)
    try:
        with (out / rank_file(rank, SAMPLES)).open("a") as stream:
            bench = Bench(rank, world_size, device, out, stream, store if by_launcher else None)
            bench.emit(what="machine", **_machine(device))
            _run_job(job, bench, plan["settings"])
            dist.barrier()  # a rank that closes its connections while another still works aborts that one
            bench.emit(what="done")
    finally:
        dist.destroy_process_group()


def _run_job(job: Callable[[Bench, dict[str, Any]], None], bench: Bench, settings: dict[str, Any]) -> None:
    if bench.store is None:
        job(bench, settings)
        return
    with bench.ended_by_failures():
        try:
            job(bench, settings)
        except StepscopeError:
            raise  # the same on all ranks
        except Exception as error:
            bench.report_failure({"what": "failed", "reason": f"{type(error).__name__}: {error}"[:300]})
            raise


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
        # NCCL refuses ranks that share a device unless they seem to be on different hosts.
        os.environ["NCCL_HOSTID"] = f"rank{os.environ['RANK']}"
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_IB_DISABLE", "1")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % found)
    torch.cuda.set_device(device)
    return device


def _machine(device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = next(named, platform.processor() or platform.machine())
    return {
        "host": platform.node(),
        "device": torch.cuda.get_device_name(device) if cuda else processor,
        "devices_here": torch.cuda.device_count() if cuda else 0,
        "device_memory_gb": torch.cuda.get_device_properties(device).total_memory / 1e9 if cuda else None,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
