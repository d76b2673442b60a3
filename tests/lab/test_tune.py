"""Which settings are tried, and what is kept on simulated jobs whose truth is known."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepscope.lab.experiment import Trial
from stepscope.lab.tune import EQUAL, INEXACT, ROUNDING, Candidate, Job, Loader, agreement, candidates, tune
from stepscope.stats.change import FALSE_ALARMS

LOADER = Loader(0, pin_memory=False, prefetch_factor=None, persistent_workers=False, map_style=True)
CPU = Job("cpu", cores=8, local_ranks=2, backend="gloo", has_ddp=True, loaders=(LOADER,), optimizer="AdamW", threads=1)
CUDA = replace(CPU, device="cuda", backend="nccl", convolutions=True)


def names(job: Job, findings: list[str] | None = None, **options) -> list[str]:
    return [c.name for c in candidates(job, findings or [], **options).tried]


def test_what_the_job_does_not_have_is_not_tried() -> None:
    bare = Job("cpu", cores=2, local_ranks=1, backend=None, has_ddp=False, threads=2, mimalloc=True)
    assert names(bare) == ["OMP_NUM_THREADS=1"]
    assert not [name for name in names(CPU) if "NCCL" in name or "cudnn" in name or "pin" in name]
    assert {"loader.pin_memory=True", "cudnn.benchmark=True", "NCCL_ALGO=Tree"} <= set(names(CUDA))


def test_what_changes_results_is_tried_only_where_that_is_allowed() -> None:
    choice = candidates(CUDA, [])
    assert ("precision.tf32=True", "changes results; --allow-inexact tries it") in choice.left_out
    assert not [c for c in choice.tried if c.results == INEXACT]
    assert "precision.tf32=True" in names(CUDA, inexact=True)
    assert "compile.model=True" in names(CUDA, compiled=True) and "compile.model=True" not in names(CUDA)


def test_loaders_are_tried_by_what_they_already_have() -> None:
    at_work = replace(CPU, loaders=(replace(LOADER, num_workers=2, prefetch_factor=2),), loader_starts=3)
    assert names(at_work, only=["loader"]) == [
        "loader.persistent_workers=True",
        "loader.prefetch_factor=4",
        "loader.num_workers=4",
    ]
    iterable = replace(CPU, loaders=(replace(LOADER, map_style=False),))
    assert names(iterable, only=["loader"]) == []


SETTINGS = tuple(Candidate(f"s{n}", EQUAL, "", {f"s{n}": n}) for n in range(8))
LOSSES = (2.0, 1.5, 1.25)
JOBS = 100


def trial(step_ms: float, *more: Any) -> Trial:
    """Return a trial of 20 equal steps."""
    return Trial(np.array([[step_ms] * 20, [0.0] * 20, range(20)]), *more)


def simulated(noise: Callable[[random.Random, int], float], saves: dict[str, float], seed: int):
    """Return who runs a trial of a simulated job of 100 ms per step, of which settings save shares."""
    rng, count = random.Random(f"job {seed}"), 0

    def run(when: str, candidate: Candidate | None) -> Trial:
        nonlocal count
        count += 1
        shares = [saves.get(name, 0.0) for name in (candidate.settings if candidate else ())]
        step_ms = 100.0 * noise(rng, count)
        for share in shares:
            step_ms *= 1 - share
        return trial(step_ms, LOSSES, (1.0, 10.0), tuple(candidate.settings) if candidate else ())

    return run


def steady(rng: random.Random, count: int) -> float:
    return rng.lognormvariate(0, 0.02)


def with_hiccups(rng: random.Random, count: int) -> float:
    return rng.lognormvariate(0, 0.01) * (3.0 if rng.random() < 0.1 else 1.0)


def drifting(rng: random.Random, count: int) -> float:
    return rng.lognormvariate(0, 0.01) * (1 - 0.01 * count)


def on_a_busy_machine(rng: random.Random, count: int) -> float:
    return rng.lognormvariate(0, 0.15) * (2.0 if rng.random() < 0.1 else 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [steady, with_hiccups, drifting, on_a_busy_machine])
def test_jobs_in_which_nothing_helps_keep_nothing(noise: Callable[[random.Random, int], float]) -> None:
    kept = [tune(SETTINGS, simulated(noise, {}, seed), rounds=5)["keep"] for seed in range(JOBS)]
    assert sum(one is not None for one in kept) <= FALSE_ALARMS * JOBS


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "at_least"), [(with_hiccups, 0.9), (on_a_busy_machine, 0.95)])
def test_a_large_gain_is_kept_though_a_round_was_disturbed(noise, at_least):
    saves = {"s0": 0.65}
    found = [tune(SETTINGS[:4], simulated(noise, saves, seed), rounds=3) for seed in range(JOBS)]
    named = [one["keep"]["name"].split(" + ") if one["keep"] else [] for one in found]
    assert sum("s0" in names for names in named) >= at_least * JOBS
    assert sum(bool(set(names) - {"s0"}) for names in named) <= FALSE_ALARMS * JOBS


def test_the_setting_that_helps_is_kept_and_no_other() -> None:
    found = tune(SETTINGS, simulated(steady, {"s3": 0.3}, 1), rounds=5)
    assert found["keep"]["name"] == "s3" and found["keep"]["gain_low_pct"] < 30 < found["keep"]["gain_high_pct"]
    assert [row["name"] for row in found["settings"] if row["kept"]] == ["s3"]


def test_what_had_run_is_judged_where_the_user_ends_it() -> None:
    run, calls = simulated(steady, {"s3": 0.3}, 1), []

    def until_stopped(when: str, candidate: Candidate | None) -> Trial:
        calls.append(when)
        if len(calls) > 4 * (len(SETTINGS) + 1):
            raise KeyboardInterrupt
        return run(when, candidate)

    found = tune(SETTINGS, until_stopped, rounds=50)
    assert found["stopped"] and found["keep"]["name"] == "s3"


@pytest.mark.parametrize(
    ("tried", "why"),
    [
        (Trial(failed="it ended with exit code 1"), "exit code 1"),
        (trial(10.0, LOSSES, None, ()), "changed nothing"),
        (trial(10.0, (2.0, 1.6, 1.25), None, ("s0",)), "changes results"),
        (trial(10.0, (2.0, None, 1.25), None, ("s0",)), "changes results"),
        (trial(10.0, (), None, ("s0",)), "no loss"),
    ],
)
def test_what_fails_or_computes_something_else_is_never_kept(tried: Trial, why: str) -> None:
    base = trial(100.0, LOSSES)
    found = tune(SETTINGS[:1], lambda when, c: tried if c else base, rounds=3)
    assert found["keep"] is None and why in str(found["settings"][0]["why_not"])


def test_results_are_held_to_what_the_setting_may_change() -> None:
    base, near = trial(1.0, LOSSES), trial(1.0, (2.0, 1.50001, 1.25))
    far = replace(near, losses=(2.0, 1.52, 1.25))
    assert agreement(base, [base], results=EQUAL).why == "equal"
    judged = {kind: [agreement(t, [base], results=kind).agrees for t in (near, far)] for kind in KINDS}
    assert judged == {EQUAL: [False, False], ROUNDING: [True, False], INEXACT: [True, True]}
    assert agreement(replace(far, losses=(9.0, 9.0)), [base], results=INEXACT).agrees is False
    assert agreement(near, [base, near], results=EQUAL).agrees is True, "the job itself differs as much"
    unseeded = agreement(base, [base, replace(far, losses=(3.0,))], results=EQUAL)
    assert unseeded.agrees is None and "set its seeds" in unseeded.why


KINDS = (EQUAL, ROUNDING, INEXACT)
