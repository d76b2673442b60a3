"""A host and its device, simulated: the traces of a program whose step time is known, with and without a change.

A program is what a rank does in one step. The simulator knows nothing of the product's replay: the host does one
thing after the other, a device stream runs its work in order, a collective ends on all ranks after the last arrival.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.analyze.build import COMM_STREAM, COMPUTE_STREAM, RankTrace, built_run

from stepscope.run.aligned import AlignedRun, aligned

LATENCY_US = 5.0
GAP_US = 1.0
CALL_US = 2.0
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass(frozen=True)
class Op:
    """One thing that a host does: kernel, collective, sync, data, stall, alloc, copy, or wait (compute for
    communication)."""

    what: str
    host_us: float = 20
    device_us: float = 0
    name: str = "gemm"
    elements: int = 1_000_000
    op: str = "aten::mm"
    """the operator that launches it"""
    within: str = ""
    """an autograd node or a named range around it"""
    args: Mapping[str, Any] = field(default_factory=dict)
    """what the profiler recorded of the operator"""


def kernel(device_us: float, *, host_us: float = 20, name: str = "gemm", **more: Any) -> Op:
    """Return a kernel on the compute stream."""
    return Op("kernel", host_us, device_us, name, **more)


def backward(device_us: float, *, host_us: float = 20) -> Op:
    """Return a kernel of the backward pass."""
    return kernel(device_us, host_us=host_us, within="autograd::engine::evaluate_function: MmBackward0")


def collective(device_us: float, *, host_us: float = 20, elements: int = 1_000_000) -> Op:
    """Return an all-reduce on the communication stream that waits for the compute launched before it."""
    return Op("collective", host_us, device_us, elements=elements)


SYNC = Op("sync", host_us=0)
WAIT = Op("wait", host_us=1)
"""the compute stream waits for what was launched on the communication stream"""


@dataclass
class Simulated:
    """The traces of a simulated job, and its true time per step."""

    traces: list[RankTrace]
    step_ends_us: list[list[float]]
    """per rank and step: when the device had done what the step launched"""

    @property
    def period_us(self) -> float:
        """Return the mean time per step over the second half."""
        steps = len(self.step_ends_us[0])
        half = steps // 2
        return sum((ends[-1] - ends[half - 1]) / (steps - half) for ends in self.step_ends_us) / len(self.step_ends_us)

    def aligned(self, folder: Path) -> AlignedRun:
        """Return the job as loaded from its traces."""
        folder.mkdir(exist_ok=True)
        return aligned(built_run(folder, self.traces))


Program = Sequence[Op] | Callable[[int], Sequence[Op]]
"""what a rank does in a step, or in the step of a number"""


def simulate(
    *programs: Program, steps: int = 10, jitter: float = 0, offset_us: Sequence[float] = (), seed: int = 1
) -> Simulated:
    """Return a job of one rank per program; `jitter` is the relative spread of every duration."""
    ends: dict[int, float] = {}
    while True:
        ranks = [
            _Rank(r, len(programs), jitter, f"{seed}-{r}", offset_us[r] if r < len(offset_us) else 0)
            for r in range(len(programs))
        ]
        for rank, program in zip(ranks, programs, strict=True):
            for step in range(steps):
                rank.run_step(step, program(step) if callable(program) else program, ends)
        transfers = ranks[0].transfer_us
        now = {k: max(r.arrival_us[k] for r in ranks) + transfer for k, transfer in transfers.items()}
        if now == ends:
            return Simulated([r.trace for r in ranks], [r.step_ends_us for r in ranks])
        ends = now


@dataclass
class _Rank:
    rank: int
    world_size: int
    jitter: float
    seed: str
    offset_us: float
    now_us: float = 0.0
    stream_end_us: dict[int, float] = field(default_factory=dict)
    not_before_us: dict[int, float] = field(default_factory=dict)
    arrival_us: dict[int, float] = field(default_factory=dict)
    transfer_us: dict[int, float] = field(default_factory=dict)
    step_ends_us: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.trace = RankTrace(self.rank, world_size=self.world_size, clock_offset_us=self.offset_us)
        self.rng = random.Random(self.seed)
        self.same_rng = random.Random(1)  # transfers are the same on all ranks

    def run_step(self, step: int, program: Sequence[Op], ends: dict[int, float]) -> None:
        begin = self.now_us
        for op in program:
            getattr(self, f"_{op.what}")(op, ends)
        self.trace.step(step, begin, self.now_us)
        self.step_ends_us.append(max(self.stream_end_us.values()))

    def _vary(self, value_us: float, rng: random.Random | None = None) -> float:
        return round(value_us * max(0.2, 1 + self.jitter * (rng or self.rng).gauss(0, 1)), 3)

    def _kernel(self, op: Op, _: dict[int, float]) -> None:
        begin = self.now_us
        launch = self._host(op)
        start = self._start(launch, COMPUTE_STREAM)
        end = round(start + self._vary(op.device_us), 3)
        self._mark(op, begin, launch + CALL_US + 0.8)
        with self.trace.op(op.op, round(launch - op.host_us / 2, 3), launch + CALL_US + 0.5, **op.args):
            self.trace.kernel(op.name, at=launch, start=start, end=end, stream=COMPUTE_STREAM)
        self.stream_end_us[COMPUTE_STREAM] = end

    def _copy(self, op: Op, _: dict[int, float]) -> None:
        """From pageable memory: the call returns when the data has moved."""
        launch = self._host(op)
        start = self._start(launch, COMPUTE_STREAM)
        end = round(start + op.device_us, 3)
        self.trace.copy(at=launch, start=start, end=end, call_us=round(end - launch + CALL_US, 3))
        self.stream_end_us[COMPUTE_STREAM] = end
        self.now_us = round(end + CALL_US, 3)

    def _mark(self, op: Op, begin: float, end: float) -> None:
        if op.within:
            around = self.trace.ran if op.within.startswith("autograd::") else self.trace.annotation
            around(op.within, begin, end)

    def _collective(self, op: Op, ends: dict[int, float]) -> None:
        begin = self.now_us
        self.now_us += 1
        self.trace.call("cudaStreamWaitEvent", self.now_us - 1, self.now_us - 0.5)
        self.not_before_us[COMM_STREAM] = self.stream_end_us.get(COMPUTE_STREAM, 0.0)
        launch = self._host(op)
        self._mark(op, begin, launch + CALL_US + 3)
        k = len(self.arrival_us)
        start = self._start(launch, COMM_STREAM)
        self.transfer_us[k] = self._vary(op.device_us, self.same_rng)
        end = round(ends.get(k, start + self.transfer_us[k]), 3)
        self.trace.collective("allreduce", at=launch, start=start, end=end, elements=op.elements, thread=100)
        self.arrival_us[k] = start
        self.stream_end_us[COMM_STREAM] = end

    def _wait(self, op: Op, _: dict[int, float]) -> None:
        self.trace.call("cudaStreamWaitEvent", self.now_us, self.now_us + 0.5)
        self.now_us += op.host_us
        self.not_before_us[COMPUTE_STREAM] = self.stream_end_us.get(COMM_STREAM, 0.0)

    def _sync(self, _: Op, __: dict[int, float]) -> None:
        back = round(max([self.now_us, *self.stream_end_us.values()]) + CALL_US, 3)
        self.trace.call("cudaDeviceSynchronize", self.now_us, back)
        self.now_us = back

    def _data(self, op: Op, _: dict[int, float]) -> None:
        took = self._vary(op.host_us)
        self.trace.annotation(LOADER, self.now_us, self.now_us + took)
        self.now_us = round(self.now_us + took, 3)

    def _stall(self, op: Op, _: dict[int, float]) -> None:
        self.now_us = round(self.now_us + self._vary(op.host_us), 3)

    def _alloc(self, op: Op, _: dict[int, float]) -> None:
        took = self._vary(op.host_us)
        self.trace.call("cudaMalloc", self.now_us, self.now_us + took)
        self.now_us = round(self.now_us + took, 3)

    def _host(self, op: Op) -> float:
        """Let the host do the operator's own work; return when it launches."""
        launch = round(self.now_us + self._vary(op.host_us), 3)
        self.trace.ran("aten::work", self.now_us, launch)
        self.now_us = launch + CALL_US
        return launch

    def _start(self, launch: float, stream: int) -> float:
        previous = self.stream_end_us.get(stream)
        ready = [launch + LATENCY_US, self.not_before_us.pop(stream, 0.0)]
        return round(max(*ready, previous + GAP_US if previous is not None else 0.0), 3)
