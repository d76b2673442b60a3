"""One process on a CPU and what recurs outside the window: budget, findings and what-ifs of the mean training step."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.simulate import SYNC, Op, backward, kernel, simulate
from tests.analyze.step_logs import log_lines
from tests.diagnose.matched import matched

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.findings import diagnose
from stepscope.run.load import Run
from stepscope.run.side_files import step_log_of
from stepscope.whatif.settings import what_if

MS = 1000.0
LOADING, COMPUTE = 30.0, 20.0
FIRST, LAST, STEPS = 20, 25, 60


def one_process(folder: Path) -> Run:
    """Return a CPU process that loads for 30 ms and computes for 20 in each of five recorded steps."""
    trace = RankTrace(0)
    for n in range(FIRST, LAST):
        at = n * (LOADING + COMPUTE) * MS
        trace.step(n, at, at + (LOADING + COMPUTE) * MS)
        trace.ran("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + LOADING * MS)
        trace.ran("aten::mm", at + LOADING * MS, at + (LOADING + COMPUTE) * MS)
    return built_run(folder, [trace])


def account(folder: Path, *, every: int = 0, **extra_ms: float) -> Account:
    """Return the account with a log of 60 steps, of which each n-th takes longer in some regions."""
    window = range(FIRST, LAST)
    extra = [extra_ms if every and step % every == 0 and step not in window else {} for step in range(STEPS)]
    usual = {"data_loading": LOADING, "forward_pass": COMPUTE}
    lines = log_lines(({**usual, **more} for more in extra), window=window)
    return account_of(replace(one_process(folder), logs=(step_log_of(lines, rank=0),)))


def test_one_process_on_a_cpu_gets_findings_and_what_ifs(tmp_path: Path) -> None:
    found = account_of(one_process(tmp_path))
    (first,) = diagnose(found).findings
    assert first.id == "data-loading" and first.saving_ns == pytest.approx(LOADING * 1e6, rel=0.02)
    answer = what_if(found, ["data=instant"])
    assert answer.prediction.step_ns == pytest.approx(COMPUTE * 1e6, rel=0.02)


def test_process_that_only_computes_gets_none(tmp_path: Path) -> None:
    trace = RankTrace(0)
    for n in range(5):
        trace.step(n, n * 50 * MS, (n + 1) * 50 * MS)
        trace.ran("aten::mm", n * 50 * MS, (n + 1) * 50 * MS)
    assert not diagnose(account_of(built_run(tmp_path, [trace]))).findings


@pytest.mark.parametrize(
    ("region", "title"),
    [("checkpoint", "checkpoints"), ("evaluation", "Passes without gradients"), ("garbage_collection", "garbage"),
     ("compilation", "compiled"), ("rollout", "rollout")],
)  # fmt: skip
def test_what_recurs_outside_the_window_is_in_budget_findings_and_what_ifs(tmp_path, region, title):
    found = account(tmp_path, every=10, **{region: 1000.0})
    step = found.step
    assert step is not None and step.ordinary_ns == pytest.approx(50e6)
    share = found.training.recurring.num_steps_with(region)  # type: ignore[union-attr]
    more_ns = 1000e6 * share[0] / share[1]
    assert step.step_ns == pytest.approx(50e6 + more_ns)
    assert step.ns("host_stall") == pytest.approx(more_ns, rel=0.01) and step.ns("unknown") < 0.03 * step.step_ns
    first = diagnose(found).findings[0]
    assert first.id == ("recompilation" if region == "compilation" else "host-stall")
    assert title in first.title and region in first.cause
    assert first.saving_ns == pytest.approx(more_ns, rel=0.02) and first.saving_ns <= step.ns("host_stall")
    answer = what_if(found, ["stalls=off"])
    assert answer.prediction.step_ns == pytest.approx(50e6, rel=0.02)


def test_passes_without_gradients_every_few_steps_may_be_what_training_needs(tmp_path: Path) -> None:
    first = diagnose(account(tmp_path, every=6, evaluation=300.0)).findings[0]
    assert first.id == "host-stall" and "Passes without gradients" in first.title and first.confidence <= 0.5
    assert "rollouts" in first.remedy


def test_two_recurring_causes_are_two_findings_that_one_setting_removes(tmp_path: Path) -> None:
    found = account(tmp_path, every=10, checkpoint=1000.0, evaluation=600.0)
    diagnosis = diagnose(found)
    stalls = [f for f in diagnosis.findings if f.id == "host-stall"]
    assert found.step is not None and len(stalls) == 2
    assert sum(f.alone_ns for f in stalls) == pytest.approx(found.step.ns("host_stall"), rel=0.01)
    assert sum(f.saving_ns for f in stalls) == pytest.approx(found.step.ns("host_stall"), rel=0.01)
    assert diagnosis.combined[1][1] == pytest.approx(found.step.ns("host_stall"), rel=0.01)
    prediction = what_if(found, ["stalls=off"]).prediction
    assert prediction.step_ns == pytest.approx(50e6, rel=0.02) and prediction.baseline_ns == pytest.approx(
        found.step.step_ns, rel=0.02
    )


@pytest.mark.parametrize("on_device", [True, False])
def test_recurring_work_of_the_device_is_named_without_a_region(tmp_path: Path, on_device: bool) -> None:
    """Every fifth step of 60 takes longer inside forward: its device computes more, or has nothing to do."""
    ordinary = [kernel(400), kernel(400), *[backward(400)] * 4, SYNC]
    extra: list[Op] = [*[kernel(400)] * 12, SYNC] if on_device else [Op("stall", 4800)]
    job = simulate(lambda n: [*extra * (n % 5 == 2), *ordinary])
    times_ms = (2.4 + 4.8 * (step % 5 == 2) for step in range(STEPS))
    lines = log_lines(({"forward_pass": ms} for ms in times_ms), window=range(10))
    run = replace(job.aligned(tmp_path).run, logs=(step_log_of(lines, rank=0),))
    found = account_of(run)
    more_ns = 4.8e6 * 10 / 49  # the step after the window settles
    assert found.replay is not None and found.replay.recurring.other_ns == pytest.approx(more_ns)
    said = matched(found, "host-stall", "20 % of the steps do more than the others")
    assert len(said) == on_device
    assert [c.match.cost_ns for c in said] == [pytest.approx(more_ns)] * on_device
    assert on_device == any(c.title == f.title for c in said for f in diagnose(found).findings)
