"""Settings of a what-if: known changes to a run whose truth is known, and one line for anything else."""

from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run
from tests.analyze.jobs import job_run, tp
from tests.diagnose.late import OWN_US, late_run

from stepscope.analyze.account import Account, account_of
from stepscope.errors import InputError, UsageError
from stepscope.whatif.settings import what_if

US = 1000
LATE_US = 2000.0
STEP_US = LATE_US + OWN_US


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Account:
    return account_of(late_run(tmp_path_factory.mktemp("late"), late_us=LATE_US, loading=True))


def predicted_us(account: Account, *texts: str) -> float:
    return what_if(account, texts).prediction.step_ns / US


def test_without_a_change_the_step_is_as_recorded(late: Account) -> None:
    answer = what_if(late, [])
    assert answer.prediction.step_ns / US == pytest.approx(STEP_US, rel=0.06)
    assert answer.measured_ns == pytest.approx(STEP_US * US)


@pytest.mark.parametrize("text", ["straggler=off", "straggler=1", "data=instant"])
def test_removing_the_cause_gives_its_time_back(late: Account, text: str) -> None:
    assert predicted_us(late, text) == pytest.approx(OWN_US, abs=0.05 * STEP_US)


def test_a_faster_network_shortens_transfers_alone(tmp_path: Path) -> None:
    account = account_of(late_run(tmp_path, late_us=0))
    assert predicted_us(account) - predicted_us(account, "network=2x") == pytest.approx(150, abs=20)
    assert predicted_us(account) - predicted_us(account, "network=1x") == pytest.approx(0, abs=1)


def test_a_faster_network_helps_a_host_alone_too(tmp_path: Path) -> None:
    ranks = []
    for rank in range(2):
        r = RankTrace(rank, world_size=2, backend="gloo")
        for n in range(6):
            at = n * 1000
            r.step(n, at, at + 1000)
            r.ran("aten::mm", at + 10, at + 400)
            r.gloo("allreduce", at=at + 410, start=at + 420, end=at + 980, elements=100_000)
        ranks.append(r)
    account = account_of(built_run(tmp_path, ranks))
    assert predicted_us(account) - predicted_us(account, "network=2x") == pytest.approx(280, abs=40)
    with pytest.raises(UsageError, match="ranks 0-1 without device work"):
        predicted_us(account, "launch=graph")


def overlapped_run(folder: Path, *, num_ranks: int = 2, without_steps: int | None = None) -> Account:
    """Return a job whose four buckets of 400 us run beside four backward kernels of 500 us, device-bound.

    forward 500 | backward 4 x 500, each sends its bucket | the last bucket 400 | optimizer 100: 3000 us
    """
    ranks = []
    for rank in range(num_ranks):
        r = RankTrace(rank, world_size=num_ranks)
        for n in range(6 if rank != without_steps else 1):
            at = n * 3000
            if rank != without_steps:
                r.step(n, at, at + 3000)
            with r.op("aten::mm", at + 2, at + 10):
                r.kernel("gemm", at=at + 4, start=at + 10, end=at + 510)
            for k in range(4):
                host, done = at + 20 + 30 * k, at + 1010 + 500 * k
                r.backward("MmBackward0", host, host + 28)
                r.kernel("gemm", at=host + 2, start=done - 500, end=done, thread=AUTOGRAD)
                r.call("cudaStreamWaitEvent", host + 6, host + 8, thread=AUTOGRAD)
                r.collective("allreduce", at=host + 12, start=done, end=done + 400, elements=1_000_000)
            r.call("cudaStreamWaitEvent", at + 150, at + 152)
            r.annotation("Optimizer.step#AdamW.step", at + 155, at + 170)
            with r.op("aten::_fused_adamw_", at + 156, at + 168):
                r.kernel("fused_adam", at=at + 160, start=at + 2910, end=at + 3000)
            r.call("cudaStreamSynchronize", at + 172, at + 3000)
        ranks.append(r)
    return account_of(built_run(folder, ranks))


def test_one_bucket_of_everything_costs_the_overlap(tmp_path: Path) -> None:
    account = overlapped_run(tmp_path)
    assert predicted_us(account, "bucket_mb=4") == pytest.approx(3000, abs=150)
    found = what_if(account, ["bucket_mb=1000"]).prediction
    # 1600 us of transfer after backward's end instead of 400, less what four calls cost more than one.
    assert 3600 < found.step_ns / US < 4300
    assert found.baseline_ns < found.low_ns < found.step_ns < found.high_ns


def test_rank_without_steps_leaves_the_others_their_prediction(tmp_path: Path) -> None:
    account = overlapped_run(tmp_path, num_ranks=3, without_steps=0)
    answer = what_if(account, ["bucket_mb=1000"])
    assert answer.prediction.step_ns > answer.prediction.baseline_ns
    assert sorted(answer.prediction.rank_step_ns) == [1, 2]
    assert "no prediction for rank 0: none of these steps was recorded there" in answer.notes


def test_a_replay_far_from_the_measured_step_is_told(tmp_path: Path) -> None:
    account = account_of(late_run(tmp_path, late_us=0), unprofiled_ms=0.5)
    assert any("% off the measured step" in note for note in what_if(account, ["network=2x"]).notes)
    assert not what_if(account_of(late_run(tmp_path, late_us=0)), ["network=2x"]).notes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("frobnicate=1", "straggler=off|RANK,..., load=even, overlap=perfect"),
        ("straggler", "write straggler=off|RANK"), ("straggler=", "write straggler=off|RANK"),
        ("straggler=7", "recorded ranks (0-3)"), ("straggler=0,1,2,3", "not all"), ("straggler=fast", "off, or ranks"),
        ("network=fast", "2x or 0.5x"), ("network=0x", "above 0"), ("bucket_mb=-3", "above 0"),
        ("bucket_mb=1e999", "above 0"), ("data=slow", "data=instant"), ("overlap=some", "overlap=perfect"),
        ("kernel:gemm=quick", "2x or 0.5x"), ("kernel:conv=2x", "kernel:gemm"), ("microbatches=8", "pipeline"),
        ("optimizer=slow", "optimizer=fused"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_line(late: Account, text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        what_if(late, [text])
    assert said in str(error.value) and "\n" not in str(error.value)


def test_collectives_inside_the_passes_cannot_be_moved(tmp_path: Path) -> None:
    account = account_of(job_run(tmp_path, tp, descriptions={"0": "mesh_tp"}))
    with pytest.raises(UsageError, match="cannot be moved"):
        what_if(account, ["overlap=perfect"])


def test_a_run_whose_steps_launch_nothing_cannot_be_replayed(tmp_path: Path) -> None:
    rank = RankTrace()
    rank.step(0, 0, 5)
    rank.kernel("gemm", at=6, start=10, end=20)
    with pytest.raises(InputError, match="nothing to replay"):
        what_if(account_of(built_run(tmp_path, [rank])), ["network=2x"])
