"""Did a fix give what was predicted? Two runs, before and after, against the findings of the first.

measured   = step before - step after, both without the profiler where both are known
predicted  = what the fixed findings were to save, with their interval
came true  = the measured saving lies in that interval
"""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.account import Account
from stepscope.compare.finding_change import CAME, FIXED, Key, fate, savings_by_key
from stepscope.compare.runs import step_difference
from stepscope.compare.sampled_run import step_samples
from stepscope.dataclass import dataclass
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import Diagnosis
from stepscope.records import ArrayRecord
from stepscope.units import NS_PER_MS

CAME_TRUE, LESS, MORE = "came true", "less than predicted", "more than predicted"
NO_PREDICTION = "nothing was predicted"
WITHIN_CHANCE = "the change is within what chance gives: record more steps, or several runs, to tell"
_UNKNOWN_DOUBT = 0.05


@dataclass(frozen=True, eq=False, repr=False)
class Measurement(ArrayRecord):
    """One run for a validation."""

    account: Account
    diagnosis: Diagnosis


@dataclass(frozen=True)
class Validation:
    """What a fix was to save and what it saved, per step."""

    before_ns: float
    after_ns: float
    basis: str
    """`unprofiled` or `profiled`"""
    measured_ns: float
    doubt_ns: float
    """half of the 95 % interval of the measured saving"""
    fixed: tuple[str, ...]
    """ids of the findings taken as fixed"""
    predicted_ns: float | None
    low_ns: float | None
    high_ns: float | None
    outcome: str
    """`came true`, `less than predicted`, `more than predicted` or `nothing was predicted`"""
    remaining: tuple[str, ...]
    """ids of findings that the second run still has, no less than half as costly"""
    fresh: tuple[str, ...]
    """ids of findings that only the second run has"""
    notes: tuple[str, ...]


def validate(before: Measurement, after: Measurement, *, finding: str | None = None) -> Validation | None:
    """Return what became of the prediction, None where one of the runs has no step.

    Without `finding` the fix is whatever of the first run's findings the second no longer shows.
    """
    first, second = before.account.step, after.account.step
    if first is None or second is None:
        return None
    both = first.unprofiled_ns is not None and second.unprofiled_ns is not None
    times = (first.step_ns, second.step_ns) if both else (first.profiled_ns, second.profiled_ns)
    measured = times[0] - times[1]
    doubt, differs = _doubt_ns(before, after, times)
    fixed = _fixed(before.diagnosis, after.diagnosis, finding)
    predicted, low, high = _prediction(fixed, times[0])
    fates = _fates(before.diagnosis, after.diagnosis)
    done = {_key(f) for f in fixed}
    return Validation(
        before_ns=times[0],
        after_ns=times[1],
        basis="unprofiled" if both else "profiled",
        measured_ns=measured,
        doubt_ns=doubt,
        fixed=tuple(f.id for f in fixed),
        predicted_ns=predicted,
        low_ns=low,
        high_ns=high,
        outcome=_outcome(measured, low, high),
        remaining=tuple(sorted({k[0] for k, what in fates.items() if what not in (*FIXED, CAME) and k not in done})),
        fresh=tuple(sorted({k[0] for k, what in fates.items() if what == CAME})),
        notes=tuple(_notes(before.account, after.account, both, told=differs and abs(measured) > doubt)),
    )


def _fixed(before: Diagnosis, after: Diagnosis, chosen: str | None) -> list[Finding]:
    """Return the findings of the first run that were fixed."""
    if chosen is not None:
        return [f for f in before.findings if f.id == chosen]
    fates = _fates(before, after)
    return [f for f in before.worth if fates[_key(f)] in FIXED]


def _fates(before: Diagnosis, after: Diagnosis) -> dict[Key, str]:
    """Return what became of every finding that saves something in one of the runs."""
    had, left = (savings_by_key((_key(f), f.alone_ns) for f in d.worth) for d in (before, after))
    return {key: fate(had.get(key), left.get(key)) for key in dict.fromkeys([*had, *left])}


def _key(finding: Finding) -> Key:
    return finding.id, finding.ranks


def _prediction(fixed: Sequence[Finding], step_ns: float) -> tuple[float | None, float | None, float | None]:
    """Return what these findings were to save together, at least and at most."""
    if not fixed:
        return None, None, None
    if len(fixed) == 1:
        one = fixed[0]
        return one.alone_ns, one.low_ns, one.high_ns
    # Together they save what each adds to those above it; each is as unsure as it is alone.
    saving = min(sum(f.saving_ns for f in fixed), step_ns)
    low = saving - float(np.linalg.norm([f.alone_ns - f.low_ns for f in fixed]))
    high = saving + float(np.linalg.norm([f.high_ns - f.alone_ns for f in fixed]))
    return saving, max(0.0, low), min(high, step_ns)


def _outcome(measured: float, low: float | None, high: float | None) -> str:
    """Return what became of a prediction: how unsure the measurement is widens nothing, and is told beside it."""
    if low is None or high is None:
        return NO_PREDICTION
    if measured < low:
        return LESS
    return MORE if measured > high else CAME_TRUE


def _doubt_ns(before: Measurement, after: Measurement, times_ns: tuple[float, float]) -> tuple[float, bool]:
    """Return how well the saving is known, and whether the steps differ, both by a comparison of the two runs; 5 % of
    both steps where there are too few to tell.
    """
    found = step_difference([step_samples(before.account)], [step_samples(after.account)]).difference
    if found.p_value is None:
        return float(np.hypot(*times_ns)) * _UNKNOWN_DOUBT, True
    return (found.high - found.low) / 2 * NS_PER_MS, found.significant


def _notes(before: Account, after: Account, both_unprofiled: bool, *, told: bool) -> list[str]:
    notes = []
    if not told:
        notes.append(WITHIN_CHANCE)
    if not both_unprofiled:
        notes.append("profiled steps are compared: the time without the profiler is not known of both runs")
    for what, one, other in (
        ("ranks", len(before.run.ranks), len(after.run.ranks)),
        ("strategies", before.strategy.name, after.strategy.name),
        ("devices", before.device_name, after.device_name),
    ):
        if one != other:
            notes.append(f"the runs differ in their {what} ({one} and {other}): the fix is not all that changed")
    return notes
