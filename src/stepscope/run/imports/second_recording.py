"""Do two recordings of one rank, by PyTorch's profiler and by Nsight Systems, show the same?

The trace of PyTorch's profiler is what the report is made of: it has operators, shapes and collectives. The other one
is held against it where both were recording, by the wall clock.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepscope.trace.classify import EventKind, event_kinds
from stepscope.trace.table import Trace
from stepscope.units import NS_PER_MS

_KERNELS = (EventKind.KERNEL, EventKind.COMM_KERNEL)
_MAX_APART = 0.02
"""share by which the device's time may differ before the two are said to disagree"""


def is_nsight(trace: Trace) -> bool:
    """Return whether a trace was read from an export of Nsight Systems."""
    return process_of(trace) is not None


def process_of(trace: Trace) -> int | None:
    """Return which process of a capture a trace is of, None for a trace of one process."""
    about = trace.header.get("nsight")
    process = about.get("process") if isinstance(about, dict) else None
    return process if isinstance(process, int) else None


def second_recording(kineto: Trace, nsight: Trace, *, rank: int) -> str:
    """Return one line on what the two recordings of a rank have in common."""
    names = f"rank {rank}: {Path(nsight.path).name} (Nsight Systems) and {Path(kineto.path).name}"
    ours, theirs = _kernels(kineto), _kernels(nsight)
    if not len(ours) or not len(theirs):
        return f"{names} both record it, and one of them has no kernels; the latter is used"
    begin, end = max(ours[:, 0].min(), theirs[:, 0].min()), min(ours[:, 1].max(), theirs[:, 1].max())
    if begin >= end:
        apart_s = (begin - end) / 1e9
        return f"{names} record other times ({apart_s:,.1f} s apart by the wall clock); the latter is used"
    both = [of[(of[:, 0] >= begin) & (of[:, 1] <= end)] for of in (ours, theirs)]
    count, busy = [len(of) for of in both], [int((of[:, 1] - of[:, 0]).sum()) for of in both]
    told = f"{count[1]:,} and {count[0]:,} kernels, {busy[1] / NS_PER_MS:,.1f} and {busy[0] / NS_PER_MS:,.1f} ms"
    agree = count[0] == count[1] and abs(busy[0] - busy[1]) <= _MAX_APART * max(*busy, 1)
    word = "agree" if agree else "disagree"
    return f"{names} {word} where both record ({told}); the latter is used"


def _kernels(trace: Trace) -> npt.NDArray[np.int64]:
    rows = np.flatnonzero(np.isin(event_kinds(trace), _KERNELS))
    start = trace["ts_ns"][rows]
    return np.stack((start, start + trace["dur_ns"][rows]), axis=1)
