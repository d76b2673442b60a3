"""Which steps were recorded, and to which step does a moment belong?"""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.trace.classify import EventKind, Kinds, rows_named
from stepscope.trace.table import Int64s, Trace

_PROFILER_STEP = re.compile(r"^ProfilerStep#(\d+)")


@dataclass(frozen=True)
class Steps:
    """The recorded steps of one rank on the host's clock, by start."""

    number: Int64s
    start_ns: Int64s
    end_ns: Int64s

    def __len__(self) -> int:
        return len(self.number)

    def of(self, moment_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the index of the step each moment lies in, -1 before the first and after the last.

        A moment between two steps belongs to the earlier one.
        """
        if not len(self):
            return np.full(len(moment_ns), -1, np.int32)
        i = np.searchsorted(self.start_ns, moment_ns, side="right") - 1
        i[moment_ns >= self.end_ns.max()] = -1
        return i.astype(np.int32)


def recorded_steps(trace: Trace, kinds: Kinds) -> Steps:
    """Return the `ProfilerStep#` ranges; the last one is left out of a trace that was cut off."""
    rows = rows_named(trace, np.flatnonzero(kinds == EventKind.ANNOTATION), lambda s: bool(_PROFILER_STEP.match(s)))
    number = np.array([_number(trace.strings[i]) for i in trace["name"][rows]], np.int64)
    start = trace["ts_ns"][rows]
    order = np.argsort(start, kind="stable")
    _, first = np.unique(number[order], return_index=True)  # the same step on a second thread counts once
    keep = order[np.sort(first)]
    if trace.quality.truncated:
        keep = keep[:-1]
    return Steps(number[keep], start[keep], start[keep] + trace["dur_ns"][rows][keep])


def _number(name: str) -> int:
    found = _PROFILER_STEP.match(name)
    return int(found.group(1)) if found else -1
