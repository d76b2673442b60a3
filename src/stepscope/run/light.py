"""A run without traces, as light mode leaves it: its step logs, and the run folder's facts about the job."""

from dataclasses import field
from pathlib import Path
from typing import Any

from stepscope.errors import InputError
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.core_time import on_core_time
from stepscope.run.formats import MeasuredLaunches, measured_launches
from stepscope.run.load import run_description
from stepscope.run.side_files import (
    CollectiveTimes,
    StepLog,
    Telemetry,
    readable_step_logs,
    side_files,
)
from stepscope.run.sources import is_unreadable_report


@dataclass(frozen=True, eq=False, repr=False)
class LightRun(ArrayRecord):
    """The step logs of a run folder."""

    name: str
    folder: Path
    logs: tuple[StepLog, ...]
    #: `run.json`, empty where there is none
    description: dict[str, Any]
    #: kernels that Nsight Compute measured in this run
    measured: tuple[MeasuredLaunches, ...]
    warnings: tuple[str, ...]
    telemetry: tuple[Telemetry, ...] = ()
    #: by rank
    collective_times: dict[int, CollectiveTimes] = field(default_factory=dict)
    #: share of the time in which training threads had no core, which is in no time of this run
    lost: float = 0.0


def load_light(folder: str | Path) -> LightRun:
    """Return the step logs of a run folder; an `InputError` where none can be read."""
    path = Path(folder)
    logs, warnings = readable_step_logs(path)
    unread = sorted(p.name for p in path.iterdir() if is_unreadable_report(p))
    if unread:
        warnings = [*warnings, f"{', '.join(unread[:3])}: not read, because nsys is not on PATH"]
    if not logs:
        raise InputError(f"none of the step logs in {path} could be read; {'; '.join(warnings)}")
    description, damaged = run_description(path)
    measured, faults = measured_launches(path)
    beside = side_files(path)
    _, logs, description, lost = on_core_time((), logs, description, None)
    lines = (*warnings, *damaged, *faults)
    return LightRun(
        path.absolute().name, path, logs, description, measured, lines, beside.telemetry, beside.collective_times, lost
    )
