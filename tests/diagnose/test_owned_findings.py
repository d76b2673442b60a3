"""Findings name the line that was planted, save what it takes, and accuse nobody in a job without a fault."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import AUTOGRAD, built_run
from tests.analyze.owners.planted import PlantedRank
from tests.diagnose.matched import lines_matched, matched

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import diagnose
from stepscope.diagnose.lines import needless_rows

STEPS = 4
DEVICE = 2 * 250 + 2 * 350 + 280.0
"""us that the device computes in a step, with nothing planted"""

Plant = Callable[[PlantedRank, float, int], float]
"""adds something to a rank at a moment, in step number n; returns when it ended"""


def nothing(_: PlantedRank, at: float, __: int) -> float:
    return at


def forward(r: PlantedRank, at: float, line: str, *, number: int | None) -> float:
    """Two modules; with sequence numbers where autograd follows."""
    for k, module in enumerate(("blocks.0", "blocks.1")):
        args = {} if number is None else {"Sequence number": number + k}
        with r.line(line, f"model.py:{5 + k}", module=module), r.op("aten::addmm", at, at + 100, **args):
            r.kernel("gemm", at=at + 10, start=at + 30, end=at + 280)
        at += 300
    return at


def a_step(r: PlantedRank, n: int, at: float, plant: Plant, late: Plant, *, before_optimizer: bool = False) -> float:
    """Forward at train.py:10, backward at :11, the optimizer at :12, what is planted at :13; lateness at :9."""
    begin = at
    at = late(r, at + 10, n)
    at = forward(r, at, "train.py:10", number=100 * n)
    with r.line("train.py:11"):
        r.ran("aten::ones_like", at, at + 5)
        for k in (1, 0):
            args = {"Sequence number": 100 * n + k, "Fwd thread id": 1}
            node = "autograd::engine::evaluate_function: AddmmBackward0"
            with (
                r.op(node, at + 10, at + 150, thread=AUTOGRAD, **args),
                r.op("aten::mm", at + 20, at + 140, thread=AUTOGRAD),
            ):
                r.kernel("gemm_back", at=at + 30, start=at + 40, end=at + 390, thread=AUTOGRAD)
            at += 400
        with r.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at, at + 50, thread=AUTOGRAD):
            r.collective("allreduce", at=at + 10, start=at + 20, end=at + 60)
    at += 80
    if before_optimizer:
        at = plant(r, at, n)
        r.annotation("Optimizer.step#AdamW.step", at, at + 60)  # else what comes before it is taken for forward
    with r.line("train.py:12", "lib:site-packages/torch/optim/optimizer.py:500"):
        with r.op("aten::_fused_adamw_", at, at + 50):
            r.kernel("adam", at=at + 10, start=at + 20, end=at + 300)
        at += 310
    if not before_optimizer:
        at = plant(r, at, n)
    r.python_time(at, at + 10, "train.py:8")
    r.step(n, begin, at + 10)
    return at + 10


def second_forward(r: PlantedRank, at: float, _: int) -> float:
    return forward(r, at, "train.py:13", number=None)


def statistic(r: PlantedRank, at: float, _: int) -> float:
    for _ in range(4):
        with r.line("train.py:13"), r.op("aten::to", at, at + 190), r.op("aten::copy_", at + 2, at + 188):
            call = "cudaMemcpyAsync"
            r.copy("DtoH (Device -> Pageable)", at=at + 5, start=at + 10, end=at + 180, call=call, call_us=178)
        at += 200
    return at


def on_the_device(*names: str, line: str = "train.py:13", device_us: float = 8) -> Plant:
    """Return 32 operators of no module, each with a kernel."""

    def plant(r: PlantedRank, at: float, _: int) -> float:
        free = at
        for k in range(32):
            start = max(at + 6, free)
            free = start + device_us
            with r.line(line, module=None), r.op(names[k % len(names)], at, at + 19):
                r.kernel("reduce", at=at + 1, start=start, end=free)
            at += 20
        r.call("cudaDeviceSynchronize", at, max(at, free) + 1)
        return max(at, free) + 2

    return plant


norms = on_the_device("aten::sub", "aten::norm")


def loop(r: PlantedRank, at: float, _: int) -> float:
    for _ in range(64):
        with r.line("train.py:13"), r.op("aten::mul_", at, at + 9):
            r.kernel("mul", at=at + 1, start=at + 6, end=at + 8)
        at += 10
    return at


def clipped_one_by_one(r: PlantedRank, at: float, _: int) -> float:
    """Gradients clipped each by itself: a norm, a factor, and a list of one tensor that is multiplied by it."""
    for _ in range(64):
        with r.line("train.py:13", "lib:torch/nn/utils/clip_grad.py:38"):
            for name in ("linalg_vector_norm", "stack", "add", "reciprocal", "mul", "clamp", "_foreach_mul_"):
                with r.op(f"aten::{name}", at, at + 5):
                    r.kernel(name, at=at + 1, start=at + 3, end=at + 3.5)
                at += 6
    return at


def sent(r: PlantedRank, at: float, _: int) -> float:
    for _ in range(8):
        with r.line("train.py:13", "lib:torch/distributed/c10d_logger.py:83"):
            r.collective("broadcast", at=at, start=at + 10, end=at + 60, thread=1)
        at += 70
    return at


def sent_again(elements: int) -> Plant:
    """Return eight all-reduces of so many elements in all; the wrapper sends 1,024 in backward."""

    def plant(r: PlantedRank, at: float, _: int) -> float:
        for _ in range(8):
            with r.line("train.py:13", "lib:torch/distributed/c10d_logger.py:83"):
                r.collective("allreduce", at=at, start=at + 10, end=at + 60, elements=elements // 8, thread=1)
            at += 70
        return at

    return plant


def sleeps(r: PlantedRank, at: float, _: int) -> float:
    r.python_time(at, at + 900, "train.py:9")
    return at + 900


def account(
    folder: Path, plant: Plant = nothing, *, ranks: int = 1, late: dict[int, Plant] | None = None,
    owners: tuple[int, ...] | None = None, before_optimizer: bool = False,
) -> Account:  # fmt: skip
    """Return the account of a job; `owners`: the ranks whose owners were recorded, all where nothing is said."""
    made = []
    for rank in range(ranks):
        r = PlantedRank(rank, world_size=ranks)
        at = 0.0
        for n in range(STEPS + 1):
            if n == STEPS:
                begin = at
            at = a_step(r, n, at, plant, (late or {}).get(rank, nothing), before_optimizer=before_optimizer)
        if owners is None or rank in owners:
            r.write_owners(folder, (begin, at))
        r.events = [e for e in r.events if e["ts"] < r._local_ns(begin) / 1000]
        made.append(r)
    return account_of(built_run(folder, made))


def accused(found: Account) -> list[Finding]:
    return [f for f in diagnose(found).findings if f.where and f.where[0].line in (9, 13) and f.saving_pct > 5]


@pytest.mark.parametrize(
    ("plant", "id_"),
    [
        (second_forward, "recomputation"),
        (statistic, "host-device-sync"),
        (loop, "launch-overhead"),
        (clipped_one_by_one, "launch-overhead"),
        (norms, "host-stall"),
        (on_the_device("aten::sort", device_us=40), "host-stall"),
    ],
)
def test_the_planted_line_is_named_and_saves_what_it_takes(tmp_path: Path, plant: Plant, id_: str) -> None:
    found = account(tmp_path, plant)
    first = next(f for f in diagnose(found).findings if f.id == id_ and f.where[0].line == 13)
    assert (first.where[0].file, first.where[0].line) == ("train.py", 13)
    assert first.mostly == "mostly train.py:13 (100 % of it)"
    assert found.step is not None
    planted_us = plant(PlantedRank(), 0.0, 0)
    # At least its own time goes; at most the step shrinks to what the device computes.
    assert 0.85 * planted_us <= first.alone_ns / 1000 <= found.step.step_ns / 1000 - DEVICE


def test_collectives_beside_those_of_the_wrapper_have_a_line(tmp_path: Path) -> None:
    found = lines_matched(account(tmp_path, sent, ranks=2))
    assert [(c.id, c.match.where[0].text) for c in found] == [("redundant-communication", "train.py:13")]
    assert ("collectives per step", 8) in {(e.what, e.value) for e in found[0].match.evidence}


def test_collectives_beside_those_of_the_wrapper_are_no_bytes_to_halve(tmp_path: Path) -> None:
    made = account(tmp_path, sent, ranks=2)
    assert [mask.tolist() for mask in needless_rows(made)] == [[False, *[True] * 8] * STEPS] * 2
    (one,) = matched(made, "communication-bound")
    replay = made.owned_replay
    assert replay is not None and one.match.change is not None and one.match.what_if == ()
    for mask, old, new in zip(needless_rows(made), replay.programs, one.match.change(replay).programs, strict=True):
        shorter = old.duration_ns > new.duration_ns
        assert shorter.any() and not (shorter & np.append(mask, False)[old.collective]).any()


@pytest.mark.parametrize(("elements", "again"), [(1024, True), (16, False)])
def test_gradients_that_are_sent_again_have_a_line(tmp_path: Path, elements: int, again: bool) -> None:
    made = account(tmp_path, sent_again(elements), ranks=2, before_optimizer=True)
    found = lines_matched(made)
    assert [(c.id, c.title) for c in found] == [
        ("redundant-communication", "Gradients sent a second time (train.py:13)")
    ] * again
    assert [mask.tolist() for mask in needless_rows(made)] == [[False, *[again] * 8] * STEPS] * 2


def test_a_line_that_takes_longer_on_some_ranks_makes_them_late(tmp_path: Path) -> None:
    found = account(tmp_path, ranks=4, late={1: sleeps, 3: sleeps})
    late = [f for f in diagnose(found).findings if f.id == "straggler"]
    assert [f.ranks for f in late] == [(1, 3)]
    assert (late[0].where[0].file, late[0].where[0].line) == ("train.py", 9)


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_line_of_a_clean_job_is_accused(tmp_path: Path, ranks: int) -> None:
    found = account(tmp_path, ranks=ranks)
    assert lines_matched(found) == []
    assert accused(found) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (on_the_device("aten::rand", "aten::where", line="train.py:9"), nothing),  # may prepare the input
        (nothing, on_the_device("aten::_foreach_lerp_")),  # an average of the weights
        (nothing, on_the_device("aten::sub", "aten::copy_")),
    ],
)
def test_input_and_changes_in_place_on_the_device_are_not_beside_training(tmp_path, before, after):
    found = account(tmp_path, after, late={0: before})
    assert not [c for c in lines_matched(found) if c.id == "host-stall"]


def test_a_frozen_model_beside_the_trained_one_is_no_second_forward(tmp_path: Path) -> None:
    def teacher(r: PlantedRank, at: float, _: int) -> float:
        with r.line("train.py:13", "teacher.py:5", module="teacher.0"), r.op("aten::addmm", at, at + 100):
            r.kernel("gemm", at=at + 10, start=at + 30, end=at + 280)
        return at + 300

    assert not [c for c in lines_matched(account(tmp_path, teacher)) if not c.match.at_most]
