"""What is kept, on simulated jobs whose truth is known: nothing where nothing helps, what helps where it does."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from stepscope.tune.experiment import (
    BASE,
    EQUAL,
    INEXACT,
    MAX_FALSE,
    ROUNDING,
    Candidate,
    Trial,
    agreement,
    experiment,
)

SETTINGS = tuple(Candidate(f"s{n}", EQUAL, "", {f"s{n}": n}) for n in range(8))
LOSSES = (2.0, 1.5, 1.25)
JOBS = 200


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
        return Trial(step_ms, 20, LOSSES, (1.0, 10.0), tuple(candidate.settings) if candidate else ())

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
    kept = [experiment(SETTINGS, simulated(noise, {}, seed), rounds=5).keep for seed in range(JOBS)]
    assert sum(one is not None for one in kept) <= MAX_FALSE * JOBS


@pytest.mark.parametrize(("noise", "at_least"), [(with_hiccups, 0.9), (on_a_busy_machine, 0.95)])
def test_a_large_gain_is_kept_though_a_round_was_disturbed(
    noise: Callable[[random.Random, int], float], at_least: float
) -> None:
    saves = {"s0": 0.65}
    found = [experiment(SETTINGS[:4], simulated(noise, saves, seed), rounds=3) for seed in range(JOBS)]
    named = [one.keep.candidate.name.split(" + ") if one.keep else [] for one in found]
    assert sum("s0" in names for names in named) >= at_least * JOBS
    assert sum(bool(set(names) - {"s0"}) for names in named) <= MAX_FALSE * JOBS


def test_more_rounds_are_run_only_of_what_is_undecided() -> None:
    heard: list[tuple[str, str]] = []

    def run(when: str, candidate: Candidate | None) -> Trial:
        heard.append((when, candidate.name if candidate else BASE))
        ms = {None: 100.0, "s0": 60.0, "s1": 200.0 if when == "round 3 of 3" else 50.0, "s2": 99.5}
        step_ms = ms[candidate.name if candidate else None] + 0.1 * (len(heard) % 3)
        return Trial(step_ms, 20, LOSSES, None, tuple(candidate.settings) if candidate else ())

    found = experiment(SETTINGS[:3], run, rounds=3)
    more = [name for when, name in heard if when.startswith("undecided, round")]
    assert set(more) == {BASE, "s1"} and len(more) == 12
    assert [j.gain.rounds for j in found.settings if j.gain] == [3, 9, 3]


def test_the_setting_that_helps_is_kept_and_no_other() -> None:
    found = experiment(SETTINGS, simulated(steady, {"s3": 0.3}, 1), rounds=5)
    assert found.keep is not None and found.keep.candidate.name == "s3"
    assert found.keep.gain is not None and found.keep.gain.low < 0.3 < found.keep.gain.high
    assert [j.candidate.name for j in found.settings if j.keeps] == ["s3"]


def test_what_had_run_is_judged_where_the_user_ends_it() -> None:
    run, calls = simulated(steady, {"s3": 0.3}, 1), []

    def until_stopped(when: str, candidate: Candidate | None) -> Trial:
        calls.append(when)
        if len(calls) > 4 * (len(SETTINGS) + 1):
            raise KeyboardInterrupt
        return run(when, candidate)

    found = experiment(SETTINGS, until_stopped, rounds=50)
    assert found.stopped and found.keep and found.keep.candidate.name == "s3"


def test_what_hinders_the_other_is_kept_alone() -> None:
    def both_are_slow(when: str, candidate: Candidate | None) -> Trial:
        names = set(candidate.settings) if candidate else set()
        ms = {frozenset(): 100.0, frozenset({"s1"}): 70.0, frozenset({"s2"}): 60.0}.get(frozenset(names), 90.0)
        return Trial(ms * rng.lognormvariate(0, 0.01), 20, LOSSES, None, tuple(names))

    rng = random.Random(0)
    found = experiment(SETTINGS[1:3], both_are_slow, rounds=5)
    assert found.combined is not None and found.keep is not None and found.keep.candidate.name == "s2"


@pytest.mark.parametrize(
    ("trial", "why"),
    [
        (Trial(None, failed="it ended with exit code 1"), "exit code 1"),
        (Trial(10.0, 20, LOSSES, None, ()), "changed nothing"),
        (Trial(10.0, 20, (2.0, 1.6, 1.25), None, ("s0",)), "changes results"),
        (Trial(10.0, 20, (2.0, None, 1.25), None, ("s0",)), "changes results"),
        (Trial(10.0, 20, (), None, ("s0",)), "no loss"),
    ],
)
def test_what_fails_or_computes_something_else_is_never_kept(trial: Trial, why: str) -> None:
    base = Trial(100.0, 20, LOSSES)
    found = experiment(SETTINGS[:1], lambda when, c: trial if c else base, rounds=3)
    assert found.keep is None and why in str(found.settings[0].why_not)


def test_results_are_held_to_what_the_setting_may_change() -> None:
    base, near = Trial(1.0, 20, LOSSES), Trial(1.0, 20, (2.0, 1.50001, 1.25))
    far = replace(near, losses=(2.0, 1.52, 1.25))
    assert agreement(base, [base], results=EQUAL).why == "equal"
    judged = {kind: [agreement(t, [base], results=kind).agrees for t in (near, far)] for kind in KINDS}
    assert judged == {EQUAL: [False, False], ROUNDING: [True, False], INEXACT: [True, True]}
    assert agreement(replace(far, losses=(9.0, 9.0)), [base], results=INEXACT).agrees is False
    assert agreement(near, [base, near], results=EQUAL).agrees is True, "the job itself differs as much"
    unseeded = agreement(base, [base, replace(far, losses=(3.0,))], results=EQUAL)
    assert unseeded.agrees is None and "set its seeds" in unseeded.why


KINDS = (EQUAL, ROUNDING, INEXACT)
