"""Step logs with given step times, beside the traces of a constructed run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def write_step_logs(folder: Path, times_ms: Sequence[float] | npt.NDArray[np.float64], *, ranks: int) -> None:
    """Write the same unprofiled step times for every rank."""
    for rank in range(ranks):
        lines: list[dict[str, Any]] = [{"schema": 1, "rank": rank, "world_size": ranks}]
        at = 1_000_000_000
        for step, time_ms in enumerate(times_ms):
            dur = int(time_ms * 1e6)
            lines.append(
                {"step": step, "start_ns": at, "end_ns": at + dur, "dur_ns": dur, "profiled": False, "phase": "after"}
            )
            at += dur
        text = "\n".join(json.dumps(line) for line in lines)
        (folder / f"rank{rank:05}.steps.jsonl").write_text(text + "\n")
