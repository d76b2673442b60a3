"""What a file says becomes a column only where it can be true; what cannot is counted and named."""

import numpy as np
import pytest
from tests.run.traces import Event, event, trace_of

HOUR_US = 3600e6


def window(*, steps: int = 10, kernels: int = 20) -> list[Event]:
    """Return steps of 100 ms with kernels all through them."""
    marks = [event("user_annotation", f"ProfilerStep#{i}", 1e5 * i, 1e5) for i in range(steps)]
    return marks + [
        event("kernel", "gemm", 1e5 * i + 4e3 * k, 1e3, tid=7) for i in range(steps) for k in range(kernels)
    ]


@pytest.mark.parametrize("shift_us", [HOUR_US, -HOUR_US, 1e15, -1e12])
def test_kernel_far_from_all_others_is_in_quarantine(tmp_path, shift_us):
    events = window()
    events[57]["ts"] += shift_us
    trace = trace_of(tmp_path, events, baseTimeNanoseconds=10**18)
    assert (trace.quality.far_times, trace.num_events) == (1, len(events) - 1)
    assert int(trace["ts_ns"].max() - trace["ts_ns"].min()) < 2e9


def test_clock_set_inside_the_window_keeps_both_sides_and_is_said(tmp_path):
    events = window()
    for one in events:
        one["ts"] += HOUR_US if one["ts"] >= 5e5 else 0
    trace = trace_of(tmp_path, events)
    assert trace.quality.far_times == 0
    assert trace.quality.notes == ("times jump by 3,600 s within the trace: its clock was set",)


@pytest.mark.parametrize("ts, dur", [(9.2e15, 1), (1, 9.2e15), (9.1e15, 9.1e15), (-9.2e15, 5)])
def test_times_that_overflow_leave_the_others_right(tmp_path, ts, dur):
    trace = trace_of(
        tmp_path, [*window(), event("kernel", "k", ts, dur)], baseTimeNanoseconds=1_790_857_026_000_000_000
    )
    assert trace.quality.far_times + trace.quality.bad_time == 1
    end = trace["ts_ns"] + trace["dur_ns"]
    assert int(trace["ts_ns"].min()) == 1_790_857_026_000_000_000
    assert int(end.max()) == 1_790_857_026_000_000_000 + 10**9


@pytest.mark.parametrize(
    "key, column, value",
    [
        ("Device Id", "alloc_device", 2**63 - 1),
        ("Device Id", "alloc_device", -(2**62)),
        ("Bytes", "alloc_bytes", 2**62),
        ("Group size", "group_size", 2**40),
        ("Dst Rank", "dst_rank", 2**31),
        ("bytes", "bytes", -5),
    ],
)
def test_argument_out_of_range_is_unknown_and_its_field_named(tmp_path, key, column, value):
    events = [event("cpu_op", "a", 0, **{key: 1}), event("cpu_op", "b", 2, **{key: value})]  # type: ignore[arg-type]
    trace = trace_of(tmp_path, events)
    assert trace.arg(column).at(np.array([0, 1]), missing=-7).tolist() == [1, -7]
    assert trace.quality.bad_args == 1
    assert any(note.startswith(f"{key}: 1 values outside") for note in trace.quality.notes)


def test_share_out_of_range_is_unknown(tmp_path):
    events = [event("kernel", "a", 2 * k, **{"est. achieved occupancy %": v}) for k, v in enumerate((50, 250, -1))]  # type: ignore[arg-type]
    trace = trace_of(tmp_path, events)
    found = trace.arg("occupancy_pct")
    assert found.rows.tolist() == [0] and found.values.view(np.float64).tolist() == [50]
    assert trace.quality.bad_args == 2
