"""Checks and guides on runs with known times: values, statuses and reasons; an unknown value is never 0."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.step_logs import log_lines
from tests.diagnose.late import OWN_US, TRANSFER_US, late_run

from stepscope.analyze.account import Account, account_of
from stepscope.analyze.efficiency import GivenValues
from stepscope.diagnose.checks import checks_of, guides_of
from stepscope.records import Row
from stepscope.run.load import load
from stepscope.run.side_files import step_log_of

DATA = Path(__file__).parents[1] / "data"
MATMUL: dict[str, Any] = {"Input Dims": [[1024, 1024], [1024, 1024]], "Input type": ["float", "float"]}


def checks(account: Account) -> dict[str, Row]:
    return {c.id: c for c in checks_of(account)}


def test_numbers_of_a_known_step(tmp_path: Path) -> None:
    found = checks(account_of(late_run(tmp_path, late_us=0)))
    for name, value, status in (
        ("device_utilisation_pct", 100 * 1400 / OWN_US, "pass"),
        ("all_reduce_pct_of_backward", 100 * TRANSFER_US / (500 + TRANSFER_US), "fail"),
        ("host_device_copies_pct", 0.0, "pass"),
        ("forward_share_pct", 100 * 500 / OWN_US, "pass"),
        ("backward_share_pct", 100 * 500 / OWN_US, "pass"),
        ("optimizer_share_pct", 100 * 100 / OWN_US, "pass"),
        ("step_time_spread_pct", 0.0, "pass"),
    ):
        assert found[name].value == pytest.approx(value, abs=0.5), name
        assert found[name].status == status, name
    assert "of the rest, exposed communication takes most" in found["backward_share_pct"].reason


def test_what_was_not_recorded_is_not_measured_and_says_why(tmp_path: Path) -> None:
    found = checks(account_of(late_run(tmp_path, late_us=0)))
    for name, why in (("data_loading_pct", "data loader"), ("memory_pct_of_limit", "--memory")):
        assert found[name].value is None and found[name].status == "not measured" and why in found[name].reason


def test_waiting_for_input_is_measured_where_a_loader_is_marked(tmp_path: Path) -> None:
    found = checks(account_of(late_run(tmp_path, loading=True, late_us=4000)))
    # One of four ranks waits for input: for as long as its device had nothing left to do.
    assert found["data_loading_pct"].value == pytest.approx(100 * 4000 / (4000 + OWN_US) / 4, abs=1.0)
    assert found["data_loading_pct"].status == "pass"
    assert found["data_loading_pct"].reason.startswith("borderline")


def test_a_host_alone_has_no_device_to_judge(tmp_path: Path) -> None:
    rank = RankTrace(backend="gloo")
    for n in range(3):
        rank.step(n, n * 100, n * 100 + 100)
        rank.ran("aten::mm", n * 100 + 10, n * 100 + 90)
    found = checks(account_of(built_run(tmp_path, [rank])))
    for name in ("device_utilisation_pct", "host_device_copies_pct"):
        assert found[name].status == "not measured" and "device" in found[name].reason


def test_step_logs_tell_the_spread_of_more_steps(tmp_path: Path) -> None:
    run = replace(late_run(tmp_path, late_us=0), logs=(step_log_of(log_lines([1.0, 1.4] * 20), rank=0),))
    check = checks(account_of(run))["step_time_spread_pct"]
    assert check.value == pytest.approx(100 * 200 / 1200, abs=0.1) and check.reason.startswith("borderline")
    assert "40 steps" in check.reason


def test_a_serving_engine_has_no_phases_of_training() -> None:
    found = checks(account_of(load(DATA / "foreign-amd" / "vllm.json.gz", cache=False, jobs=1)))
    shares = [found[f"{part}_share_pct"] for part in ("forward", "backward", "optimizer")]
    assert {c.status for c in shares} == {"not measured"}
    assert all("serving engine" in c.reason for c in shares)


def guides(account: Account) -> dict[str, Row]:
    return {g.id: g for g in guides_of(account)}


def statuses(guide: Row) -> dict[str, str]:
    return {i.check.id: i.check.status for i in guide["items"]}


def values(guide: Row) -> dict[str, float | None]:
    return {i.check.id: i.check.value for i in guide["items"]}


def idle_device(folder: Path, *, tail_us: float = 900) -> Account:
    """Return a run of one rank: per step one 100 us product in fp32 that the host reads, then nothing."""
    r = RankTrace()
    for n in range(4):
        at = n * 1000
        r.step(n, at, at + 1000)
        with r.op("aten::mm", at + 2, at + 12, **MATMUL):
            r.kernel("ampere_sgemm_128x64_nn", at=at + 4, start=at + 12, end=at + 112)
        with r.op("aten::_local_scalar_dense", at + 20, at + 120):
            r.call("cudaStreamSynchronize", at + 25, at + 118)
        r.ran("aten::slow", at + 121, at + 100 + tail_us)
    return account_of(built_run(folder, [r]), given=GivenValues(peak_tflops=100))


def test_an_idle_device_is_explained_item_by_item(tmp_path: Path) -> None:
    found = guides(idle_device(tmp_path))["low-device-utilisation"]
    assert "10 %" in found.why
    failed = {name for name, status in statuses(found).items() if status == "fail"}
    assert failed and failed <= {"launch_gap_pct", "host_sync_pct", "host_stall_pct"}
    assert statuses(found)["data_loading_pct"] == "not measured"
    assert statuses(found)["copies_pct"] == "pass"


def test_slow_communication_points_at_the_straggler_first(tmp_path: Path) -> None:
    found = guides(account_of(late_run(tmp_path)))["slow-communication"]
    assert found["items"][0].check.id == "stragglers" and found["items"][0].check.status == "fail"
    assert "rank 1" in found["items"][0].check.reason
    # Per step three ranks wait 2000 us, and all four transfer for 300.
    assert values(found)["waiting_pct"] == pytest.approx(100 * 6000 / (6000 + 1200), abs=1)
    assert values(found)["message_mb"] == pytest.approx(4.0)
    assert statuses(found)["narrow_pct"] == "fail" and values(found)["syncs_per_step"] == 1


def test_memory_that_grows_by_2_mb_per_step_shows_the_guide_on_memory(tmp_path: Path) -> None:
    memory = [dict.fromkeys(("allocated_bytes", "peak_allocated_bytes"), (500 + 2 * n) * 10**6) for n in range(40)]
    lines = [{"step": n, "start_ns": 0, "end_ns": 9, "dur_ns": 9, "memory": m} for n, m in enumerate(memory)]
    run = replace(late_run(tmp_path, late_us=0), logs=(step_log_of(lines, rank=0),))
    found = guides(account_of(run))["memory-pressure"]
    assert found.why == "memory grows by 2.0 MB per step"
    assert values(found)["growth_mb_per_step"] == pytest.approx(2.0) and statuses(found)["growth_mb_per_step"] == "fail"
    assert {statuses(found)[name] for name in ("host_growth_mb_per_step", "fragmentation_pct")} == {"not measured"}
