"""Advice on strategies where the right answer is known beforehand."""

from dataclasses import replace

import pytest

from stepscope.cost.closed_form import Fabric, Link
from stepscope.cost.model_flops import Transformer
from stepscope.cost.model_shape import Sharding
from stepscope.cost.strategy_cost import times_of
from stepscope.errors import UsageError
from stepscope.predict.strategy import Question, Speed, advise, time_band

SMALL = Transformer(layers=12, d_model=768, heads=12, vocab=32000, mlp_width=3072)
LARGE = Transformer(layers=32, d_model=4096, heads=32, vocab=32000, mlp_width=11008, gated_mlp=True)
SPEED = Speed(1e15, 0.5, 4.8e12)
FAST = times_of(Fabric(Link(3_000, 1 / 450), Link(8_000, 1 / 50), 8))
SLOW = times_of(Fabric(Link(50_000, 1 / 1)))


def question(model, devices=8, gb=141, sequences=64):
    return Question(model, 1024, sequences, devices, gb * 1e9, SPEED)


def test_small_model_takes_plain_data_parallelism():
    found = advise(question(SMALL), times=FAST)
    assert found.by_rule.layout.sharding is Sharding.DDP and found.by_rule.layout.tensor == 1
    assert found.fastest.layout.tensor == found.fastest.layout.pipeline == 1
    assert "plain DDP fits" in found.reason


def test_the_simpler_of_two_that_cannot_be_told_apart_is_recommended():
    found = advise(question(SMALL), times=FAST)
    assert found.fastest.layout.sharding is not Sharding.DDP  # by a few per cent, far inside the interval
    assert found.recommended.layout.sharding is Sharding.DDP and found.recommended.layout.tensor == 1
    assert "no difference" in found.reason and "longer" not in found.reason
    sharded = advise(question(LARGE, gb=80), times=FAST)
    assert sharded.recommended.layout.sharding is not Sharding.DDP or sharded.recommended.layout.tensor > 1


def test_what_is_clearly_faster_is_recommended_however_complicated():
    found = advise(question(SMALL), times=FAST, shares=(0.5, 0.5))
    assert found.recommended is found.fastest and "no difference" not in found.reason


def test_model_that_does_not_fit_is_sharded():
    found = advise(question(LARGE, gb=80), times=FAST)
    assert found.by_rule.layout.sharding is Sharding.ZERO3
    assert found.fastest.layout.sharding is not Sharding.DDP or found.fastest.layout.tensor > 1
    assert all(c.memory.fits(80e9) for c in found.candidates) and "does not fit" in found.reason


def test_slow_links_make_the_step_longer_and_mfu_lower():
    fast, slow = (advise(question(LARGE), times=t).fastest for t in (FAST, SLOW))
    assert slow.mfu is not None and fast.mfu is not None
    assert slow.time.total_ns > fast.time.total_ns and slow.mfu < fast.mfu <= 0.5


def test_band_holds_the_prediction():
    q = question(SMALL)
    best = advise(q, times=FAST).fastest
    low, high = time_band(q, best, shares=(0.35, 0.65), times=FAST)
    assert low < best.time.total_ns < high


@pytest.mark.parametrize(
    "asked, said",
    [
        (question(replace(LARGE, layers=1000), devices=1, sequences=1), "in no way"),
        (question(SMALL, devices=0), "devices has to be at least 1"),
        (question(SMALL, gb=-1), "memory has to be above 0"),
        (question(SMALL, devices=7, sequences=64), "multiple of the devices"),
    ],
)
def test_nonsense_and_models_that_fit_nowhere_are_refused(asked, said):
    with pytest.raises(UsageError, match=said):
        advise(asked, times=FAST)
