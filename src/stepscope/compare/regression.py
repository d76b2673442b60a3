"""Is the head of a change slower than its base? Answered from rounds in which both ran in turn.

    step                its time, without the share of the waits for a core by which the rounds agree best
    change of a round   log(step of head / step of base): a slowdown of the whole round cancels
    change              Hodges-Lehmann centre over rounds: a few disturbed rounds do not move it
    interval            Student's t, with the standard error by signed ranks, or that between starts if it is larger

Two steps are tested: the typical one of `stepscope compare` (mean of the middle half), and the mean, which includes
work of some steps only. A regression is a change whose interval is above 0 and reaches the threshold. The rounds are
judged several times, after 8, 16 and 32 for example, and each interval is as wide as the false-alarm rate of all these
tests together requires (Bonferroni). A regression needs rounds of at least two starts of the job.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import exp, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.records import ArrayRecord, dataclass
from stepscope.stats.robust import centre, detectable, median, t_quantile, typical

Floats = npt.NDArray[np.float64]

REGRESSION, NO_REGRESSION, UNDECIDED = "regression", "no regression", "undecided"
BASE, HEAD = "base", "head"
MIN_ROUNDS = 3
MIN_STARTS = 2
_LOOKS = 3
# of the waits for a core; all of them only where one thread of one rank determines the step
_SUBTRACTED = (0.0, 0.25, 0.5, 0.75, 1.0)
# of a step that consists of waits
_LEAST_STEP = 0.01
_STEPS: Mapping[str, Callable[[Floats], Floats]] = {
    "typical": typical,
    "mean": lambda ms: np.asarray(ms.mean(axis=-1)),
}


@dataclass(frozen=True)
class Change:
    """Change of the step from base to head, in percent of the base."""

    pct: float
    low_pct: float
    high_pct: float
    #: smallest change that four of five such gates find
    detectable_pct: float


@dataclass(frozen=True)
class Judgement:
    """Result of the rounds so far."""

    verdict: str
    rounds: int
    #: by the kind of step: typical, mean
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


@dataclass(frozen=True, eq=False, repr=False)
class Round(ArrayRecord):
    """Step times of base and head in ms: one column per step, the first row its time, the second its core waits."""

    base: Floats
    head: Floats
    #: which start of the job it belongs to
    start: int


def judge(rounds: Sequence[Round], *, threshold_pct: float, false_alarm_pct: float, looks: int = 1) -> Judgement:
    """Return whether head is slower, from at least `MIN_ROUNDS` rounds."""
    confidence = 1 - 2 * false_alarm_pct / 100 / (looks * len(_STEPS))
    starts = np.array([one.start for one in rounds])
    tried = [_steps(rounds, share) for share in _SUBTRACTED]
    steps = min(tried, key=lambda of: centre(_ratios(of["typical"])).error)
    changes = {name: _change(_ratios(of), starts, confidence) for name, of in steps.items()}
    if any(change.low_pct > 0 and change.high_pct >= threshold_pct for change in changes.values()):
        verdict = REGRESSION if len(set(starts.tolist())) >= MIN_STARTS else UNDECIDED
    elif changes["typical"].high_pct < threshold_pct:
        verdict = NO_REGRESSION
    else:
        verdict = UNDECIDED
    step_ms = dict(zip((BASE, HEAD), map(median, steps["typical"]), strict=True))
    waits_ms = {
        side: median(all_ms) - step_ms[side] for side, all_ms in zip((BASE, HEAD), tried[0]["typical"], strict=True)
    }
    return Judgement(verdict, len(rounds), changes, step_ms, waits_ms, len(set(starts.tolist())))


def interleaved(
    rounds: Iterator[Round], *, looks: Sequence[int], threshold_pct: float, false_alarm_pct: float
) -> Judgement:
    """Return the judgement of rounds run until they are decided.

    Ctrl-C ends the rounds early, after at least `MIN_ROUNDS`.
    """
    done: list[Round] = []

    def judged() -> Judgement:
        return judge(done, threshold_pct=threshold_pct, false_alarm_pct=false_alarm_pct, looks=len(looks))

    for look in looks:
        try:
            done += islice(rounds, look - len(done))
        except KeyboardInterrupt:
            if len(done) < MIN_ROUNDS:
                raise
            return replace(judged(), stopped=True)
        if (found := judged()).verdict != UNDECIDED:
            break
    return found


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
        "changes": {name: dict(vars(change)) for name, change in found.changes.items()},
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


def _steps(rounds: Sequence[Round], share: float) -> dict[str, list[Floats]]:
    sides = [
        [_without_waits(ms, share) for ms in side] for side in zip(*((r.base, r.head) for r in rounds), strict=True)
    ]
    return {name: [np.array([of(run) for run in side]) for side in sides] for name, of in _STEPS.items()}


def _without_waits(ms: Floats, share: float) -> Floats:
    return np.maximum(ms[0] - share * ms[1], _LEAST_STEP * ms[0])


def _ratios(sides: Sequence[Floats]) -> Floats:
    base, head = sides
    return np.log(head / base)


def _change(ratios: Floats, starts: npt.NDArray[np.int64], confidence: float) -> Change:
    found, df = centre(ratios), len(ratios) - 1
    of_starts = np.array([centre(ratios[starts == start]).value for start in sorted(set(starts.tolist()))])
    between = float(of_starts.std(ddof=1)) / sqrt(len(of_starts)) if 1 < len(of_starts) < len(ratios) else 0.0
    error = max(found.error, between)
    width = error * t_quantile(confidence, df)
    least = detectable(error, df, confidence=confidence)
    return Change(*(_pct(x) for x in (found.value, found.value - width, found.value + width, least)))


def _pct(ratio: float) -> float:
    return 100 * (exp(min(ratio, log(1e6))) - 1)


def _reason(found: Judgement, threshold_pct: float) -> str:
    mean, middle = found.changes["mean"], found.changes["typical"]
    shown = f"{middle.pct:+.1f} % ({middle.low_pct:+.1f} to {middle.high_pct:+.1f})"
    if found.verdict == REGRESSION and middle.low_pct > 0:
        return f"the step of head is slower by {shown}"
    if found.verdict == REGRESSION:
        return (
            f"the mean step of head is slower by {mean.pct:+.1f} % ({mean.low_pct:+.1f} to {mean.high_pct:+.1f}), the "
            f"typical step by {middle.pct:+.1f} %: some steps only"
        )
    if found.verdict == UNDECIDED:
        return (
            f"the step changed by {shown}: neither 0 nor {threshold_pct:g} % is excluded after {found.rounds} rounds, "
            f"and regressions below {middle.detectable_pct:.1f} % can be missed; use a quieter machine or --max-rounds"
        )
    if middle.low_pct > 0:
        return f"the step of head is slower by {shown}, below the threshold of {threshold_pct:g} %"
    if middle.high_pct < 0:
        return f"the step of head is faster by {shown}"
    return f"the step changed by {shown}: a regression of {threshold_pct:g} % is excluded"
