"""Headline, findings, budget, checks, guides, health and `next:` agree with each other."""

from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import built_run
from tests.analyze.simulate import simulate
from tests.diagnose.late import late_run
from tests.diagnose.scope.test_unexamined_faults import one_rank
from tests.diagnose.test_rules import FAULTS, HEALTHY
from tests.diagnose.test_verdict import queued_run

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.findings import conclude, diagnose
from stepscope.document.consistency import consistent, contradictions
from stepscope.document.report import report_json
from stepscope.report.summary import summary_text
from stepscope.run.load import load
from stepscope.whatif.settings import what_if

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data"
Report = dict[str, Any]
RECORDED = (
    "dlrm-8ranks", "gloo-ddp", "h200-cuda-graphs", "h200-fsdp2", "h200-hsdp", "h200-pipeline-interleaved",
    "h200-python-stacks", "foreign-amd/mi300-vf.json.gz", "foreign-amd/sglang.json.gz", "foreign-amd/vllm.json.gz",
    "foreign-mtia", "foreign-no-kernels", "foreign-no-steps", "foreign-rowwise", "foreign-torch18/workers0.json.gz",
    "layouts/compact-alltoall.json.gz", "layouts/old-kineto-a100.json.gz", "layouts/rocm-mi300.json.gz",
)  # fmt: skip


def one_of_many(folder: Path) -> Account:
    return one_rank(folder, collectives=100)


def one_rank_without_steps(folder: Path) -> Account:
    return one_rank(folder, steps=False, loading=True)


def told(account: Account) -> Report:
    """Return the report of a run, whose checks on itself found nothing and whose screen says its headline."""
    report = report_json(account, diagnose(account))
    assert report["contradictions"] == []
    headline = conclude(account, diagnose(account)).headline
    assert headline[:150] in " ".join(summary_text(report, verbose=True).split())
    return report


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_run_agrees_with_itself(name):
    assert told(account_of(load([str(DATA / name)], jobs=1, cache=False)))


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_planted_fault_is_told_the_same_everywhere(tmp_path, name):
    job = simulate(*FAULTS[name].faulty)
    account = account_of(built_run(tmp_path, job.traces), unprofiled_ms=job.period_us / 1000)
    first, words = diagnose(account).worth[0], told(account)["findings"][0]["what_if"]
    if words and len([f for f in diagnose(account).findings if f.id == first.id]) == 1:
        given = {key: words[k + 1] for k, key in enumerate(words) if key.startswith("--")}
        ranks = [int(rank) for rank in given.pop("--ranks").split(",")] if "--ranks" in given else None
        answer = what_if(account, list(given.values()), ranks=ranks).prediction
        assert answer.baseline_ns - answer.step_ns == pytest.approx(first.alone_ns, rel=1e-3)


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_healthy_run_agrees_with_itself(tmp_path, name):
    assert told(account_of(built_run(tmp_path, simulate(*HEALTHY[name], jitter=0.02).traces)))


@pytest.mark.parametrize(
    "made",
    [queued_run, one_of_many, one_rank_without_steps, lambda f: account_of(late_run(f, late_us=2000, loading=True))],
)
def test_constructed_run_agrees_with_itself(tmp_path, made):
    assert told(made(tmp_path))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("findings", 0, "saving_alone_ms"), 1e6), (("findings", 0, "saving_high_ms"), 1e6),
        (("findings", 0, "saving_low_ms"), -1.0), (("findings", 0, "cost_ms_per_step"), 1e6),
        (("findings", 0, "saving_pct"), 3.0), (("findings_combined", 0, "saving_ms_per_step"), 1e6),
        (("step", "budget", 0, "ms_per_step"), 1e6), (("ranks", 0, "wait_ms"), 1e6),
        (("ranks", 0, "exposed_comm_ms"), 1e6), (("ranks", 0, "overlap_pct"), 120.0),
        (("stragglers", 0, "late_ms_per_step"), 1e6), (("efficiency", "mfu"), 1.5),
    ],
)  # fmt: skip
def test_a_number_that_another_rules_out_is_noticed(tmp_path, where, value):
    account = account_of(late_run(tmp_path, late_us=2000, loading=True))
    report = report_json(account, diagnose(account))
    assert report["contradictions"] == []
    *path, last = where
    place: Any = report
    for key in path:
        place = place[key]
    place[last] = value
    found = consistent(report)["contradictions"]
    assert found and list(contradictions(report)) == []


def test_a_saving_beyond_what_its_fix_can_remove_is_noticed(tmp_path):
    job = simulate(*FAULTS["data-loading"].faulty)
    account = account_of(built_run(tmp_path, job.traces), unprofiled_ms=job.period_us / 1000)
    report = report_json(account, diagnose(account))
    first = report["findings"][0]
    assert first["id"] == "data-loading" and report["contradictions"] == []
    step_ms = report["step"]["unprofiled_ms"]
    first |= dict.fromkeys(("saving_alone_ms", "saving_high_ms", "cost_ms_per_step"), 0.99 * step_ms)
    first["saving_pct"] = 99.0
    assert [one for one in contradictions(report) if " less " in one.what]
