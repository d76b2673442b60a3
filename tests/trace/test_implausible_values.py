"""What a file says becomes a column only where it can be true; what cannot is counted and named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.run.traces import Event, event, trace_of

from stepscope.trace.table import Trace

HOUR_US = 3600e6


def window(*, steps: int = 10, kernels: int = 20) -> list[Event]:
    """Return steps of 100 ms with kernels all through them."""
    marks = [event("user_annotation", f"ProfilerStep#{i}", 1e5 * i, 1e5) for i in range(steps)]
    return marks + [
        event("kernel", "gemm", 1e5 * i + 4e3 * k, 1e3, tid=7) for i in range(steps) for k in range(kernels)
    ]


def far_of(tmp_path: Path, events: list[Event], **header: Any) -> Trace:
    return trace_of(tmp_path, events, **header)


@pytest.mark.parametrize("shift_us", [HOUR_US, -HOUR_US, 1e15, -1e12])
def test_kernel_far_from_all_others_is_in_quarantine(tmp_path: Path, shift_us: float) -> None:
    events = window()
    events[57]["ts"] += shift_us
    trace = far_of(tmp_path, events, baseTimeNanoseconds=10**18)
    assert (trace.quality.far_times, trace.num_events) == (1, len(events) - 1)
    assert int(trace["ts_ns"].max() - trace["ts_ns"].min()) < 2e9


def test_duration_that_nothing_else_reaches_is_in_quarantine(tmp_path: Path) -> None:
    events = window()
    events[57]["dur"] = HOUR_US
    assert far_of(tmp_path, events).quality.far_times == 1


def test_arguments_stay_with_their_events(tmp_path: Path) -> None:
    events = window()
    for i, one in enumerate(events):
        one["args"] = {"correlation": i}
    events[57]["ts"] += HOUR_US
    trace = far_of(tmp_path, events)
    kept = [i for i in range(len(events)) if i != 57]
    assert trace.arg("correlation").rows.tolist() == list(range(len(kept)))
    assert trace.arg("correlation").values.tolist() == kept
    assert not trace["ts_ns"].flags.writeable


def test_long_wait_that_several_events_span_is_true(tmp_path: Path) -> None:
    """A hang of ten minutes: the kernel, the call that waits for it and the step all last as long."""
    wait_us = 600e6
    events = [*window(steps=2), event("cuda_runtime", "cudaEventSynchronize", 2e5, wait_us)]
    events += [event("kernel", "ncclDevKernel_AllReduce", 2e5, wait_us, tid=9)]
    events += [event("user_annotation", "ProfilerStep#2", 2e5, wait_us + 5e3), event("cpu_op", "x", 2e5 + wait_us, 1)]
    trace = far_of(tmp_path, events)
    assert (trace.quality.far_times, trace.quality.notes) == (0, ())


def test_window_of_minutes_is_true(tmp_path: Path) -> None:
    events = [event("user_annotation", f"ProfilerStep#{i}", 90e6 * i, 89e6) for i in range(10)]
    events += [event("kernel", "gemm", 90e6 * i, 88e6, tid=7) for i in range(10)]
    assert far_of(tmp_path, events).quality.far_times == 0


def test_clock_set_inside_the_window_keeps_both_sides_and_is_said(tmp_path: Path) -> None:
    events = window()
    for one in events:
        one["ts"] += HOUR_US if one["ts"] >= 5e5 else 0
    trace = far_of(tmp_path, events)
    assert trace.quality.far_times == 0
    assert trace.quality.notes == ("times jump by 3,600 s within the trace: its clock was set",)


def test_memory_event_at_another_time_is_in_quarantine(tmp_path: Path) -> None:
    events = [
        *window(),
        event("cpu_instant_event", "[memory]", HOUR_US, ph="i"),
        event(None, "names", -HOUR_US, ph="M"),
    ]
    trace = far_of(tmp_path, events)
    assert trace.quality.far_times == 1


@pytest.mark.parametrize("ts, dur", [(9.2e15, 1), (1, 9.2e15), (9.1e15, 9.1e15), (-9.2e15, 5)])
def test_times_that_overflow_leave_the_others_right(tmp_path: Path, ts: float, dur: float) -> None:
    trace = far_of(tmp_path, [*window(), event("kernel", "k", ts, dur)], baseTimeNanoseconds=1_790_857_026_000_000_000)
    assert trace.quality.far_times + trace.quality.bad_time == 1
    end = trace["ts_ns"] + trace["dur_ns"]
    assert int(trace["ts_ns"].min()) == 1_790_857_026_000_000_000
    assert int(end.max()) == 1_790_857_026_000_000_000 + 10**9


@pytest.mark.parametrize("base", [2**62, -(2**70), 1e30, True, "soon", [1]])
def test_base_time_that_is_none_is_said(tmp_path: Path, base: Any) -> None:
    trace = far_of(tmp_path, window(), baseTimeNanoseconds=base)
    assert int(trace["ts_ns"].min()) == 0
    assert any("baseTimeNanoseconds" in note for note in trace.quality.notes)


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
def test_argument_out_of_range_is_unknown_and_its_field_named(
    tmp_path: Path, key: str, column: str, value: int
) -> None:
    events = [event("cpu_op", "a", 0, **{key: 1}), event("cpu_op", "b", 2, **{key: value})]  # type: ignore[arg-type]
    trace = trace_of(tmp_path, events)
    assert trace.arg(column).at(np.array([0, 1]), missing=-7).tolist() == [1, -7]
    assert trace.quality.bad_args == 1
    assert any(note.startswith(f"{key}: 1 values outside") for note in trace.quality.notes)


def test_numbers_of_the_header_that_fit_nothing_are_unknown(tmp_path: Path) -> None:
    header: dict[str, Any] = {
        "distributedInfo": {"rank": 10**400, "world_size": 2},
        "deviceProperties": [{"totalGlobalMem": 1e999}],
    }
    trace = trace_of(tmp_path, window(), **header)
    assert trace.header["distributedInfo"] == {"rank": None, "world_size": 2}
    assert trace.header["deviceProperties"] == [{"totalGlobalMem": None}]
    assert any("distributedInfo.rank" in note for note in trace.quality.notes)


@pytest.mark.parametrize(("value", "dtype"), [(7, np.int32), ((1 << 31) - 1, np.int32), (1 << 31, np.int64)])
def test_numbers_are_kept_in_32_bits_where_all_fit(tmp_path: Path, value: int, dtype: type) -> None:
    events = [event("gpu_memcpy", "copy", i, 1, bytes=n) for i, n in enumerate((5, value))]
    column = far_of(tmp_path, [*events, event("kernel", "none", 9, 1)]).arg("bytes")
    assert column.values.dtype == dtype
    found = column.at(np.arange(3), missing=-1)
    assert found.tolist() == [5, value, -1] and found.dtype == np.int64
    assert column.at(np.array([2, 0]), missing=-(1 << 40)).tolist() == [-(1 << 40), 5]
