"""The step log tells how much of the host's time is the profiler's, where the step times cannot."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.analyze.simulate import kernel, simulate

from stepscope.analyze.replay.replay import replay_of
from stepscope.run.aligned import AlignedRun

LAUNCHES, HOST_US, DEVICE_US = 20, 100, 500
PROFILED_MS = LAUNCHES * HOST_US / 1000


def recorded(folder: Path, forward_ms: Sequence[float], *, device_us: float = DEVICE_US) -> AlignedRun:
    """Return a device-bound job whose host works in forward, and whose log has forwards of such lengths."""
    job = simulate([kernel(device_us, host_us=HOST_US) for _ in range(LAUNCHES)])
    (trace,) = job.traces
    marks = [e for e in trace.events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"]
    trace.events += [{**e, "name": "forward_pass", "dur": e["dur"]} for e in marks]
    lines: list[dict[str, object]] = [{"schema": 1, "rank": 0, "world_size": 1}]
    for step, ms in enumerate(forward_ms):
        at, dur = step * 10_000_000, 10_000_000
        regions = {"forward_pass": {"ns": int(ms * 1e6), "n": 1}}
        about = {"step": step, "start_ns": at, "end_ns": at + dur, "dur_ns": dur, "profiled": False, "phase": "after"}
        lines.append({**about, "regions": regions})
    (folder / "rank00000.steps.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return job.aligned(folder)


def test_quickest_forwards_tell_the_factor_of_a_device_bound_step(tmp_path: Path) -> None:
    """The host waits for the queue in most forwards; in three it does not, and takes 0.6 of its profiled time."""
    quick = 0.6 * PROFILED_MS
    shared = recorded(tmp_path, [9.0] * 10 + [quick, 1.1 * quick, 0.98 * quick])
    replay = replay_of(shared, unprofiled_ns=DEVICE_US * LAUNCHES * 1e3)
    assert replay is not None and not replay.factor_identified
    assert replay.host_factor == pytest.approx(0.6, abs=0.02)


def test_step_that_the_replay_misses_by_a_little_is_not_the_hosts_doing(tmp_path: Path) -> None:
    """Profiled, host and device take about as long; unprofiled the step is 5 % above the device's time."""
    quick, device_us = 0.6 * PROFILED_MS, 92.0
    shared = recorded(tmp_path, [9.0] * 10 + [quick, 1.1 * quick, 0.98 * quick], device_us=device_us)
    replay = replay_of(shared, unprofiled_ns=1.05 * device_us * LAUNCHES * 1e3)
    assert replay is not None and not replay.factor_identified
    assert replay.host_factor == pytest.approx(0.6, abs=0.02)
