"""Check lists: numbers of runs whose truth is known, held against what is good and bad; unknown is never 0."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.diagnose.late import OWN_US, TRANSFER_US, late_run

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.checks import Check, checks_of
from stepscope.run.load import load
from stepscope.run.step_log import step_log_of

DATA = Path(__file__).parents[1] / "data"


def checks(account: Account) -> dict[str, Check]:
    return {c.id: c for c in checks_of(account)}


def test_numbers_of_a_known_step(tmp_path: Path) -> None:
    found = checks(account_of(late_run(tmp_path, late_us=0)))
    for name, value, status in (
        ("device_utilisation_pct", 100 * 1400 / OWN_US, "pass"),
        ("all_reduce_pct_of_backward", 100 * TRANSFER_US / (500 + TRANSFER_US), "fail"),
        ("host_device_copies_pct", 0.0, "pass"),
        ("forward_share_pct", 100 * 500 / OWN_US, "pass"),
        ("backward_share_pct", 100 * 500 / OWN_US, "fail"),
        ("optimizer_share_pct", 100 * 100 / OWN_US, "pass"),
        ("step_time_spread_pct", 0.0, "pass"),
    ):
        assert found[name].value == pytest.approx(value, abs=0.5), name
        assert found[name].status == status, name
    assert "exposed_transfer takes most" in found["backward_share_pct"].reason


def test_what_was_not_recorded_is_not_measured_and_says_why(tmp_path: Path) -> None:
    found = checks(account_of(late_run(tmp_path, late_us=0)))
    for name, why in (("data_loading_pct", "data loader"), ("memory_pct_of_limit", "--memory")):
        assert found[name].value is None and found[name].status == "not measured" and why in found[name].reason


def test_waiting_for_input_is_measured_where_a_loader_is_marked(tmp_path: Path) -> None:
    found = checks(account_of(late_run(tmp_path, loading=True, late_us=4000)))
    # One of four ranks waits for input: for as long as its device had nothing left to do.
    assert found["data_loading_pct"].value == pytest.approx(100 * 4000 / (4000 + OWN_US) / 4, abs=1.0)
    assert found["data_loading_pct"].status == "fail" and "neither" in found["data_loading_pct"].reason


def test_a_host_alone_has_no_device_to_judge(tmp_path: Path) -> None:
    rank = RankTrace(backend="gloo")
    for n in range(3):
        rank.step(n, n * 100, n * 100 + 100)
        rank.ran("aten::mm", n * 100 + 10, n * 100 + 90)
    found = checks(account_of(built_run(tmp_path, [rank])))
    for name in ("device_utilisation_pct", "host_device_copies_pct"):
        assert found[name].status == "not measured" and "device" in found[name].reason


def test_step_logs_tell_the_spread_of_more_steps(tmp_path: Path) -> None:
    times = [1000, 1400] * 20
    lines = [{"step": n, "start_ns": 0, "end_ns": t, "dur_ns": t} for n, t in enumerate(times)]
    run = replace(late_run(tmp_path, late_us=0), logs=(step_log_of(lines, rank=0),))
    check = checks(account_of(run))["step_time_spread_pct"]
    assert check.value == pytest.approx(100 * 200 / 1200, abs=0.1) and check.status == "fail"
    assert "40 steps" in check.reason


def test_a_serving_engine_has_no_phases_of_training() -> None:
    found = checks(account_of(load(DATA / "foreign-amd" / "vllm.json.gz", cache=False, jobs=1)))
    shares = [found[f"{part}_share_pct"] for part in ("forward", "backward", "optimizer")]
    assert {c.status for c in shares} == {"not measured"}
    assert all("serving engine" in c.reason for c in shares)
