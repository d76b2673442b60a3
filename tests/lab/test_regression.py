"""The statistics of `stepscope gate`, fed with recorded step times (`tests/data/step_noise`) and planted changes."""

import gzip
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stepscope.lab.experiment import Rounds, Trial, run_rounds
from stepscope.lab.regression import BASE, HEAD, NO_REGRESSION, REGRESSION, UNDECIDED, bencher_metrics, judge, looks_of

DATA = Path(__file__).parents[1] / "data" / "step_noise" / "h200-host.json.gz"
LIMITS: dict[str, Any] = {"threshold_pct": 3.0, "false_alarm_pct": 2.0}
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


Round = dict[str, Trial]


def round_of(
    base: npt.ArrayLike, head: npt.ArrayLike, start: int, *, waits: Sequence[npt.ArrayLike] = (0.0, 0.0)
) -> Round:
    """Return a round in which the steps of both sides waited so long for a core."""
    sides = zip((BASE, HEAD), (base, head), waits, strict=True)
    return {side: Trial(np.array(np.broadcast_arrays(ms, wait, 0.0)), start=start) for side, ms, wait in sides}


def judged(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the judgement of rounds, in one look."""
    return judge(Rounds({side: [one[side] for one in rounds] for side in (BASE, HEAD)}), **LIMITS)


def interleaved(rounds: Iterator[Round], *, looks: tuple[int, ...]) -> dict[str, Any]:
    """Return the judgement of a gate that runs rounds until they are decided."""

    def judgement(found: Rounds) -> dict[str, Any]:
        return judge(found, looks=len(looks), **LIMITS)

    found = run_rounds(
        (BASE, HEAD),
        lambda number, order: next(rounds),
        looks=looks,
        undecided=lambda found: (HEAD,) if judgement(found)["verdict"] == UNDECIDED else (),
    )
    return judgement(found)


def gate(seed: int, *, change: float = 0.0, every: int = 1, looks: tuple[int, ...] = (16, 32, 64)) -> dict[str, Any]:
    """Return the judgement of recorded pairs in random order; every so many steps of head are slower by `change`."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(pairs()))
    swapped = rng.random(len(chosen)) < 0.5

    def rounds() -> Iterator[Round]:
        for start, k in enumerate(chosen):
            base, head = (steps.copy() for steps in pairs()[k][:: -1 if swapped[k] else 1])
            head[::every] *= 1 + change
            yield round_of(base, head, start)

    return interleaved(rounds(), looks=looks)


@pytest.mark.slow
def test_equal_sides_raise_hardly_any_alarm() -> None:
    assert sum(gate(seed)["verdict"] == REGRESSION for seed in range(40)) <= 2


@pytest.mark.parametrize(("change", "least"), [(0.05, 9), (0.10, 10)])
def test_planted_regressions_are_found(change: float, least: int) -> None:
    found = [gate(seed, change=change) for seed in range(10)]
    assert sum(one["verdict"] == REGRESSION for one in found) >= least
    held = [
        one["changes"]["typical"]["low_pct"] < 100 * change < one["changes"]["typical"]["high_pct"] for one in found
    ]
    assert sum(held) >= 9


def test_slower_steps_now_and_then_show_in_the_mean() -> None:
    found = gate(0, change=4.0, every=8)
    assert found["verdict"] == REGRESSION
    assert found["changes"]["mean"]["low_pct"] > 0 > found["changes"]["typical"]["low_pct"]
    assert "some steps only" in found["reason"]
    found = gate(0, change=-0.8, every=2)  # half of the steps are short: the others recur as long ones
    assert found["step"] == "mean" and -45 < found["changes"]["mean"]["pct"] < -35
    assert f"faster by {found['changes']['mean']['pct']:.1f} %" in found["reason"]


def test_faster_is_no_regression_and_ends_at_the_first_test() -> None:
    found = gate(0, change=-0.3)
    assert found["verdict"] == NO_REGRESSION and found["rounds"] == 16
    assert "faster" in found["reason"]


def test_few_rounds_of_noise_are_undecided_with_what_they_could_miss() -> None:
    times = ((10.0, 13.0), (14.0, 9.0), (12.0, 9.0))
    rounds = (round_of([base] * 9, [head] * 9, start) for start, (base, head) in enumerate(times))
    found = interleaved(rounds, looks=(3,))
    assert found["verdict"] == UNDECIDED and found["changes"]["typical"]["detectable_pct"] > 10
    assert "can be missed" in found["reason"]


def test_ctrl_c_judges_what_ran() -> None:
    def rounds() -> Iterator[Round]:
        for number in range(4):
            yield round_of([10.0] * 9, [10.0 + 0.01 * number] * 9, number)
        raise KeyboardInterrupt

    found = interleaved(rounds(), looks=looks_of(8, None))
    assert found["stopped"] and found["rounds"] == 4 and found["verdict"] == NO_REGRESSION


def turns(seed: int, *, change: float, starts: int, wait_ms: float = 0.0, start_sd: float = 0.0) -> list[Round]:
    """Return 16 rounds per start of a 10 ms step, whose side waits up to `wait_ms` for a core in each round."""
    rng = np.random.default_rng(seed)
    out = []
    for start in range(starts):
        factor = 1 + change + start_sd * rng.standard_normal()
        for _ in range(16):
            waits = wait_ms * rng.random((2, 4))
            own = 10 * (1 + 0.01 * rng.standard_normal((2, 4))) * [[1], [factor]]
            base, head = own + waits
            out.append(round_of(base, head, start, waits=list(waits)))
    return out


def test_waits_for_a_core_do_not_hide_a_regression() -> None:
    found = judged(turns(0, change=0.05, starts=2, wait_ms=30.0))
    assert found["verdict"] == REGRESSION and found["changes"]["typical"]["pct"] == pytest.approx(5, abs=1)
    assert found["base_step_ms"] == pytest.approx(10, rel=0.02)
    assert found["base_core_wait_ms"] == pytest.approx(15, rel=0.2)
    assert judged(turns(0, change=0.0, starts=2, wait_ms=30.0))["verdict"] == NO_REGRESSION


def test_one_start_is_no_proof() -> None:
    first, both = (judged(turns(1, change=0.1, starts=starts)) for starts in (1, 2))
    assert (first["verdict"], first["starts"]) == (UNDECIDED, 1)
    assert (both["verdict"], both["starts"]) == (REGRESSION, 2)


def test_starts_that_differ_widen_the_interval() -> None:
    found = [judged(turns(seed, change=0.0, starts=4, start_sd=0.05)) for seed in range(20)]
    assert sum(one["verdict"] == REGRESSION for one in found) <= 2


def test_bencher_metrics_are_the_head_in_nanoseconds() -> None:
    found = judged([round_of([10.0] * 3, [11.0] * 3, start) for start in range(3)])
    metrics = bencher_metrics(found, name="demo")["demo"]
    assert metrics["latency"]["value"] == pytest.approx(11e6)
    assert metrics["change-percent"]["value"] == pytest.approx(10)
