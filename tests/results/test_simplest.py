"""The simplest series is taken unless another one is clearly faster."""

import random

from stepscope.results.simplest import simplest_unless_slower


def runs(middle_ms: float, seed: int = 0) -> list[list[float]]:
    chance = random.Random(seed)
    return [[middle_ms * (1 + 0.02 * chance.gauss(0, 1)) for _ in range(40)] for _ in range(3)]


def test_the_simpler_is_taken_where_nothing_is_clearly_faster() -> None:
    found = simplest_unless_slower([("ddp", runs(10.0)), ("zero1", runs(9.999, 1)), ("zero3", runs(14.0, 2))])
    assert found is not None and (found.name, found.against, found.clear) == ("ddp", "zero1", False)
    assert found.low is not None and found.high is not None and found.low < 1 < found.high


def test_the_clearly_faster_is_taken_with_its_margin() -> None:
    found = simplest_unless_slower([("ddp", runs(10.0)), ("zero1", runs(12.0, 1)), ("zero3", runs(7.0, 2))])
    assert found is not None and (found.name, found.against, found.clear) == ("zero3", "ddp", True)
    assert found.over is not None and 0.65 < found.over < 0.75


def test_one_series_has_no_margin_and_none_no_choice() -> None:
    alone = simplest_unless_slower([("ddp", runs(10.0)), ("zero1", [])])
    assert alone is not None and (alone.name, alone.against, alone.clear) == ("ddp", None, False)
    assert simplest_unless_slower([("ddp", [])]) is None
