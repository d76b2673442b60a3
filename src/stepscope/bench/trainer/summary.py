"""What a training came to: the fields of every benchmark's summary, as JSON and as a page of text.

Steps of the learning rate's warm-up and steps under the profiler are slower than the others; they are left out of the
times, and counted apart.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.bench.config.sections import BenchConfig
from stepscope.bench.session.results import series
from stepscope.contract.run_folder import SCHEMA, atomic_write, steps_file
from stepscope.contract.step_line import WARMUP, WINDOW
from stepscope.json_text import json_text
from stepscope.record.config import RecordConfig
from stepscope.record.window.schedule import census_step, frame_step, phase_of

_OF_BENCHMARKS = ("bench", "ranks")  # sections that a training does not use
SUMMARY_JSON, SUMMARY_TXT = "summary.json", "summary.txt"


def counted_steps(config: BenchConfig, recording: RecordConfig | None, *, first: int) -> list[int]:
    """Return the numbers, from `first` on, of the steps whose times count; all where none would be left."""
    every = list(range(first, config.train.steps))
    warm = [step for step in every if step >= min(config.scheduler.warmup_steps, config.train.steps // 2)]
    quiet = [step for step in warm if recording is None or not _disturbed(step - first, recording)]
    return quiet or warm or every


def _disturbed(step: int, recording: RecordConfig) -> bool:
    return phase_of(step, recording)[0] in (WARMUP, WINDOW) or step in (census_step(recording), frame_step(recording))


def summary(
    config: BenchConfig,
    records: Sequence[dict[str, Any]],
    *,
    counted: Sequence[int],
    first: int,
    own_model: str | None,
    strategy: str,
    run_folder: Path | None,
) -> dict[str, Any]:
    """Return the summary from the samples of all ranks; `own_model` names a model that came from outside."""
    kept = [{**r, "step_ms": [r["step_ms"][step - first] for step in counted]} for r in records]
    row = series(
        strategy,
        config=_settings(config, own_model),
        runs=[kept],
    )
    return {
        "schema": SCHEMA,
        "kind": "training",
        "config": row["config"],
        "strategy": strategy,
        "world_size": len(records),
        "steps_taken": len(records[0]["step_ms"]),
        "summary": row["summary"],
        "samples_ms": row["samples_ms"][0],
        "regions_ms": _regions_ms(run_folder),
        "run_folder": str(run_folder) if run_folder is not None else None,
    }


def _settings(config: BenchConfig, own_model: str | None) -> dict[str, Any]:
    found = {name: part for name, part in asdict(config).items() if name not in _OF_BENCHMARKS}
    return found if own_model is None else {**found, "workload": {"name": f"own model: {own_model}"}}


def _regions_ms(run_folder: Path | None) -> dict[str, float] | None:
    try:
        lines = (run_folder / steps_file(0)).read_text().splitlines() if run_folder is not None else []
    except OSError:
        return None
    steps = [step for line in lines if "regions" in (step := json.loads(line)) and not step["profiled"]]
    names = dict.fromkeys(name for step in steps for name in step["regions"])
    totals = {name: sum(step["regions"].get(name, {"ns": 0})["ns"] for step in steps) for name in names}
    return {name: total / len(steps) / 1e6 for name, total in totals.items()} if steps else None


def _text(found: dict[str, Any]) -> str:
    lines = ["Configuration"]
    for section, settings in found["config"].items():
        shown = "  ".join(f"{name} {value}" for name, value in settings.items())
        lines.append(f"  {section:<11} {shown}")
    lines += ["", f"{found['steps_taken']} steps, {found['strategy']}, ranks: {found['world_size']}"]
    lines += ["Times in ms, of steps without profiler and warm-up"]
    lines += [f"  {name:<28} {_number(value)}" for name, value in found["summary"].items()]
    if found["regions_ms"]:
        lines += ["", "Parts of a step  (own time, ms, rank 0)"]
        lines += [f"  {name:<28} {value:.3f}" for name, value in found["regions_ms"].items()]
    if found["run_folder"]:
        lines += ["", f"Run folder  {found['run_folder']}", f"Read it with: stepscope report {found['run_folder']}"]
    return "\n".join(lines) + "\n"


def write(found: dict[str, Any], folder: Path) -> None:
    """Write the summary in both forms."""
    for name, content in ((SUMMARY_JSON, json_text(found, indent=1) + "\n"), (SUMMARY_TXT, _text(found))):
        with atomic_write(folder / name) as f:
            f.write(content.encode())


def _number(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
