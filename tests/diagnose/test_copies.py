"""Copies between host and device: pageable ones, both directions, and copies that nothing can hide."""

import json
from typing import Any

from tests.analyze.build import COMPUTE_STREAM, RankTrace
from tests.diagnose.test_recording import document
from tests.trace.nsight.kineto_as_nsys import write_nsys

import stepscope

UP, DOWN = "HtoD (Pageable -> Device)", "DtoH (Device -> Pageable)"


def copying(r: RankTrace, at: float) -> None:
    """Add a copy to the device whose call returns before the data has arrived, and one to the host elsewhere."""
    with r.op("aten::copy_", at + 10, at + 10_100):
        r.copy(UP, at=at + 20, call_us=10_000, start=at + 100, end=at + 10_200, stream=7)
    with r.op("aten::copy_", at + 10_300, at + 20_500):
        r.copy(DOWN, at=at + 10_310, call_us=10_180, start=at + 10_320, end=at + 20_450, stream=9)


def copies(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f["title"]: f for f in found["findings"] if f["id"] == "host-to-device-copy"}


def test_pageable_copies_that_fill_the_step_are_named_in_both_directions(tmp_path):
    r = RankTrace()
    for n in range(6):
        r.step(n, n * 21_000, (n + 1) * 21_000)
        copying(r, n * 21_000)
    report = document(tmp_path, r)
    found = copies(report)
    up, down = (found[f"The step waits for copies to the {side}"] for side in ("device", "host"))
    assert 4.5 <= up["saving_alone_ms"] <= 6  # pinned, each takes half of its time
    assert 4.5 <= down["saving_alone_ms"] <= 5.5
    assert "pin_memory=True" in down["remedy"]
    waits = next(f for f in report["findings"] if f["id"] == "host-device-sync")["evidence"][0]
    assert waits["value"] == 1, "each step waits for its copy to the host, the last one too"


def test_copies_whose_fix_is_made_are_not_advised_again(tmp_path):
    def copying_ahead(folder: str, *, stream: int, memory: str) -> dict[str, dict[str, Any]]:
        r = RankTrace()
        for n in range(6):
            at = n * 10_000
            r.step(n, at, at + 10_000)
            with r.op("aten::copy_", at + 10, at + 30):
                r.copy(f"HtoD ({memory} -> Device)", at=at + 12, start=at + 100, end=at + 9_100, stream=stream)
            with r.op("aten::mm", at + 40, at + 60):
                start = at + 110 if stream != COMPUTE_STREAM else at + 9_110
                r.kernel("gemm", at=at + 45, start=start, end=start + 800)
            r.call("cudaDeviceSynchronize", at + 100, at + 9_990)
        (tmp_path / folder).mkdir()
        return copies(document(tmp_path / folder, r))

    assert not copying_ahead("ahead", stream=20, memory="Pinned")
    assert copying_ahead("same", stream=COMPUTE_STREAM, memory="Pinned")
    assert copying_ahead("pageable", stream=20, memory="Pageable")


def test_copies_without_a_step_are_not_hidden_by_one_before(tmp_path):
    r = RankTrace()
    with r.op("aten::copy_", 10, 10_100):
        r.copy(UP, at=20, call_us=10_000, start=100, end=10_100)
    for k in range(80):
        with r.op("aten::mm", 10_200 + 20 * k, 10_200 + 20 * k + 10):
            r.kernel("gemm", at=10_201 + 20 * k, start=10_210 + 200 * k, end=10_410 + 200 * k)
    up = copies(document(tmp_path, r))["The job waits for copies to the device"]
    assert 4 <= up["saving_alone_ms"] <= 6
    assert "batch ahead" not in up["remedy"]


def test_a_program_without_pytorch_gets_no_advice_for_pytorch(tmp_path):
    r = RankTrace()
    r.copy(UP, at=20, call_us=10_000, start=100, end=10_100)
    for k in range(80):
        r.kernel("saxpy", at=10_201 + 20 * k, start=10_210 + 200 * k, end=10_410 + 200 * k)
    nsys = write_nsys(tmp_path / "report.sqlite", [r.document()])
    found = dict(stepscope.load(nsys).document)
    assert "cudaMallocHost" in found["findings"][0]["remedy"]
    said = json.dumps([found["findings"], found["recording"], found["not_examined"]])
    assert not [word for word in ("DataLoader", "ProfilerActivity", "torch") if word in said]
