"""From the records of all ranks to the results of a benchmark: raw samples of every run, their summary, and the file.

    results.json   {"schema": 1, "kind": "bench", "command", "environment", "series": [
                       {"name", "config", "samples_ms": [[run 1 ...], [run 2 ...]], "summary": {...}}]}

Times are in milliseconds. A step's time is the median over ranks, step by step; memory is that of the fullest rank;
losses are means over ranks. Standard library only.
"""

import time
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev
from typing import Any

from stepscope.contract.run_folder import SCHEMA

RESULTS = "results.json"
# Between `launch` and the processes of the ranks.
SAMPLES = "samples.jsonl"
STORE_VARIABLE = "STEPSCOPE_BENCH_STORE"
LAUNCHER_VARIABLE = "STEPSCOPE_BENCH_LAUNCHER"
SESSION_VARIABLE = "STEPSCOPE_BENCH_SESSION"
# exit code of a rank that reports in one line what is wrong with the plan
REFUSED = 2
_MEMORY = ("peak_memory_allocated_gb", "avg_memory_allocated_gb", "peak_memory_reserved_gb")

# the samples of one run on one rank, as `measure` returns them
Record = dict[str, Any]
Records = Sequence[Record]


def series(name: str, *, config: Record, runs: Sequence[Records], **more: Any) -> Record:
    """Return one row of the results from its runs, each the records of all ranks; `more` is added to the summary."""
    runs = [ranks for ranks in runs if ranks]
    samples_ms = [_by_step([r["step_ms"] for r in ranks], median) for ranks in runs]
    losses = [_by_step([r["losses"] for r in ranks], fmean) for ranks in runs]
    every = [loss for run in losses for loss in run]
    return {
        "name": name,
        "config": config,
        "samples_ms": samples_ms,
        "warmup_ms": [_by_step([r["warmup_ms"] for r in ranks], median) for ranks in runs],
        "summary": {
            **_times(samples_ms, runs),
            "avg_loss": fmean(every) if every else None,
            "final_loss": losses[-1][-1] if losses and losses[-1] else None,
            **_memory([r for ranks in runs for r in ranks]),
            **more,
        },
    }


def _by_step(by_rank: Sequence[Sequence[float]], over: Callable[[Sequence[float]], float]) -> list[float]:
    return [round(over(values), 6) if over is median else over(values) for values in zip(*by_rank, strict=False)]


def _times(samples_ms: Sequence[Sequence[float]], runs: Sequence[Records]) -> Record:
    every = [t for run in samples_ms for t in run]
    if not every:
        return {"num_steps": 0, "avg_step_time": None}
    mean = fmean(every)

    def per_second(name: str) -> float | None:
        counts: list[Any] = [record.get(name) for ranks in runs for record in ranks]
        return None if None in counts else 1000 * sum(counts) / len(runs) / mean

    return {
        "num_steps": len(every),
        "num_runs": len(samples_ms),
        "avg_step_time": mean,
        "std_step_time": stdev(every) if len(every) > 1 else None,
        "median_step_time": median(every),
        "min_step_time": min(every),
        "max_step_time": max(every),
        "throughput_samples_per_sec": per_second("samples_per_step"),
        "tokens_per_sec": per_second("tokens_per_step"),
    }


def _memory(records: Records) -> Record:
    allocated = [r["memory_allocated_gb"] for r in records if r.get("memory_allocated_gb")]
    if not allocated:
        return {**dict.fromkeys(_MEMORY), "memory_reason": "the CPU's allocator keeps no count"}
    peak, reserved = (max(r[name] for r in records) for name in (_MEMORY[0], _MEMORY[2]))
    return dict(zip(_MEMORY, (peak, max(map(fmean, allocated)), reserved), strict=True))


def results(
    rows: Sequence[Record], *, command: str, environment: Record, message: str | None = None, **more: Any
) -> Record:
    """Return the whole document; `message` is the reason why it is not complete."""
    return {
        "schema": SCHEMA,
        "kind": "bench",
        "command": command,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "units": {"time": "ms", "memory": "GB"},
        "environment": environment,
        "complete": message is None,
        "message": message,
        "series": list(rows),
        **more,
    }
