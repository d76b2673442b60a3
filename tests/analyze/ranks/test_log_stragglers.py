"""How often equal ranks are called late (size), and how often a late one is found (power), on simulated step logs.

Noise as on a busy machine: long tails (Student's t with three degrees of freedom), steps that hang together
(autocorrelation), now and then a step far longer than the others; another job that slows both ranks for a while, one of
them more than the other; a hiccup of one rank that lasts for several steps.
"""

import numpy as np
import pytest

from stepscope.analyze.log_stragglers import independent_samples, late_ranks, lateness
from stepscope.analyze.stragglers import _recurring_late
from stepscope.analyze.training_step import training_step
from stepscope.run.step_log import StepLog, step_log_of
from stepscope.units import ms

OWN_MS, TRANSFER_MS = 195.0, 5.0
NOISE = {"quiet": (0.05, 0.3, 0.03), "busy": (0.1, 0.5, 0.05), "shared": (0.05, 0.5, 0.03), "bursts": (0.05, 0.5, 0.03)}
"""share of the step, correlation with the step before, share of steps far longer"""


IN_REGIONS = {"forward_pass": 0.3, "backward_pass": 0.5, "optimizer_step": 0.1}
"""of the work of a step; the rest is the loop's own"""


def own_times_ms(rng: np.random.Generator, steps: int, noise: str) -> np.ndarray:
    share, correlation, tail = NOISE[noise]
    shocks = rng.standard_t(3, steps) / np.sqrt(3)
    x = np.zeros(steps)
    for k in range(steps):
        x[k] = correlation * (x[k - 1] if k else 0) + np.sqrt(1 - correlation**2) * shocks[k]
    spikes = (rng.random(steps) < tail) * rng.pareto(2.5, steps)
    return np.maximum(OWN_MS * (1 + share * x + spikes), 0.6 * OWN_MS)


def two_ranks(rng: np.random.Generator, *, late_ms: float, noise: str, steps: int = 60) -> list[StepLog]:
    own = np.array([own_times_ms(rng, steps, noise) for _ in range(2)])
    if noise == "shared":
        own += OWN_MS * other_job(rng, steps) * rng.uniform(0.2, 1.0, (2, 1))
    if noise == "bursts":
        own[rng.integers(2)] += OWN_MS * other_job(rng, steps, most=6)
    sleeping = np.array([[0.0], [late_ms]])
    return logs_of(own + sleeping, own)


def other_job(rng: np.random.Generator, steps: int, *, most: int = 15) -> np.ndarray:
    """Return what another job adds, as a share of the step: two stretches of up to `most` steps."""
    added = np.zeros(steps)
    for _ in range(2):
        first, length = rng.integers(steps), rng.integers(2, most)
        added[first : first + length] += rng.uniform(0.2, 0.8)
    return added


def logs_of(own: np.ndarray, in_regions: np.ndarray | None = None) -> list[StepLog]:
    """Return the logs of ranks by their own times; what of them is the work of training, where not all is."""
    step = own.max(axis=0) + TRANSFER_MS
    ends = 10**9 + np.cumsum(step) * 1e6
    return [
        step_log_of(
            [
                {
                    "step": k,
                    "start_ns": int(ends[k] - step[k] * 1e6),
                    "end_ns": int(ends[k]),
                    "dur_ns": int(step[k] * 1e6),
                    "phase": "before",
                    "regions": {
                        "gradient_sync": {"ns": int((step[k] - mine[k]) * 1e6), "n": 1},
                        **{name: {"ns": int(share * work[k] * 1e6), "n": 1} for name, share in IN_REGIONS.items()},
                    },
                }
                for k in range(len(step))
            ],
            rank=rank,
        )
        for rank, (mine, work) in enumerate(zip(own, own if in_regions is None else in_regions, strict=True))
    ]


def late_by_logs(logs: list[StepLog]) -> set[int]:
    """Return the ranks that are late in all steps, or in some because something recurs there."""
    return {late.rank for late in late_ranks(logs)} | set(_recurring_late(training_step(logs)))


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISE)
def test_equal_ranks_are_called_late_in_at_most_two_of_a_hundred_runs(noise: str) -> None:
    rng = np.random.default_rng(15)
    alarms = sum(bool(late_by_logs(two_ranks(rng, late_ms=0, noise=noise))) for _ in range(200))
    assert alarms <= 4


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISE)
def test_sleep_of_a_fifth_of_the_step_is_found_in_nineteen_of_twenty_runs(noise: str) -> None:
    rng = np.random.default_rng(16)
    named = [late_by_logs(two_ranks(rng, late_ms=40, noise=noise)) for _ in range(200)]
    assert sum(ranks == {1} for ranks in named) >= 190


def test_sleep_of_80_ms_is_measured_within_a_tenth_in_nine_of_ten_runs() -> None:
    rng = np.random.default_rng(17)
    found = [lateness(two_ranks(rng, late_ms=80, noise="quiet"), window_steps=1000)[1] for _ in range(100)]
    assert sum(abs(ms(late.late_ns) - 80) <= 8 for late in found) >= 90
    assert sum(ms(late.low_ns) <= 80 <= ms(late.high_ns) for late in found) >= 95


def test_shock_that_lasts_for_many_steps_is_few_independent_samples() -> None:
    rng = np.random.default_rng(18)
    loose = rng.normal(size=100)
    lasting = np.repeat(rng.normal(size=10), 10) + 0.1 * rng.normal(size=100)
    assert independent_samples(loose) > 60 and independent_samples(lasting) < 15
    own = OWN_MS + np.array([np.zeros(100), 30 * lasting])
    assert late_ranks(logs_of(own)) == []
