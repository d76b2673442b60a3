"""Headline, findings, budget, checks, guides, health, investigation and `next:` never contradict each other."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from tests.analyze.build import built_run
from tests.analyze.simulate import simulate
from tests.diagnose.late import late_run
from tests.diagnose.scope.test_examined import one_rank
from tests.diagnose.test_rules import FAULTS, HEALTHY
from tests.diagnose.test_verdict import queued_run

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.findings import diagnose
from stepscope.diagnose.verdict import conclude
from stepscope.run.load import load

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
RECORDED = (
    "dlrm-8ranks",
    "gloo-ddp",
    "h200-cuda-graphs",
    "h200-fsdp2",
    "h200-hsdp",
    "h200-pipeline-interleaved",
    "h200-python-stacks",
    "layouts/compact-alltoall.json.gz",
    "layouts/old-kineto-a100.json.gz",
    "layouts/rocm-mi300.json.gz",
)


def one_of_many(folder: Path) -> Account:
    return one_rank(folder, collectives=100)


def one_rank_without_steps(folder: Path) -> Account:
    return one_rank(folder, steps=False, loading=True)


@pytest.fixture(scope="module")
def agreement() -> ModuleType:
    spec = importlib.util.spec_from_file_location("agreement", ROOT / "benchmarks" / "agreement.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_run_agrees_with_itself(agreement: ModuleType, name: str) -> None:
    account = account_of(load([str(DATA / name)], jobs=1, cache=False))
    assert agreement.contradictions(account) == []


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_planted_fault_is_told_the_same_everywhere(agreement: ModuleType, tmp_path: Path, name: str) -> None:
    job = simulate(*FAULTS[name].faulty)
    account = account_of(built_run(tmp_path, job.traces), unprofiled_ms=job.period_us / 1000)
    assert agreement.contradictions(account) == []


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_healthy_run_agrees_with_itself(agreement: ModuleType, tmp_path: Path, name: str) -> None:
    account = account_of(built_run(tmp_path, simulate(*HEALTHY[name], jitter=0.02).traces))
    assert agreement.contradictions(account) == []


@pytest.mark.parametrize(
    "made",
    [queued_run, one_of_many, one_rank_without_steps, lambda f: account_of(late_run(f, late_us=2000, loading=True))],
)
def test_constructed_run_agrees_with_itself(
    agreement: ModuleType, tmp_path: Path, made: Callable[[Path], Account]
) -> None:
    assert agreement.contradictions(made(tmp_path)) == []


def test_a_run_told_otherwise_is_noticed(agreement: ModuleType, tmp_path: Path) -> None:
    account = account_of(late_run(tmp_path, late_us=2000, loading=True))
    diagnosis = diagnose(account)
    told = conclude(account, diagnosis)
    swapped = replace(diagnosis, findings=diagnosis.findings[::-1])
    assert list(agreement._of_savings(account, swapped))
    assert list(agreement._of_verdict(account, diagnosis, replace(told, verdict="compute-bound")))
    assert list(agreement._of_renderings(account, diagnosis, replace(told, reason="something else")))
    first = replace(diagnosis.findings[0], alone_ns=0.5 * diagnosis.findings[0].alone_ns)
    assert list(agreement._of_next(account, replace(diagnosis, findings=(first, *diagnosis.findings[1:]))))
