"""Everything that the recorder writes beside the traces is read, damaged or not, and becomes evidence."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.diagnose.late import late_run

from stepscope.analyze.account import account_of
from stepscope.diagnose.findings import diagnose
from stepscope.document.report import report_json
from stepscope.report.summary import summary_text
from stepscope.run.load import load
from stepscope.run.side_files import side_files

GB = 1 << 30


def write(path: Path, *lines: dict[str, Any], tail: str = "") -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)


def state(step: int, *, clock: int = 1980, reasons: tuple[str, ...] = (), used: int = 3 * GB) -> dict[str, Any]:
    return {
        "kind": "state", "time_ns": 10**9 * step, "step": step, "sm_clock_mhz": clock, "power_w": 300.0,
        "temperature_c": 60, "utilization_pct": 90, "throttle_reasons": list(reasons), "memory_used_bytes": used,
    }  # fmt: skip


def run_folder(folder: Path, *, throttled: int | None = None, used: int = 3 * GB) -> Path:
    """Write a run of two ranks, rank 1 late, with everything that the recorder leaves beside its traces."""
    late_run(folder, ranks=2, late_rank=1, description={"schema": 1})
    for rank in range(2):
        name = f"rank{rank:05d}"
        slow = rank == throttled
        states = [
            state(i, clock=1200 if slow else 1980, reasons=("power_cap",) if slow else (), used=used) for i in range(5)
        ]
        device = {"kind": "device", "name": "NVIDIA H200", "uuid": f"GPU-{rank}", "max_sm_clock_mhz": 1980}
        write(folder / f"{name}.telemetry.jsonl", device, *states, tail='{"kind": "sta')
        live = {"operation": "all_reduce", "group": "0", "group_size": 2, "count": 6, "bytes": 24_000_000,
                "time_ms": 2.0, "algbw_gb_per_s": 12.0, "busbw_gb_per_s": 12.0}  # fmt: skip
        write(
            folder / f"{name}.collectives.jsonl", {"schema": 1, "groups": [{"name": "0", "desc": "default_pg"}]}, live
        )
        edge = {"kind": "snapshot", "step": 3, "label": "end forward_pass", "allocated_bytes": 5, "parameters_bytes": 2}
        write(folder / f"{name}.memory.jsonl", edge, {"kind": "peak", "peak_bytes": 9}, {"kind": "storage"})
        (folder / f"{name}.nccl.log").write_text(
            "vm:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
            "vm:1:1 [0] NCCL INFO Using network Socket\n"
            "vm:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct\n"
            "vm:1:1 [0] NCCL INFO 2 coll channels, 2 collnet channels\n"
            "vm:1:1 [0] NCCL WARN something is wrong\n"
        )
        memory = [{"allocated_bytes": (1 + i) * GB // 8, "reserved_bytes": GB} for i in range(6)]
        steps = [{"step": i, "start_ns": i, "end_ns": i + 1, "dur_ns": 1, "memory": memory[i]} for i in range(6)]
        write(folder / f"{name}.steps.jsonl", {"schema": 1, "rank": rank}, *steps)
    return folder


def test_every_file_is_read(tmp_path):
    found = side_files(run_folder(tmp_path))
    assert [len(t) for t in found.telemetry] == [5, 5] and found.lost_lines == 0
    assert [(c.rank, c.op, c.busbw_gb_per_s) for c in found.collectives] == [(r, "all_reduce", 12.0) for r in range(2)]
    assert found.memory[0].bytes_by == {"allocated": 5, "parameters": 2} and found.memory_peaks[1]["peak_bytes"] == 9
    log = found.nccl[0]
    assert (log.version, log.channels, log.network) == ("2.28.9+cuda13.0", 2, "Socket")
    assert log.transports == {"SHM/direct": 1} and log.warnings == ("something is wrong",)


def test_report_has_devices_live_bandwidths_and_memory_of_each_step(tmp_path):
    account = account_of(load(run_folder(tmp_path)))
    found = report_json(account, diagnose(account))
    assert [d["rank"] for d in found["devices"]] == [0, 1] and found["devices"][0]["sm_clock_mhz"] == 1980
    (row,) = found["collectives"]
    assert row["live_busbw_gb_per_s"] == 12.0 and row["busbw_gb_per_s"] is not None
    assert found["memory_steps"][0]["allocated_bytes"] == [(1 + i) * GB // 8 for i in range(6)]
    assert found["nccl"][1]["network"] == "Socket" and found["memory_edges"][0]["label"] == "end forward_pass"
    json.dumps(found)


def test_damaged_lines_are_counted_and_the_rest_is_read(tmp_path):
    folder = run_folder(tmp_path)
    (folder / "rank00000.telemetry.jsonl").write_text('nonsense\n{"kind": "state", "sm_clock_mhz": "fast"}\n[1]\n{}\n')
    account = account_of(load(folder))
    assert any("2 damaged lines" in line for line in account.warnings)
    assert account.devices[0].sm_clock_mhz is None


def second_window(folder: Path) -> Path:
    (later := folder / "window1").mkdir()
    for trace in folder.glob("*.trace.json.gz"):
        shutil.copy(trace, later)
    return later


def test_later_windows_are_named_and_read_with_the_runs_own_logs(tmp_path):
    folder = run_folder(tmp_path / "run")
    later = second_window(folder)
    first = load(folder)
    assert any("window1 of this run" in line for line in first.warnings)
    second = load(later)
    assert len(second.logs) == 2 and second.description and len(second.beside.telemetry) == 2
    assert not any("window1 of this run" in line for line in second.warnings)
    assert (first.window, second.window, first.asked_by, second.asked_by) == (0, 1, None, None)


def test_window_that_an_alarm_pulled_is_named_with_its_reason(tmp_path):
    folder = run_folder(tmp_path / "run")
    later = second_window(folder)
    why = "alarm: rank 1 is 7.90 ms late per step (1.38 x the others) since about step 340"
    described = json.loads((folder / "run.json").read_text())
    windows = [{"window": 0, "ranks": {"0": {"asked_by": None}}}, {"window": 1, "ranks": {"0": {"asked_by": why}}}]
    (folder / "run.json").write_text(json.dumps({**described, "windows": windows}))
    first, second = load(folder), load(later)
    assert first.asked_by is None and second.asked_by == why
    assert any(f"window1 (pulled by: {why}) of this run" in line for line in first.warnings)
    account = account_of(second)
    document = report_json(account, diagnose(account))
    assert document["run"]["asked_by"] == why
    assert f"window 1, triggered by: {why}" in " ".join(summary_text(document).split())


def test_files_beside_the_traces_share_one_budget(tmp_path, monkeypatch):
    folder = run_folder(tmp_path)
    monkeypatch.setattr("stepscope.run.side_files._MAX_FOLDER_BYTES", 4000)
    monkeypatch.setattr("stepscope.run.side_files._MIN_SHARE_BYTES", 1000)
    for rank in range(2):
        for what in ("telemetry.jsonl", "memory.jsonl"):
            (folder / f"rank{rank:05d}.{what}").write_text('{"kind": "state"}\n' * 100)
    run = load(folder)
    account = account_of(run)
    report = report_json(account, diagnose(account))
    assert [d["num_samples"] for d in report["devices"]] == [1000 // 18, 1000 // 18]
    assert any("only its first 1.0 kB were read" in w and "; and 1 more" in w for w in run.warnings)
