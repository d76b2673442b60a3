"""Is the head of a change slower than its base? Answered from rounds in which both ran in turn.

The change is that of `stepscope.stats.change`, without the share of the waits for a core by which the rounds agree
best. Two steps are tested: the typical one of `stepscope compare`, and the mean, which includes work of some steps
only. A regression is a change whose interval is above 0 and reaches the threshold; it needs rounds of at least two
starts of the job. The rounds are judged several times, after 8, 16 and 32 for example, and the false-alarm rate is that
of all these tests together.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from stepscope.lab.experiment import Rounds
from stepscope.records import dataclass
from stepscope.stats.change import Change, load_share, mean, without_waits
from stepscope.stats.robust import median, typical

REGRESSION, NO_REGRESSION, UNDECIDED = "regression", "no regression", "undecided"
BASE, HEAD = "base", "head"
MIN_STARTS = 2
_LOOKS = 3
_STEPS = {"typical": typical, "mean": mean}


@dataclass(frozen=True)
class Judgement:
    """Result of the rounds so far."""

    verdict: str
    rounds: int
    #: of head, by the kind of step: typical, mean
    changes: Mapping[str, Change]
    #: ms, median over rounds of the typical step
    step_ms: Mapping[str, float]
    #: ms of it that were waits for a core and are not in it
    waits_ms: Mapping[str, float]
    starts: int
    #: the job was stopped before it was decided
    stopped: bool = False


def looks_of(rounds: int, most: int | None) -> tuple[int, ...]:
    """Return after which rounds to judge: the first look, and twice and four times as many rounds, up to `most`.

    >>> looks_of(8, None), looks_of(8, 20), looks_of(8, 8)
    ((8, 16, 32), (8, 16, 20), (8,))
    """
    most = rounds << (_LOOKS - 1) if most is None else most
    return tuple(dict.fromkeys(min(rounds << look, most) for look in range(_LOOKS)))


def judge(found: Rounds, *, threshold_pct: float, false_alarm_pct: float, looks: int = 1) -> Judgement:
    """Return whether head is slower, from at least `MIN_ROUNDS` rounds."""
    pairs = found.pairs(HEAD)
    share = load_share(*([trial.steps for trial in side] for side in zip(*pairs, strict=True)))
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
    elif changes["typical"].high < most:
        verdict = NO_REGRESSION
    times = [
        [median([float(typical(without_waits(trial.steps, part))) for trial in side]) for part in (share, 0.0)]
        for side in zip(*pairs, strict=True)
    ]
    step_ms, whole_ms = (dict(zip((BASE, HEAD), of, strict=True)) for of in zip(*times, strict=True))
    waits_ms = {side: whole_ms[side] - step_ms[side] for side in step_ms}
    return Judgement(verdict, len(pairs), changes, step_ms, waits_ms, starts, found.stopped)


def regression_document(found: Judgement, *, threshold_pct: float, false_alarm_pct: float) -> dict[str, Any]:
    """Return a judgement as keys of the JSON of `stepscope gate`."""
    return {
        "verdict": found.verdict,
        "reason": _reason(found, threshold_pct),
        "threshold_pct": threshold_pct,
        "false_alarm_pct": false_alarm_pct,
        "rounds": found.rounds,
        "starts": found.starts,
        "stopped": found.stopped,
        "base_step_ms": found.step_ms[BASE],
        "head_step_ms": found.step_ms[HEAD],
        "base_core_wait_ms": found.waits_ms[BASE],
        "head_core_wait_ms": found.waits_ms[HEAD],
        "changes": {name: _pct(change) for name, change in found.changes.items()},
    }


def bencher_metrics(document: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    """Return the head's step as Bencher Metric Format: latency in ns, and the change in percent."""
    change, base_ns = document["changes"]["typical"], document["base_step_ms"] * 1e6
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


def _reason(found: Judgement, threshold_pct: float) -> str:
    whole, middle = (_pct(found.changes[name]) for name in ("mean", "typical"))
    shown, of_mean = (f"{c['pct']:+.1f} % ({c['low_pct']:+.1f} to {c['high_pct']:+.1f})" for c in (middle, whole))
    if found.verdict == REGRESSION and middle["low_pct"] > 0:
        return f"the step of head is slower by {shown}"
    if found.verdict == REGRESSION:
        return (
            f"the mean step of head is slower by {of_mean}, the typical step by {middle['pct']:+.1f} %: some steps only"
        )
    if found.verdict == UNDECIDED:
        least = f"{middle['detectable_pct']:.1f} %"
        return (
            f"the step changed by {shown}: neither 0 nor {threshold_pct:g} % is excluded after {found.rounds} rounds, "
            f"and regressions below {least} can be missed; use a quieter machine or --max-rounds"
        )
    if middle["low_pct"] > 0:
        return f"the step of head is slower by {shown}, below the threshold of {threshold_pct:g} %"
    if middle["high_pct"] < 0:
        return f"the step of head is faster by {shown}"
    return f"the step changed by {shown}: a regression of {threshold_pct:g} % is excluded"
