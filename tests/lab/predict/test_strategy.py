"""Strategies and world sizes predicted where the right answer is known beforehand."""

from typing import Any

import pytest
from tests.diagnose.late import late_run

from stepscope.analyze.account import Account, account_of
from stepscope.lab.predict.closed_form import Fabric, Link
from stepscope.lab.predict.model_shape import Sharding, Transformer
from stepscope.lab.predict.scale import growing_rows, scaled
from stepscope.lab.predict.strategy import Question, Speed, advise, time_band
from stepscope.units import ms

SMALL = Transformer(layers=12, d_model=768, heads=12, vocab=32000, mlp_width=3072)
LARGE = Transformer(layers=32, d_model=4096, heads=32, vocab=32000, mlp_width=11008, gated_mlp=True)
SPEED = Speed(1e15, 0.5, 4.8e12)
FAST = Fabric(Link(3_000, 1 / 450), Link(8_000, 1 / 50), 8)
SLOW = Fabric(Link(50_000, 1 / 1))


def question(model, devices=8, gb=141, sequences=64):
    return Question(model, 1024, sequences, devices, gb * 1e9, SPEED)


def test_small_model_takes_plain_data_parallelism():
    found = advise(question(SMALL), source=FAST)
    assert found.by_rule.layout.sharding is Sharding.DDP and found.by_rule.layout.tensor == 1
    assert found.fastest.layout.tensor == found.fastest.layout.pipeline == 1
    assert "plain DDP fits" in found.reason


def test_the_simpler_of_two_that_cannot_be_told_apart_is_recommended():
    found = advise(question(SMALL), source=FAST)
    assert found.fastest.layout.sharding is not Sharding.DDP  # by a few per cent, far inside the interval
    assert found.recommended.layout.sharding is Sharding.DDP and found.recommended.layout.tensor == 1
    assert "within the error" in found.reason and "longer" not in found.reason
    sharded = advise(question(LARGE, gb=80), source=FAST)
    assert sharded.recommended.layout.sharding is not Sharding.DDP or sharded.recommended.layout.tensor > 1


def test_what_is_clearly_faster_is_recommended_however_complicated():
    found = advise(question(SMALL), source=FAST, shares=(0.5, 0.5))
    assert found.recommended is found.fastest and "within the error" not in found.reason


def test_model_that_does_not_fit_is_sharded():
    found = advise(question(LARGE, gb=80), source=FAST)
    assert found.by_rule.layout.sharding is Sharding.ZERO3
    assert found.fastest.layout.sharding is not Sharding.DDP or found.fastest.layout.tensor > 1
    assert all(c.memory.fits(80e9) for c in found.candidates) and "does not fit" in found.reason


def test_slow_links_make_the_step_longer_and_mfu_lower():
    fast, slow = (advise(question(LARGE), source=t).fastest for t in (FAST, SLOW))
    assert slow.mfu is not None and fast.mfu is not None
    assert slow.time.total_ns > fast.time.total_ns and slow.mfu < fast.mfu <= 0.5


def test_band_holds_the_prediction():
    q = question(SMALL)
    best = advise(q, source=FAST).fastest
    low, high = time_band(q, best, shares=(0.35, 0.65), source=FAST)
    assert low < best.time.total_ns < high


FABRIC = Fabric(Link(1_000, 1 / 10))


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Account:
    return account_of(late_run(tmp_path_factory.mktemp("even"), late_us=0))


def step_ms(even: Account) -> float:
    assert even.step is not None
    return ms(even.step.step_ns)


def comm_ms(point: dict[str, Any]) -> float:
    return float(point["comm_pct"] * point["step_ms"] / 100)


def test_the_recorded_world_size_gives_the_recorded_step(even: Account) -> None:
    (found,) = scaled(even, [4])["curve"]
    assert found["step_ms"] == pytest.approx(step_ms(even))
    assert found["weak_efficiency"] == pytest.approx(1) and found["straggler_ms"] == 0


def test_more_ranks_take_longer_by_the_factor_of_the_ring(even: Account) -> None:
    curve = scaled(even, [4, 8, 1024])["curve"]
    comm = [comm_ms(point) for point in curve]
    assert comm[1] / comm[0] == pytest.approx((7 / 8) / (3 / 4), rel=0.06)
    assert comm[2] / comm[0] < 1.6 and curve[2]["step_ms"] > curve[1]["step_ms"]
    assert all(point["low_ms"] < point["step_ms"] < point["high_ms"] for point in curve)
    widths = [point["high_ms"] - point["low_ms"] for point in curve]
    assert widths == sorted(widths)


def test_given_links_decide_what_an_exposed_transfer_takes(even: Account) -> None:
    rank = even.run.ranks[0]
    size = int(rank.collectives.full_bytes[growing_rows(even)[0][0]])
    per_step = len(growing_rows(even)[0]) / even.num_steps
    (found,) = scaled(even, [64], source=FABRIC)["curve"]
    wanted = per_step * FABRIC.predict("all_reduce", size_bytes=size, world_size=64).time_ns
    assert comm_ms(found) == pytest.approx(ms(wanted), rel=0.1)


def test_compute_that_shares_its_cores_takes_longer(even: Account) -> None:
    once, twice = (scaled(even, [4], compute_factor=f)["curve"][0] for f in (1.0, 2.0))
    assert twice["step_ms"] - once["step_ms"] == pytest.approx(step_ms(even) - comm_ms(once), rel=0.1)
