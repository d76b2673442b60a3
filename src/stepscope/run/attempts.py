"""The attempts of one job: run folders of one launch, of its elastic restarts and of later launches that resumed it.

    run, run-2, run-3                      restarts and later launches with the same `--out` have numbered folders
    rank00000.steps.jsonl   header         when the process started, loaded torch, joined its group, read checkpoints
    rank00000.facts.jsonl                  when and how it ended, checkpoints written, what passed after the last step
    launch.jsonl                           when `stepscope record` ended, and its exit code

A folder belongs to the job of the one before it where both have the launch or the Slurm job in common, or where it
read a checkpoint that the job wrote. Files may come from anywhere: each number is checked.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.contract.run_folder import LAUNCH, RUN_JSON, facts_file, json_object_in
from stepscope.contract.step_line import is_count
from stepscope.errors import InputError
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.side_files import StepLog, readable_step_logs

LOAD, SAVE = "load", "save"
CLOSED, KILLED, RUNNING = "closed", "killed", "running"
_MAX_ATTEMPTS = 1_000
# further from the steps than this a time is no start or end of the process
_MAX_AWAY_NS = 30 * 86_400 * 10**9
_OVERLAP_NS = 10**9


class CheckpointFile(NamedTuple):
    """A file that was read or written; `end_ns` is None where the process ended in it."""

    what: str
    begin_ns: int
    end_ns: int | None
    path: str | None


@dataclass(frozen=True, eq=False, repr=False)
class RankLife(ArrayRecord):
    """One process from its start to its end, by epoch times; None where a time was not recorded."""

    rank: int
    log: StepLog
    #: the launcher's own start
    launched_ns: int | None
    #: where it was not recorded, when recording began
    process_ns: int
    has_start: bool
    torch_ns: int | None
    group_ns: tuple[int, int] | None
    #: when the first step began
    first_ns: int
    end_ns: int
    ended: str
    #: class of the error that ended it
    failure: str | None
    checkpoints: tuple[CheckpointFile, ...]
    #: time between the last step and the end of the process by region, None for a process that was killed
    after_ns: Mapping[str, int] | None

    @property
    def failed(self) -> bool:
        return self.ended == KILLED or self.failure is not None

    @property
    def last_ns(self) -> int:
        return int(self.log.end_ns.max()) if len(self.log) else self.first_ns


@dataclass(frozen=True, eq=False, repr=False)
class Attempt(ArrayRecord):
    """One run folder of the job; ranks without a step are not among `ranks`."""

    folder: Path
    #: run.json, with what each rank noted under `ranks`
    description: Mapping[str, Any]
    launch_id: str | None
    slurm_job: str | None
    restarts: int
    world_size: int
    ranks: tuple[RankLife, ...]
    #: when the launcher saw the job end, None where it did not or there was none
    launch_end_ns: int | None
    exit_code: int | None
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.folder.absolute().name

    @property
    def start_ns(self) -> int:
        return min(rank.process_ns for rank in self.ranks)

    @property
    def has_start(self) -> bool:
        return all(rank.has_start for rank in self.ranks)

    @property
    def end_ns(self) -> int:
        return max(rank.end_ns for rank in self.ranks)

    def files(self, what: str) -> list[tuple[int, CheckpointFile]]:
        """Return the checkpoint files that the ranks read before their first step, or wrote, by rank and time."""
        return [(rank.rank, one) for rank in self.ranks for one in rank.checkpoints if one.what == what]


def attempts_of(folder: str | Path) -> tuple[Attempt, ...]:
    """Return the attempts of the job that a run folder belongs to, the oldest first."""
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"{path} {'is not a folder' if path.exists() else 'does not exist'}; give a run folder")
    own = _attempt(path)
    if own is None:
        raise InputError(
            f"{path}: no step log (rank00000.steps.jsonl) with a step in it; give a folder of `stepscope record`"
        )
    found = [own if one.name == path.name else _attempt(one) for one in sibling_folders(path)]
    jobs: list[list[Attempt]] = []
    for one in sorted((a for a in found if a is not None), key=lambda a: a.start_ns):
        if jobs and _continues(one, jobs[-1]):
            jobs[-1].append(one)
        else:
            jobs.append([one])
    return tuple(next((job for job in jobs if own in job), [own]))


def sibling_folders(folder: Path) -> list[Path]:
    """Return the folders that recordings with the same `--out` have, in the order of their numbers."""
    config = json_object_in(folder / RUN_JSON).get("config")
    out = config.get("out") if isinstance(config, dict) else None
    base = Path(out).name if isinstance(out, str) else folder.name
    if not folder.name or folder.name == "..":  # folders above the given path may be closed to this user
        folder = folder.absolute()
    if not re.fullmatch(rf"{re.escape(base)}(-\d{{1,5}})?", folder.name):
        return [folder]
    parent, found = folder.parent, []
    for number in range(1, _MAX_ATTEMPTS):
        one = parent / (base if number == 1 else f"{base}-{number}")
        if one.is_dir() and not one.is_symlink():
            found.append(one)
        elif number > 1:
            break
    return found if any(one.name == folder.name for one in found) else [folder]


def _continues(one: Attempt, job: list[Attempt]) -> bool:
    last = job[-1]
    if one.start_ns < last.end_ns - _OVERLAP_NS and one.restarts <= last.restarts:
        return False  # both ran at once
    if one.launch_id is not None and one.launch_id == last.launch_id:
        return True
    if one.slurm_job is not None and one.slurm_job == last.slurm_job:
        return True
    written = {save.path for attempt in job for _, save in attempt.files(SAVE) if save.path}
    return any(load.path in written for _, load in one.files(LOAD))


def _attempt(folder: Path) -> Attempt | None:
    logs, warnings = readable_step_logs(folder)
    said, launch = json_object_in(folder / RUN_JSON), json_object_in(folder / LAUNCH)
    described = said.get("ranks")
    facts = described if isinstance(described, dict) else {}
    facts |= {str(log.rank): known for log in logs if (known := json_object_in(folder / facts_file(log.rank)))}
    ranks = tuple(_rank(log, facts.get(str(log.rank))) for log in logs if len(log))
    if not ranks:
        return None
    config, environment = (
        value if isinstance(value, dict) else {} for value in map(said.get, ("config", "environment"))
    )
    restarts, exit_code = str(environment.get("TORCHELASTIC_RESTART_COUNT", "")), launch.get("exit_code")
    world, launch_end_ns = said.get("world_size"), _time(launch.get("ended_ns"))
    if launch_end_ns is not None and launch_end_ns - max(rank.end_ns for rank in ranks) > _MAX_AWAY_NS:
        launch_end_ns = None
    return Attempt(
        folder=folder,
        description={**said, "ranks": facts},
        launch_id=_text(config.get("run_id")) or _text(launch.get("launch_id")),
        slurm_job=_text(environment.get("SLURM_JOB_ID")),
        restarts=int(restarts) if restarts.isascii() and restarts.isdigit() and len(restarts) < 6 else 0,
        world_size=world if isinstance(world, int) and is_count(world) and world > 0 else len(ranks),
        ranks=ranks,
        launch_end_ns=launch_end_ns,
        exit_code=exit_code if isinstance(exit_code, int) and not isinstance(exit_code, bool) else None,
        warnings=tuple(warnings),
    )


def _rank(log: StepLog, noted: object) -> RankLife:
    life = log.header.get("lifetime")
    facts, marks = (value if isinstance(value, dict) else {} for value in (noted, life))
    first_ns = int(log.start_ns.min())
    work_ns = _time(marks.get("work_ns"))
    if work_ns is not None and first_ns - _MAX_AWAY_NS < work_ns < first_ns:
        first_ns = work_ns

    def before_steps(value: object) -> int | None:
        found = _time(value)
        return found if found is not None and first_ns - _MAX_AWAY_NS < found <= first_ns else None

    group = marks.get("group_ns")
    times = [before_steps(one) for one in group] if isinstance(group, list) and len(group) == 2 else [None, None]
    started_ns = before_steps(marks.get("process_ns"))
    ended, last_ns = facts.get("ended"), int(log.end_ns.max())
    end_ns = _time(facts.get("ended_ns"))
    files = [*_files(marks.get("checkpoints")), *_files(facts.get("checkpoints"))]
    return RankLife(
        rank=log.rank,
        log=log,
        launched_ns=before_steps(marks.get("launched_ns")),
        process_ns=started_ns or before_steps(log.header.get("created_ns")) or first_ns,
        has_start=started_ns is not None,
        torch_ns=before_steps(marks.get("torch_ns")),
        group_ns=None if times[0] is None or times[1] is None or times[1] < times[0] else (times[0], times[1]),
        first_ns=first_ns,
        end_ns=end_ns if end_ns is not None and 0 <= end_ns - last_ns < _MAX_AWAY_NS else last_ns,
        ended=ended if ended in (CLOSED, KILLED) else RUNNING,
        failure=_text(facts.get("failure")),
        checkpoints=tuple(sorted(files, key=lambda one: one.begin_ns)),
        after_ns=_after(facts.get("after_steps")),
    )


def _after(regions: object) -> dict[str, int] | None:
    if not isinstance(regions, dict):
        return None
    times = {str(name): one.get("ns") for name, one in regions.items() if isinstance(one, dict)}
    return {name: ns for name, ns in times.items() if isinstance(ns, int) and is_count(ns)}


def _files(value: object) -> list[CheckpointFile]:
    found = []
    for one in value if isinstance(value, list) else ():
        if isinstance(one, list) and len(one) == 4 and one[0] in (LOAD, SAVE):
            begin_ns, end_ns = _time(one[1]), _time(one[2])
            if begin_ns is not None and (end_ns is None or end_ns >= begin_ns):
                found.append(CheckpointFile(one[0], begin_ns, end_ns, _text(one[3])))
    return found


def _time(value: object) -> int | None:
    return value if isinstance(value, int) and is_count(value) and value > 0 else None


def _text(value: object) -> str | None:
    return value[:400] if isinstance(value, str) and value else None
