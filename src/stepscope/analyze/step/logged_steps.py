"""Which steps of a rank's log are ordinary, and what stands out in the others?"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt

from stepscope.analyze.step.recurring import COMMUNICATION, OUTSIDE
from stepscope.contract.step_line import (
    BACKWARD,
    CLIPPING,
    EVALUATION,
    FORWARD,
    GRADIENT_SYNC,
    LR_SCHEDULING,
    OPTIMIZER,
    WINDOW,
)
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.step_log import StepLog
from stepscope.stats.middle import median
from stepscope.stats.robust import FAR_LONGER, mad_sigma, num_stretches, slow_start

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
WORK_REGIONS = (FORWARD, BACKWARD, GRADIENT_SYNC, OPTIMIZER, LR_SCHEDULING, CLIPPING)
"""the work of training itself: time there is not something else that the host does"""
UNNAMED = (OUTSIDE, COMMUNICATION)
"""causes that no region names"""
_MIN_STEPS = 8
_MIN_EXCESS_SHARE = 0.1
"""of the median step: a cause that takes less longer than usual is noise"""
_EXCESS_SIGMAS = 5.0
_LONG_STEP_SHARE = 0.25
_MIN_ORDINARY = 3
_MIN_SHARE_KNOWN = 0.8
_NEARLY_ALL = 0.9
_MIN_UNNAMED = 3
"""stretches of steps: host time outside every region that comes less often is not known to recur"""


@dataclass(frozen=True, eq=False, repr=False)
class LoggedSteps(ArrayRecord):
    """One rank's log with what stands out in it."""

    log: StepLog
    step_ns: Floats
    """of the device where it was measured, else of the host"""
    counts: Mask
    event: Mask
    hiccup: Mask
    causes: dict[str, Floats]
    """how much longer than usual, by step; 0 where that is noise"""

    @property
    def ordinary(self) -> Mask:
        """Return the steps that count and in which nothing stands out."""
        return np.asarray(self.counts & ~self.event)

    @property
    def mean_ns(self) -> float:
        """Return the mean step, without what happened once."""
        return float(self.step_ns[self.counts & ~self.hiccup].mean())

    @property
    def ordinary_mean_ns(self) -> float:
        """Return the mean of the ordinary steps."""
        return float(self.step_ns[self.ordinary].mean())


def logged_steps(log: StepLog) -> LoggedSteps | None:
    """Return the steps of a rank, None where fewer than eight count."""
    step_ns = _step_ns(log)
    usable = np.flatnonzero(log.unprofiled & (step_ns > 0))
    counts = np.zeros(len(log), bool)
    counts[usable[slow_start(step_ns[usable]) :]] = True
    if counts.sum() < _MIN_STEPS:
        return None
    causes, long = _standing_out(log, step_ns, counts)
    if num_stretches(causes[OUTSIDE][counts] > 0) < _MIN_UNNAMED:
        causes[OUTSIDE] = np.zeros(len(log))
    if _with_more_collectives(log, counts, causes[OUTSIDE] > 0):
        causes[COMMUNICATION], causes[OUTSIDE] = causes[OUTSIDE], np.zeros(len(log))
    named = _any([x for name, x in causes.items() if name not in UNNAMED], len(log))
    event = _any(list(causes.values()), len(log)) | long
    unnamed = counts & (step_ns > FAR_LONGER * median(step_ns[counts])) & ~named
    hiccup = unnamed if unnamed.sum() == 1 else np.zeros(len(log), bool)
    if (counts & ~event).sum() < _MIN_ORDINARY:  # no two steps are alike: all of them are what the job is like
        return LoggedSteps(log, step_ns, counts, np.zeros(len(log), bool), np.zeros(len(log), bool), {})
    window = in_window(log)
    if window.any():
        seen, long = _standing_out(log, step_ns, window)
        event |= _any(list(seen.values()), len(log)) | long
    return LoggedSteps(
        log, step_ns, counts, event, hiccup, {name: np.where(hiccup, 0, x) for name, x in causes.items()}
    )


def _with_more_collectives(log: StepLog, counts: Mask, these: Mask) -> bool:
    """Return whether some steps have more collectives than the others."""
    count = log.column("collectives.count")
    known = counts & ~np.isnan(count)
    mine, others = count[known & these], count[known & ~these]
    return bool(len(mine) and len(others) and median(mine) > median(others))


def _standing_out(log: StepLog, step_ns: Floats, among: Mask) -> tuple[dict[str, Floats], Mask]:
    """Return by cause how much longer than usual it takes among some steps, and which of them are long."""
    usual = median(step_ns[among])
    causes = {name: _beyond_usual(time, among, usual) for name, time in cause_times(log).items()}
    spread = mad_sigma(step_ns[among])
    return causes, among & (step_ns > usual + max(_LONG_STEP_SHARE * usual, _EXCESS_SIGMAS * spread))


def in_window(log: StepLog) -> Mask:
    """Return the profiled steps of the window."""
    return np.asarray(log.profiled & (np.array(log.phase, str) == WINDOW))


def region_times(log: StepLog) -> dict[str, Floats]:
    """Return by region its time in every step, 0 where it was not entered."""
    paths = [path for path in log.numbers if path.startswith("regions.") and path.endswith(".ns")]
    return {path[len("regions.") : -len(".ns")]: np.nan_to_num(log.column(path)) for path in paths}


def cause_times(log: StepLog) -> dict[str, Floats]:
    """Return by cause its time in every step: regions that are not the work of training, and time outside all."""
    times = region_times(log)
    inside = sum(times.values(), np.zeros(len(log)))
    found = {name: time for name, time in times.items() if name not in WORK_REGIONS and not _is_work(name, time)}
    # A log without regions says nothing of what the host did: then nothing is known to be outside of them.
    return {**found, OUTSIDE: np.maximum(log.dur_ns - inside, 0.0) if times else np.zeros(len(log))}


def _is_work(name: str, time: Floats) -> bool:
    """Return whether passes without gradients are the work of the loop itself: there are some in nearly every step, as
    where a policy writes what it is trained on.
    """
    return name == EVALUATION and bool(len(time)) and bool((time > 0).mean() >= _NEARLY_ALL)


def _step_ns(log: StepLog) -> Floats:
    """Return the device's step times where nearly all are known, else the host's."""
    known = log.device_ns > 0
    on_device = len(log) > 0 and known.mean() >= _MIN_SHARE_KNOWN
    return np.where(known, log.device_ns, log.dur_ns).astype(float) if on_device else log.dur_ns.astype(float)


def _beyond_usual(time: Floats, among: Mask, median_step: float) -> Floats:
    usual = median(time[among])
    beyond = time - usual
    least = max(_MIN_EXCESS_SHARE * median_step, _EXCESS_SIGMAS * mad_sigma(time[among]))
    return np.where(among & (beyond > least), beyond, 0.0)


def _any(times: Sequence[Floats], length: int) -> Mask:
    return np.asarray(reduce(np.logical_or, [x > 0 for x in times], np.zeros(length, bool)))
