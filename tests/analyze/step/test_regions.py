"""Regions of a step without annotations; the mean training step from constructed logs."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run
from tests.analyze.step_logs import log_lines

from stepscope.analyze.phases import regions
from stepscope.analyze.training_step import training_step
from stepscope.contract.step_line import Region
from stepscope.run.side_files import StepLog, step_log_of

FORWARD_OP = {"Sequence number": 5, "Fwd thread id": 0}
EVALUATE = "autograd::engine::evaluate_function: AddmmBackward0"


def found(tmp_path: Path, trace: RankTrace) -> dict[str, tuple[Region, bool]]:
    """Return region and `recomputed` by kernel name."""
    rank = built_run(tmp_path, [trace]).ranks[0]
    result = regions(rank)
    names = [rank.trace.text(int(n)) or "" for n in rank.work.name]
    return {n: (Region(r), bool(c)) for n, r, c in zip(names, result.region, result.recomputed, strict=True)}


@pytest.fixture
def trace() -> RankTrace:
    """A step without annotations: main thread until 90, backward until 200, clipping, optimizer, zero_grad."""
    r = RankTrace()
    r.step(0, 0, 400)
    with r.op("aten::embedding", 5, 15):  # no gradients: a frozen part of the model
        r.kernel("frozen", at=10, start=20, end=30)
    with r.op("aten::mm", 20, 30, **FORWARD_OP):
        r.kernel("forward", at=25, start=40, end=50)
    with r.op(EVALUATE, 90, 98, thread=AUTOGRAD, **{"Sequence number": 6, "Fwd thread id": 1}):
        r.kernel("loss", at=92, start=100, end=110, thread=AUTOGRAD)
    with r.op(EVALUATE, 100, 200, thread=AUTOGRAD, **{"Sequence number": 5, "Fwd thread id": 1}):
        r.kernel("backward", at=110, start=120, end=130, thread=AUTOGRAD)
        with r.op("aten::gelu", 140, 160, thread=AUTOGRAD, **FORWARD_OP):
            r.kernel("recomputed", at=150, start=160, end=170, thread=AUTOGRAD)
        with r.op("aten::mm", 170, 180, thread=AUTOGRAD):
            r.kernel("gradient", at=172, start=180, end=190, thread=AUTOGRAD)
    r.kernel("engine callback", at=210, start=220, end=225, thread=AUTOGRAD)
    with r.op("aten::_foreach_norm", 230, 240):
        r.kernel("clip", at=235, start=240, end=250)
    r.annotation("Optimizer.step#AdamW.step", 250, 300)
    with r.op("aten::_fused_adamw_", 260, 270):
        r.kernel("adam", at=265, start=280, end=290)
    return r


def test_parts_are_told_apart_without_annotations(tmp_path: Path, trace: RankTrace) -> None:
    trace.kernel("older", at=None, start=-20, end=-10)
    assert found(tmp_path, trace) == {
        "older": (Region.OTHER, False), "frozen": (Region.FORWARD, False), "forward": (Region.FORWARD, False),
        "loss": (Region.BACKWARD, False), "backward": (Region.BACKWARD, False), "recomputed": (Region.BACKWARD, True),
        "gradient": (Region.BACKWARD, False), "engine callback": (Region.BACKWARD, False),
        "clip": (Region.OTHER, False), "adam": (Region.OPTIMIZER, False),
    }  # fmt: skip


def test_annotations_decide_over_order(tmp_path: Path, trace: RankTrace) -> None:
    trace.annotation("data_loading", 60, 90)
    with trace.op("aten::rand", 65, 75, **FORWARD_OP):
        trace.kernel("augment", at=70, start=80, end=90)
    trace.annotation("forward", 310, 390)  # an evaluation after the step's backward
    trace.kernel("evaluation", at=320, start=330, end=340)
    parts = found(tmp_path, trace)
    assert parts["augment"] == (Region.DATA, False)
    assert parts["evaluation"] == (Region.FORWARD, False)


def test_graph_goes_by_device_annotation_else_other(tmp_path: Path, trace: RankTrace) -> None:
    trace.kernel("graph a", at=50, start=60, end=65, call="cudaGraphLaunch")
    trace.kernel("graph b", at=51, start=66, end=70, call="cudaGraphLaunch")
    trace.device_annotation("forward_pass", 59, 65.5)
    parts = found(tmp_path, trace)
    assert parts["graph a"][0] is Region.FORWARD
    assert parts["graph b"][0] is Region.OTHER


STEPS = 60
Extra = Callable[[int], dict[str, float]]
"""regions (or OUTSIDE) in ms that a step has beyond the ordinary ones"""


def nothing(step: int) -> dict[str, float]:
    return {}


def every(n: int, **regions: float) -> Extra:
    return lambda step: regions if step % n == n - 1 else {}


def log(
    rank: int = 0, *, extra: Extra = nothing, waits: Extra = nothing, slower_after: float = 1.0, barrier: int = 0
) -> StepLog:
    """Return 60 steps of 50 ms (data 2, forward 18, backward 28, optimizer 1, 1 outside) with a window at 20 to 24."""
    rng = np.random.default_rng(rank)
    steps, calls = [], []
    for step in range(STEPS):
        factor = rng.normal(1, 0.01) * (slower_after if step >= 25 else 1.0)
        usual = {"data_loading": 2.0, "forward_pass": 18 * factor, "backward_pass": 28 * factor, "optimizer_step": 1.0}
        parts = (usual, {"outside": 1.0}, extra(step), waits(step))
        calls.append(4 + barrier * any(parts[2:]))
        steps.append({name: sum(part.get(name, 0.0) for part in parts) for name in dict.fromkeys(chain(*parts))})
    lines = log_lines(steps, window=range(20, 25))
    return step_log_of([{**line, "collectives": {"count": n}} for line, n in zip(lines, calls, strict=True)], rank=rank)


@pytest.mark.parametrize("cause", ["checkpoint", "evaluation", "garbage_collection", "compilation", "my_logging"])
def test_region_that_some_steps_have_is_named_with_what_it_adds(cause: str) -> None:
    found = training_step([log(extra=every(5, **{cause: 100.0}))])
    assert found is not None and found.ordinary_ns == pytest.approx(50e6, rel=0.01)
    assert found.recurring.causes == (cause,)
    assert found.recurring.rank_ns(cause)[0] == pytest.approx(20e6, rel=0.1)
    assert found.mean_ns == pytest.approx(70e6, rel=0.05) and found.uneven is not None
    assert found.recurring.without((cause,)).total_ns == 0


def test_steps_that_share_a_device_time_differ_as_the_host_s_do_where_the_device_waits_for_it() -> None:
    """Here the host waits for a lock in every seventh step, and there for the device, whose steps are all alike."""
    logged = log(extra=every(7, outside=100.0))
    group = np.arange(STEPS) // 4
    host_mean = (np.bincount(group, weights=logged.dur_ns) / np.bincount(group))[group]
    even = np.random.default_rng(0).normal(64e6, 1e5, group[-1] + 1)[group]
    waited, busy = (training_step([replace(logged, device_ns=x.astype(np.int64))]) for x in (host_mean, even))
    assert waited is not None and busy is not None
    assert waited.ordinary_ns == pytest.approx(50e6, rel=0.02)
    assert waited.recurring.total_ns == pytest.approx(100e6 / 7, rel=0.15)
    assert busy.ordinary_ns == pytest.approx(64e6, rel=0.02)
    assert busy.recurring.total_ns < 1e6


def test_log_without_a_region_for_it_knows_the_restarted_loader_by_its_first_batch() -> None:
    found = training_step([log(extra=every(6, data_loading=120.0, outside=140.0))])
    assert found is not None and found.recurring.causes == ("data_loading",)
    assert found.recurring.rank_ns("data_loading")[0] == pytest.approx(260e6 / 6, rel=0.1)


def test_single_long_step_without_a_name_is_a_hiccup_and_said() -> None:
    found = training_step([log(extra=lambda step: {"forward_pass": 400.0} if step == 40 else {})])
    assert found is not None and found.mean_ns == pytest.approx(50e6, rel=0.01)
    assert any("step 40 took" in line for line in found.notes)


@pytest.mark.parametrize("times", [1, 2])
def test_an_evaluation_is_part_of_the_step_from_its_second_time_on(times: int) -> None:
    at = (30, 45)[:times]
    found = training_step([log(extra=lambda step: {"evaluation": 6_500.0} if step in at else {})])
    assert found is not None
    recurs = times > 1
    assert (found.mean_ns > 100e6) is recurs and bool(found.recurring.causes) is recurs
    assert any("evaluation once, 6.5 s in step 30" in line for line in found.notes) is not recurs


def test_longer_passes_in_some_steps_have_no_cause_but_their_region() -> None:
    found = training_step([log(extra=every(4, forward_pass=60.0))])
    assert found is not None and not found.recurring.causes
    assert found.recurring.other_ns == pytest.approx(15e6, rel=0.1)
    assert max(found.work_gain_ns[0], key=found.work_gain_ns[0].__getitem__) == "forward_pass"


@pytest.mark.parametrize("barrier", [0, 1])
def test_rank_that_alone_saves_makes_the_other_wait(barrier: int) -> None:
    saves, waits = every(5, checkpoint=100.0), every(5, outside=100.0)
    logs = [log(0, extra=saves, barrier=barrier), log(1, waits=waits, barrier=barrier)]
    found = training_step(logs)
    assert found is not None and found.recurring.causes == ("checkpoint",)
    assert found.recurring.rank_ns("checkpoint").tolist() == [pytest.approx(20e6, rel=0.1), 0.0]
    assert found.recurring.waiting_ns().tolist() == [0.0, pytest.approx(20e6, rel=0.1)]
    assert found.recurring.late_ns()[0] == pytest.approx(20e6, rel=0.1)
    assert found.recurring.with_ranks_like_others([0]).total_ns == 0


def test_steps_that_are_slower_after_the_window_are_said_and_do_not_count_as_ordinary() -> None:
    found = training_step([log(slower_after=1.3)])
    assert found is not None and found.ordinary_ns == pytest.approx(50e6, rel=0.01)
    assert any("before the recording" in line and "+2" in line for line in found.notes)
