"""Small constructed runs with a known truth, written as the trace files a real job leaves.

    r = RankTrace(0, world_size=2, clock_offset_us=250)
    r.step(0, 0, 1000)
    with r.op("aten::mm", 10, 40):                       # everything inside carries its External id
        r.kernel("gemm", at=20, start=50, end=150)       # launched at 20, on the device from 50 to 150
    r.collective("allreduce", at=200, start=300, end=700, elements=1024)
    run = built_run(tmp_path, [r, ...])

Times are microseconds since the run's start, exact to the nanosecond, and true time: `clock_offset_us` is what the
rank's own clock is ahead. `at` is when the host launched something, `start` and `end` when the device ran it.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import RUN_JSON, trace_file
from stepscope.run.load import Run, load

PID = 100
MAIN = 100
"""thread that runs the training loop: forward and optimizer"""
AUTOGRAD = 200
"""thread of the autograd engine: backward"""
COMPUTE_STREAM = 7
COMM_STREAM = 20
LAUNCH_US = 2.0
"""how long a launching call takes unless said otherwise"""

_KERNEL_NAMES = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
_POINT_TO_POINT = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


class RankTrace:
    """The trace of one rank, event by event."""

    def __init__(
        self, rank: int = 0, *, world_size: int = 1, clock_offset_us: float = 0, drift_ppm: float = 0,
        backend: str = "nccl", device: str = "NVIDIA H200", groups: Mapping[str, Sequence[int]] | None = None,
        descriptions: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.rank = rank
        self.world_size = world_size
        self.clock_offset_us = clock_offset_us
        self.drift_ppm = drift_ppm
        self.backend = backend
        self.device = device
        self.groups = groups or {"0": range(world_size)}
        self.descriptions = descriptions or {}
        """what a group is for, by its name: `mesh_tp`; `default_pg` where nothing is said"""
        self.events: list[dict[str, Any]] = []
        self._open_ids: dict[int, list[int]] = {}
        self._next_id = 1
        self._next_correlation = 1

    def step(self, number: int, start: float, end: float) -> None:
        """Add the host's span of a recorded step."""
        self.annotation(f"ProfilerStep#{number}", start, end)

    def annotation(self, name: str, start: float, end: float, *, thread: int = MAIN, **args: Any) -> None:
        """Add a user's or framework's range."""
        self._host("user_annotation", name, start, end, thread, {"External id": self._new_id(), **args})

    @contextmanager
    def op(self, name: str, start: float, end: float, *, thread: int = MAIN, **args: Any) -> Iterator[None]:
        """Add an operator; launches added inside the `with` carry its External id."""
        external = self._new_id()
        self._host("cpu_op", name, start, end, thread, {"External id": external, **args})
        self._open_ids.setdefault(thread, []).append(external)
        yield
        self._open_ids[thread].pop()

    def ran(self, name: str, start: float, end: float, *, thread: int = MAIN, **args: Any) -> None:
        """Add an operator that launches nothing."""
        with self.op(name, start, end, thread=thread, **args):
            pass

    def backward(self, node: str, start: float, end: float) -> None:
        """Add an autograd node's evaluation on the autograd thread."""
        args = {"Fwd thread id": 1, "Sequence number": self._next_id}
        self.ran(f"autograd::engine::evaluate_function: {node}", start, end, thread=AUTOGRAD, **args)

    def call(self, name: str, start: float, end: float, *, thread: int = MAIN) -> int:
        """Add a call into the device's runtime (a synchronisation, an allocation); return its correlation id."""
        correlation = self._next_correlation
        self._next_correlation += 1
        args = {"cbid": 1, "correlation": correlation}
        open_ids = self._open_ids.get(thread)
        if open_ids:
            args["External id"] = open_ids[-1]
        self._host("cuda_runtime", name, start, end, thread, args)
        return correlation

    def python(self, name: str, start: float, end: float, *, thread: int = MAIN) -> None:
        """Add a python frame."""
        self._host("python_function", name, start, end, thread, {"Python id": self._new_id()})

    def memory(self, size_bytes: int, *, at: float, on_device: bool = True, thread: int = MAIN) -> None:
        """Add an allocation, or a free where the size is negative."""
        self.events.append(
            {
                "ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": PID, "tid": thread,
                "ts": self._local_ns(at) / 1000,
                "args": {"Bytes": size_bytes, "Device Type": int(on_device), "Device Id": 0 if on_device else -1},
            }
        )  # fmt: skip

    def kernel(
        self, name: str, *, start: float, end: float, at: float | None, thread: int = MAIN,
        stream: int = COMPUTE_STREAM, call: str = "cudaLaunchKernel", call_us: float = LAUNCH_US, **args: Any,
    ) -> None:  # fmt: skip
        """Add a kernel and its launch; `at=None` for one launched before the window."""
        self._device("kernel", name, start, end, at, thread, stream, call, call_us, args)

    def copy(
        self, kind: str = "HtoD (Pageable -> Device)", *, start: float, end: float, at: float | None,
        thread: int = MAIN, stream: int = COMPUTE_STREAM, call: str = "cudaMemcpyAsync", call_us: float = LAUNCH_US,
        size_bytes: int = 4096,
    ) -> None:  # fmt: skip
        """Add a copy and the call that asked for it."""
        args = {"bytes": size_bytes}
        self._device("gpu_memcpy", f"Memcpy {kind}", start, end, at, thread, stream, call, call_us, args)

    def device_annotation(self, name: str, start: float, end: float, *, stream: int = COMPUTE_STREAM) -> None:
        """Add the device's share of a host range."""
        self._add("gpu_user_annotation", name, start, end, pid=0, tid=stream, args={"External id": 0})

    def collective(
        self, op: str, *, at: float | None, start: float, end: float, elements: int = 1024,
        out_elements: int | None = None, dtype: str = "Float", group: str = "0", thread: int = AUTOGRAD,
        stream: int = COMM_STREAM, peer: int | None = None, call_us: float = LAUNCH_US, **args: Any,
    ) -> None:  # fmt: skip
        """Add an NCCL kernel with its record, range and launch.

        `op` is what torch records: `allreduce`, `_allgather_base`, `_reduce_scatter_base`, `send`, `recv`, ...
        """
        if at is not None:
            record = {**self._record(op, elements, out_elements, dtype, group, peer), **args}
            with self.op("record_param_comms", at - 2, at + call_us + 2, thread=thread, **record):
                self.annotation(f"nccl:{op}", at - 1, at + call_us + 1, thread=thread)
                self._comm_kernel(op, start, end, at, thread, stream, call_us)
        else:
            self._comm_kernel(op, start, end, at, thread, stream, call_us)

    def messages(
        self, *listed: tuple[str, int], at: float, start: float, end: float, elements: int = 1024, group: str = "0",
        thread: int = MAIN, stream: int = COMM_STREAM,
    ) -> None:  # fmt: skip
        """Add sends and receives that share one kernel, as `batch_isend_irecv` leaves them: `("send", 1), ("recv", 1)`.

        The host needs 3 microseconds per message from `at` on, and then launches.
        """
        for k, (op, peer) in enumerate(listed):
            record = self._record(op, elements, None, "Float", group, peer)
            self.ran("record_param_comms", at + 3 * k, at + 3 * k + 2, thread=thread, **record)
        launch = at + 3 * len(listed)
        self.annotation("nccl:coalesced", launch, launch + LAUNCH_US + 2, thread=thread)
        self._comm_kernel("coalesced", start, end, launch + 1, thread, stream, LAUNCH_US)

    def gloo(self, op: str, *, at: float, start: float, end: float, elements: int = 1024, thread: int = MAIN) -> None:
        """Add a gloo collective: the operator at `at`, its execution on gloo's own thread."""
        shape = {"Input Dims": [[elements]], "Input type": ["float"]}
        self.ran(f"c10d::{op}_", at, at + 5, thread=thread, **shape)
        name = {"allreduce": "all_reduce", "allgather": "all_gather"}.get(op, op)
        self.annotation(f"gloo:{name}", start, end, thread=300, **shape)

    def document(self) -> dict[str, Any]:
        """Return the trace as the profiler would have written it."""
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": self.device}],
            "distributedInfo": {
                "backend": self.backend,
                "rank": self.rank,
                "world_size": self.world_size,
                "pg_config": [
                    {"pg_name": name, "pg_desc": self._description(name), "pg_size": len(ranks), "ranks": list(ranks)}
                    for name, ranks in self.groups.items()
                    if self.rank in ranks
                ],
            },
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "traceEvents": self.events,
        }

    def write(self, folder: Path) -> Path:
        """Write the trace under its run-folder name and return the path."""
        path = folder / trace_file(self.rank)
        path.write_bytes(gzip.compress(json.dumps(self.document()).encode(), 1))
        return path

    def _record(
        self, op: str, elements: int, out_elements: int | None, dtype: str, group: str, peer: int | None
    ) -> dict[str, Any]:
        ranks = list(self.groups[group])
        record = {
            "Collective name": op, "In msg nelems": elements,
            "Out msg nelems": elements if out_elements is None else out_elements, "dtype": dtype,
            "Group size": len(ranks), "Process Group Name": group,
            "Process Group Description": self._description(group), "Process Group Ranks": str(ranks),
        }  # fmt: skip
        if peer is not None:
            record["Dst Rank" if op == "send" else "Src Rank"] = peer
        return record

    def _description(self, group: str) -> str:
        return self.descriptions.get(group, "default_pg")

    def _comm_kernel(
        self, op: str, start: float, end: float, at: float | None, thread: int, stream: int, call_us: float
    ) -> None:
        name = _KERNEL_NAMES.get(op, _POINT_TO_POINT)
        self._device("kernel", name, start, end, at, thread, stream, "cudaLaunchKernelExC", call_us, {})

    def _device(
        self, category: str, name: str, start: float, end: float, at: float | None, thread: int, stream: int, call: str,
        call_us: float, args: dict[str, Any],
    ) -> None:  # fmt: skip
        if at is None:
            correlation = 1_000_000 + self._next_correlation  # its launch lies outside the file
            self._next_correlation += 1
        else:
            correlation = self.call(call, at, at + call_us, thread=thread)
        where = {"device": 0, "context": 1, "stream": stream, "correlation": correlation}
        self._add(category, name, start, end, pid=0, tid=stream, args={**where, **args})

    def _host(self, category: str, name: str, start: float, end: float, thread: int, args: dict[str, Any]) -> None:
        self._add(category, name, start, end, pid=PID, tid=thread, args=args)

    def _add(
        self, category: str, name: str, start: float, end: float, *, pid: int, tid: int, args: dict[str, Any]
    ) -> None:
        start_ns, end_ns = self._local_ns(start), self._local_ns(end)
        # exact: far below the 2^53 ns that a float64 holds
        times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": args})

    def _local_ns(self, true_us: float) -> int:
        return round((true_us * (1 + self.drift_ppm * 1e-6) + self.clock_offset_us + 1_000_000) * 1000)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id


def built_run(folder: Path, ranks: Sequence[RankTrace], *, description: dict[str, Any] | None = None) -> Run:
    """Write the ranks into `folder`, with a `run.json` where a description is given, and load them as one run."""
    for rank in ranks:
        rank.write(folder)
    if description is not None:
        (folder / RUN_JSON).write_text(json.dumps(description))
    return load(folder, cache=False)


def true_ns(run_start_us: float) -> int:
    """Return the integer nanoseconds of a true time on a clock without offset, as the trace table holds it."""
    return 1_700_000_000_000_000_000 + round((run_start_us + 1_000_000) * 1000)
