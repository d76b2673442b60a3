"""What bounds a run: the first finding where it is worth naming, else the budget as far as the replay agrees."""

from pathlib import Path

from tests.analyze.build import RankTrace, built_run
from tests.diagnose.late import late_run

from stepscope.analysis import load
from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.findings import Conclusion, conclude, diagnose

DATA = Path(__file__).parents[1] / "data"
STEP = 2000


def concluded(account: Account) -> Conclusion:
    return conclude(account, diagnose(account))


def test_communication_that_no_recorded_rank_matches_is_not_the_hosts(tmp_path: Path) -> None:
    rank = RankTrace(0, world_size=8)
    for number in range(4):
        t = number * STEP
        rank.step(number, t, t + STEP)
        with rank.op("aten::mm", t + 1, t + 20):
            rank.kernel("gemm", at=t + 10, start=t + 30, end=t + 330)
        rank.collective("allreduce", at=t + 25, start=t + 330, end=t + 1990)
        rank.call("cudaDeviceSynchronize", t + 30, t + 1992)
    account = account_of(built_run(tmp_path, [rank]))
    assert account.step is not None and account.step.ns("unknown") > account.step.step_ns / 2
    assert concluded(account).verdict == "unclear"
    assert "late rank from a slow network: 1.66 of 2 ms in all-reduce" in concluded(account).reason


def test_a_replay_of_another_length_doubts_no_part() -> None:
    account = load(DATA / "h200-hsdp", cache=False).account
    assert account.replay is not None and account.step is not None
    assert account.replay.period_ns > 1.3 * account.step.step_ns
    found = concluded(account)
    assert found.verdict == "unclear" and "what removing it saves is unknown: the replayed step takes" in found.reason


def test_time_without_a_cause_names_what_to_record() -> None:
    found = concluded(load(DATA / "h200-fsdp2", cache=False).account)
    assert "unexplained: the device idles although work is queued; record with --nsys" in found.reason


def test_the_headline_names_the_first_finding(tmp_path: Path) -> None:
    account = account_of(late_run(tmp_path, late_us=2000, loading=True))
    diagnosis = diagnose(account)
    found = conclude(account, diagnosis)
    assert found.first is diagnosis.findings[0]
    assert found.headline == f"straggler-bound: rank 1 costs {diagnosis.findings[0].saving_pct:.0f} %"


def test_copies_are_a_category_of_their_own(tmp_path: Path) -> None:
    rank = RankTrace()
    for number in range(4):
        t = number * STEP
        rank.step(number, t, t + STEP)
        rank.copy(at=t + 5, start=t + 10, end=t + 1400)
        with rank.op("aten::mm", t + 20, t + 30):
            rank.kernel("gemm", at=t + 25, start=t + 1400, end=t + 1990)
        rank.call("cudaDeviceSynchronize", t + 32, t + 1992)
    found = concluded(account_of(built_run(tmp_path, [rank])))
    assert found.verdict == "copy-bound" and "copies between host and device cost" in found.reason


def queued_run(folder: Path) -> Account:
    """Return a job whose device waits for something that no trace holds, for most of the step."""
    rank = RankTrace()
    for number in range(6):
        t = number * STEP
        rank.step(number, t, t + STEP)
        with rank.op("aten::mm", t + 1, t + 20):
            rank.kernel("gemm", at=t + 5, start=t + 30, end=t + 330)
            rank.kernel("gemm", at=t + 10, start=t + 1700, end=t + 1995)
    return account_of(built_run(folder, [rank]))


def test_time_without_a_known_cause_is_unclear_and_says_why(tmp_path: Path) -> None:
    found = concluded(queued_run(tmp_path))
    assert found.verdict == "unclear" and found.first is None
    assert "no known cause" in found.reason and "queued" in found.reason


def test_communication_behind_a_slower_host_does_not_bound_the_step(tmp_path: Path) -> None:
    """The host needs the whole step, so transfers that fill the device's time could be free and save nothing."""
    ranks = []
    for r in range(2):
        rank = RankTrace(r, world_size=2)
        for number in range(6):
            t = number * STEP
            rank.step(number, t, t + STEP)
            for k in range(20):
                at = t + 5 + k * 100
                with rank.op("aten::mm", at, at + 88):
                    rank.kernel("gemm", at=at + 80, start=at + 82, end=at + 94)
                rank.collective("allreduce", at=at + 90, start=at + 94, end=at + 180, elements=4_000_000)
        ranks.append(rank)
    account = account_of(built_run(tmp_path, ranks))
    assert account.step is not None
    assert account.step.ns("exposed_transfer") > account.step.step_ns / 2
    assert concluded(account).verdict != "communication-bound"
