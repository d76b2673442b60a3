"""Run folders of jobs that run, with given steps."""

import json
from pathlib import Path
from typing import Any


def line(step: int, dur_ms: float, wait_ms: float | None = 0.0, **more: Any) -> dict[str, Any]:
    dur = round(dur_ms * 1e6)
    regions = {"forward_pass": {"ns": dur // 4, "n": 1}}
    if wait_ms is not None:
        regions["gradient_sync"] = {"ns": round(wait_ms * 1e6), "n": 1}
    start = 10**18 + step * 10**8
    usual = {"profiled": False, "phase": "before", "regions": regions, "device_ns": None}
    return {"step": step, "start_ns": start, "end_ns": start + dur, "dur_ns": dur, **usual, **more}


def write_facts(folder: Path, rank: int, ended: str, **more: Any) -> None:
    (folder / f"rank{rank:05}.facts.jsonl").write_text(json.dumps({"rank": rank, "ended": ended, **more}))


def claim(folder: Path, launch: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / ".recording").write_text(json.dumps({"run_id": folder.name, "launch_id": launch}))
    return folder
