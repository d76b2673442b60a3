"""What a recording cannot prove is not concluded from it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import RankTrace

import stepscope
from stepscope.contract.names import shown_parts
from stepscope.errors import InputError

Job = Callable[[RankTrace], None]


def document(folder: Path, *ranks: RankTrace) -> dict[str, Any]:
    """Return the report of the ranks that were recorded."""
    for rank in ranks:
        rank.write(folder)
    return dict(stepscope.load(folder).document)


def steps(r: RankTrace, count: int, step_us: float, step: Callable[[RankTrace, float], None]) -> RankTrace:
    """Add steps, one after another."""
    for n in range(count):
        r.step(n, n * step_us, (n + 1) * step_us)
        step(r, n * step_us)
    return r


def busy(r: RankTrace, at: float, *, us: float = 8000, kernels: int = 20) -> None:
    """Add kernels without gaps, all launched at once."""
    for k in range(kernels):
        with r.op("aten::mm", at + 20 * k, at + 20 * k + 15):
            r.kernel(
                "gemm", at=at + 20 * k + 5, start=at + 500 + k * us / kernels, end=at + 500 + (k + 1) * us / kernels
            )


def ids(found: dict[str, Any]) -> list[str]:
    return [f["id"] for f in found["findings"] if f["saving_alone_ms"] > 0]


def late_rank_job(rank: int) -> RankTrace:
    """Return one of four ranks of a data-parallel job: rank 2 computes for 60 of 70 ms, the others wait for it."""

    def step(r: RankTrace, at: float) -> None:
        own = 60_000 if rank == 2 else 8_000
        busy(r, at, us=own)
        r.backward("MmBackward0", at + 450, at + 480)
        r.collective("allreduce", at=at + 460, start=at + 500 + own, end=at + 65_000, elements=1_000_000)
        r.call("cudaDeviceSynchronize", at + 500, at + 65_000)

    return steps(RankTrace(rank, world_size=4), 4, 70_000, step)


def test_one_of_four_ranks_does_not_tell_a_late_rank_from_a_slow_network(tmp_path: Path) -> None:
    found = document(tmp_path, late_rank_job(0))
    assert found["recording"]["ranks_missing"] == [1, 2, 3]
    assert found["recording"]["cannot_show"]
    assert not {"communication-bound", "no-overlap", "straggler"} & set(ids(found))
    assert found["verdict"] == "unclear"
    assert "late rank" in found["verdict_reason"] and "3 of 4 ranks" in found["verdict_reason"]
    assert "all-reduce" in found["verdict_reason"] and "56.5 of 70 ms" in found["verdict_reason"]
    assert "--ranks all" in found["recording"]["line"]
    shown = shown_parts(found["step"])
    assert shown["unmatched"] == pytest.approx(56.5, abs=0.5) and shown["unknown"] < 0.5, "it is no idle time"


def test_waits_between_recorded_ranks_are_known_although_others_are_missing(tmp_path: Path) -> None:
    reason = document(tmp_path, late_rank_job(0), late_rank_job(2))["recording"]["line"]
    assert "2 of 4 ranks not recorded; 26 ms more are waits among the recorded ranks" in reason


def test_all_ranks_name_the_late_one(tmp_path: Path) -> None:
    found = document(tmp_path, *(late_rank_job(rank) for rank in range(4)))
    assert found["recording"] == {"kind": "training", "ranks_missing": [], "cannot_show": [], "line": None}
    assert found["findings"][0]["id"] == "straggler" and found["findings"][0]["ranks"] == [2]


def launching(r: RankTrace, at: float, *, first_us: float = 2, kernels: int = 30) -> None:
    """Add short kernels that the device waits for; the first launch takes `first_us`."""
    for k in range(kernels):
        begin = at + (first_us if k else 0) + 200 * k
        took = 2 if k else first_us
        with r.op("aten::add", begin, begin + took + 20):
            r.kernel(f"kernel_{k}", at=begin + 5, start=begin + took + 10, end=begin + took + 20, call_us=took)


@pytest.mark.parametrize(("first_us", "kind"), [(90_000, "cold-start"), (2, "inference")])
def test_a_first_launch_that_loads_modules_is_no_launch_overhead(tmp_path: Path, first_us: float, kind: str) -> None:
    r = RankTrace()
    launching(r, 0)
    launching(r, 10_000, first_us=first_us, kernels=31)  # kernel_30 is launched here for the first time
    cold = [e for e in r.events if e["name"] == "kernel_0"][1]
    cold["name"] = "module_loaded_here"
    launching(r, 200_000)
    found = document(tmp_path, r)
    assert found["recording"]["kind"] == kind
    if kind == "cold-start":
        assert "launch-overhead" not in ids(found) and found["verdict"] == "unclear"
        assert "first-call initialisation takes 90 " in found["verdict_reason"]
        assert "warm-up" in found["recording"]["line"]


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("gemm", "inference"),
        ("multi_tensor_apply_kernel", "training"),
        ("sm80_xmma_wgrad_implicit_gemm", "training"),
        ("fused_dropout_kernel", "forward-only"),
    ],
)
def test_inference_has_no_kernel_of_training(tmp_path: Path, kernel: str, kind: str) -> None:
    def replayed(r: RankTrace, at: float) -> None:
        busy(r, at)
        r.kernel(kernel, at=at + 410, start=at + 8_500, end=at + 9_000)

    assert document(tmp_path, steps(RankTrace(), 4, 10_000, replayed))["recording"]["kind"] == kind


@pytest.mark.parametrize("training", [True, False])
def test_launches_between_graphs_of_a_training_step_are_examined(tmp_path: Path, training: bool) -> None:
    def step(r: RankTrace, at: float) -> None:
        for k in range(20):
            r.kernel(
                "in_graph", at=at + k, start=at + 10 + 20 * k, end=at + 30 + 20 * k, call="cudaGraphLaunch", call_us=1
            )
        if training:
            r.backward("MmBackward0", at + 400, at + 410)
        launching(r, at + 1_000, kernels=10)

    found = document(tmp_path, steps(RankTrace(), 5, 4_000, step))
    graphs = [f["remedy"] for f in found["findings"] if f["id"] == "launch-overhead"]
    assert bool(graphs) == training and all("optimizer together (torch.cuda.graph)" in remedy for remedy in graphs)
    assert ("launch-overhead" in found["examined"]) == training


@pytest.mark.parametrize("batches", [1, 20])
def test_the_start_of_loader_workers_is_no_wait_for_input(tmp_path: Path, batches: int) -> None:
    r = RankTrace()
    for n in range(20):
        took = 900_000 / batches if n < batches else 100
        r.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", n * 1e6, n * 1e6 + took)
        busy(r, n * 1e6 + took, us=20_000, kernels=3 + n)
    found = document(tmp_path, r)
    waits = [f for f in found["findings"] if f["id"] == "data-loading"]
    assert found["run"]["num_steps"] == 0
    assert not waits if batches == 1 else "more workers" in waits[0]["remedy"]
    assert ("data-loading" in {one["rule"] for one in found["not_examined"]}) == (batches == 1)


def test_a_slow_launch_in_every_step_is_no_cold_start(tmp_path: Path) -> None:
    def step(r: RankTrace, at: float) -> None:
        launching(r, at, first_us=6_000)

    found = document(tmp_path, steps(RankTrace(), 5, 20_000, step))
    assert found["recording"]["kind"] != "cold-start"
    assert found["verdict"] == "host-bound"


def test_warm_passes_after_a_cold_one_are_diagnosed(tmp_path: Path) -> None:
    r, kernels = RankTrace(), ("norm", "gemm", "add", "gemm", "norm", "gelu", "gemm", "add")
    for k in range(20):  # weights are uploaded once
        r.copy(at=-90_000 + 4_000 * k, start=-89_990 + 4_000 * k, end=-86_100 + 4_000 * k, call_us=3_900)
        r.call("cudaStreamSynchronize", -86_090 + 4_000 * k, -86_080 + 4_000 * k)
    for n in range(6):
        at = 0 if n == 0 else 600_000 + 20_000 * n
        for k in range(16):
            here = at + k * (30_000 if n == 0 else 1_200)
            r.kernel(kernels[k % 8] if k else "embed", at=here, start=here + 20_010 * (n == 0) + 10,
                     end=here + 20_010 * (n == 0) + 40, call_us=20_000 if n == 0 else 5)  # fmt: skip
    found = document(tmp_path, r)
    assert "host costs of a warm step" not in found["recording"]["cannot_show"]
    assert ids(found) == ["launch-overhead"], "and no copies or waits of the upload"
    assert found["findings"][0]["saving_alone_ms"] < 20, "of a warm pass"


def test_a_graph_capture_is_no_run(tmp_path: Path) -> None:
    r = RankTrace()
    busy(r, 0, us=500)
    r.call("cudaStreamBeginCapture", 2_000, 2_010)
    for k in range(100):
        with r.op("aten::mm", 2_100 + 400 * k, 2_120 + 400 * k):
            r.call("cudaLaunchKernel", 2_105 + 400 * k, 2_107 + 400 * k)
    r.call("cudaStreamEndCapture", 43_000, 43_100)
    busy(r, 44_000, us=500, kernels=60)
    found = document(tmp_path, r)
    assert found["recording"]["kind"] == "graph-capture"
    assert not found["findings"] and found["verdict"] == "unclear"
    assert found["verdict_reason"].startswith("this is a graph capture, not a run")


def test_a_few_operations_have_no_host_findings(tmp_path: Path) -> None:
    r = RankTrace()
    launching(r, 0, kernels=5)
    found = document(tmp_path, r)
    assert found["recording"]["kind"] == "short" and not ids(found)
    assert "only 5 operations" in found["verdict_reason"]


def test_a_device_that_never_idles_is_diagnosed(tmp_path: Path) -> None:
    r = RankTrace()
    busy(r, 0, us=80_000, kernels=5)
    r.call("cudaDeviceSynchronize", 120, 80_510)
    found = document(tmp_path, r)
    assert not found["recording"]["cannot_show"] and found["verdict"] == "compute-bound"


def test_operators_that_compute_on_the_host_explain_a_window_of_few_operations(tmp_path: Path) -> None:
    r = RankTrace()
    for at in range(0, 500_000, 50_000):
        r.ran("aten::randn", at, at + 44_000)
        with r.op("aten::to", at + 44_010, at + 49_000):
            r.copy(at=at + 44_020, start=at + 44_500, end=at + 48_990, size_bytes=4 << 24, call_us=4_980)
        with r.op("aten::square", at + 49_100, at + 49_200):
            r.kernel("pow", at=at + 49_150, start=at + 49_160, end=at + 49_400)
    found = document(tmp_path, r)
    first, *others = found["findings"]
    assert found["recording"]["kind"] == "inference"
    assert first["title"] == "Operators compute on the host (aten::randn)"
    assert first["saving_alone_ms"] == pytest.approx(9 * 44, rel=0.05)
    assert not any("DataLoader" in one["remedy"] for one in found["findings"]), "there is no loader"
    assert any("tensor.pin_memory()" in one["remedy"] for one in others)


def test_device_activity_alone_does_not_tell_why_the_device_idled(tmp_path: Path) -> None:
    r = RankTrace()
    for k in range(100):
        r.kernel("gemm", at=None, start=1_000 * k, end=1_000 * k + 100)
    found = document(tmp_path, r)
    assert found["recording"]["kind"] in ("device-only", "fragment") and not ids(found)
    assert found["verdict"] == "unclear"


def test_jobs_of_different_sizes_are_refused(tmp_path: Path) -> None:
    steps(RankTrace(0, world_size=2), 2, 10_000, busy).write(tmp_path)
    steps(RankTrace(3, world_size=8), 2, 10_000, busy).write(tmp_path)
    with pytest.raises(InputError, match=r"different numbers of ranks.*2 ranks.*8 ranks"):
        stepscope.load(tmp_path)


@pytest.mark.parametrize(("tokens", "verdict"), [(32, "memory-bound"), (4096, "compute-bound")])
def test_decoding_few_tokens_is_bound_by_memory(tmp_path: Path, tokens: int, verdict: str) -> None:
    r = RankTrace()
    for n in range(4):
        at = 10_000 * n
        r.annotation(f"execute_context_0(0)_generation_{tokens}({tokens})", at, at + 9_900)
        busy(r, at, us=9_400, kernels=30)
    found = document(tmp_path, r)
    assert found["recording"]["kind"] == "serving"
    assert found["verdict"] == verdict


@pytest.mark.parametrize("damage", ["longer", "before its launch"])
def test_impossible_times_do_not_change_the_account(tmp_path: Path, damage: str) -> None:
    def budget(folder: Path, job: RankTrace) -> tuple[dict[str, Any], list[str]]:
        folder.mkdir()
        found = document(folder, job)
        return {row["part"]: row["ms_per_step"] for row in found["step"]["budget"]}, found["warnings"]

    whole, _ = budget(tmp_path / "whole", steps(RankTrace(), 6, 10_000, busy))
    job = steps(RankTrace(), 6, 10_000, busy)
    kernel = [e for e in job.events if e["cat"] == "kernel"][57]
    if damage == "longer":
        kernel["dur"] *= 60
    else:
        kernel["ts"] -= 18_000
    damaged, warnings = budget(tmp_path / "damaged", job)
    assert any("impossible times, corrected: 1 " in line for line in warnings)
    assert damaged == pytest.approx(whole, rel=0.005, abs=0.05)


def exchanging(rank: int) -> RankTrace:
    """Return one of three ranks that exchange gradients after 6 ms of compute, 200 us later on each, and then wait."""

    def step(r: RankTrace, at: float) -> None:
        busy(r, at, us=6_000)
        r.backward("MmBackward0", at + 450, at + 480)
        r.collective("allreduce", at=at + 460, start=at + 6_600 + 200 * rank, end=at + 9_000, elements=1_000_000)
        with r.op("aten::add", at + 490, at + 495):
            r.kernel("update", at=at + 491, start=at + 9_010, end=at + 9_300)

    return steps(RankTrace(rank, world_size=3), 6, 20_000, step)


@pytest.mark.parametrize("ranks", [1, 3], ids=["by what waited for it", "by the other ranks"])
@pytest.mark.parametrize("damage", ["longer", "moved"])
def test_a_damaged_collective_ends_where_the_others_show_it(tmp_path: Path, damage: str, ranks: int) -> None:
    def exposed(folder: Path, jobs: list[RankTrace]) -> list[float]:
        folder.mkdir()
        return [row["exposed_comm_ms"] for row in document(folder, *jobs)["ranks"]]

    whole = exposed(tmp_path / "whole", [exchanging(rank) for rank in range(ranks)])
    jobs = [exchanging(rank) for rank in range(ranks)]
    sent = [e for e in jobs[0].events if e["name"].startswith("nccl") and e["cat"] == "kernel"]
    sent[2]["dur" if damage == "longer" else "ts"] += 45_000 if damage == "longer" else -21_000
    if ranks > 1:  # what the rank itself contradicts makes it worth comparing them
        next(e for e in jobs[1].events if e["name"] == "gemm")["dur"] *= 100
    assert exposed(tmp_path / "damaged", jobs) == pytest.approx(whole, rel=0.005)


def test_a_long_gap_is_not_the_allocators_for_a_short_call_in_it(tmp_path: Path) -> None:
    def step(r: RankTrace, at: float) -> None:
        busy(r, at, us=2_000)
        r.call("cudaMalloc", at + 2_400, at + 2_900)
        with r.op("aten::mm", at + 3_000, at + 30_000):
            r.kernel("late", at=at + 29_000, start=at + 29_100, end=at + 29_900)

    found = document(tmp_path, steps(RankTrace(), 4, 30_000, step))
    by_part = {row["part"]: row["ms_per_step"] for row in found["step"]["budget"]}
    assert by_part["allocator"] < 4.5 and by_part["launch_gap"] > 20
    assert "allocator" not in ids(found)[:1]


def test_launches_without_their_work_cannot_be_diagnosed(tmp_path: Path) -> None:
    r = steps(RankTrace(), 3, 10_000, launching)
    for n in range(200):
        r.call("cudaLaunchKernel", 30_000 + 20 * n, 30_005 + 20 * n)
    found = document(tmp_path, r)
    assert found["verdict"] == "unclear" and not ids(found)
    assert "200 of 290 launches have no record" in found["verdict_reason"]


def test_time_before_the_device_works_is_not_left_out_silently(tmp_path: Path) -> None:
    r = RankTrace()
    with r.op("aten::stft", 0, 900_000):
        pass
    launching(r, 1_000_000, kernels=100)
    found = document(tmp_path, r)
    assert found["verdict"] == "unclear" and "of 1,020 recorded ms" in found["verdict_reason"]


def test_a_file_from_which_most_events_were_removed_cannot_be_diagnosed(tmp_path: Path) -> None:
    r = steps(RankTrace(), 5, 40_000, lambda r, at: launching(r, at, kernels=80))
    written = r.document()
    operators = [e for e in written["traceEvents"] if e.get("cat") == "cpu_op"]
    for n, event in enumerate(operators):
        event.setdefault("args", {})["External id"] = 100 + 70 * n
    (tmp_path / "trace.json").write_text(json.dumps(written))
    found = dict(stepscope.load(tmp_path / "trace.json").document)
    assert found["verdict"] == "unclear" and not ids(found)
    assert f"holds {len(operators):,} of about" in found["verdict_reason"]


def test_operators_of_a_device_library_prove_a_device(tmp_path: Path) -> None:
    r = RankTrace()
    for n in range(100):
        with r.op("aten::cudnn_convolution", 100 * n, 100 * n + 80):
            pass
    found = document(tmp_path, r)
    assert (
        found["verdict"] == "unclear"
        and "nothing that the device of rank 0 did is in the trace" in found["verdict_reason"]
    )


def test_copies_with_nothing_to_hide_them_behind_save_nothing(tmp_path: Path) -> None:
    def step(r: RankTrace, at: float) -> None:
        for n, kind in enumerate(("HtoD (Pinned -> Device)", "DtoH (Device -> Pinned)")):
            begin = at + 4_900 * n
            with r.op("aten::copy_", begin, begin + 4_900):
                r.copy(kind, at=begin + 10, start=begin + 20, end=begin + 4_880, call_us=4_880)

    found = document(tmp_path, steps(RankTrace(), 4, 10_000, step))
    assert all(f["saving_alone_ms"] < 0.5 for f in found["findings"])


@pytest.mark.parametrize(("operator", "inner"), [("aten::randn", "aten::normal_"), ("aten::reshape", "aten::view")])
def test_an_operator_that_computes_on_the_host_is_told_from_a_pause_in_a_view(tmp_path, operator, inner):
    def step(r: RankTrace, at: float) -> None:
        with r.op(operator, at, at + 20_000), r.op(inner, at + 10, at + 19_990):
            pass
        busy(r, at + 20_100, us=3_000)
        r.call("cudaDeviceSynchronize", at + 21_000, at + 23_700)

    first = document(tmp_path, steps(RankTrace(), 4, 25_000, step))["findings"][0]
    assert first["id"] == "host-stall"
    assert ("Operators compute on the host (aten::randn)" in first["title"]) is (operator == "aten::randn")


def test_a_host_job_whose_thread_loses_its_core_has_no_unseen_device(tmp_path: Path) -> None:
    r = RankTrace()
    for k in range(3):
        r.ran("aten::randn", k * 1_000_000, k * 1_000_000 + 400_000)
        r.ran("aten::_local_scalar_dense", k * 1_000_000 + 990_000, k * 1_000_000 + 999_000)
    r.ran("aten::empty_strided", 400_010, 900_000)

    def device(**changed: Any) -> str:
        (tmp_path / "rank00000.pt.trace.json").write_text(json.dumps(r.document() | changed))
        return str(stepscope.load(tmp_path).document["run"]["device"])

    assert device(deviceProperties=[]) == "CPU"
    assert device() != "CPU", "it lists a device that the reads can have waited for"
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "device": {"kind": "cpu"}}))
    assert device() == "CPU"


def test_waits_for_a_device_that_was_not_recorded_are_no_stalls_and_no_initialisation(tmp_path: Path) -> None:
    r = RankTrace()
    for k in range(10):
        with r.op("aten::mm", 100 * k, 100 * k + 50):
            r.call("cudaLaunchKernel", 100 * k + 5, 100 * k + 15)
    r.call("cudaMalloc", 1_200, 6_200)
    r.call("cudaFree", 6_300, 40_000)
    r.ran("aten::add", 40_100, 40_200)
    found = document(tmp_path, r)
    assert "nothing that the device" in found["verdict_reason"]
    assert {row["part"] for row in found["step"]["budget"] if row["ms_per_step"] > 1} == {"unknown"}
