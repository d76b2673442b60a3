"""Rules by owner on constructed jobs: a cell in a loop, layers that communicate, a heavy stage, rare steps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import AUTOGRAD, MAIN, RankTrace
from tests.analyze.owners.planted import PlantedRank
from tests.analyze.pipelines import one_f_one_b, pipeline_run, timed
from tests.diagnose.test_owned_findings import account, nothing

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.finding import Candidate
from stepscope.diagnose.findings import diagnose
from stepscope.diagnose.rare_lines import rare_places
from stepscope.diagnose.rules import BY_OWNER

CELLS = 32
CELL_US = 40.0
WORK = (2.0, 1.0, 1.0, 1.0)
FORWARD, BACKWARD = 200.0, 400.0


def candidates(found: Account) -> list[Candidate]:
    return [c for rule in BY_OWNER for c in rule(found)]


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
    assert f"calls cell {CELLS} times per step" in one.title
    # The loop and its backward pass take the host 2 x 32 x 40 us; its products (2 us each) stay.
    assert one.alone_ns / 1000 == pytest.approx(2 * CELLS * CELL_US, rel=0.1)


def test_a_module_called_a_few_times_is_no_loop(tmp_path: Path) -> None:
    def few(r: PlantedRank, at: float, n: int) -> float:
        return cells(r, at, n, times=4)

    def few_back(r: PlantedRank, at: float, n: int) -> float:
        return cells_back(r, at, n, times=4)

    assert candidates(account(tmp_path, few_back, late={0: few})) == []


def synced(r: PlantedRank, at: float, _: int, *, calls: int = 12) -> float:
    """Layers at model.py:30 that average over ranks: 100 us each, in which nothing else runs."""
    for k in range(calls):
        with r.line("train.py:10", "model.py:30", module=f"norms.{k}"), r.op("aten::batch_norm_stats", at, at + 20):
            r.collective("allreduce", at=at + 5, start=at + 20, end=at + 90, elements=64, thread=MAIN)
            r.call("cudaStreamSynchronize", at + 10, at + 92)
        at += 100
    return at


def test_layers_that_communicate_are_named_and_save_their_waits(tmp_path: Path) -> None:
    found = account(tmp_path, ranks=2, late=dict.fromkeys((0, 1), synced))
    (one,) = [f for f in diagnose(found).findings if "communicate in forward" in f.title]
    assert one.id == "too-many-small-collectives"
    assert one.where[0].text == "model.py:30"
    assert {place.module.split(".")[0] for place in one.where[1:] if place.module} == {"norms"}
    assert one.alone_ns / 1000 == pytest.approx(12 * 100, rel=0.1)


def test_a_few_such_layers_are_not_worth_a_word(tmp_path: Path) -> None:
    def few(r: PlantedRank, at: float, n: int) -> float:
        return synced(r, at, n, calls=3)

    assert candidates(account(tmp_path, ranks=2, late=dict.fromkeys((0, 1), few))) == []


class StageRank(PlantedRank):
    """Everything in it is called from its rank's line of the schedule, computing in module `0` or `1`."""

    def __init__(self, rank: int, **given: object) -> None:
        super().__init__(rank, **given)
        self._where = [((f"train.py:{20 + rank}", "model.py:7"), "0.up")]

    def messages(self, *args: object, **given: object) -> None:
        self._where.append(((f"train.py:{20 + self.rank}",), ""))
        super().messages(*args, **given)  # type: ignore[arg-type]
        self._where.pop()


def staged(folder: Path, work: tuple[float, ...]) -> Account:
    def finish(trace: RankTrace, begin: float, end: float) -> None:
        assert isinstance(trace, PlantedRank)
        trace.write_owners(folder, (begin, end))

    run = pipeline_run(
        folder, one_f_one_b(4, 8), forward=FORWARD, backward=BACKWARD, steps=6, work=work, make=StageRank, finish=finish
    )
    return account_of(run)


def period_us(work: tuple[float, ...]) -> float:
    spans = timed(one_f_one_b(4, 8), {"F": FORWARD, "B": BACKWARD}, work)
    return max(end for span in spans for _, end in span)


def test_a_heavy_stage_is_named_and_saves_what_the_even_schedule_takes_less(tmp_path: Path) -> None:
    found = staged(tmp_path, WORK)
    (one,) = [f for f in diagnose(found).findings if f.id == "load-imbalance"]
    assert one.ranks == (0,)
    assert one.where[0].text == "model.py:7"
    assert [place.module for place in one.where[1:]] == ["0"]
    mean = sum(WORK) / len(WORK)
    assert one.alone_ns / 1000 == pytest.approx(period_us(WORK) - period_us((mean,) * 4), rel=0.1)


def test_even_stages_are_not_accused_and_the_bubble_is_where_the_schedule_runs(tmp_path: Path) -> None:
    found = staged(tmp_path, (1.0,) * 4)
    assert [c for c in candidates(found) if c.id == "load-imbalance"] == []
    (bubble,) = [f for f in diagnose(found).findings if f.id == "pipeline-bubble"]
    assert {place.text for place in bubble.where} <= {f"train.py:{20 + rank}" for rank in range(4)}
    assert len(bubble.where) == 3 and sum(place.share for place in bubble.where) == pytest.approx(5 / 6)


def saved_at(n: int, *, line: str | None):
    """A checkpoint in step n alone; the line is known where the step with frames (number 4) has one too."""

    def saves(r: PlantedRank, at: float, step: int) -> float:
        if step == n or (line and step == 4):
            with r.line(*([line] if line else [])), r.op("aten::save", at, at + 900):
                pass
            return at + 900
        return at

    return saves


def test_time_of_rare_steps_goes_to_the_line_that_only_they_have(tmp_path: Path) -> None:
    found = account(tmp_path, saved_at(2, line="train.py:13"))
    assert found.replay is not None
    ordinary = replace(found.replay, steps=np.array([0, 1, 3]))
    (place,) = rare_places(found, ordinary)
    assert (place.text, place.after, place.share) == ("train.py:13", False, pytest.approx(1.0, abs=0.05))


def test_a_line_that_no_frame_step_met_comes_after_the_one_before(tmp_path: Path) -> None:
    found = account(tmp_path, saved_at(2, line=None))
    assert found.replay is not None
    (place, *_) = rare_places(found, replace(found.replay, steps=np.array([0, 1, 3])))
    assert (place.file, place.line, place.after) == ("train.py", 12, True)


def test_ordinary_steps_alone_have_no_rare_places(tmp_path: Path) -> None:
    found = account(tmp_path, nothing)
    assert found.replay is not None
    assert rare_places(found, found.replay) == ()
