"""A run without traces: as light mode leaves it (step logs and facts about the job), and while it runs."""

import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from stepscope.contract.live import read_status
from stepscope.contract.run_folder import RUN_JSON, facts_file, json_object_in, rank_of
from stepscope.contract.step_line import GrowingLog, steps_of
from stepscope.errors import InputError
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.core_time import on_core_time
from stepscope.run.formats import measured_launches
from stepscope.run.load import run_description
from stepscope.run.side_files import (
    CollectiveTimes,
    StepLog,
    Telemetry,
    number,
    readable_step_logs,
    side_files,
)
from stepscope.run.sources import is_unreadable_report
from stepscope.side_file import appended


@dataclass(frozen=True, eq=False, repr=False)
class LightRun(ArrayRecord):
    """The step logs of a run folder."""

    name: str
    folder: Path
    logs: tuple[StepLog, ...]
    #: `run.json`, empty where there is none
    description: dict[str, Any]
    #: kernels that Nsight Compute measured in this run
    measured: tuple[Row, ...]
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


# State of a running job's folder: the newest steps of each rank, and hung ranks.
#
# Step logs are read incrementally, so a refresh costs what was written since the last one; the first begins near their
# end. The newest steps of each rank are retained, and the first ones of one rank as a reference for later ones. An
# unreadable line is skipped: it may be incomplete.

KEPT_STEPS = 200
_FIRST_STEPS = 120
_FIRST_READ_BYTES = 256 << 10
_NEEDED = ("step", "start_ns", "end_ns", "dur_ns")

Line = dict[str, Any]


@dataclass(frozen=True)
class Running:
    """A running job at one moment."""

    folder: Path
    ranks: tuple[Row, ...]
    #: the first steps of the lowest rank
    first: tuple[Line, ...]
    #: run.json, if written yet: after a window, and at the end
    description: Mapping[str, Any]
    #: of the lowest rank, where there are some
    facts: Mapping[str, Any]

    @property
    def is_over(self) -> bool:
        return bool(self.ranks) and all(rank.ended is not None for rank in self.ranks)


class RunningJob:
    """Incremental reader of one run folder; each `look` continues where the last one ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._logs: dict[int, tuple[GrowingLog, deque[Line]]] = {}
        self._first: tuple[Line, ...] = ()

    def look(self) -> Running:
        found = {rank_of(path.name): path for path in self.folder.glob("rank*.steps.jsonl")}
        paths = {rank: path for rank, path in sorted(found.items(), key=lambda p: p[0] or 0) if rank is not None}
        kept = KEPT_STEPS if len(paths) <= 64 else 64
        for rank, path in paths.items():
            log, lines = self._logs.setdefault(rank, (_log(path), deque(maxlen=kept)))
            lines.extend(log.read())
        if paths and len(self._first) < _FIRST_STEPS:
            with contextlib.suppress(OSError):
                data, _ = appended(paths[min(paths)], 0, max_bytes=_FIRST_READ_BYTES)
                self._first = tuple(steps_of(data.split(b"\n")[:-1], needs=_NEEDED)[:_FIRST_STEPS])
        ranks = tuple(self._rank(rank) for rank in self._logs)
        facts = json_object_in(self.folder / facts_file(min(paths))) if paths else {}
        return Running(self.folder, ranks, self._first, json_object_in(self.folder / RUN_JSON), facts)

    def _rank(self, rank: int) -> Row:
        facts = json_object_in(self.folder / facts_file(rank))
        ended = facts.get("ended")
        return Row(
            rank=rank,
            lines=tuple(self._logs[rank][1]),
            # `closed` or `killed` once its helper has seen the training process end
            ended=ended if ended in ("closed", "killed") else None,
            status=read_status(self.folder, rank),
            # of the model on this rank in one step, where they were counted
            flops=_flops(facts.get("flops")),
        )


def _log(path: Path) -> GrowingLog:
    return GrowingLog(path, near_end_bytes=_FIRST_READ_BYTES, needs=_NEEDED)


def _flops(counted: object) -> float | None:
    if not isinstance(counted, dict):
        return None
    total, forward = number(counted.get("total")), number(counted.get("forward"))
    return min(total, 3.0 * forward) if total is not None and forward else total
