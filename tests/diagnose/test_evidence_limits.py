"""What bounds a job, what was ruled out and what to record next follow from what the file holds."""

import json

import pytest
from tests.analyze.build import RankTrace
from tests.analyze.step_logs import log_lines, write_log
from tests.diagnose.test_recording import busy, document, steps
from tests.trace.nsight.kineto_as_nsys import Export, write_nsys

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
def test_kernels_of_unknown_work_are_bound_by_nothing_known(tmp_path, name, known, said):
    whole = filled(name).document()
    whole["deviceProperties"] = [{"id": 0, "name": "a GPU", "computeMajor": known[0], "computeMinor": known[1]}]
    (tmp_path / "trace.json").write_text(json.dumps(whole))
    found = stepscope.load(tmp_path / "trace.json").document
    assert found["verdict"] == "unclear" and said in headline_sentence(found)
    assert "Nothing worth fixing" not in headline_sentence(found) and found["kernels"][0]["bound"] is None
    assert not {"precision", "memory-bound-kernels", "small-batch"} & set(found["examined"])


@pytest.mark.parametrize(
    ("grid", "block", "unused"),
    [
        ([1, 1, 1], [1, 1, 1], 1 - 1 / (32 * 4 * 100)),  # one of 32 lanes of one of 4 schedulers of 100 multiprocessors
        ([10, 1, 1], [16, 8, 1], 0.9),
        ([100_000, 1, 1], [4, 1, 1], 1 - 4 / 32),
        ([50, 1, 1], [128, 1, 1], None),
    ],
)
def test_a_launch_that_cannot_fill_the_device_is_named(tmp_path, grid, block, unused):
    r = RankTrace()
    for k in range(100):  # launched far ahead: nothing but the kernels takes the time
        with r.op("launch", 10 * k, 10 * k + 8):
            r.kernel("sweep(float *)", at=10 * k + 2, start=1_000 * k + 10, end=1_000 * k + 1_000)
    whole = r.document()
    whole["deviceProperties"] = [{"id": 0, "name": "a GPU", "computeMajor": 8, "computeMinor": 0, "numSms": 100}]
    for event in whole["traceEvents"]:
        if event.get("cat") == "kernel":
            event["args"] |= {"grid": grid, "block": block}
    (tmp_path / "trace.json").write_text(json.dumps(whole))
    found = stepscope.load(tmp_path / "trace.json").document
    if unused is None:
        assert "small-batch" not in {one["id"] for one in found["findings"]}
        return
    first = found["findings"][0]
    assert first["id"] == "small-batch" and "Too few threads in kernel sweep" in headline_sentence(found)
    assert (
        first["saving_pct"] > 10
        and f"too few threads in kernel sweep costs {first['saving_pct']:.0f} %" in found["verdict_reason"]
    )
    assert first["saving_alone_ms"] == pytest.approx(99 * unused, rel=0.02)
    assert found["kernels"][0]["bound"] == "latency"


def test_a_family_without_bytes_proves_no_bound_by_memory(tmp_path):
    found = document(tmp_path, filled("at::native::vectorized_elementwise_kernel<4, at::native::add>(int)"))
    assert found["verdict"] == "compute-bound" and found["recording"]["line"] is None


def test_graphs_recorded_as_a_whole_prove_no_bound(tmp_path):
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


@pytest.mark.parametrize(
    ("linear", "reads_us"), [("aten::linear_backward", 1), ("aten::addmm", 3_000), ("aten::addmm", 1)]
)
def test_work_of_an_unrecorded_device_is_not_computing_of_the_host(tmp_path, linear, reads_us):
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


def test_faults_of_other_jobs_are_not_called_examined(tmp_path):
    found = []
    for world in (1, 2):
        (folder := tmp_path / str(world)).mkdir()
        found.append(document(folder, *(steps(RankTrace(n, world_size=world), 4, 10_000, busy) for n in range(world))))
    alone, both = (one["examined"] for one in found)
    assert not {"straggler", "slow-link", "pipeline-bubble"} & set(alone) and "straggler" in both
    assert "launch-overhead" in alone


@pytest.mark.parametrize("operator", ["aten::mkldnn_convolution", "aten::_slow_conv2d_forward"])
def test_the_operator_that_takes_the_time_is_named(tmp_path, operator):
    r = RankTrace()
    for k in range(40):
        r.ran(operator, 1_000 * k, 1_000 * k + 800)
        r.ran("aten::batch_norm", 1_000 * k + 800, 1_000 * k + 1_000)
    found = document(tmp_path, r)
    assert f"{operator}" in found["verdict_reason"] and "80 %" in found["verdict_reason"]
    assert ("fallback" in headline_sentence(found)) is ("slow" in operator)
    assert found["recording"]["kind"] == "inference", "few operators that fill the window are no fragment"


@pytest.mark.parametrize(("listed", "read_us", "unseen"), [(True, 90, True), (False, 90, False), (True, 2, False)])
def test_a_slow_read_shows_that_a_listed_device_was_used(tmp_path, listed, read_us, unseen):
    r = RankTrace()
    for k in range(100):
        r.ran("aten::addmm", 1_000 * k, 1_000 * k + 500)
    r.ran("aten::_local_scalar_dense", 99_600, 99_600 + read_us)
    whole = r.document()
    whole["deviceProperties"] = whole["deviceProperties"] if listed else []
    (tmp_path / "trace.json").write_text(json.dumps(whole))
    found = stepscope.load(tmp_path / "trace.json").document
    assert (found["run"]["device"] != "CPU") is unseen
    assert ("host-stall" in found["examined"]) is not unseen, "most of the time is that of an unseen device"


def test_time_between_operators_of_the_host_has_no_cause(tmp_path):
    r = RankTrace()
    for k in range(100):
        r.ran("aten::addmm", 1_000 * k, 1_000 * k + 400)
    r.ran("aten::addmm", 100_000, 100_400)
    found = document(tmp_path, r)
    assert "no operator runs, and Python code was not recorded" in headline_sentence(found)
    assert found["examined"] == ["mixed-precision-overhead"]  # casts are operators, and none is there


@pytest.mark.parametrize("copies", [True, False])
def test_idle_time_before_copies_is_not_launch_overhead(tmp_path, copies):
    def step(r: RankTrace, at: float) -> None:
        with r.op("aten::copy_", at + 290, at + 320):
            if copies:
                r.copy("HtoD (Pinned -> Device)", stream=20, at=at + 300, start=at + 310, end=at + 600)
            else:
                r.kernel("add", at=at + 300, start=at + 310, end=at + 600)
        for k in range(4):
            with r.op("aten::mul", at + 330 + 40 * k, at + 350 + 40 * k):
                begin = at + 600 + 100 * k
                r.kernel("mul", at=at + 335 + 40 * k, start=begin, end=begin + 100)

    found = document(tmp_path, steps(RankTrace(), 6, 1_000, step))
    assert ("launch-overhead" in [f["id"] for f in found["findings"]]) is not copies


def test_a_whole_program_needs_no_whole_iterations(tmp_path):
    r = RankTrace()
    r.call("cudaGetDevice", 0, 10)
    for k in range(100):  # after two seconds of the host's own work
        r.kernel("solve(float *)", at=2e6 + 100 * k, start=2e6 + 100 * k + 10, end=2e6 + 100 * k + 100)
    found = stepscope.load(write_nsys(tmp_path / "x.sqlite", [r.document()])).document
    assert found["recording"]["kind"] == "mostly-host"
    assert "of its runtime took" in found["verdict_reason"] and "--sample=cpu" in found["verdict_reason"]


def test_first_calls_next_to_a_busy_device_are_no_cold_start(tmp_path):
    r = RankTrace()
    r.call("cudaMallocManaged", 0, 86_000)
    for k in range(100):
        r.kernel("solve(float *)", at=86_010 + 10 * k, start=86_100 + 2_500 * k, end=88_600 + 2_500 * k)
    r.call("cudaDeviceSynchronize", 87_100, 336_100)
    found = stepscope.load(write_nsys(tmp_path / "x.sqlite", [r.document()])).document
    assert found["recording"]["kind"] == "training" and "kernel solve takes 250 " in found["verdict_reason"]


def test_waits_of_a_loop_that_something_else_paces_are_no_saving(tmp_path):
    r = RankTrace()
    for n in range(60):  # a frame every 40 ms
        at = 40_000 * n
        for k in range(8):
            r.kernel("filter(float *)", at=at + 300 * k, start=at + 300 * k + 10, end=at + 300 * k + 150)
            r.call("cudaDeviceSynchronize", at + 300 * k + 5, at + 300 * k + 160)
    found = stepscope.load(write_nsys(tmp_path / "x.sqlite", [r.document()])).document
    assert not [f for f in found["findings"] if f["id"] == "host-device-sync"]
    assert "host-device-sync" in {one["rule"] for one in found["not_examined"]}


@pytest.mark.parametrize(
    ("types", "operands"),
    [("float, float, float", "fp32"), ("unsigned short, unsigned short, float", "bf16"), ("signed char, float", None)],
)
def test_a_sum_in_float_is_no_32_bit_operand(tmp_path, types, operands):
    found = document(tmp_path, filled(f"void ck::kernel_moe_gemm<ck::GridwiseMoeGemm<{types}>>()"))
    assert found["kernels"][0]["precision"] == operands


def test_kernels_that_wait_for_pages_of_unified_memory_are_named(tmp_path):
    """Each kernel of 1 ms takes ten faults, 80 us apart, of which moving the page is 20 us."""
    r = RankTrace()
    for k in range(100):
        with r.op("launch", 10 * k, 10 * k + 8):
            r.kernel("sweep(float *)", at=10 * k + 2, start=2_000 + 1_000 * k, end=2_990 + 1_000 * k)
        for fault in range(10):
            at = 2_050 + 1_000 * k + 80 * fault
            r.copy("Unified HtoD", at=None, start=at, end=at + 20, stream=8)
    found = document(tmp_path, r)
    one = next(f for f in found["findings"] if f["id"] == "host-to-device-copy")
    assert one["title"] == "Kernels wait for pages of unified memory" and "cudaMemPrefetchAsync" in one["remedy"]
    assert one["saving_alone_ms"] == pytest.approx(100 * (9 * 0.08 + 0.02 - 10 * 0.02), rel=0.03)


@pytest.mark.parametrize(
    ("kernel", "title", "least"),
    [("ampere_sgemm_128x128_tn", "32 bit", True), ("cutlass_80_tensorop_s1688gemm_128x128", "TF32", False)],
)
def test_tf32_is_advised_where_products_do_not_run_in_it(tmp_path, kernel, title, least):
    r = RankTrace()
    for k in range(100):
        with r.op("aten::mm", 20 * k, 20 * k + 15):
            r.kernel(kernel, at=20 * k + 5, start=50 + 1_000 * k, end=1_050 + 1_000 * k)
    found = document(tmp_path, r)
    first = next(f for f in found["findings"] if f["id"] == "precision")
    assert first["title"] == f"Matrix products run in {title}"
    assert ("set_float32_matmul_precision" in first["remedy"]) == least


def test_times_of_other_steps_may_exceed_the_mean_step(tmp_path):
    r, at = RankTrace(), 0.0
    steps = [{"garbage_collection": 1.0 + 0.5 * n, "forward_pass": 10.0} for n in range(120)]
    for n, took in enumerate(steps):
        begin, at = at, at + sum(took.values())
        if n in range(4, 8):
            r.step(n, 1e3 * begin, 1e3 * at)
            r.ran("aten::mm", 1e3 * begin, 1e3 * at)
    write_log(tmp_path, 0, log_lines(steps, window=range(4, 8)), ranks=1)
    (tmp_path / "rank00000.pt.trace.json").write_text(json.dumps(r.document() | {"deviceProperties": []}))
    found = stepscope.load(tmp_path).document
    (growing,) = [f for f in found["findings"] if "become longer" in f["title"]]
    early, late = (fact["value"] for fact in growing["evidence"][:2])
    assert early < found["step"]["unprofiled_ms"] < late and not found["contradictions"]
