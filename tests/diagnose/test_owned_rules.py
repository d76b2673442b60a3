"""Rules by owner on constructed jobs: a cell in a loop, layers that communicate, a heavy stage, rare steps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import AUTOGRAD, MAIN, built_run
from tests.analyze.owners.planted import PlantedRank
from tests.analyze.pipelines import TRANSFER, Order, one_f_one_b, source, timed
from tests.diagnose.matched import matched
from tests.diagnose.test_owned_findings import account

from stepscope.analyze.account import Account, account_of
from stepscope.analyze.owner_places import rare_places, schedule_lines
from stepscope.diagnose.findings import diagnose

CELLS = 32
CELL_US = 40.0
WORK = (2.0, 1.0, 1.0, 1.0)
TOOK = {"F": 200.0, "B": 400.0}


def cells(r: PlantedRank, at: float, n: int, *, times: int = CELLS) -> float:
    """A recurrent cell at train.py:9: a product of 2 us and an activation, 40 us of the host for each."""
    for k in range(times):
        with r.line("train.py:9", "model.py:20", module="cell"):
            with r.op("aten::addmm", at, at + 19, **{"Sequence number": 100 * n + 10 + 2 * k}):
                r.kernel("gemm", at=at + 5, start=at + 12, end=at + 14)
            with r.op("aten::sigmoid", at + 20, at + 39, **{"Sequence number": 100 * n + 11 + 2 * k}):
                r.kernel("sigmoid", at=at + 25, start=at + 32, end=at + 34)
        at += CELL_US
    return at


def cells_back(r: PlantedRank, at: float, n: int, *, times: int = CELLS) -> float:
    for k in reversed(range(2 * times)):
        args = {"Sequence number": 100 * n + 10 + k, "Fwd thread id": 1}
        name = "SigmoidBackward0" if k % 2 else "AddmmBackward0"
        node = f"autograd::engine::evaluate_function: {name}"
        with r.line("train.py:11"), r.op(node, at, at + 19, thread=AUTOGRAD, **args):
            r.kernel("back", at=at + 5, start=at + 12, end=at + 14, thread=AUTOGRAD)
        at += CELL_US / 2
    return at


def test_a_cell_in_a_loop_is_named_and_saves_its_host_time(tmp_path: Path) -> None:
    found = account(tmp_path, cells_back, late={0: cells})
    (one,) = [f for f in diagnose(found).findings if f.id == "launch-overhead" and "times per step" in f.title]
    assert (one.where[0].text, one.where[0].module) == ("train.py:9", "cell")
    assert f"cell called {CELLS} times per step" in one.title
    # The loop and its backward pass take the host 2 x 32 x 40 us; its products (2 us each) stay.
    assert one.alone_ns / 1000 == pytest.approx(2 * CELLS * CELL_US, rel=0.1)


def synced(r: PlantedRank, at: float, _: int, *, calls: int = 12) -> float:
    """Layers at model.py:30 that average over ranks: 100 us each, in which nothing else runs."""
    with r.line("train.py:10"):
        r.annotation("DistributedDataParallel.forward", at - 2, at + 100 * calls)
    for k in range(calls):
        with r.line("train.py:10", "model.py:30", module=f"norms.{k}"), r.op("aten::batch_norm_stats", at, at + 20):
            r.collective(
                "_allgather_base", at=at + 5, start=at + 20, end=at + 90, elements=64, out_elements=128, thread=MAIN
            )
            r.call("cudaStreamSynchronize", at + 10, at + 92)
        at += 100
    return at


def test_layers_that_communicate_are_named_and_save_their_waits(tmp_path: Path) -> None:
    found = account(tmp_path, ranks=2, late=dict.fromkeys((0, 1), synced))
    (one,) = matched(found, "too-many-small-collectives", "communicate")
    assert (one.id, one.title) == (
        "too-many-small-collectives",
        "12 modules such as norms.4 communicate in forward and backward",
    )
    assert one.match.where[0].text == "model.py:30"
    assert {place.module.split(".")[0] for place in one.match.where[1:] if place.module} == {"norms"}
    replay = found.owned_replay
    assert replay is not None and one.match.change is not None
    # Each waits for 80 us at least; with the loop's own time between two of them it takes 100.
    assert 12 * 80 <= (replay.period_ns - one.match.change(replay).period_ns) / 1000 <= 12 * 100


def stage(r: PlantedRank, begin: float, length: float, order: Order, span: list[tuple[float, float]]) -> None:
    """One step of a stage: the host asks for everything at once, train.py:20 and on, and waits for the last of it."""
    host = begin
    here = f"train.py:{20 + r.rank}"
    for action, (start, _) in zip(order, span, strict=True):
        before = source(action, 3)
        if before is not None and before[1] != action[1]:
            with r.line(here):
                ready = begin + start
                r.messages(("recv", before[1]), at=host, start=ready - TRANSFER, end=ready, stream=30 + before[1])
            host += 8
    for (kind, number, _), (start, end) in zip(order, span, strict=True):
        with r.line(here):
            r.call("cudaStreamWaitEvent", host, host + 1)
        with r.line(here, "model.py:7", module="0.up"), r.op("aten::mm", host + 2, host + 9):
            r.kernel("gemm", at=host + 3, start=begin + start, end=begin + end)
        to = number + 1 if kind == "F" else number - 1
        if 0 <= to <= 3:
            with r.line(here):
                r.call("cudaStreamWaitEvent", host + 10, host + 11)
                done = begin + end
                r.messages(("send", to), at=host + 12, start=done, end=done + TRANSFER, stream=40 + to)
        host += 20
    with r.line(here):
        r.call("cudaDeviceSynchronize", host, begin + length - 5)
    r.step(int(begin // length), begin, begin + length)


def staged(folder: Path, work: tuple[float, ...]) -> Account:
    orders = one_f_one_b(4, 8)
    spans, length = timed(orders, TOOK, work), period_us(work) + 180
    ranks = []
    for rank, (order, span) in enumerate(zip(orders, spans, strict=True)):
        r = PlantedRank(rank, world_size=4)
        for n in range(5):
            stage(r, n * length, length, order, [(a + 170, b + 170) for a, b in span])
        r.write_owners(folder, (4 * length, 5 * length))
        ranks.append(r)
    return account_of(built_run(folder, ranks))


def period_us(work: tuple[float, ...]) -> float:
    spans = timed(one_f_one_b(4, 8), TOOK, work)
    return max(end for span in spans for _, end in span)


def test_a_heavy_stage_is_named_and_saves_what_the_even_schedule_takes_less(tmp_path: Path) -> None:
    found = staged(tmp_path, WORK)
    (one,) = [f for f in diagnose(found).findings if f.id == "load-imbalance"]
    assert one.ranks == (0,)
    assert one.where[0].text == "model.py:7"
    assert [place.module for place in one.where[1:]] == ["0"]
    mean = sum(WORK) / len(WORK)
    truth_us = period_us(WORK) - period_us((mean,) * 4)
    # A stream's waits are read off the clock: some that were met by chance hold the even schedule back.
    assert 0.6 * truth_us <= one.alone_ns / 1000 <= 1.05 * truth_us
    assert one.low_ns / 1000 <= truth_us <= one.high_ns / 1000


def test_even_stages_are_not_accused_and_the_schedule_runs_where_messages_are_asked_for(tmp_path: Path) -> None:
    found = staged(tmp_path, (1.0,) * 4)
    assert matched(found, "load-imbalance") == []
    places = schedule_lines(found)
    # Ranks 1 and 2 have two neighbours, the others one: of 6 times 16 messages they ask for a third each.
    assert [place.text for place in places][:2] == ["train.py:21", "train.py:22"]
    assert [place.share for place in places] == pytest.approx([1 / 3, 1 / 3, 1 / 6])


def saved_at(n: int, *stack: str):
    """A checkpoint in step n alone; its stack is known where the step with frames (number 4) has one too."""

    def saves(r: PlantedRank, at: float, step: int) -> float:
        if step == n or (stack and step == 4):
            with r.line(*stack), r.op("aten::save", at, at + 900):
                pass
            return at + 900
        return at

    return saves


@pytest.mark.parametrize(
    ("stack", "line"),
    [
        (["train.py:13"], "train.py:13"),
        (["train.py:13", "model.py:5"], "train.py:13"),
        (["train.py:12", "save.py:3", "save.py:9"], "save.py:3"),
    ],
)
def test_time_of_rare_steps_goes_to_the_outermost_line_that_only_they_have(tmp_path, stack, line):
    found = account(tmp_path, saved_at(2, *stack))
    assert found.replay is not None
    ordinary = replace(found.replay, steps=np.array([0, 1, 3]))
    (place,) = rare_places(found, ordinary)
    assert (place.text, place.after) == (line, False)
    assert place.share == pytest.approx(1.0, abs=0.05)
