"""What more loader workers save is bounded by the cores of the host and by the workers that are there already."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.analyze.build import built_run
from tests.analyze.simulate import SYNC, Op, simulate
from tests.diagnose.test_rules import STEP

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import diagnose


def account(folder: Path, wait_us: float = 30_000) -> Account:
    job = simulate([Op("data", wait_us), *STEP, SYNC])
    return account_of(built_run(folder, job.traces), unprofiled_ms=job.period_us / 1000)


def loading(found: Account, *, workers: int, cores: int) -> Finding:
    described = {"ranks": {"0": {"loader_workers": workers, "cores": cores}}, "hosts": {"node": [0]}}
    run = replace(found.run, description={**found.run.description, **described})
    (one,) = [f for f in diagnose(replace(found, run=run)).findings if f.id == "data-loading"]
    return one


def test_without_workers_a_batch_takes_its_share_of_the_free_cores(tmp_path: Path) -> None:
    found = account(tmp_path)
    assert found.step is not None
    many, two = loading(found, workers=0, cores=64), loading(found, workers=0, cores=3)
    waited_ms = found.step.ns("data_loading") / 1e6
    assert [e.value for e in many.evidence if e.what == "data loading per step"] == [round(waited_ms, 3)]
    free_ms = found.step.step_ns / 1e6 - waited_ms
    enough = math.ceil(waited_ms / free_ms) + 1
    assert 2 < enough < 63 and f"num_workers={enough}," in many.remedy and "num_workers=2," in two.remedy
    left_ms = 0.5 * waited_ms - free_ms
    handed_over_ms = 0.5  # what taking a batch from a worker costs is left in any case
    assert left_ms > handed_over_ms
    assert many.alone_ns - two.alone_ns == pytest.approx(1e6 * (left_ms - handed_over_ms), rel=0.05)


def test_more_workers_are_not_advised_where_no_core_is_free(tmp_path: Path) -> None:
    one = loading(account(tmp_path), workers=4, cores=4)
    assert "more workers cannot hide it on this one (4 workers per rank, 4 cores for 1 rank)" in one.remedy
    assert one.confidence <= 0.5


def test_no_worker_is_advised_for_loading_that_computes_without_a_free_core(tmp_path: Path) -> None:
    one = loading(account(tmp_path), workers=0, cores=1)
    assert "no core is free" in one.remedy and "num_workers" not in one.remedy and one.confidence <= 0.5


def test_a_worker_is_not_advised_where_taking_a_batch_from_it_costs_as_much(tmp_path: Path) -> None:
    one = loading(account(tmp_path, wait_us=400), workers=0, cores=8)
    assert "more workers cannot hide it" in one.remedy and "of the training thread" in one.remedy
