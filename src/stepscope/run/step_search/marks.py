"""Where did steps begin in a trace whose loop marked none? PyTorch's own ranges tell, whichever framework ran them.

    the loader's next batch     one per step begins it, where there is one per optimizer step
    the optimizer's step        ends it; the loop's first is left out, because nobody knows where it began

Several optimizers in a row end one step. Where they alternate (a generator's and a discriminator's), the pattern of
what runs between them tells how many make one step.
"""

import re

import numpy as np
import numpy.typing as npt

from stepscope.stats.middle import median
from stepscope.trace.classify import EventKind, Kinds, rows_named
from stepscope.trace.table import Int64s, Trace

_LOADER = re.compile(r"^enumerate\(DataLoader\)#|^\[pl\]\[profile\]\[_?TrainingEpochLoop\]\.train_dataloader_next$")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_ENGINE = re.compile(r"^autograd::engine::evaluate_function|^torch::autograd::|Backward\d*$")
_FEWEST = 2
_MAX_OPTIMIZERS = 4
_ALIKE = 0.05
"""of the operators between two optimizer steps may differ from those one pattern later"""


def steps_between_marks(trace: Trace, kinds: Kinds) -> tuple[Int64s, Int64s, str] | None:
    """Return start and end of each step, and what they were told by; None where neither mark recurs."""
    ranges = np.flatnonzero(kinds == EventKind.ANNOTATION)
    optimizer = _spans(trace, rows_named(trace, ranges, lambda s: bool(_OPTIMIZER.match(s))))
    loader = _spans(trace, rows_named(trace, ranges, lambda s: bool(_LOADER.match(s))))
    if len(optimizer) < _FEWEST:
        return None
    ends = _last_of_each(trace, kinds, optimizer)
    begins = loader[:, 0]
    if len(begins) >= _FEWEST and _one_per_step(begins, ends):
        last = ends[ends > begins[-1]]
        edges = np.append(begins, last[:1]) if len(last) else begins
        return edges[:-1], edges[1:], "the batches of the loader"
    if len(ends) <= _FEWEST:
        return None
    return ends[:-1], ends[1:], "the ends of Optimizer.step"


def _spans(trace: Trace, rows: npt.NDArray[np.intp]) -> Int64s:
    """Return start and end of outermost ranges, by start."""
    start = trace["ts_ns"][rows]
    both = np.stack((start, start + trace["dur_ns"][rows]), axis=1)[np.argsort(start, kind="stable")]
    if not len(both):
        return both
    reach = np.maximum.accumulate(both[:, 1])
    return both[np.append(True, both[1:, 0] >= reach[:-1])]


def _one_per_step(begins: Int64s, ends: Int64s) -> bool:
    """Return whether exactly one optimizer step lies between two batches, but for the edges of the trace."""
    between = np.diff(np.searchsorted(ends, begins))
    return bool((between == 1).all())


def _last_of_each(trace: Trace, kinds: Kinds, optimizer: Int64s) -> Int64s:
    """Return the end of the last optimizer of each step."""
    ops = np.flatnonzero(kinds == EventKind.HOST_OP)
    backward = np.sort(trace["ts_ns"][rows_named(trace, ops, lambda s: bool(_ENGINE.search(s)))])
    passed = np.searchsorted(backward, optimizer[:, 0])
    ends = optimizer[np.append(np.diff(passed) > 0, True), 1] if len(backward) else optimizer[:, 1]
    count = np.diff(np.searchsorted(np.sort(trace["ts_ns"][ops]), ends))
    every = _pattern_length(count)
    return ends[(len(ends) - 1) % every :: every]


def _pattern_length(count: npt.NDArray[np.intp]) -> int:
    """Return after how many optimizer steps the same number of operators comes again, 1 where it always does."""
    for length in range(1, _MAX_OPTIMIZERS + 1):
        if len(count) < 2 * length:
            break
        off = np.abs(count[length:] - count[:-length]) / np.maximum(count[:-length], 1)
        if median(off) <= _ALIKE:
            return length
    return 1
