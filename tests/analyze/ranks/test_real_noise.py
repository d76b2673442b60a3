"""How often equal ranks are called late, and how often a sleeping one is found, in the noise of a real loaded machine.

`tests/data/step_noise` has 24 clean jobs of two ranks as `benchmarks/stragglers.py noise` records them, eight at a time
on 16 cores: alone, with a busy loop beside each, and with loops that come and go. Two ranks of one load, out of any of
its jobs, are equal ranks; own times are scaled to steps of 200 ms, a sleep is added to one of them.
"""

import gzip
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.ranks.test_log_stragglers import OWN_MS, late_by_logs, logs_of

DATA = Path(__file__).parents[2] / "data" / "step_noise" / "h200-host.json.gz"
WARM_UP, STEPS = 8, 60
LOADS = ("none", "bursts", "steady")
RUNS = 70
"""of each load: 210 clean ones in all"""


@cache
def own_times() -> dict[str, list[np.ndarray]]:
    """Return the own times of every rank by load, in ms, their median that of a step of 200 ms."""
    found: dict[str, list[np.ndarray]] = {load: [] for load in LOADS}
    for job in json.loads(gzip.decompress(DATA.read_bytes())):
        for rank in job["steps"]:
            own = (np.array(rank["dur"]) - np.array(rank["gradient_sync"]))[WARM_UP:]
            found[job["load"]].append(OWN_MS * own / np.median(own))
    return found


def named(load: str, *, late_ms: float, steps: int, runs: int, seed: int) -> list[set[int]]:
    """Return who is called late in so many runs of two equal ranks, of which the second sleeps in every step."""
    rng, ranks, out = np.random.default_rng(seed), own_times()[load], []
    for _ in range(runs):
        one, other = rng.choice(len(ranks), 2, replace=False)
        first = rng.integers(0, len(ranks[one]) - steps + 1)
        own = np.array([ranks[one][first : first + steps], ranks[other][first : first + steps]])
        out.append(late_by_logs(logs_of(own + np.array([[0.0], [late_ms]]), own)))
    return out


@pytest.mark.slow
def test_equal_ranks_are_called_late_in_at_most_two_of_a_hundred_runs() -> None:
    alarms = {load: sum(map(bool, named(load, late_ms=0, steps=STEPS, runs=RUNS, seed=5))) for load in LOADS}
    assert sum(alarms.values()) <= 0.02 * RUNS * len(LOADS), alarms


@pytest.mark.slow
@pytest.mark.parametrize(("load", "steps"), [("none", STEPS), ("bursts", STEPS), ("steady", 120)])
def test_sleep_of_a_fifth_of_the_step_is_found(load: str, steps: int) -> None:
    """A busy loop on every second core makes steps differ by 40 % of each other: that takes twice the steps."""
    found = named(load, late_ms=40, steps=steps, runs=RUNS, seed=6)
    assert sum(ranks == {1} for ranks in found) >= {"none": 0.95, "bursts": 0.9, "steady": 0.65}[load] * RUNS
