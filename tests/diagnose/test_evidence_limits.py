"""What bounds a job, what was ruled out and what to record next follow from what the file holds."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import RankTrace
from tests.diagnose.test_recording import busy, document, launching, steps
from tests.trace.nsight.kineto_as_nsys import Export

import stepscope
from stepscope.document.sentence import headline_sentence


def filled(name: str) -> RankTrace:
    r = RankTrace()
    for k in range(100):
        with r.op("launch", 1_000 * k, 1_000 * k + 50):
            r.kernel(name, at=1_000 * k + 5, start=1_000 * k + 10, end=1_000 * k + 1_000)
    return r


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("divergence(int, double, double *, double *)", (8, 6), "32-bit ones are 64 times faster"),
        ("divergence(int, double, double *, double *)", (8, 0), "on 64-bit numbers;"),
        ("initialize_data(float *, float *, int)", (8, 6), "initialize_data takes 99 of 99 ms"),
    ],
)
def test_kernels_of_unknown_work_are_bound_by_nothing_known(
    tmp_path: Path, name: str, known: tuple[int, int], said: str
) -> None:
    whole = filled(name).document()
    whole["deviceProperties"] = [{"id": 0, "name": "a GPU", "computeMajor": known[0], "computeMinor": known[1]}]
    (tmp_path / "trace.json").write_text(json.dumps(whole))
    found = stepscope.load(tmp_path / "trace.json").document
    assert found["verdict"] == "unclear" and said in headline_sentence(found)
    assert "Nothing worth fixing" not in headline_sentence(found) and found["kernels"][0]["bound"] is None
    assert not {"precision", "memory-bound-kernels", "small-batch"} & set(found["examined"])


def test_many_kernels_of_unknown_work_are_named_by_the_longest(tmp_path: Path) -> None:
    r = RankTrace()
    for k in range(100):
        with r.op("launch", 1_000 * k, 1_000 * k + 50):
            r.kernel(
                f"void part_{k % 10}<int>(double *)", at=1_000 * k + 5, start=1_000 * k + 10, end=1_000 * k + 1_000
            )
    found = headline_sentence(document(tmp_path, r))
    assert "limits the kernels was not recorded (longest: part_0, 9.9 ms)" in found and "64-bit" not in found


def test_kernels_of_known_families_still_bound_a_job(tmp_path: Path) -> None:
    found = document(tmp_path, filled("at::native::vectorized_elementwise_kernel<4, at::native::add>(int)"))
    assert found["verdict"] == "memory-bound" and found["recording"]["line"] is None


def test_graphs_recorded_as_a_whole_prove_no_bound(tmp_path: Path) -> None:
    export = Export(tmp_path / "x.sqlite")
    export.clock(0)
    export.db.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,"
        " streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER)"
    )
    launch = export.text("cudaGraphLaunch_v10000")
    for k in range(100):
        at = 1_000_000 * k
        export.insert("CUPTI_ACTIVITY_KIND_RUNTIME", at, at + 10_000, 0, (7 << 24) + 7, k, launch, 0, None)
        export.insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", at + 20_000, at + 1_010_000, 0, 1, 7, k, 7 << 24, 3)
    export.close()
    found = stepscope.load(tmp_path / "x.sqlite").document
    assert found["verdict"] == "unclear" and "--cuda-graph-trace=node" in headline_sentence(found)


@pytest.mark.parametrize("own_us", [240, 2])
def test_a_constant_cost_of_operators_is_not_computing(tmp_path: Path, own_us: float) -> None:
    r = RankTrace()
    for k in range(100):
        at = 900 * k
        with r.op("aten::t", at, at + own_us + 3):
            r.ran("aten::as_strided", at + own_us, at + own_us + 3)
        with r.op("aten::linear", at + 300, at + 300 + own_us + 350):
            r.ran("aten::mm", at + 300 + own_us, at + 300 + own_us + 350)
    found = document(tmp_path, r)
    assert ("calling operators takes at least" in found["verdict_reason"]) is (own_us == 240)


@pytest.mark.parametrize(
    ("linear", "reads_us"), [("aten::linear_backward", 1), ("aten::addmm", 3_000), ("aten::addmm", 1)]
)
def test_work_of_an_unrecorded_device_is_not_computing_of_the_host(
    tmp_path: Path, linear: str, reads_us: float
) -> None:
    r = RankTrace()
    for k in range(100):
        at = 10_000 * k
        r.ran(linear, at, at + 6_000)
        r.ran("aten::_local_scalar_dense", at + 6_000, at + 6_000 + reads_us)
    found = document(tmp_path, r)
    unseen = linear != "aten::addmm" or reads_us > 1
    assert (found["recording"]["kind"] == "host-only") is unseen
    assert (found["run"]["device"] == "CPU") is not unseen
    assert ("Apple" in headline_sentence(found)) is (linear == "aten::linear_backward")
    assert ("host-device-sync" in found["examined"]) is False


def without_kernels(path: Path, *, ranges: bool = False, cut: bool = False) -> dict[str, Any]:
    r = RankTrace()
    for at in range(0, 100_000, 10_000):
        launching(r, at, kernels=40)
    for event in r.events:
        if event["cat"] == "kernel" and ranges:
            event["cat"] = "cuda_profiler_range"
    r.events = [e for e in r.events if e["cat"] != "kernel"]
    text = json.dumps(r.document())
    path.write_text(text[: len(text) // 2] if cut else text)
    return dict(stepscope.load(path).document)


@pytest.mark.parametrize(
    ("how", "advice"),
    [
        ({}, "CUPTI lost the kernels"),
        ({"ranges": True}, "without hardware counters"),
        ({"cut": True}, "export it again"),
    ],
)
def test_advice_follows_why_the_device_was_not_recorded(tmp_path: Path, how: dict[str, bool], advice: str) -> None:
    found = without_kernels(tmp_path / "trace.json", **how)
    assert advice in headline_sentence(found) and "ProfilerActivity" not in json.dumps(found["warnings"])


def test_an_export_of_nsys_is_not_told_of_profiler_activities(tmp_path: Path) -> None:
    export = Export(tmp_path / "x.sqlite")
    export.clock(0)
    launch, name = export.text("cudaLaunchKernel_v7000"), export.text("at::native::add(float *)")
    for k in range(100):
        at = 1_000_000 * k
        export.insert("CUPTI_ACTIVITY_KIND_RUNTIME", at, at + 10_000, 0, (7 << 24) + 7, k, launch, 0, None)
        where = (at + 20_000, at + 300_000, 0, 1, 7, k, 7 << 24)
        export.insert("CUPTI_ACTIVITY_KIND_KERNEL", *where, name, name, name, 32, 1, 1, 1, 1, 1, 1, 0, 0, None)
    export.close()
    found = stepscope.load(tmp_path / "x.sqlite").document
    assert "ProfilerActivity" not in json.dumps(found["not_examined"]) + found["recording"]["line"]
    assert "emit_nvtx()" in json.dumps(found["not_examined"])


def test_faults_of_other_jobs_are_not_called_examined(tmp_path: Path) -> None:
    found = []
    for world in (1, 2):
        folder = tmp_path / str(world)
        folder.mkdir()
        found.append(document(folder, *(steps(RankTrace(n, world_size=world), 4, 10_000, busy) for n in range(world))))
    alone, both = (one["examined"] for one in found)
    assert not {"straggler", "slow-link", "pipeline-bubble"} & set(alone) and "straggler" in both
    assert "launch-overhead" in alone


def test_gaps_between_kernels_are_not_time_in_which_the_device_worked(tmp_path: Path) -> None:
    r = RankTrace()
    r.ran("aten::randn", 0, 600_000)
    for k in range(100):
        with r.op("aten::add", 600_000 + 90 * k, 600_000 + 90 * k + 20):
            r.kernel("add", at=600_000 + 90 * k, start=600_010 + 90 * k, end=600_020 + 90 * k)
    found = document(tmp_path, r)
    assert "the device worked for 1 of 609 recorded ms" in found["verdict_reason"]
    assert found["examined"] == []


def test_times_are_of_the_ranks_that_were_recorded(tmp_path: Path) -> None:
    def step(r: RankTrace, at: float) -> None:
        busy(r, at)
        r.backward("MmBackward0", at + 450, at + 480)
        r.collective("allreduce", at=at + 460, start=at + 600, end=at + 8_600, elements=1_000_000)

    found = document(tmp_path, steps(RankTrace(3, world_size=4), 4, 8_100, step))
    assert "takes 0.1 of 8.1 ms on rank 3;" in found["recording"]["line"]
    assert "take about as long, mostly at once;" in found["verdict_reason"]
    assert "1 of 4 ranks was recorded" in headline_sentence(found)
