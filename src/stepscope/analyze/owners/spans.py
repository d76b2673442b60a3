"""What was the innermost thing on a thread at each moment: an operator, a range, or nothing that was recorded?"""

import numpy as np

from stepscope.analyze.host.calls import HostCalls
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.trace.table import Int64s


@dataclass(frozen=True, eq=False, repr=False)
class Spans(ArrayRecord):
    """The time of one thread, cut wherever anything begins or ends; no gaps and no overlaps."""

    start_ns: Int64s
    end_ns: Int64s
    call: Int64s
    """the innermost call, -1 for none"""

    def __len__(self) -> int:
        return len(self.start_ns)


def thread_spans(calls: HostCalls, thread: int, start_ns: int, end_ns: int) -> Spans:
    """Return what was innermost on a thread from `start_ns` to `end_ns`."""
    low, high = np.searchsorted(calls.thread, [thread, thread + 1])
    own = np.arange(low, high)
    end = np.minimum(calls.end_ns[own], _next_beside(calls, own))
    own, end = own[end > calls.start_ns[own]], end[end > calls.start_ns[own]]
    when = np.concatenate((calls.start_ns[own], end))
    innermost = np.concatenate((own, calls.parent[own]))
    begins = np.repeat([True, False], len(own))
    # At one moment ends come before beginnings, inner ends before outer ones, outer beginnings before inner ones.
    order = np.lexsort((np.concatenate((own, -own)), begins, when))
    cuts = np.concatenate(([start_ns], np.clip(when[order], start_ns, end_ns), [end_ns]))
    inside = np.concatenate(([-1], innermost[order]))
    keep = cuts[1:] > cuts[:-1]
    return Spans(cuts[:-1][keep], cuts[1:][keep], inside[keep])


def _next_beside(calls: HostCalls, own: Int64s) -> Int64s:
    """Return when the next call of the same caller begins: where two cross, what lies in both is the later one's."""
    out = np.full(len(own), np.iinfo(np.int64).max)
    order = np.lexsort((own, calls.parent[own]))
    parent, start = calls.parent[own][order], calls.start_ns[own][order]
    same = np.flatnonzero(parent[1:] == parent[:-1])
    out[order[same]] = start[same + 1]
    return out
