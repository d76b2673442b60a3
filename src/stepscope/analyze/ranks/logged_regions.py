"""What do the regions of a step take, by the step logs alone: forward, backward, data loading, and what the job names?

Medians over the steps without the profiler. Where the wait for gradients was told apart from the backward pass in some
steps only, those are the steps that count.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.ranks.log_stragglers import WAITING, Floats
from stepscope.contract.step_line import BACKWARD, DATA_LOADING, FORWARD, GRADIENT_SYNC, OPTIMIZER
from stepscope.run.step_log import StepLog
from stepscope.stats.middle import median

_PREFIX, _SUFFIX = "regions.", ".ns"
_FIRST = (DATA_LOADING, FORWARD, BACKWARD, GRADIENT_SYNC, OPTIMIZER)
_RARE = 0.5
"""of the steps lack it"""


def region_names(logs: Sequence[StepLog]) -> list[str]:
    """Return the regions that any rank has, in the order of a step."""
    paths = {path for log in logs for path in log.numbers if path.startswith(_PREFIX) and path.endswith(_SUFFIX)}
    names = {path.removeprefix(_PREFIX).removesuffix(_SUFFIX) for path in paths}
    return [*(n for n in _FIRST if n in names), *sorted(names.difference(_FIRST))]


def is_rare(logs: Sequence[StepLog], name: str) -> bool:
    """Return whether a region is in few of the steps, so that a median says nothing of what it costs."""
    return name not in _FIRST and all(np.isnan(region_ns(log, name)).mean() > _RARE for log in logs)


def region_ns(log: StepLog, name: str) -> Floats:
    """Return what a region took in each step, NaN where it was not seen."""
    return log.column(f"{_PREFIX}{name}{_SUFFIX}")


def median_ns(log: StepLog, values_ns: Floats) -> float | None:
    """Return the median over the steps that count, None where none has a value."""
    known = values_ns[log.unprofiled & _split(log) & ~np.isnan(values_ns)]
    return median(known) if len(known) else None


def _split(log: StepLog) -> npt.NDArray[np.bool_]:
    """Return the steps whose wait was told apart from the backward pass, all where that was done in none."""
    told = ~np.isnan(log.column(WAITING))
    return told if told.any() else np.ones(len(log), bool)
