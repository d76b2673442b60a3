"""A trace that lies in several files is the same trace."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.traces import event, trace_of

from stepscope.trace.table import Trace, joined

NAMES = st.sampled_from(["aten::mm", "gemm", "κ", "record_param_comms"])
EVENTS = st.lists(
    st.builds(
        lambda cat, name, ts, tid, args: {**event(cat, name, ts), "tid": tid, "args": args},
        st.sampled_from(["cpu_op", "kernel", None]),
        NAMES,
        st.integers(0, 10**6),
        st.sampled_from([1, "Spans", "other thread", -3]),
        st.dictionaries(
            st.sampled_from(["correlation", "dtype", "Input Dims", "est. achieved occupancy %"]), st.integers(0, 9)
        ),
    ),
    max_size=12,
)


def contents(trace: Trace) -> list[dict[str, Any]]:
    """Return every row with ids resolved to what they stand for."""
    rows = []
    for i in range(trace.num_events):
        row: dict[str, Any] = {"cat": trace.text(int(trace["cat"][i])), "name": trace.text(int(trace["name"][i]))}
        row |= {name: trace.id_text(int(trace[name][i])) for name in ("pid", "tid")}
        row |= {name: int(trace[name][i]) for name in ("ts_ns", "dur_ns", "ph")}
        rows.append(row)
    for name in ("correlation", "occupancy_pct"):
        column = trace.arg(name)
        for at, value in zip(column.rows.tolist(), column.values.tolist(), strict=True):
            rows[at][name] = value
    for name in ("dtype", "input_dims"):
        column = trace.arg(name)
        for at, value in zip(column.rows.tolist(), column.values.tolist(), strict=True):
            rows[at][name] = trace.text(value)
    return rows


@pytest.mark.slow
@given(EVENTS, st.integers(0, 12), st.integers(0, 12))
def test_parts_joined_are_the_whole(
    tmp_path_factory: Any, events: list[dict[str, Any]], first: int, second: int
) -> None:
    folder: Path = tmp_path_factory.mktemp("t")
    a, b = sorted((first, second))
    pieces = [events[:a], events[a:b], events[b:]]
    parts = [trace_of(folder, piece, name=f"{k}.json", baseTimeNanoseconds=5) for k, piece in enumerate(pieces)]
    whole = trace_of(folder, events, baseTimeNanoseconds=5)
    one = joined(parts)
    assert contents(one) == contents(whole)
    assert {n: c.dtype for n, c in one.columns.items()} == {n: c.dtype for n, c in whole.columns.items()}
    assert len(set(one.strings)) == len(one.strings)
    assert (one["offset"][len(pieces[0]) :] == -1).all()
