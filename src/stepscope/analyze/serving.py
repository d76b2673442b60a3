"""What did a serving engine do: prefill and decode steps, their times, and tokens per second?

The engine's own ranges say how many requests and tokens each step had (`run/step_search/serving.py`). A step's time is
its period on the device (`step/periods.py`): the host runs ahead of it.
"""

import numpy as np

from stepscope.analyze.step_periods import NO_STEP, StepPeriods, step_periods
from stepscope.dataclass import dataclass
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.run.steps import DECODE, MIXED, PREFILL, SERVING, ServingStep, serving_step
from stepscope.stats.robust import median
from stepscope.trace.classify import EventKind
from stepscope.units import NS_PER_S


@dataclass(frozen=True)
class ServedSteps:
    """All steps of one kind on the rank that was looked at. None: the ranges do not say."""

    #: prefill, decode or mixed
    kind: str
    steps: int
    #: median period
    step_ns: int
    requests_per_step: float | None
    tokens_per_step: float | None
    tokens_per_s: float | None


@dataclass(frozen=True)
class Serving:
    """What the engine served in the recorded steps."""

    rank: int
    kinds: tuple[ServedSteps, ...]
    #: prompt and generated tokens together
    tokens_per_s: float | None
    #: tokens of decode alone
    generated_per_s: float | None


def serving_of(run: Run) -> Serving | None:
    """Return what a serving engine did on the first rank with its ranges, None for any other job."""
    for rank in run.ranks:
        if rank.steps.told_by == SERVING:
            periods = step_periods(rank)
            return None if periods is None else _serving(rank, periods)
    return None


def _serving(rank: Rank, periods: StepPeriods) -> Serving | None:
    named = _named_steps(rank)
    in_steps = periods.step != NO_STEP
    starts = rank.steps.start_ns[periods.step[in_steps]].tolist()
    known = [(named.get(start), dur) for start, dur in zip(starts, periods.dur_ns[in_steps].tolist(), strict=True)]
    steps = [(step, dur) for step, dur in known if step is not None]
    if not steps:
        return None
    kinds = [_of_kind(kind, [s for s in steps if s[0].kind == kind]) for kind in (PREFILL, DECODE, MIXED)]
    total_ns = sum(dur for _, dur in steps)
    return Serving(
        rank=rank.rank,
        kinds=tuple(kind for kind in kinds if kind is not None),
        tokens_per_s=_rate([step.tokens for step, _ in steps], total_ns),
        generated_per_s=_rate([step.decode_tokens for step, _ in steps], total_ns),
    )


def _named_steps(rank: Rank) -> dict[int, ServingStep]:
    trace = rank.trace
    rows = rank.rows_named(lambda name: serving_step(name) is not None, EventKind.ANNOTATION)
    named = {}
    for row in rows.tolist():
        step = serving_step(trace.strings[trace["name"][row]])
        if step is not None:
            named[int(trace["ts_ns"][row])] = step
    return named


def _of_kind(kind: str, steps: list[tuple[ServingStep, int]]) -> ServedSteps | None:
    if not steps:
        return None
    requests = [_sum(step.prefill_requests, step.decode_requests) for step, _ in steps]
    tokens = [step.tokens for step, _ in steps]
    return ServedSteps(
        kind=kind,
        steps=len(steps),
        step_ns=round(median([dur for _, dur in steps])),
        requests_per_step=_mean(requests),
        tokens_per_step=_mean(tokens),
        tokens_per_s=_rate(tokens, sum(dur for _, dur in steps)),
    )


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _mean(values: list[int | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _rate(tokens: list[int | None], time_ns: int) -> float | None:
    known = [t for t in tokens if t is not None]
    return sum(known) * NS_PER_S / time_ns if len(known) == len(tokens) and time_ns else None
