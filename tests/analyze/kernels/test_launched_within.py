"""Which call a launch lies in is told from the calls alone, as stacking launches and calls together tells it."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from stepscope.analyze.host_calls import call_stacks
from stepscope.analyze.phases import launched_within
from stepscope.run.device_work import enclosing
from stepscope.run.rank import Rank
from stepscope.trace.table import Trace

SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 2)), min_size=1, max_size=9)
"""start, duration and thread"""


@given(SPANS, SPANS)
@example(calls=[(0, 10, 1), (2, 3, 1)], launches=[(1, 1, 1), (3, 1, 1), (5, 1, 1), (10, 0, 1), (3, 1, 2)])
@example(
    calls=[(0, 10, 1), (4, 3, 1)], launches=[(2, 9, 1), (5, 1, 1), (8, 1, 1)]
)  # the first launch outlasts its call
@example(calls=[(3, 0, 1), (3, 5, 1)], launches=[(3, 0, 1), (3, 5, 1)])
@example(calls=[(0, 1000, 1), *((k, 400 - k, 1) for k in range(1, 101))], launches=[(500, 1, 1), (200, 1, 1)])
def test_launches_lie_in_the_calls_that_a_stack_of_all_tells(
    calls: list[tuple[int, int, int]], launches: list[tuple[int, int, int]]
) -> None:
    start, duration, thread = (np.array(values, np.int64) for values in zip(*calls, *launches, strict=True))
    columns: dict[str, Any] = {
        "ts_ns": start,
        "dur_ns": duration,
        "tid": thread,
        "name": np.zeros(len(start), np.int32),
    }
    trace = Trace(path="", raw_bytes=0, header={}, strings=["call"], columns=columns, args={})
    outer, inner = np.arange(len(calls)), np.arange(len(calls), len(start))
    rank = cast(Rank, SimpleNamespace(trace=trace, work=SimpleNamespace(launch_row=inner)))
    stack = call_stacks(trace, outer)
    within = launched_within(rank, stack, np.arange(len(inner)))
    rows = np.append(stack.row, -1)[within]
    assert rows.tolist() == enclosing(trace, outer, inner).tolist()
