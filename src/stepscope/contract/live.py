"""What is said in the folder of a run while its job runs, by files that are small and written whole.

    live/request.jsonl     a profile window that somebody asks for: {"id", "steps", "by", "since"}
    live/plan.jsonl        rank 0's answer: {"id", "first", "last", "warmup", "window", "by", "since"} or, where it says
                           no, {"id", "refused"}
    live/rank00000.jsonl   a rank's answer to a request, and its stack while it makes no progress

    trigger --request--> every rank's helper --its newest step--> rank 0's helper --plan--> every rank

The window begins at a step that no rank has reached, so all ranks open it together and none waits for another. Anybody
who may write into the folder may have written these files: each number is looked at. Standard library only.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.contract.lateness import LateRank
from stepscope.contract.run_folder import json_object_in, rank_file
from stepscope.units import ms

LIVE_FOLDER = "live"
REQUEST = "request.jsonl"
PLAN = "plan.jsonl"
MAX_ASKED_STEPS = 1_000
_MAX_TEXT = 200


class WindowRequest(NamedTuple):
    """Somebody asks for a profile window."""

    id: str
    steps: int
    #: who, in words: the command, or an alarm
    by: str
    #: the step since when that is so which the window is to show
    since: int | None = None


class WindowPlan(NamedTuple):
    """Which steps all ranks will profile, or why none."""

    id: str
    first: int = 0
    #: exclusive
    last: int = 0
    #: steps before the first in which the profiler gets ready
    warmup: int = 0
    #: its number in the run, from 0
    window: int = 0
    refused: str | None = None
    by: str | None = None
    #: origin, purpose and time of the request
    since: int | None = None


class Frame(NamedTuple):
    """One line of a Python stack."""

    file: str
    line: int
    function: str


class Stall(NamedTuple):
    """The stack of a rank without progress for longer than a step."""

    #: the last one that ended
    step: int
    for_s: float
    #: the longest of the steps before
    usual_s: float
    #: of the training thread, innermost first; none where the interpreter gave no answer
    frames: tuple[Frame, ...]
    region: str | None
    #: the newest one that was issued: its operation, number, group and state
    collective: str | None
    #: that one's number in its group
    sequence: int | None
    group: str | None
    #: what the system says of a process that gave no answer
    silent: str | None


class RankStatus(NamedTuple):
    """What a rank's helper says while the job runs."""

    rank: int
    #: the last step that ended; None before the first
    step: int | None
    #: what a step takes, the median of the newest
    step_s: float | None
    #: the id of the request that this answers
    answered: str | None
    stall: Stall | None
    metrics_url: str | None = None
    #: why the metrics are not to be had
    trouble: str | None = None


def status_file(rank: int) -> str:
    """Return the name of one rank's file in the folder `live`."""
    return rank_file(rank, "jsonl")


def read_request(folder: Path) -> WindowRequest | None:
    """Return the request in a run folder, None where there is none that can be understood."""
    found = json_object_in(folder / LIVE_FOLDER / REQUEST)
    id, steps = found.get("id"), _whole(found.get("steps"))
    if not isinstance(id, str) or not id or steps is None or not 1 <= steps <= MAX_ASKED_STEPS:
        return None
    return WindowRequest(id[:_MAX_TEXT], steps, _text(found.get("by")) or "?", _whole(found.get("since")))


def read_plan(folder: Path) -> WindowPlan | None:
    """Return the newest plan in a run folder, None where there is none that can be understood."""
    found = json_object_in(folder / LIVE_FOLDER / PLAN)
    id, refused = found.get("id"), _text(found.get("refused"))
    if not isinstance(id, str) or not id:
        return None
    if refused is not None:
        return WindowPlan(id[:_MAX_TEXT], refused=refused)
    return plan_of({**found, "id": id[:_MAX_TEXT]})


def plan_of(found: Mapping[str, Any]) -> WindowPlan | None:
    """Return a plan from its fields, None where a number among them is not one that a plan can have."""
    first, last, warmup, window = (_whole(found.get(name)) for name in ("first", "last", "warmup", "window"))
    if first is None or last is None or warmup is None or window is None:
        return None
    if not 0 < last - first <= MAX_ASKED_STEPS or warmup > min(first, MAX_ASKED_STEPS):
        return None
    by, since = _text(found.get("by")), _whole(found.get("since"))
    return WindowPlan(str(found.get("id")), first, last, warmup, window, by=by, since=since)


def read_status(folder: Path, rank: int) -> RankStatus | None:
    """Return what a rank says, None where it says nothing."""
    found = json_object_in(folder / LIVE_FOLDER / status_file(rank))
    if not found:
        return None
    stall = found.get("stall")
    return RankStatus(
        rank=rank,
        step=_whole(found.get("step")),
        step_s=_seconds(found.get("step_s")),
        answered=_text(found.get("answered")),
        stall=_stall(stall) if isinstance(stall, dict) else None,
        metrics_url=_text(found.get("metrics_url")),
        trouble=_text(found.get("trouble")),
    )


def _stall(found: Mapping[str, Any]) -> Stall:
    frames = found.get("frames")
    lines = [line for line in (frames if isinstance(frames, list) else [])[:40] if isinstance(line, list)]
    return Stall(
        step=_whole(found.get("step")) or 0,
        for_s=_seconds(found.get("for_s")) or 0.0,
        usual_s=_seconds(found.get("usual_s")) or 0.0,
        frames=tuple(
            Frame(_text(line[0]) or "?", _whole(line[1]) or 0, _text(line[2]) or "?")
            for line in lines
            if len(line) == 3
        ),
        region=_text(found.get("region")),
        collective=_text(found.get("collective")),
        sequence=_whole(found.get("sequence")),
        group=_text(found.get("group")),
        silent=_text(found.get("silent")),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 1e12 else None


def _text(value: object) -> str | None:
    return value[:_MAX_TEXT] if isinstance(value, str) and value else None


# What has been wrong for a while: alarms that rise late and fall late, so that one odd look rings no bell.
#
#     alarm        bad                                                     good again
#     straggler    late by 10 % and more, beyond chance                    late by less than 5 %
#     regression   steps take over 1.2 times what they took at the start   under 1.1 times
#
# An alarm is raised after three bad refreshes in a row with new steps, and cleared after three good ones; values
# between the two bounds change nothing. The job judges itself by this, and so does who watches it. Standard library
# only.

LOOKS = 3
_GOOD_SLOWDOWN = 1.05
_BAD_REGRESSION, _GOOD_REGRESSION = 1.2, 1.1
STRAGGLER, REGRESSION = "straggler", "regression"
BAD, GOOD, BETWEEN = "bad", "good", "between"

# the kind of an alarm and its rank, None for the whole job
Key = tuple[str, int | None]
# bad, good or between, and the same in words
States = Mapping[Key, tuple[str, str]]


class Change(NamedTuple):
    """An alarm that rises or falls."""

    kind: str
    rank: int | None
    rises: bool
    text: str
    #: of one that rises: the step since when it has been so, where that is known
    since: int | None = None


class Alarms:
    """Raised alarms, updated at every refresh."""

    def __init__(self) -> None:
        self.up: dict[Key, str] = {}
        self._in_a_row: dict[Key, tuple[str, int]] = {}
        self._counted_step: int | None = None

    def update(self, step: int | None, states: States) -> list[Change]:
        """Return the alarms that rise or fall with a look; `step` is the newest one in it."""
        if step is None or (self._counted_step is not None and 0 <= step - self._counted_step < 5):
            return []
        self._counted_step = step
        return self.judge(states)

    def judge(self, states: States) -> list[Change]:
        changes = []
        for key, (state, words) in states.items():
            before, count = self._in_a_row.get(key, (BETWEEN, 0))
            self._in_a_row[key] = (state, count + 1 if state == before else 1)
            if self._in_a_row[key][1] < LOOKS:
                continue
            if state == BAD and key not in self.up:
                changes.append(Change(*key, rises=True, text=words))
            elif state == GOOD and key in self.up:
                del self.up[key]
                changes.append(Change(*key, rises=False, text=words))
            if state == BAD:
                self.up[key] = words
        return changes

    def forget(self, key: Key) -> None:
        self.up.pop(key, None)
        self._in_a_row.pop(key, None)


def straggler_states(judged: Iterable[LateRank]) -> dict[Key, tuple[str, str]]:
    """Return for each rank whether it is late, and in words."""
    states: dict[Key, tuple[str, str]] = {}
    for late in judged:
        is_good = late.slowdown < _GOOD_SLOWDOWN
        how = f"{ms(late.late_ns):.2f} ms late per step ({late.slowdown:.2f} x the others)"
        words = f"rank {late.rank} is {how}" if not is_good else f"rank {late.rank} keeps up again"
        states[STRAGGLER, late.rank] = (BAD if late.is_late else GOOD if is_good else BETWEEN, words)
    return states


def regression_state(step_ns: float, first_step_ns: float) -> str:
    """Return whether steps take too long against the first ones."""
    ratio = step_ns / first_step_ns
    return BAD if ratio > _BAD_REGRESSION else GOOD if ratio < _GOOD_REGRESSION else BETWEEN


# What both sides of `stepscope tune` know: the file that a trial leaves, and the names of what it can set in a job.
#
# rank00000.trial.jsonl   one line: {"losses", "parameters": {"sum", "size"}, "took", "loaders", "optimizer",
#                         "threads", "convolutions"}

# one line; not `.json`, which trace viewers take for a trace
TRIAL = "trial.jsonl"

WORKERS, PIN, PREFETCH, PERSISTENT = (
    "loader.num_workers",
    "loader.pin_memory",
    "loader.prefetch_factor",
    "loader.persistent_workers",
)
BUCKET, BUCKET_VIEW = "ddp.bucket_cap_mb", "ddp.gradient_as_bucket_view"
FUSED = "optimizer.fused"
TF32, BENCHMARK = "precision.tf32", "cudnn.benchmark"
COMPILE = "compile.model"

# of torch, those that have a fused form
FUSED_OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")

# of the environment, those that are tried; no others are taken from a file
VARIABLES = (
    *("OMP_NUM_THREADS", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "PYTORCH_CUDA_ALLOC_CONF"),
    *("TORCH_NCCL_HIGH_PRIORITY", "NCCL_ALGO", "NCCL_PROTO"),
)
SETTINGS = (WORKERS, PIN, PREFETCH, PERSISTENT, BUCKET, BUCKET_VIEW, FUSED, TF32, BENCHMARK, COMPILE)
