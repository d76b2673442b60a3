"""Lateness from step logs: how large, how often equal ranks are called late, how often a sleeping one is found.

`tests/data/step_noise` has 24 clean jobs of two ranks as `benchmarks/stragglers.py noise` records them, eight at a time
on 16 cores: alone, with a busy loop beside each, and with loops that come and go. Two ranks of one load, out of any of
its jobs, are equal ranks; own times are scaled to steps of 200 ms, a sleep is added to one of them.
"""

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.step_logs import log_lines

from stepscope.analyze.log_stragglers import late_ranks, log_lateness, shows_late_ranks
from stepscope.run.side_files import CollectiveTimes, StepLog, step_log_of
from stepscope.units import ms

OWN_MS, TRANSFER_MS = 195.0, 5.0
IN_REGIONS = {"forward_pass": 0.3, "backward_pass": 0.5, "optimizer_step": 0.1}
"""of the work of a step; the rest is the loop's own"""


def own_times_ms(rng: np.random.Generator, steps: int) -> np.ndarray:
    share, correlation, tail = 0.05, 0.3, 0.03
    shocks = rng.standard_t(3, steps) / np.sqrt(3)
    x = np.zeros(steps)
    for k in range(steps):
        x[k] = correlation * (x[k - 1] if k else 0) + np.sqrt(1 - correlation**2) * shocks[k]
    spikes = (rng.random(steps) < tail) * rng.pareto(2.5, steps)
    return np.maximum(OWN_MS * (1 + share * x + spikes), 0.6 * OWN_MS)


def two_ranks(rng: np.random.Generator, *, late_ms: float, steps: int = 60) -> list[StepLog]:
    own = np.array([own_times_ms(rng, steps) for _ in range(2)])
    sleeping = np.array([[0.0], [late_ms]])
    return logs_of(own + sleeping, own)


def logs_of(own: np.ndarray, in_regions: np.ndarray | None = None) -> list[StepLog]:
    """Return the logs of ranks by their own times; what of them is the work of training, where not all is."""
    step = own.max(axis=0) + TRANSFER_MS

    def regions(k: int, mine: np.ndarray, work: np.ndarray) -> dict[str, float]:
        found = {"gradient_sync": step[k] - mine[k], **{name: share * work[k] for name, share in IN_REGIONS.items()}}
        return {**found, "outside": step[k] - sum(found.values())}

    works = own if in_regions is None else in_regions
    return [
        step_log_of(log_lines(regions(k, mine, work) for k in range(len(step))), rank=rank)
        for rank, (mine, work) in enumerate(zip(own, works, strict=True))
    ]


def late_by_logs(logs: list[StepLog]) -> set[int]:
    """Return the ranks that are late in all steps, or in some because something recurs there."""
    return {late.rank for late in late_ranks(logs)}


def test_sleep_of_80_ms_is_measured_within_a_tenth_in_nine_of_ten_runs() -> None:
    rng = np.random.default_rng(17)
    found = [log_lateness(two_ranks(rng, late_ms=80), window_steps=1000)[1] for _ in range(40)]
    assert sum(abs(ms(late.late_ns) - 80) <= 8 for late in found) >= 36
    assert sum(ms(late.low_ns) <= 80 <= ms(late.high_ns) for late in found) >= 38


def waiting_on_the_device(logs: list[StepLog]) -> tuple[list[StepLog], dict[int, CollectiveTimes]]:
    """Return logs without the waits, as of jobs with NCCL, and the times of three collectives per step with them."""
    bare = [replace(log, numbers={k: v for k, v in log.numbers.items() if "gradient_sync" not in k}) for log in logs]
    times = {}
    for log in logs:
        waits = log.column("regions.gradient_sync.ns").astype(int).tolist()
        each = [ns for wait in waits for ns in (wait + 60_000_000, 60_000_000, 60_000_000)]  # behind compute
        times[log.rank] = CollectiveTimes("0", len(each), dict(enumerate(each, 7)))
    return bare, times


def test_waits_on_the_device_show_in_the_times_of_collectives() -> None:
    rng = np.random.default_rng(19)
    found = []
    for late_ms in (0, 80):
        jobs = [waiting_on_the_device(two_ranks(rng, late_ms=late_ms)) for _ in range(20)]
        assert not any(late_ranks(logs) for logs, _ in jobs)
        assert all(shows_late_ranks(*job, {"backend": "nccl"}) for job in jobs)
        assert not any(shows_late_ranks(logs, {}, {"backend": "nccl"}) for logs, _ in jobs)
        found.append([late_ranks(*job) for job in jobs])
    assert sum(map(bool, found[0])) <= 1
    named = [late for late in found[1] if [one.rank for one in late] == [1]]
    assert len(named) >= 18
    assert sum(abs(ms(one.late_ns) - 80) <= 10 for (one,) in named) >= 0.9 * len(named)


DATA = Path(__file__).parents[2] / "data" / "step_noise" / "h200-host.json.gz"
WARM_UP, STEPS = 8, 60
LOADS = ("none", "bursts", "steady")
RUNS = 70


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
    assert sum(ranks == {1} for ranks in found) >= {"none": 0.95, "bursts": 0.85, "steady": 0.65}[load] * RUNS
