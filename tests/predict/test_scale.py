"""A run at other world sizes, where its communication and what it can hide are known."""

from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run
from tests.diagnose.late import late_run

from stepscope.analyze.account import Account, account_of
from stepscope.cost.closed_form import Fabric, Link, fastest
from stepscope.errors import InputError, UsageError
from stepscope.predict.scale import growing_rows, scaled

FABRIC = Fabric(Link(1_000, 1 / 10))


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Account:
    return account_of(late_run(tmp_path_factory.mktemp("even"), late_us=0))


def test_the_recorded_world_size_gives_the_recorded_step(even: Account) -> None:
    found = scaled(even, [4]).curve[0]
    assert even.step is not None
    assert found.step_ns == pytest.approx(even.step.step_ns)
    assert found.weak_efficiency == pytest.approx(1) and found.straggler_ns == 0


def test_more_ranks_take_longer_by_the_factor_of_the_ring(even: Account) -> None:
    found = scaled(even, [4, 8, 1024])
    comm = [point.comm_ns for point in found.curve]
    assert comm[1] / comm[0] == pytest.approx((7 / 8) / (3 / 4), rel=0.06)
    assert comm[2] / comm[0] < 1.6 and found.curve[2].step_ns > found.curve[1].step_ns
    assert all(point.low_ns < point.step_ns < point.high_ns for point in found.curve)
    widths = [point.high_ns - point.low_ns for point in found.curve]
    assert widths == sorted(widths)


def test_given_links_decide_what_an_exposed_transfer_takes(even: Account) -> None:
    rank = even.run.ranks[0]
    size = int(rank.collectives.full_bytes[growing_rows(even)[0][0]])
    per_step = len(growing_rows(even)[0]) / even.num_steps
    found = scaled(even, [64], source=FABRIC).curve[0]
    wanted = per_step * fastest("all_reduce", size_bytes=size, ranks=64, fabric=FABRIC).time_ns
    assert found.comm_ns == pytest.approx(wanted, rel=0.1)


def test_hidden_communication_stays_hidden_until_it_is_longer_than_compute(tmp_path: Path) -> None:
    ranks = []
    for rank in range(2):
        r = RankTrace(rank, world_size=2)
        for n in range(4):
            at = 4000.0 * n
            r.step(n, at, at + 4000)
            with r.op("aten::mm", at + 10, at + 60):
                r.kernel("gemm", at=at + 20, start=at + 200, end=at + 3800)
            r.backward("MmBackward0", at + 65, at + 100)
            r.collective(
                "allreduce", at=at + 70, start=at + 300, end=at + 1300, elements=1_000_000, thread=AUTOGRAD, stream=20
            )
        ranks.append(r)
    account = account_of(built_run(tmp_path, ranks))
    hidden, shown = (scaled(account, [2, 64], source=Fabric(Link(0, slow))).curve[1] for slow in (0.1, 5.0))
    assert hidden.comm_ns < 0.02 * hidden.step_ns
    assert shown.step_ns == pytest.approx(2 * 63 / 64 * 4e6 * 5.0, rel=0.15)


def test_compute_that_shares_its_cores_takes_longer(even: Account) -> None:
    once, twice = (scaled(even, [4], compute_factor=f).curve[0] for f in (1.0, 2.0))
    assert even.step is not None
    assert twice.step_ns - once.step_ns == pytest.approx(even.step.step_ns - once.comm_ns, rel=0.1)


def test_nonsense_is_refused(even: Account, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a world size has to be from 2"):
        scaled(even, [0])
    with pytest.raises(UsageError, match="compute factor"):
        scaled(even, [8], compute_factor=0)
    alone = RankTrace(0, world_size=1)
    alone.step(0, 0, 1000)
    with alone.op("aten::mm", 10, 60):
        alone.kernel("gemm", at=20, start=100, end=900)
    with pytest.raises(InputError, match="scaling needs at least 2"):
        scaled(account_of(built_run(tmp_path, [alone])), [8])
