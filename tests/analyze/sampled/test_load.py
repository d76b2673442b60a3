"""A run of which some ranks are analysed in full, held against the same run with all of them in full."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.simulate import SYNC, WAIT, Op, Simulated, backward, collective, kernel, simulate

from stepscope.analyze.account import Account, account_of
from stepscope.analyze.sampled import load_run
from stepscope.diagnose.findings import diagnose
from stepscope.document.report import report_json

RANKS, IN_FULL = 24, 8
LATE_US = 400.0


def simulated(*, late: Sequence[int] = (), ranks: int = RANKS, steps: int = 5) -> Simulated:
    """Return a data-parallel job in which every kernel of the late ranks' forward pass takes longer."""

    def step(rank: int) -> list[Op]:
        slow = LATE_US / 4 if rank in late else 0.0
        forward = [kernel(100 + slow) for _ in range(4)]
        return [*forward, backward(150), collective(60), backward(150), collective(60), WAIT, kernel(40), SYNC]

    clocks = [3.0 * rank for rank in range(ranks)]
    return simulate(*(step(rank) for rank in range(ranks)), steps=steps, jitter=0.03, offset_us=clocks)


def job(folder: Path, **planted: Any) -> Path:
    """Return the folder with the traces of such a job."""
    folder.mkdir(exist_ok=True)
    for trace in simulated(**planted).traces:
        trace.write(folder)
    return folder


def account(folder: Path, full_ranks: int | None) -> Account:
    return account_of(load_run(folder, full_ranks=full_ranks, cache=False, jobs=2))


def document(found: Account) -> dict[str, Any]:
    return json.loads(json.dumps(report_json(found, diagnose(found))))


@pytest.mark.slow
@pytest.mark.parametrize("late", [RANKS - 1])
def test_late_rank_is_named_with_its_cost_wherever_it_is(tmp_path: Path, late: int) -> None:
    folder = job(tmp_path / "job", late=[late])
    some, whole = account(folder, IN_FULL), account(folder, RANKS)
    assert len(some.run.ranks) == IN_FULL and len(whole.run.ranks) == RANKS
    assert [s.rank for s in some.stragglers] == [s.rank for s in whole.stragglers] == [late]
    mine, theirs = some.stragglers[0], whole.stragglers[0]
    assert mine.cause == theirs.cause == "device"
    assert (mine.late_ns_per_step, mine.score, mine.steps_late) == (
        theirs.late_ns_per_step,
        theirs.score,
        theirs.steps_late,
    )
    finding, true = (next(f for f in diagnose(a).findings if f.id == "straggler") for a in (some, whole))
    assert finding.ranks == true.ranks == (late,)
    saved_us = simulated(late=[late]).period_us - simulated().period_us
    assert [f.alone_ns for f in (finding, true)] == pytest.approx([saved_us * 1000] * 2, rel=0.1)


@pytest.mark.slow
def test_what_is_of_all_ranks_is_the_same_to_the_byte(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", late=[13])
    some, whole = document(account(folder, IN_FULL)), document(account(folder, RANKS))
    for rank in (*some["ranks"], *whole["ranks"]):
        del rank["budget_ms_per_step"]  # known of ranks in full
    for part in ("ranks", "collectives", "stragglers"):
        assert some[part] == whole[part]
    for key in ("world_size", "num_ranks", "num_steps", "sources", "strategy"):
        assert some["run"][key] == whole["run"][key]
    assert some["step"]["late_rank"] == whole["step"]["late_rank"] == 13


@pytest.mark.slow
def test_what_is_of_the_ranks_in_full_is_the_same_as_in_the_whole(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", late=[13])
    some, whole = account(folder, IN_FULL), account(folder, RANKS)
    by_rank = {view.rank.rank: view for view in whole.ranks}
    for view in some.ranks:
        same = by_rank[view.rank.rank]
        assert view.budget is not None and same.budget is not None
        assert (view.budget.part_ns == same.budget.part_ns).all()
        assert view.wait == same.wait


@pytest.mark.slow
def test_the_step_of_the_job_is_within_what_the_sample_says(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", late=[13])
    some, whole = account(folder, IN_FULL), account(folder, RANKS)
    assert some.step is not None and whole.step is not None
    assert some.step.step_ns == pytest.approx(whole.step.step_ns, rel=0.01)
    # One late rank of 8 instead of one of 24: the mean rank waits by so much less.
    most = LATE_US * 1000 * (1 / IN_FULL - 1 / RANKS)
    for part in whole.step.parts:
        assert abs(some.step.ns(part.part) - part.ns_per_step) <= 1.3 * most
    [said] = [line for line in some.warnings if "ranks in full less that of all" in line]
    assert "waiting -" in said and "compute +" in said


@pytest.mark.slow
def test_a_rank_that_cannot_be_read_is_lost_as_ever(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    (folder / "rank00007.pt.trace.json.gz").write_bytes(b"no trace")
    some = account(folder, IN_FULL)
    assert len(some.run.unreadable) == 1 and len(some.run.ranks_read) == RANKS - 1
    assert len(some.run.ranks) == IN_FULL and any("ranks missing: 7 of 24" in line for line in some.warnings)


def test_ranks_known_by_order_only_are_all_read_in_full(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", ranks=10)
    for number, path in enumerate(sorted(folder.iterdir())):
        text = json.loads(gzip.decompress(path.read_bytes()))
        text.pop("distributedInfo", None)
        (folder / f"part-{chr(97 + number)}.json").write_text(json.dumps(text))
        path.unlink()
    run = load_run(folder, full_ranks=IN_FULL, cache=False)
    assert len(run.ranks) == 10 and run.everyone is None and not run.sampling
