"""The results of a benchmark: raw samples of every run, their summary, and the file that holds them as they grow.

    results.json   {"schema": 1, "kind": "bench", "command", "environment", "series": [
                       {"name", "config", "samples_ms": [[run 1 ...], [run 2 ...]], "summary": {...}}]}

Times are in milliseconds. A step's time is the median over ranks, step by step; memory is that of the fullest rank;
losses are means over ranks. Standard library only.
"""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import SCHEMA, atomic_write
from stepscope.errors import UsageError
from stepscope.json_text import json_text

_KIND = "bench"
RESULTS = "results.json"

# the samples of one run on one rank, as `Samples.as_dict` gives them
Record = dict[str, Any]


def series(
    name: str,
    *,
    config: dict[str, Any],
    runs: Sequence[Sequence[Record]],
    **more: Any,
) -> dict[str, Any]:
    """Return one row of the results from its runs, each the records of all ranks; `more` is kept in the summary."""
    samples_ms = [_over_ranks([r["step_ms"] for r in ranks]) for ranks in runs if ranks]
    return {
        "name": name,
        "config": config,
        "samples_ms": samples_ms,
        "warmup_ms": [_over_ranks([r["warmup_ms"] for r in ranks]) for ranks in runs if ranks],
        "summary": {
            **_times(samples_ms, _whole_job(runs, "samples_per_step"), _whole_job(runs, "tokens_per_step")),
            **_losses(runs),
            **_memory([r for ranks in runs for r in ranks]),
            **more,
        },
    }


def results(
    rows: Sequence[dict[str, Any]],
    *,
    command: str,
    environment: dict[str, Any],
    message: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the whole document; `message` says why it is not complete."""
    return {
        "schema": SCHEMA,
        "kind": _KIND,
        "command": command,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "units": {"time": "ms", "memory": "GB"},
        "environment": environment,
        "complete": message is None,
        "message": message,
        "series": list(rows),
        **more,
    }


def write_results(document: dict[str, Any], folder: Path) -> Path:
    """Return the file, written whole or not at all: a full disk leaves the one before."""
    path = folder / RESULTS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as f:
            f.write((json_text(document, indent=1) + "\n").encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    return path


def _whole_job(runs: Sequence[Sequence[Record]], name: str) -> float | None:
    counts = [record.get(name) for ranks in runs for record in ranks]
    known = [count for count in counts if count is not None]
    return sum(known) / sum(map(bool, runs)) if known and len(known) == len(counts) else None


def _over_ranks(by_rank: Sequence[Sequence[float]]) -> list[float]:
    return [round(statistics.median(times), 6) for times in zip(*by_rank, strict=False)]


def _times(
    samples_ms: Sequence[Sequence[float]], samples_per_step: float | None, tokens_per_step: float | None
) -> dict[str, Any]:
    every = [t for run in samples_ms for t in run]
    if not every:
        return {"num_steps": 0, "avg_step_time": None}
    mean = statistics.fmean(every)
    return {
        "num_steps": len(every),
        "num_runs": len(samples_ms),
        "avg_step_time": mean,
        "std_step_time": statistics.stdev(every) if len(every) > 1 else None,
        "median_step_time": statistics.median(every),
        "min_step_time": min(every),
        "max_step_time": max(every),
        "throughput_samples_per_sec": None if samples_per_step is None else 1000 * samples_per_step / mean,
        "tokens_per_sec": None if tokens_per_step is None else 1000 * tokens_per_step / mean,
    }


def _losses(runs: Sequence[Sequence[Record]]) -> dict[str, Any]:
    means = [_mean_over_ranks([r["losses"] for r in ranks]) for ranks in runs if ranks]
    every = [loss for run in means for loss in run]
    return {
        "avg_loss": statistics.fmean(every) if every else None,
        "final_loss": means[-1][-1] if means and means[-1] else None,
    }


def _mean_over_ranks(by_rank: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(values) for values in zip(*by_rank, strict=False)]


def _memory(records: Sequence[Record]) -> dict[str, Any]:
    allocated = [r["memory_allocated_gb"] for r in records if r.get("memory_allocated_gb")]
    if not allocated:
        names = ("peak_memory_allocated_gb", "avg_memory_allocated_gb", "peak_memory_reserved_gb")
        return {**dict.fromkeys(names), "memory_reason": "the CPU's allocator keeps no count"}
    return {
        "peak_memory_allocated_gb": max(r["peak_memory_allocated_gb"] for r in records),
        "avg_memory_allocated_gb": max(statistics.fmean(values) for values in allocated),
        "peak_memory_reserved_gb": max(r["peak_memory_reserved_gb"] for r in records),
    }
