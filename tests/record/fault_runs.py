"""All fault scenarios, run once for the whole test session, and how their run folders are read.

T1, T2, ... number the faults that recording has to survive, here and in names of tests.
"""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.job_environment import python_path
from tests.limits import HANG_S
from tests.record.script_runs import step_lines

JOB = Path(__file__).with_name("fault_job.py")
SOURCE = Path(__file__).parents[2] / "src"
SHARED = "shared folder"
HANGING_HELPER = {"1": "wait_for_folder", "2": "stop_first_helper", "after": "resume_first_helper"}
"""the folder is known by then: nobody else learns it from a helper that does not run"""


def scenarios(work: Path) -> list[Any]:
    """Return what `fault_job.py` is asked to run; a list inside the list runs at the same time."""
    shared = {"out": str(work / SHARED)}
    impatient = {"close_wait_s": 0.3, "others_grace_s": 0.2}
    return [
        {"name": "plain"}, {"name": "good", "profile": {"record_shapes": True}},
        {"name": "four", "ranks": 4, "profile": {}}, {"name": "one_rank", "profile": {"ranks": "1"}},
        {"name": "light", "profile": {"light": True}},
        {"name": "twice", "profile": {"wait": 1, "warmup": 1, "active": 2, "repeat": 2}},
        {"name": "at_once", "profile": {"wait": 0, "warmup": 0, "active": 2}},
        {"name": "T1", "on": [0], "profile": {}, "faults": {"before": "start_profiler", "after": "stop_profiler"}},
        {"name": "T2", "on": [0], "profile": {}, "faults": {"5": "start_profiler", "9": "stop_profiler"}},
        {"name": "T2_warmup", "on": [0], "profile": {}, "faults": {"3": "start_profiler", "9": "stop_profiler"}},
        {"name": "T2_counting", "on": [0], "profile": {}, "faults": {"7": "start_profiler", "8": "stop_profiler"}},
        {"name": "T2_frames", "on": [0], "profile": {}, "faults": {"8": "start_profiler", "9": "stop_profiler"}},
        {"name": "T3_start", "profile": {}, "faults": {"before": "break_start"}},
        {"name": "T3_stop", "profile": {}, "faults": {"before": "break_stop"}},
        {"name": "T3_export", "profile": {}, "faults": {"before": "break_export"}},
        {"name": "T4_missing", "on": [0], "profile": {}, "faults": {"5": "remove_scratch"}},
        {"name": "T4_full", "on": [0], "profile": {}, "faults": {"5": "fill_disk", "8": "free_disk"}},
        {"name": "T6", "profile": impatient, "faults": HANGING_HELPER},
        {"name": "T7_plain", "faults": {"before": "handle_sigterm", "5": "sigterm"}},
        {"name": "T7", "profile": {}, "faults": {"before": "handle_sigterm", "5": "sigterm"}},
        {"name": "T7_default", "profile": {}, "faults": {"5": "sigterm"}},
        {"name": "T8_early", "profile": {}, "faults": {"2": "sigkill"}},
        {"name": "T8_window", "profile": {}, "faults": {"5": "sigkill"}},
        {"name": "T8_export", "profile": {}, "faults": {"before": "sigkill_while_exporting"}},
        {"name": "T9_plain", "on": [1], "faults": {"5": "sigkill"}},
        {"name": "T9", "on": [1], "profile": {}, "faults": {"5": "sigkill"}},
        {"name": "T10", "on": [1], "profile": impatient, "no_step_from": 2},
        {"name": "T11", "on": [1], "profile": {}, "no_step_from": 0}, *ways_to_end("T13", "raise_error"),
        *ways_to_end("T14", "sigint"), *ways_to_end("T15", "sys_exit"), *ways_to_end("T16", "hard_exit"),
        {"name": "T17_plain", "workers": True},
        {"name": "T17", "workers": True, "profile": {}, "faults": {"5": "fork"}},
        {"name": "T18", "on": [0], "profile": {"max_events": 50_000}, "faults": {"5": "flood"}},
        {"name": "T19", "on": [0], "profile": {"max_memory_mb": 50}, "faults": {"5": "hog_memory"}},
        {"name": "T19_time", "on": [0], "profile": {"max_seconds": 0.3}, "faults": {"5": "dawdle"}},
        {"name": "T20_first", "profile": shared},
        [{"name": "T20_second", "profile": shared}, {"name": "T20_third", "profile": shared}],
        {"name": "T20_restart", "profile": shared, "env": {"TORCHELASTIC_RESTART_COUNT": "1"}},
        {"name": "T21", "profile": {}, "faults": {"5": "clock_back"}},
        {"name": "T22", "profile": {"out": str(work / "ödd name; $HOME\n")}},
        {"name": "T23", "profile": {}, "faults": {"before": "strict_umask"}},
        {"name": "T25", "profile": {}, "faults": {"before": "no_kineto"}},
    ]  # fmt: skip


def ways_to_end(name: str, what: str) -> list[dict[str, Any]]:
    """Return a job that ends itself in the window, plain and recorded."""
    return [{"name": f"{name}_plain", "faults": {"5": what}}, {"name": name, "profile": {}, "faults": {"5": what}}]


def run_all(work: Path) -> None:
    """Run every scenario."""
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(SOURCE),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TMPDIR": str(work / "tmp"),
    }
    (work / "tmp").mkdir()
    subprocess.run([sys.executable, str(JOB), str(work), json.dumps(scenarios(work))], env=environment, check=True)


def results_of(work: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the outcome of every scenario, by name and rank."""
    return json.loads((work / "results.json").read_text())


def description(folder: Path, *, within_s: float = HANG_S) -> dict[str, Any]:
    """Return a finished run's run.json, waiting for a helper that outlived its job."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if (folder / "run.json").exists():
            found: dict[str, Any] = json.loads((folder / "run.json").read_text())
            if found["ended"]:
                return found
        time.sleep(0.1)
    raise AssertionError(f"no finished run.json in {folder} within {within_s} s: {sorted(folder.iterdir())}")


def late_step_lines(folder: Path, rank: int, count: int, *, within_s: float = HANG_S) -> list[dict[str, Any]]:
    """Return a rank's step log once it has so many lines: a helper that its job left behind may still be writing."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if (folder / f"rank{rank:05d}.steps.jsonl").exists() and len(step_lines(folder, rank)) >= count:
            break
        time.sleep(0.1)
    return step_lines(folder, rank)


def trace(folder: Path, rank: int) -> dict[str, Any]:
    """Return a rank's trace."""
    with gzip.open(folder / f"rank{rank:05d}.pt.trace.json.gz") as f:
        found: dict[str, Any] = json.load(f)
    return found


def profiler_steps(trace_: dict[str, Any]) -> list[int]:
    """Return the numbers of the complete steps in a trace."""
    spans = [e for e in trace_["traceEvents"] if str(e.get("name")).startswith("ProfilerStep#") and e["ph"] == "X"]
    done = [e for e in spans if e["cat"] == "user_annotation" and e["args"].get("finished", True)]
    return sorted(int(e["name"].partition("#")[2]) for e in done)


def leftovers(folder: Path) -> list[str]:
    """Return temporary files in a run folder."""
    return [p.name for p in folder.iterdir() if p.name.endswith(".tmp")]
