"""Where do steps begin in a trace without any mark? Where the sequence of kernels repeats.

A kernel that runs once per step is an anchor: what lies between two of its launches is the same every time.

    A b c d d d e   A b c d d d e   A b c d d d e      A, b, c, e are anchors; d is not: the pieces between differ

Of all anchors the most frequent one with pieces as alike as the best has the shortest period. The confidence is how
alike the least alike piece is. Any anchor would do; the one before which the device idles longest begins the step.
"""

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.device_work import DeviceWork
from stepscope.stats.middle import median
from stepscope.trace.classify import EventKind, of_kinds
from stepscope.trace.table import Int64s, Trace

MIN_STEPS = 2
"""whole ones; fewer repetitions may be chance"""
MIN_CONFIDENCE = 0.9
_NEARLY_BEST = 0.02
_MIN_KERNELS = 5
"""in a step: a loop over a handful of kernels is a benchmark, not a step"""
_MAX_KERNELS = 400_000
_MAX_NAMES = 4_000
_MAX_CELLS = 1_000_000
"""pieces times names that are compared for one anchor"""
_MIN_FITTING = 0.98
"""of the kernels before the first and after the last anchor must belong to a usual step"""
_MIN_COVERED = 0.6
"""of the launched kernels must lie in the steps found"""


@dataclass(frozen=True, eq=False, repr=False)
class Period(ArrayRecord):
    """Steps as the kernels' sequence shows them, on the host's clock."""

    start_ns: Int64s
    end_ns: Int64s
    confidence: float
    """0 to 1: how alike the kernels of the step are that is least like the others"""


def kernel_period(trace: Trace, work: DeviceWork) -> Period | None:
    """Return the steps that the sequence of launched kernels repeats in, None where nothing repeats."""
    rows = np.flatnonzero((work.launch_row >= 0) & of_kinds(work.kind, (EventKind.KERNEL, EventKind.COMM_KERNEL)))
    if not MIN_STEPS * _MIN_KERNELS <= len(rows) <= _MAX_KERNELS:
        return None
    asked = trace["ts_ns"][work.launch_row[rows]]
    order = np.lexsort((work.start_ns[rows], asked))
    rows, asked = rows[order], asked[order]
    names, code = np.unique(work.name[rows], return_inverse=True)
    if len(names) > _MAX_NAMES:
        return None
    anchors = _anchors(code, len(names))
    if not anchors:
        return None
    best = max(score for _, score in anchors)
    near = [(at, score) for at, score in anchors if score >= best - _NEARLY_BEST]
    most = max(len(at) for at, _ in near)
    alike = [(at, score) for at, score in near if len(at) == most]
    at, score = max(alike, key=lambda anchor: _idle_before(work, rows, anchor[0]))
    begins = asked[at]
    if score < MIN_CONFIDENCE or not (np.diff(begins) > 0).all():
        return None
    return Period(begins[:-1], begins[1:], round(score, 3))


def _anchors(code: npt.NDArray[np.intp], names: int) -> list[tuple[npt.NDArray[np.intp], float]]:
    """Return the positions of kernels that may begin steps, with how alike the pieces between them are."""
    by_name = np.argsort(code, kind="stable")
    cuts = np.searchsorted(code[by_name], np.arange(names + 1))
    out = []
    for name in range(names):
        at = np.sort(by_name[cuts[name] : cuts[name + 1]])
        if len(at) <= MIN_STEPS or at[-1] - at[0] < _MIN_COVERED * len(code):
            continue
        length = np.diff(at)
        if length.min() < max(_MIN_KERNELS, MIN_CONFIDENCE * length.max()) or len(at) * names > _MAX_CELLS:
            continue
        out.append((at, _likeness(code, at, names)))
    return out


def _likeness(code: npt.NDArray[np.intp], at: npt.NDArray[np.intp], names: int) -> float:
    """Return the share of kernels that the piece least like the usual one has in common with it.

    What lies before the first anchor and after the last are parts of steps: kernels that no usual piece has there tell
    that the pieces are layers of one step, between its first and its last kernels.
    """
    inside = code[at[0] : at[-1]]
    piece = np.repeat(np.arange(len(at) - 1), np.diff(at))
    counts = np.bincount(piece * names + inside, minlength=(len(at) - 1) * names).reshape(len(at) - 1, names)
    usual = np.median(counts, axis=0)
    shared = np.minimum(counts, usual).sum(axis=1)
    inner = float((shared / np.maximum(np.maximum(counts.sum(axis=1), usual.sum()), 1)).min())
    ends = [np.bincount(part, minlength=names) for part in (code[: at[0]], code[at[-1] :])]
    outer = [float(np.minimum(part, usual).sum() / part.sum()) for part in ends if part.any()]
    return min(inner, *outer) if min(outer, default=1.0) >= _MIN_FITTING else 0.0


def _idle_before(work: DeviceWork, rows: Int64s, at: npt.NDArray[np.intp]) -> float:
    """Return how long the device usually idles before these kernels."""
    reach = np.maximum.accumulate(work.end_ns[rows])
    inner = at[at > 0]
    return median(np.maximum(work.start_ns[rows[inner]] - reach[inner - 1], 0)) if len(inner) else 0.0
