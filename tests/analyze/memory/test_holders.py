"""Who holds memory: lines and modules at the peak, lines that keep what they allocate; and state that is not one."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run
from tests.analyze.jobs import training_step
from tests.analyze.memory.test_usage import MB, Allocator, seen, training
from tests.analyze.owners.planted import PlantedRank
from tests.diagnose.matched import matched

from stepscope.analyze.account import Account, account_of
from stepscope.analyze.memory import RankMemory
from stepscope.run.side_files import MemoryEdge, SideFiles

STEP = 1000.0
STEPS = 14


def planted_step(r: PlantedRank, a: Allocator, n: int) -> None:
    """Activations of two modules freed in backward, a gradient of each step freed in the next, and a kept statistic."""
    at, number = n * STEP, 100 * n
    r.step(n, at, at + STEP)
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
    r.write_owners(folder, (STEPS * STEP, (STEPS + 1) * STEP))
    r.events = [e for e in r.events if e["ts"] < r._local_ns(STEPS * STEP) / 1000]
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


def on_host(folder: Path, counted: dict[str, int]) -> RankMemory:
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
    beside = SideFiles(memory=(MemoryEdge(0, 1, "end optimizer_step", counted),))
    return seen(replace(run, beside=beside))


def test_host_counts_from_the_profilers_start_so_state_and_peak_are_unknown(tmp_path: Path) -> None:
    m = on_host(tmp_path, {})
    assert m.device == -1 and m.peak is not None and m.peak.by_category is not None
    assert m.peak_allocated_bytes is None and "from its own start" in m.reasons["peak_allocated_bytes"]
    assert m.peak.by_category["optimizer_state"] is None and m.peak.by_category["weights"] is None
    assert "from its own start" in m.reasons["optimizer_state"]


def test_what_the_job_counted_on_the_host_lies_below_what_the_profiler_saw(tmp_path: Path) -> None:
    m = on_host(tmp_path, {"parameters": 30 * MB, "optimizer": 60 * MB})
    assert m.peak is not None and m.peak.by_category is not None
    assert m.peak_allocated_bytes == m.peak.allocated_bytes == 60 * MB + 90 * MB
    assert (m.peak.by_category["weights"], m.peak.by_category["optimizer_state"]) == (30 * MB, 60 * MB)
    assert sum(size or 0 for size in m.peak.by_category.values()) == m.peak_allocated_bytes
