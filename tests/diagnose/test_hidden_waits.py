"""Waits that a trace does not show as calls: before the allocator empties its cache, and in calls of 0 ns."""

import gzip
import json
from typing import Any

import pytest
from tests.diagnose.late import late_run

import stepscope

Event = dict[str, Any]


def emptied_cache(events: list[Event]) -> list[Event]:
    """Replace each wait at the end of a step by an allocation that fails and the free that follows the wait."""
    out = []
    for event in events:
        if event["name"] == "cudaStreamSynchronize":
            out.append({**event, "name": "cudaMalloc", "dur": 2})
            out.append({**event, "name": "cudaFree", "ts": event["ts"] + event["dur"], "dur": 5})
        else:
            out.append(event)
    return out


def copies_in_no_time(events: list[Event]) -> list[Event]:
    """Add a copy from pageable memory to each step; its call took less than a microsecond, the unit of the times."""
    out = list(events)
    device = next(e for e in events if e.get("cat") == "kernel")
    for n, step in enumerate(e for e in events if e["name"].startswith("ProfilerStep#") and e["ph"] == "X"):
        number = {"correlation": 900_000 + n}
        call = {
            **step,
            "cat": "cuda_runtime",
            "name": "cudaMemcpyAsync",
            "ts": step["ts"] + 6,
            "dur": 0,
            "args": number,
        }
        copy = {
            **device, "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "ts": step["ts"] + 5, "dur": 1,
            "args": {**device["args"], **number, "bytes": 8},
        }  # fmt: skip
        out += [call | {"args": number}, copy]
    return out


@pytest.mark.parametrize("change", [emptied_cache, copies_in_no_time])
def test_late_rank_is_found_through_hidden_waits(tmp_path, change):
    late_run(tmp_path, late_rank=2)
    for path in tmp_path.glob("rank*.trace.json*"):
        packed = path.suffix == ".gz"
        trace = json.loads(gzip.decompress(path.read_bytes()) if packed else path.read_bytes())
        text = json.dumps({**trace, "traceEvents": change(trace["traceEvents"])}).encode()
        path.write_bytes(gzip.compress(text) if packed else text)
    account = stepscope.load(tmp_path).account
    assert [s.rank for s in account.stragglers] == [2]
    assert account.replay is not None
