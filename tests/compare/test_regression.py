"""The statistics of `stepscope gate`, fed with recorded step times (`tests/data/step_noise`) and planted changes."""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.compare.regression import (
    NO_REGRESSION,
    REGRESSION,
    UNDECIDED,
    Judgement,
    bencher_metrics,
    interleaved,
    looks_of,
    regression_document,
)

DATA = Path(__file__).parents[1] / "data" / "step_noise" / "h200-host.json.gz"
LIMITS = {"threshold_pct": 3.0, "false_alarm_pct": 2.0}
TRIAL = 16
"""steps"""


@cache
def pairs() -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Return neighbouring stretches of the same recorded jobs, alone and next to busy loops: two trials of a round."""
    jobs = json.loads(gzip.decompress(DATA.read_bytes()))
    out = []
    for steps in _series(jobs):
        settled = steps[2 : 2 + (len(steps) - 2) // (2 * TRIAL) * 2 * TRIAL].reshape(-1, 2, TRIAL)
        out += [(one, other) for one, other in settled]
    return tuple(out)


def _series(found: Any) -> Iterator[np.ndarray]:
    for job in found:
        yield np.max([rank["dur"] for rank in job["steps"]], axis=0) / 1000


def gate(seed: int, *, change: float = 0.0, every: int = 1, looks: tuple[int, ...] = (16, 32, 64)) -> Judgement:
    """Return the judgement of recorded pairs in random order; every so many steps of head are slower by `change`."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(pairs()))
    swapped = rng.random(len(chosen)) < 0.5
    at = {"base": 0, "head": 0}

    def run(when: str, side: str) -> np.ndarray:
        k = chosen[at[side]]
        steps = pairs()[k][int((side == "head") ^ swapped[k])].copy()
        at[side] += 1
        if side == "head":
            steps[::every] *= 1 + change
        return steps

    return interleaved(run, looks=looks, **LIMITS)


def test_equal_sides_raise_hardly_any_alarm() -> None:
    assert sum(gate(seed).verdict == REGRESSION for seed in range(40)) <= 2


@pytest.mark.parametrize(("change", "least"), [(0.05, 9), (0.10, 10)])
def test_planted_regressions_are_found(change: float, least: int) -> None:
    found = [gate(seed, change=change) for seed in range(10)]
    assert sum(one.verdict == REGRESSION for one in found) >= least
    held = [one.changes["typical"].low_pct < 100 * change < one.changes["typical"].high_pct for one in found]
    assert sum(held) >= 9


def test_slower_steps_now_and_then_show_in_the_mean() -> None:
    found = gate(0, change=4.0, every=8)
    assert found.verdict == REGRESSION
    assert found.changes["mean"].low_pct > 0 > found.changes["typical"].low_pct
    assert "some steps only" in regression_document(found, **LIMITS)["reason"]


def test_faster_is_no_regression_and_ends_at_the_first_test() -> None:
    found = gate(0, change=-0.3)
    assert found.verdict == NO_REGRESSION and found.rounds == 16
    assert "faster" in regression_document(found, **LIMITS)["reason"]


def test_few_rounds_of_noise_are_undecided_with_what_they_could_miss() -> None:
    times = iter([10.0, 13.0, 9.0, 14.0, 12.0, 9.0])
    found = interleaved(lambda *_: [next(times)] * 9, looks=(3,), **LIMITS)
    assert found.verdict == UNDECIDED and found.changes["typical"].detectable_pct > 10
    assert "can be missed" in regression_document(found, **LIMITS)["reason"]


def test_sides_take_turns_to_be_first_and_ctrl_c_judges_what_ran() -> None:
    ran: list[str] = []

    def run(when: str, side: str) -> list[float]:
        if when == "round 5":
            raise KeyboardInterrupt
        ran.append(side)
        return [10.0 + 0.01 * len(ran)] * 9

    found = interleaved(run, looks=looks_of(8, None), **LIMITS)
    assert ran == ["base", "head", "head", "base"] * 2
    assert found.stopped and found.rounds == 4 and found.verdict == NO_REGRESSION


def test_bencher_metrics_are_the_head_in_nanoseconds() -> None:
    times = {"base": [10.0, 10.0, 10.0], "head": [11.0, 11.0, 11.0]}
    found = interleaved(lambda _, side: times[side], looks=(3,), **LIMITS)
    metrics = bencher_metrics(regression_document(found, **LIMITS), name="demo")["demo"]
    assert metrics["latency"]["value"] == pytest.approx(11e6)
    assert metrics["change-percent"]["value"] == pytest.approx(10)
