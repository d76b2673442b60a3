"""Whatever goes wrong while recording, training goes on with the same losses and the same exit code.

T1, T2, ... in names number the faults that recording has to survive; `fault_runs.py` has their scenarios.
"""

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from tests.made_once import made_once
from tests.record.fault_runs import (
    SHARED,
    description,
    late_step_lines,
    leftovers,
    profiler_steps,
    results_of,
    run_all,
    scenarios,
    trace,
)
from tests.record.script_runs import step_lines

from stepscope.contract.run_folder import owners_file

pytestmark = [pytest.mark.job, pytest.mark.slow]

STEPS = 12
Results = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "faults", run_all)


@pytest.fixture(scope="module")
def results(work: Path) -> Results:
    return results_of(work)


def said(rank: dict[str, Any]) -> list[str]:
    return [line for line in rank["stderr"].splitlines() if line.startswith("stepscope:")]


def window_of(folder: Path, rank: int, number: int = 0) -> dict[str, Any]:
    return description(folder)["windows"][number]["ranks"][str(rank)]


def recorded() -> list[str]:
    """Return the scenarios that train to the end, recorded, on the default data and two ranks."""
    flat = [s for entry in scenarios(Path()) for s in (entry if isinstance(entry, list) else [entry])]
    ends = {"raise_error", "sigint", "sys_exit", "hard_exit", "sigterm", "sigkill", "sigkill_while_exporting"}
    return [
        s["name"]
        for s in flat
        if s.get("profile") is not None
        and not ends & set(s.get("faults", {}).values())
        and "workers" not in s
        and s.get("ranks", 2) == 2
    ]


@pytest.mark.parametrize("name", recorded())
def test_losses_are_bit_equal_and_every_step_is_made(results: Results, name: str) -> None:
    for rank in (0, 1):
        assert results[name][rank]["losses"] == results["plain"][rank]["losses"]
        assert len(results[name][rank]["losses"]) == STEPS
        assert results[name][rank]["exit"] == 0


@pytest.mark.parametrize("name", ["good", "four"])
def test_all_ranks_record_the_same_steps(results: Results, work: Path, name: str) -> None:
    for rank in range(len(results[name])):
        assert profiler_steps(trace(work / name, rank)) == [4, 5, 6]
        lines = step_lines(work / name, rank)
        assert [line["step"] for line in lines] == list(range(STEPS))
        assert [line["step"] for line in lines if line["phase"] == "window" and line["profiled"]] == [4, 5, 6]
        assert {"forward_pass", "backward_pass", "optimizer_step", "data_loading"} <= set(lines[8]["regions"])
        assert all(sum(r["ns"] for r in line["regions"].values()) <= line["dur_ns"] for line in lines)
    assert not said(results[name][0])


def test_run_json_says_what_the_job_was(results: Results, work: Path) -> None:
    run = description(work / "good")
    assert run["schema"] == 1 and run["world_size"] == 2 and run["missing_ranks"] == []
    assert (run["backend"], run["strategy"], run["optimizer"]) == ("gloo", "ddp", "AdamW")
    assert run["process_groups"] == [{"name": "0", "desc": "default_pg", "backend": "gloo", "ranks": [0, 1]}]
    assert run["model"]["parameters"] == 32 * 32 + 32 + 32 + 1
    assert run["ddp"]["bucket_bytes"] == [run["model"]["bytes"]]
    # Forward 2 B W W + 2 B W; backward the same for the weights, and once more for the second layer's input.
    assert run["flops_per_step"] == 2 * (2 * (2 * 8 * 32 * 32 + 2 * 8 * 32) + 2 * 8 * 32)
    assert run["samples_per_step"] == 16
    assert run["unprofiled_step_ms"] > 0 and run["unprofiled_before"]["steps"] == 1  # 2: 0 and 1 are the first
    assert run["unprofiled_after"]["steps"] == 2  # 10, 11: 7 was counted, 8 had frames, 9 settles
    assert run["tokens_per_step"] is None and "tokens_per_step" in run["reasons"]


def test_flight_recorder_has_group_and_bytes_of_every_collective(results: Results, work: Path) -> None:
    header, *entries = [
        json.loads(line) for line in (work / "good" / "rank00001.flight_recorder.jsonl").read_text().splitlines()
    ]
    assert header["rank"] == 1 and header["process_groups"][0]["ranks"] == [0, 1]
    reduced = [e for e in entries if e["profiling_name"] == "gloo:all_reduce"]
    assert reduced and all(e["input_sizes"] and e["process_group"][0] == "0" for e in reduced)


def test_chosen_rank_alone_has_a_trace_and_all_have_step_logs(results: Results, work: Path) -> None:
    names = {p.name for p in (work / "one_rank").iterdir()}
    assert "rank00001.pt.trace.json.gz" in names and "rank00000.pt.trace.json.gz" not in names
    assert len(step_lines(work / "one_rank", 0)) == STEPS


def test_T1_own_profiler_of_the_user_goes_first(results: Results, work: Path) -> None:
    assert "another profiler" in said(results["T1"][0])[0] and len(said(results["T1"][0])) == 1
    assert results["T1"][0]["notes"]["user_events"] > 1000
    assert window_of(work / "T1", 0)["status"] == "dropped"
    assert window_of(work / "T1", 1)["status"] == "written"


@pytest.mark.parametrize("name", ["T2", "T2_warmup"])
def test_T2_profiler_started_in_our_window_ends_ours(results: Results, work: Path, name: str) -> None:
    assert results[name][0]["notes"]["user_events"] > 500
    assert window_of(work / name, 0)["status"] == "dropped"
    assert "another profiler" in window_of(work / name, 0)["reason"]
    assert not (work / name / "rank00000.pt.trace.json.gz").exists()


def test_T2_profiler_started_while_a_step_is_counted(results: Results, work: Path) -> None:
    run = description(work / "T2_counting")
    assert run["flops_per_step"] is None and "another profiler" in run["reasons"]["flops_per_step"]
    assert results["T2_counting"][0]["notes"]["user_events"] > 100
    assert window_of(work / "T2_counting", 0)["status"] == "written"


def test_T2_profiler_started_in_the_step_with_frames(results: Results, work: Path) -> None:
    run = description(work / "T2_frames")
    assert "another profiler was started" in run["reasons"]["owners"]
    assert results["T2_frames"][0]["notes"]["user_events"] > 100
    assert not (work / "T2_frames" / owners_file(0)).exists()
    assert (work / "T2_frames" / owners_file(1)).exists()
    assert run["flops_per_step"] is not None


@pytest.mark.parametrize("what", ["start", "stop", "export"])
def test_T3_failing_profiler_is_one_warning(results: Results, work: Path, what: str) -> None:
    (line,) = said(results[f"T3_{what}"][0])
    assert f"planted at {what}" in line
    assert len(step_lines(work / f"T3_{what}", 0)) == STEPS


@pytest.mark.parametrize("name", ["T4_missing", "T4_full"])
def test_T4_export_that_failed_silently_is_found_out(results: Results, work: Path, name: str) -> None:
    assert window_of(work / name, 0)["status"] == "failed"
    assert not (work / name / "rank00000.pt.trace.json.gz").exists()
    assert window_of(work / name, 1)["status"] == "written"


def test_T6_hanging_writer_is_left_behind_and_finishes_later(results: Results, work: Path) -> None:
    assert description(work / "T6")["ranks"]["0"]["steps"]["count"] == STEPS  # it was waited for
    assert len(late_step_lines(work / "T6", 1, STEPS)) == STEPS


def test_T7_sigterm_reaches_the_users_handler(results: Results, work: Path) -> None:
    for rank in (0, 1):
        assert results["T7"][rank]["exit"] == results["T7_plain"][rank]["exit"] == 77
        assert (work / f"T7.{rank}.handled").exists()
        assert results["T7_default"][rank]["exit"] == -15
    for name in ("T7", "T7_default"):
        assert description(work / name)["ranks"]["0"]["ended"] == "killed"
        assert leftovers(work / name) == [] and not list((work / name).glob("*.gz"))


@pytest.mark.parametrize(("name", "steps"), [("T8_early", 2), ("T8_window", 5), ("T8_export", 7)])
def test_T8_killed_job_leaves_whole_files_only(results: Results, work: Path, name: str, steps: int) -> None:
    assert [rank["exit"] for rank in results[name]] == [-9, -9]
    run = description(work / name)
    assert {r["ended"] for r in run["ranks"].values()} == {"killed"}
    logged = [line["step"] for line in step_lines(work / name, 0)]
    assert 0 < len(logged) <= steps and logged == list(range(len(logged)))  # lines of the last moments are lost
    assert leftovers(work / name) == [] and not list((work / name).glob("*.gz"))
    assert not list((work / "tmp").glob("stepscope-*"))


def test_T9_rank_that_dies_leaves_the_others_as_they_would_be(results: Results, work: Path) -> None:
    assert [r["exit"] for r in results["T9"]] == [r["exit"] for r in results["T9_plain"]] == [1, -9]
    run = description(work / "T9")
    assert run["missing_ranks"] == [1] or run["ranks"]["1"]["ended"] == "killed"
    assert run["ranks"]["0"]["ended"] == "closed"


def test_T10_rank_that_skips_the_window(results: Results, work: Path) -> None:
    assert profiler_steps(trace(work / "T10", 0)) == [4, 5, 6]
    assert description(work / "T10")["ranks"]["1"]["steps"]["count"] == 2


def test_T11_rank_that_never_steps(results: Results, work: Path) -> None:
    assert profiler_steps(trace(work / "T11", 0)) == [4, 5, 6]
    run = description(work / "T11")
    assert run["missing_ranks"] == [] and run["ranks"]["1"]["steps"]["count"] == 0


@pytest.mark.parametrize("name", ["T13", "T14", "T15", "T16"])
def test_T13_to_T16_job_that_ends_itself(results: Results, work: Path, name: str) -> None:
    for rank in (0, 1):
        ours, plain = results[name][rank], results[f"{name}_plain"][rank]
        assert ours["exit"] == plain["exit"] and ours["losses"] == plain["losses"]
        assert last_traceback(ours["stderr"]) == last_traceback(plain["stderr"])
    if name != "T16":  # os._exit skips everything: the trace is lost, the step log is not
        assert profiler_steps(trace(work / name, 0)) == [4]
        assert "training ended" in window_of(work / name, 0)["cut"]
    assert len(step_lines(work / name, 1)) == 5 if name != "T16" else len(step_lines(work / name, 1)) > 0
    assert description(work / name)["ranks"]["1"]["ended"] == ("killed" if name == "T16" else "closed")


def last_traceback(stderr: str) -> list[str]:
    """Return the error's own line and where it was raised, without rank prefixes and line numbers of callers."""
    lines = [line.partition("]: ")[2] if line.startswith("[rank") else line for line in stderr.splitlines()]
    return [line for line in lines if line.startswith(("ValueError", "KeyboardInterrupt", "Traceback"))]


def test_T17_forked_children_write_nothing(results: Results, work: Path) -> None:
    for rank in (0, 1):
        assert results["T17"][rank]["losses"] == results["T17_plain"][rank]["losses"]
        assert results["T17"][rank]["notes"]["child"] == 0
        assert [line["step"] for line in step_lines(work / "T17", rank)] == list(range(STEPS))
    # samples of the threads are there only for a rank that trained long enough to be met by one
    written = [{p.name for p in (work / run).iterdir() if not p.match("*.samples.jsonl")} for run in ("T17", "good")]
    assert written[0] == written[1]
    assert not (work / "T17-2").exists()


def test_T18_event_flood_ends_the_window(results: Results, work: Path) -> None:
    cut = window_of(work / "T18", 0)
    assert "event budget" in cut["cut"] and cut["last_step"] in (5, 6)  # in the middle of step 5, or at its end
    assert window_of(work / "T18", 1)["cut"] is None


def test_T19_memory_and_time_budgets_end_the_window_inside_a_step(results: Results, work: Path) -> None:
    for name, budget in (("T19", "memory budget"), ("T19_time", "time budget")):
        assert budget in window_of(work / name, 0)["cut"] and "step 5 is incomplete" in window_of(work / name, 0)["cut"]
        assert profiler_steps(trace(work / name, 0)) == [4]


def test_T20_every_run_has_its_own_folder(results: Results, work: Path) -> None:
    folders = [work / SHARED, *(work / f"{SHARED}-{n}" for n in (2, 3, 4))]
    assert len({description(folder)["run_id"] for folder in folders}) == 4
    assert not (work / f"{SHARED}-5").exists()
    for folder in folders:
        assert [profiler_steps(trace(folder, rank)) for rank in (0, 1)] == [[4, 5, 6]] * 2
        assert len(step_lines(folder, 0)) == len(step_lines(folder, 1)) == STEPS


def test_T21_clock_set_back(results: Results, work: Path) -> None:
    lines = step_lines(work / "T21", 0)
    assert lines[8]["end_ns"] < lines[2]["end_ns"]
    assert all(line["end_ns"] - line["start_ns"] == line["dur_ns"] > 0 for line in lines)


def test_T22_odd_folder_names(results: Results, work: Path) -> None:
    assert profiler_steps(trace(work / "ödd name; $HOME\n", 1)) == [4, 5, 6]


def test_T23_strict_umask(results: Results, work: Path) -> None:
    assert profiler_steps(trace(work / "T23", 1)) == [4, 5, 6]
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (work / "T23").iterdir()]
    assert all(mode & 0o077 == 0 for mode in modes)


def test_T25_torch_without_kineto_still_times_steps(results: Results, work: Path) -> None:
    assert any("no Kineto" in line for line in said(results["T25"][0]))
    assert len(step_lines(work / "T25", 0)) == STEPS
    assert window_of(work / "T25", 0)["status"] == "dropped"


def test_nothing_is_left_behind(results: Results, work: Path) -> None:
    for _ in range(1200):
        left = list((work / "tmp").glob("stepscope-*"))
        if not left:
            break
        time.sleep(0.1)
    assert left == []
    assert [p for p in work.rglob("*.tmp") if os.path.isfile(p)] == []
