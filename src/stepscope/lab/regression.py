"""Is the head of a change slower than its base? Answered from rounds in which both ran in turn.

The change is that of `stepscope.stats.change`, without the share of the waits for a core by which the rounds agree
best. Two steps are tested: the typical one, and the mean, which includes work of some steps only; `step` is the one
that stands for the runs, as in `stepscope compare`. A regression is a change whose interval is above 0 and reaches the
threshold; it needs rounds of at least two starts of the job. The rounds are judged several times, after 8, 16 and 32
for example, and the false-alarm rate is that of all these tests together.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from stepscope.lab.experiment import Rounds
from stepscope.stats.change import Change, load_share, location_of, mean, without_waits
from stepscope.stats.robust import median, typical

REGRESSION, NO_REGRESSION, UNDECIDED = "regression", "no regression", "undecided"
BASE, HEAD = "base", "head"
MIN_STARTS = 2
_LOOKS = 3
_STEPS = {"typical": typical, "mean": mean}


def looks_of(rounds: int, most: int | None) -> tuple[int, ...]:
    """Return after which rounds to judge: the first look, and twice and four times as many rounds, up to `most`.

    >>> looks_of(8, None), looks_of(8, 20), looks_of(8, 8)
    ((8, 16, 32), (8, 16, 20), (8,))
    """
    most = rounds << (_LOOKS - 1) if most is None else most
    return tuple(dict.fromkeys(min(rounds << look, most) for look in range(_LOOKS)))


def judge(found: Rounds, *, threshold_pct: float, false_alarm_pct: float, looks: int = 1) -> dict[str, Any]:
    """Return whether head is slower, from at least `MIN_ROUNDS` rounds, as keys of the JSON of `stepscope gate`.

    `base_step_ms` and `head_step_ms` are medians over rounds of the `step`, without the waits for a core.
    """
    pairs = found.pairs(HEAD)
    share = load_share(*([trial.steps for trial in side] for side in zip(*pairs, strict=True)))
    code = [np.concatenate([without_waits(trial.steps, share) for trial in side]) for side in zip(*pairs, strict=True)]
    step = "mean" if location_of(code) is mean else "typical"
    changes = {
        name: change
        for name, location in _STEPS.items()
        if (
            change := found.change(
                HEAD,
                of=partial(without_waits, share=share),
                location=location,
                tests=looks * len(_STEPS),
                false_alarms=2 * false_alarm_pct / 100,
            )
        )
    }
    starts = len({k if a.start is None else a.start for k, (a, _) in enumerate(pairs)})
    most = 1 + threshold_pct / 100
    verdict = UNDECIDED
    if any(change.slower and change.high >= most for change in changes.values()):
        verdict = REGRESSION if starts >= MIN_STARTS else UNDECIDED
    elif changes[step].high < most:
        verdict = NO_REGRESSION
    (base_ms, base_whole_ms), (head_ms, head_whole_ms) = (
        [median([float(_STEPS[step](without_waits(trial.steps, part))) for trial in side]) for part in (share, 0.0)]
        for side in zip(*pairs, strict=True)
    )
    in_pct = {name: _pct(change) for name, change in changes.items()}
    return {
        "verdict": verdict,
        "reason": _reason(verdict, in_pct, step, len(pairs), threshold_pct),
        "step": step,
        "threshold_pct": threshold_pct,
        "false_alarm_pct": false_alarm_pct,
        "rounds": len(pairs),
        "starts": starts,
        "stopped": found.stopped,
        "base_step_ms": base_ms,
        "head_step_ms": head_ms,
        "base_core_wait_ms": base_whole_ms - base_ms,
        "head_core_wait_ms": head_whole_ms - head_ms,
        "changes": in_pct,
    }


def bencher_metrics(document: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    """Return the head's step as Bencher Metric Format: latency in ns, and the change in percent."""
    change, base_ns = document["changes"][document["step"]], document["base_step_ms"] * 1e6
    bounds = {"value": "pct", "lower_value": "low_pct", "upper_value": "high_pct"}
    return {
        name: {
            "latency": {key: base_ns * (1 + change[of] / 100) for key, of in bounds.items()},
            "change-percent": {key: change[of] for key, of in bounds.items()},
        }
    }


def _pct(change: Change) -> dict[str, float]:
    found = {"pct": change.ratio, "low_pct": change.low, "high_pct": change.high, "detectable_pct": change.detectable}
    return {name: 100 * ((ratio or 1.0) - 1) for name, ratio in found.items()}


def _reason(
    verdict: str, changes: Mapping[str, Mapping[str, float]], step: str, rounds: int, threshold_pct: float
) -> str:
    middle = changes["typical" if verdict == REGRESSION else step]
    shown, of_mean = (
        f"{c['pct']:+.1f} % ({c['low_pct']:+.1f} to {c['high_pct']:+.1f})" for c in (middle, changes["mean"])
    )
    if verdict == REGRESSION and middle["low_pct"] > 0:
        return f"the step of head is slower by {shown}"
    if verdict == REGRESSION:
        return (
            f"the mean step of head is slower by {of_mean}, the typical step by {middle['pct']:+.1f} %: some steps only"
        )
    if verdict == UNDECIDED:
        least = f"{middle['detectable_pct']:.1f} %"
        return (
            f"the step changed by {shown}: neither 0 nor {threshold_pct:g} % is excluded after {rounds} rounds, "
            f"and regressions below {least} can be missed; use a quieter machine or --max-rounds"
        )
    if middle["low_pct"] > 0:
        return f"the step of head is slower by {shown}, below the threshold of {threshold_pct:g} %"
    if middle["high_pct"] < 0:
        return f"the step of head is faster by {shown}"
    return f"the step changed by {shown}: a regression of {threshold_pct:g} % is excluded"
