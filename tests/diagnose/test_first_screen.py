"""Statements of the first screen agree with the recording and with each other."""

from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import RankTrace
from tests.diagnose.test_recording import busy, document, ids, launching, steps


def budget(found: dict[str, Any]) -> dict[str, float]:
    return {row["part"]: row["ms_per_step"] for row in found["step"]["budget"]}


@pytest.mark.parametrize("operators", [True, False])
def test_without_operators_nobody_knows_what_the_host_did(tmp_path: Path, operators: bool) -> None:
    r = RankTrace()
    for at in range(0, 100_000, 20_000):  # the host does something else for 12 of 20 ms
        launching(r, at, kernels=40)
    if not operators:
        r.events = [e for e in r.events if e["cat"] != "cpu_op"]
    found = document(tmp_path, r)
    parts = budget(found)
    if operators:
        assert parts["host_stall"] > 11 and parts["unknown"] < 1 and parts["forward"] > 0.3
        assert "host-stall" in ids(found)
        return
    assert parts["host_stall"] == 0 and parts["unknown"] > 11
    assert parts["forward"] == 0 and parts["other_compute"] > 0.3  # nothing shows a model
    assert "host-stall" not in ids(found) and found["recording"]["kind"] == "no-operators"
    assert "no operators of the host" in found["recording"]["line"]
    assert found["verdict"] == "unclear" and "have no known cause" in found["verdict_reason"]


def test_operators_without_linked_launches_are_not_device_activity_only(tmp_path: Path) -> None:
    r = RankTrace()
    for k in range(100):
        r.ran("aten::mm", 1_000 * k, 1_000 * k + 20)
        r.kernel("gemm", at=None, start=1_000 * k + 30, end=1_000 * k + 900)
    line = document(tmp_path, r)["recording"]["line"]
    assert "device activity only" not in line and "linked to its launch" in line


def exchanging(r: RankTrace, at: float) -> None:
    """Add a pass without gradients: an all-gather on the host's order, the rest from a graph."""
    busy(r, at, us=4_000)
    r.collective("_allgather_base", at=at + 600, start=at + 4_600, end=at + 4_700, thread=100)
    for k, op in enumerate(("ReduceScatter_Sum_f32", "AllGather") * 4):
        kernel = f"ncclDevKernel_{op}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        begin = at + 5_000 + 200 * k
        r.kernel(kernel, at=at + 700 + k, start=begin, end=begin + 100, stream=20, call="cudaGraphLaunch")


def test_a_job_without_gradients_is_not_sharded_data_parallel(tmp_path: Path) -> None:
    ranks = [steps(RankTrace(rank, world_size=2), 4, 8_000, exchanging) for rank in range(2)]
    assert document(tmp_path, *ranks)["run"]["strategy"].startswith("tp")


@pytest.mark.parametrize(("elements", "strategy"), [(None, "unknown"), (1024, "ep")])
def test_an_exchange_of_unknown_size_names_no_strategy(tmp_path: Path, elements: int | None, strategy: str) -> None:
    def step(r: RankTrace, at: float) -> None:
        busy(r, at, us=4_000)
        r.collective("all_to_all", at=at + 600, start=at + 4_600, end=at + 5_000, elements=elements or 0, thread=100)
        if elements is None:
            record = next(e for e in reversed(r.events) if e["name"] == "record_param_comms")
            for name in ("In msg nelems", "Out msg nelems", "dtype"):
                record["args"].pop(name)

    ranks = [steps(RankTrace(rank, world_size=2), 4, 8_000, step) for rank in range(2)]
    assert document(tmp_path, *ranks)["run"]["strategy"].startswith(strategy)


def test_fixes_of_different_times_add_up(tmp_path: Path) -> None:
    def step(r: RankTrace, at: float) -> None:
        r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 6_000)
        for k in range(120):  # as a graph the device would compute for long enough to hide some of the loader as well
            begin = at + 6_000 + 100 * k
            with r.op("aten::add", begin, begin + 90):
                r.kernel("add", at=begin + 5, start=begin + 10, end=begin + 45)

    found = document(tmp_path, steps(RankTrace(), 6, 18_000, step))
    alone = {f["id"]: f["saving_alone_ms"] for f in found["findings"]}
    parts = budget(found)
    assert alone["data-loading"] > 5 and alone["launch-overhead"] > 7
    lost = parts["data_loading"] + parts["launch_gap"]
    assert found["findings_combined"][-1]["saving_ms_per_step"] >= 0.9 * lost


def test_external_ids_link_kernels_where_the_profiler_wrote_no_correlation(tmp_path: Path) -> None:
    r = RankTrace()
    for k in range(100):
        with r.op("aten::mm", 1_000 * k, 1_000 * k + 20):
            r.kernel("gemm", at=1_000 * k + 5, start=1_000 * k + 30, end=1_000 * k + 900)
    for event in r.events:  # as ROCm's profiler does: the ids of calls, not of the operators around them
        if "correlation" in event["args"]:
            event["args"]["External id"] = event["args"].pop("correlation")
    found = document(tmp_path, r)
    assert found["recording"]["line"] is None and found["recording"]["kind"] == "inference"
    assert budget(found)["forward"] > 0.8 and "launch-overhead" in [*found["examined"], *ids(found)]


def test_synchronisations_that_outlast_the_device_are_saved_with_their_call(tmp_path: Path) -> None:
    r = RankTrace()
    for k in range(100):
        with r.op("aten::coalesce", 1_000 * k, 1_000 * k + 950):
            done = 25 if k % 10 else 40  # mostly before the host waits for it
            r.kernel("sort", at=1_000 * k + 10, start=1_000 * k + 15, end=1_000 * k + done)
            r.call("cudaStreamSynchronize", 1_000 * k + 30, 1_000 * k + 930)
    found = document(tmp_path, r)
    first, lost = found["findings"][0], budget(found)["host_sync"]
    assert first["id"] == "host-device-sync" and found["verdict"] == "host-bound"
    assert 0.8 * lost <= first["saving_alone_ms"] <= lost * 1.05
    assert isinstance(first["evidence"][0]["value"], int)


@pytest.mark.parametrize(("us", "ruled_out"), [(2_500, False), (200, True)])
def test_32_bit_products_are_ruled_out_only_where_they_take_little(tmp_path: Path, us: float, ruled_out: bool) -> None:
    def step(r: RankTrace, at: float) -> None:
        with r.op("aten::mm", at + 100, at + 150):
            r.kernel("ampere_sgemm_128x64_tn", at=at + 110, start=at + 200, end=at + 200 + us)
        r.call("cudaDeviceSynchronize", at + 200, at + 250 + us)

    found = document(tmp_path, steps(RankTrace(), 4, 10_000, step))
    assert "precision" not in ids(found) and ("precision" in found["examined"]) is ruled_out


@pytest.mark.parametrize(("other_us", "proposed"), [(5_500, True), (500, False)])
def test_another_precision_needs_a_step_limited_by_compute(tmp_path: Path, other_us: float, proposed: bool) -> None:
    def step(r: RankTrace, at: float) -> None:  # a third of the step are 32-bit products
        for k, (op, name, us) in enumerate((("mm", "ampere_sgemm_128x64_tn", 3_500), ("add", "add", other_us))):
            start = at + 200 + 3_500 * k
            with r.op(f"aten::{op}", at + 100 + 20 * k, at + 115 + 20 * k):
                r.kernel(name, at=at + 105 + 20 * k, start=start, end=start + us)
        r.call("cudaDeviceSynchronize", at + 200, at + 3_710 + other_us)

    found = document(tmp_path, steps(RankTrace(), 4, 10_000, step))
    assert ("precision" in ids(found)) is proposed
    assert ("precision" in found["examined"]) is proposed


@pytest.mark.parametrize(("operator", "proposed"), [("aten::addcdiv_", True), ("aten::_fused_adamw_", False)])
def test_adam_in_many_operators_on_the_host_can_be_fused(tmp_path: Path, operator: str, proposed: bool) -> None:
    def step(r: RankTrace, at: float) -> None:
        r.ran("aten::mm", at + 100, at + 4_000)
        r.ran("autograd::engine::evaluate_function: MmBackward0", at + 4_000, at + 5_900)
        r.annotation("Optimizer.step#AdamW.step", at + 5_900, at + 9_900)
        for k in range(80):
            r.ran(operator, at + 5_910 + 49 * k, at + 5_950 + 49 * k)

    found = document(tmp_path, steps(RankTrace(), 4, 10_000, step))
    assert [f["title"] for f in found["findings"]] == ["The optimizer step is not fused"] * proposed
    if proposed:
        assert found["findings"][0]["saving_alone_ms"] == pytest.approx(2.4, rel=0.1)


def test_host_work_next_to_an_unrecorded_device_is_known(tmp_path: Path) -> None:
    r = RankTrace()
    for k in range(10):
        at = 10_000 * k
        r.ran("aten::normal_", at, at + 6_000)
        with r.op("aten::copy_", at + 6_000, at + 8_000):
            r.call("cudaMemcpyAsync", at + 6_010, at + 7_990)
        with r.op("aten::pow", at + 8_000, at + 10_000):
            r.call("cudaLaunchKernel", at + 8_010, at + 8_020)
    found = document(tmp_path, r)
    parts = budget(found)
    total = sum(parts.values())
    assert parts["other_compute"] == pytest.approx(0.6 * total, rel=0.05)
    assert parts["copy"] == pytest.approx(0.2 * total, rel=0.05)
    assert parts["unknown"] == pytest.approx(0.2 * total, rel=0.05)  # launches: when the device computes is not shown
    assert found["verdict"] == "unclear" and "device" in found["verdict_reason"]
