"""Who holds memory: lines and modules at the peak, lines that keep what they allocate; and state that is not one."""

import numpy as np
import pytest
from tests.analyze.build import AUTOGRAD, built_run
from tests.analyze.memory.test_usage import MB, Allocator
from tests.analyze.owners.planted import PlantedRank

from stepscope.analyze.account import Account, account_of
from stepscope.analyze.memory.kept import FromBefore
from stepscope.analyze.memory.leaks import leaks
from stepscope.trace.table import Int64s

STEP = 1000.0
STEPS = 4


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
        ("train.py:12", 9 * MB),
    ]
    assert [(h.name, h.size_bytes) for h in peak.by_module] == [("blocks.1", 40 * MB), ("blocks.0", 20 * MB)]


def test_line_that_keeps_what_it_allocates_in_each_step_is_a_suspect(account: Account) -> None:
    assert account.memory is not None
    (leak,) = account.memory.ranks[0].leaks
    assert leak.name.startswith("train.py:12 ")
    # of the last step nobody knows yet whether it is kept
    assert (leak.steps, leak.size_bytes, leak.bytes_per_step) == (STEPS - 1, 3 * (STEPS - 1) * MB, 3 * MB)


def test_kept_once_is_no_leak() -> None:
    step, size = np.array([0, 0, 1, 2]), np.array([5, 5, 7, 7])
    found = leaks(["cache", "cache", "log", "log"], step, size)
    assert [(leak.name, leak.steps, leak.size_bytes) for leak in found] == [("log", 2, 14)]


def curves(state: int, gradients: int = 100) -> dict[str, Int64s]:
    names = {"temporary": 0, "activations": 0, "gradients": gradients, "optimizer_state": state, "other": 7}
    return {name: np.array([0, size], np.int64) for name, size in names.items()}


@pytest.mark.parametrize("created", [0, 1, 9])
def test_few_bytes_of_the_optimizer_are_no_state(created: int) -> None:
    found = FromBefore().split(curves(created), 1000)
    assert found["optimizer_state"] is None and found["weights"] is None
    assert found["other"] is not None and found["other"].tolist() == [0, 7 + created]
    assert sum(int(curve[1]) for curve in found.values() if curve is not None) == 1107 + created


def test_state_is_known_where_it_was_created_counted_or_nothing_was_there() -> None:
    created = FromBefore().split(curves(200), 1000)["optimizer_state"]
    assert created is not None and created.tolist() == [0, 200]
    counted = FromBefore(300, 250).split(curves(9), 1000)
    assert {name: int(curve[1]) for name, curve in counted.items() if curve is not None} == {
        "weights": 300, "temporary": 0, "activations": 0, "gradients": 100, "optimizer_state": 250, "other": 7,
        "kept": 1000 - 300 - 241,
    }  # fmt: skip
    nothing = FromBefore().split(curves(0), 0)["optimizer_state"]
    assert nothing is not None and nothing.tolist() == [0, 0]


def test_weights_tell_how_much_a_state_is() -> None:
    assert FromBefore(10_000).split(curves(200), 20_000)["optimizer_state"] is None
    assert FromBefore(400).split(curves(200), 20_000)["optimizer_state"] is not None
