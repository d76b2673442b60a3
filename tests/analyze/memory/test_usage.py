"""Memory of constructed allocators is recovered: peaks, categories, steps, growth, and the lines that hold it."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.build import AUTOGRAD, MAIN, PID, RankTrace, built_run
from tests.analyze.jobs import STEP, training_step
from tests.analyze.owners.planted import PlantedRank
from tests.diagnose.matched import matched

from stepscope.analyze.account import Account, account_of
from stepscope.analyze.memory import memory_view
from stepscope.analyze.phases import passes
from stepscope.records import Row
from stepscope.run.load import Run
from stepscope.run.side_files import SideFiles, StepLog, step_log_of
from stepscope.units import ms

MB = 1_000_000
KEPT = 300 * MB


@dataclass
class Allocator:
    """Writes the events that the profiler would, with the allocator's totals."""

    trace: RankTrace
    allocated: int = KEPT
    reserved: int = 1000 * MB
    addresses: int = 4096
    totals: bool = True
    sizes: dict[int, int] = field(default_factory=dict)

    def get(self, size: int, *, at: float, thread: int = MAIN) -> int:
        self.addresses += 512
        self.sizes[self.addresses] = size
        self._event(size, self.addresses, at, thread)
        return self.addresses

    def free(self, address: int, *, at: float, thread: int = MAIN) -> None:
        self._event(-self.sizes.pop(address), address, at, thread)

    def _event(self, change: int, address: int, at: float, thread: int) -> None:
        self.allocated += change
        args: dict[str, Any] = {"Bytes": change, "Addr": address, "Device Id": 0, "Device Type": 1}
        if self.totals:
            args |= {"Total Allocated": self.allocated, "Total Reserved": self.reserved}
        event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": PID, "tid": thread}
        self.trace.events.append({**event, "ts": self.trace._local_ns(at) / 1000, "args": args})


def training(allocator: Allocator, n: int, gradients: list[int]) -> list[int]:
    """One step: 40 MB activations and 10 MB scratch forward, 30 MB gradients, 5 MB scratch; returns the gradients."""
    at = n * STEP
    for address in gradients:
        allocator.free(address, at=at + 5)
    activations = [allocator.get(20 * MB, at=at + 30 + 250 * k) for k in range(2)]
    scratch = allocator.get(10 * MB, at=at + 300)
    allocator.free(scratch, at=at + 310)
    new = []
    for k, address in enumerate(reversed(activations)):
        new.append(allocator.get(15 * MB, at=at + 1010 + 500 * k, thread=AUTOGRAD))
        work = allocator.get(5 * MB, at=at + 1020 + 500 * k, thread=AUTOGRAD)
        allocator.free(work, at=at + 1030 + 500 * k, thread=AUTOGRAD)
        allocator.free(address, at=at + 1040 + 500 * k, thread=AUTOGRAD)
    return new


def run_of(
    tmp_path: Path, *, steps: int = 3, totals: bool = True, leak: int = 0, first: list[int] | None = None
) -> Run:
    r = RankTrace()
    a = Allocator(r, totals=totals)
    gradients: list[int] = []
    for size in first or []:  # gradients of the step before the window
        a.addresses += 512
        a.sizes[a.addresses] = size
        a.allocated += size
        gradients.append(a.addresses)
    for n in range(steps):
        training_step(r, n)
        gradients = training(a, n, gradients)
        if leak:
            a.get(leak, at=n * STEP + 3530)
    return built_run(tmp_path, [r])


def seen(run: Run, logs: list[StepLog] | None = None) -> Row:
    found: Row | None = memory_view(run, passes=[passes(r) for r in run.ranks], logs=logs or [])
    assert found is not None
    return found.ranks[0]


def test_peak_has_its_moment_operator_and_categories(tmp_path: Path) -> None:
    m = seen(run_of(tmp_path, first=[15 * MB, 15 * MB]))
    assert m.peak is not None
    # two activations, one gradient and 5 MB of scratch, on top of what is kept
    assert m.peak_allocated_bytes == m.peak.allocated_bytes == KEPT + 60 * MB
    assert (m.peak.step, m.peak.phase, m.peak.operator) == (0, "backward", "MmBackward0")
    assert ms(m.peak.time_ns) == pytest.approx(1.020)
    assert m.peak.by_category == {
        "temporary": 5 * MB, "activations": 40 * MB, "gradients": 15 * MB, "other": 0, "kept": KEPT,
        "weights": None, "optimizer_state": None,
    }  # fmt: skip
    assert "counted in `kept`" in m.reasons["optimizer_state"] and "counted in `kept`" in m.reasons["weights"]
    assert [(h.name, h.size_bytes, h.blocks) for h in m.peak.by_operator] == [
        ("aten::mm", 40 * MB, 2),
        ("MmBackward0", 20 * MB, 2),
    ]
    assert m.cache_bytes == 1000 * MB - m.peak.allocated_bytes
    assert m.device == 0


def test_source_lines_come_from_the_users_frames(tmp_path: Path) -> None:
    r = RankTrace()
    training_step(r, 0)
    r.python("threading.py(10): run", 1, 3000)
    r.python("train.py(33): step", 2, 900)
    r.python("torch/nn/modules/linear.py(130): forward", 10, 800)
    r.python("<built-in function linear>", 11, 790)
    training(Allocator(r), 0, [])
    m = seen(built_run(tmp_path, [r]))
    assert m.peak is not None
    assert [(h.name, h.size_bytes) for h in m.peak.by_source_line] == [("train.py(33): step", 40 * MB)]


def log(allocated: Any, *, rank: int = 0, retries: int = 0) -> StepLog:
    lines = [
        {
            "step": n, "start_ns": n, "end_ns": n + 1, "dur_ns": 1,
            "memory": {
                "allocated_bytes": int(x), "peak_allocated_bytes": int(max(allocated)), "reserved_bytes": 2 * int(x),
                "peak_reserved_bytes": 2 * int(max(allocated)), "host_bytes": 500, "host_peak_bytes": 600,
                "allocator_retries": retries * n,
            },
        }
        for n, x in enumerate(allocated)
    ]  # fmt: skip
    return step_log_of([json.loads(json.dumps(x)) for x in lines], rank=rank)


def test_step_log_alone_gives_peaks_retries_and_growth(tmp_path: Path) -> None:
    r = RankTrace()
    training_step(r, 0)
    m = seen(built_run(tmp_path, [r]), [log(np.linspace(100, 200, 50) * MB, retries=2)])
    assert m.peak is None
    assert "no memory events" in m.reasons["peak"]
    assert m.peak_allocated_bytes == 200 * MB
    assert m.peak_reserved_bytes == 400 * MB
    assert m.allocator_retries == 98
    assert m.host_peak_bytes == 600
    assert m.growth is not None and m.growth.leaks
    assert m.host_growth is not None and not m.host_growth.leaks


OWNED_STEP = 1000.0
STEPS = 14


def planted_step(r: PlantedRank, a: Allocator, n: int) -> None:
    """Activations of two modules freed in backward, a gradient of each step freed in the next, and a kept statistic."""
    at, number = n * OWNED_STEP, 100 * n
    r.step(n, at, at + OWNED_STEP)
    held = []
    for k, size in enumerate((20 * MB, 40 * MB)):
        start = at + 10 + 100 * k
        with (
            r.line("train.py:9", "train.py:10", "model.py:3", module=f"blocks.{k}"),
            r.op("aten::linear", start, start + 80, **{"Sequence number": number + k}),
        ):
            r.kernel("gemm", at=start + 5, start=start + 60, end=start + 90)
            held.append(a.get(size, at=start + 20))
    args = {"Sequence number": number, "Fwd thread id": 1}
    with (
        r.line("train.py:9", "train.py:11"),
        r.op("autograd::engine::evaluate_function: MmBackward0", at + 300, at + 390, thread=AUTOGRAD, **args),
    ):
        r.kernel("grad", at=at + 320, start=at + 430, end=at + 480, thread=AUTOGRAD)
        for address in held:
            a.free(address, at=at + 350, thread=AUTOGRAD)
    r.annotation("Optimizer.step#SGD.step", at + 500, at + 600)
    with r.line("train.py:9", "train.py:12"), r.op("aten::mean", at + 700, at + 800):
        r.kernel("mean", at=at + 710, start=at + 720, end=at + 740)
        a.get(3 * MB, at=at + 720)


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Account:
    folder = tmp_path_factory.mktemp("owned")
    r = PlantedRank()
    allocator = Allocator(r)
    for n in range(STEPS + 1):
        planted_step(r, allocator, n)
    r.write_owners(folder, (STEPS * OWNED_STEP, (STEPS + 1) * OWNED_STEP))
    r.events = [e for e in r.events if e["ts"] < r._local_ns(STEPS * OWNED_STEP) / 1000]
    return account_of(built_run(folder, [r]))


def test_what_is_alive_at_the_peak_by_line_and_module(account: Account) -> None:
    assert account.memory is not None
    peak = account.memory.ranks[0].peak
    assert peak is not None and peak.step == STEPS - 1
    assert [(h.name.partition(" ")[0], h.size_bytes) for h in peak.by_source_line] == [
        ("model.py:3", 60 * MB),
        ("train.py:12", 3 * (STEPS - 1) * MB),
    ]
    assert [(h.name, h.size_bytes) for h in peak.by_module] == [("blocks.1", 40 * MB), ("blocks.0", 20 * MB)]


def test_line_that_keeps_what_it_allocates_in_each_step_is_a_suspect(account: Account) -> None:
    assert account.memory is not None
    (leak,) = account.memory.ranks[0].leaks
    assert leak.name.startswith("train.py:12 ")
    # of the last step nobody knows yet whether it is kept
    assert (leak.steps, leak.size_bytes, leak.bytes_per_step) == (STEPS - 1, 3 * (STEPS - 1) * MB, 3 * MB)


def test_growth_is_found_with_the_line_that_keeps_it(account: Account) -> None:
    (found,) = (c.match for c in matched(account, "memory-pressure"))
    said = {e.what: e.value for e in found.evidence}
    assert said["growth per step"] == 3 * MB
    assert any("held by train.py:12 " in what for what in said)


def on_host(folder: Path, counted: dict[str, int]) -> Row:
    """Return the memory of a rank without a device, whose profiler began with nothing allocated."""
    r = RankTrace(backend="gloo", device="CPU")
    allocator = Allocator(r, allocated=0)
    gradients: list[int] = []
    for n in range(2):
        training_step(r, n)
        gradients = training(allocator, n, gradients)
    for event in r.events:
        if event["name"] == "[memory]":
            event["args"] |= {"Device Id": -1, "Device Type": 0}
    run = built_run(folder, [r])
    beside = SideFiles(memory=(Row(rank=0, step=1, label="end optimizer_step", bytes_by=counted),))
    return seen(replace(run, beside=beside))


def test_host_counts_from_the_profilers_start_so_state_and_peak_are_unknown(tmp_path: Path) -> None:
    m = on_host(tmp_path, {})
    assert m.device == -1 and m.peak is not None and m.peak.by_category is not None
    assert m.peak_allocated_bytes is None and "from its own start" in m.reasons["peak_allocated_bytes"]
    assert m.peak.by_category["optimizer_state"] is None and m.peak.by_category["weights"] is None
    assert "from its own start" in m.reasons["optimizer_state"]
