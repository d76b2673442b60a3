"""What a run folder holds, read right after the job for the launcher's last words. Standard library only."""

import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import RUN_JSON, json_object_in, rank_of
from stepscope.record.progress_notes import DONE, ERRNO, HELPER
from stepscope.record.window.trace_file import is_alive

_HELPERS_S = 10.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class RecordedRun:
    """One run: which ranks left a step log, how many steps, and what became of the profiled window."""

    folder: Path
    ranks: tuple[int, ...]
    steps: int  # in the log of the rank with the most
    steps_ended: int  # of the rank with the most, whether their lines could be written or not
    described: bool  # there is a run.json, written after the last step
    traces: int
    window: str | None  # the profiled steps of the run, e.g. "10-14"
    trouble: str | None  # why there is no trace
    not_written: str | None  # how often writing failed and what it cost
    unit: str | None = None  # what one step is
    warnings: tuple[str, ...] = ()


def recorded_in(folder: Path) -> RecordedRun:
    """Return what is in the folder so far."""
    logs = sorted(folder.glob("rank*.steps.jsonl"))
    ranks = tuple(rank for log in logs if (rank := rank_of(log.name)) is not None)
    description = json_object_in(folder / RUN_JSON)
    windows = description.get("windows") or []
    of_ranks = list((description.get("ranks") or {}).values())
    in_log = max((_steps(log) for log in logs), default=0)
    per_rank = [w for window in windows for w in window["ranks"].values()]
    written = [w for w in per_rank if w.get("status") == "written" and w["last_step"] > w["first_step"]]
    return RecordedRun(
        folder=folder,
        ranks=ranks,
        steps=in_log,
        steps_ended=max((r["steps"]["count"] for r in of_ranks), default=in_log),
        described=bool(description.get("finished")),
        traces=len(list(folder.glob("rank*.pt.trace.json.gz"))),
        window=f"{written[0]['first_step']}-{written[0]['last_step'] - 1}" if written else None,
        trouble=next((str(w["reason"]) for w in per_rank if w.get("reason")), None),
        not_written=_not_written(of_ranks),
        unit=description.get("step_unit"),
        warnings=tuple(description.get("warnings") or ()),
    )


def _not_written(of_ranks: list[dict[str, Any]]) -> str | None:
    failed = [r["writing"] for r in of_ranks if r.get("writing")]
    if not failed:
        return None
    lines = sum(w["lost_lines"] for w in failed)
    files = [name for w in failed for name in w["lost_files"]]
    lost = [*([f"{lines} lines of the step logs"] if lines else []), *files]
    writes = sum(w["failed_writes"] for w in failed)
    what = f"lost: {', '.join(lost)}" if lost else "nothing was lost"
    return f"writing failed {writes} times ({failed[0]['reason']}) and was tried again; {what}"


def _steps(log: Path) -> int:
    with log.open("rb") as f:
        return max(0, sum(1 for _ in f) - 1)  # the first line is the header


def trouble_of_helpers(seen: Path) -> str | None:
    """Return why a helper process has not written its run, after a moment for those of killed processes."""
    until = time.monotonic() + _HELPERS_S
    while any(_is_finishing(*helper) for helper in _helpers(seen)) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    helpers = _helpers(seen)
    numbers = [int(word.removeprefix(ERRNO)) for _, words in helpers for word in words if word.startswith(ERRNO)]
    unfinished = [pid for pid, words in helpers if DONE not in words]
    at_work = any(map(is_alive, unfinished))
    if errno.ENOENT in numbers:
        return "the run folder or its step log was removed while the job ran"
    if numbers:
        then = "a helper process keeps trying for a minute" if at_work else "what was not written is lost"
        return f"writing failed: {os.strerror(numbers[0])}; {then}"
    if not unfinished:
        return None
    return f"the helper process that writes the run {'is still at work' if at_work else 'was killed'}"


def _helpers(seen: Path) -> list[tuple[int, set[str]]]:
    found: dict[int, set[str]] = {}
    for path in sorted(seen.glob(f"{HELPER}*")):
        pid, _, word = path.name.removeprefix(HELPER).partition(".")
        found.setdefault(int(pid), set()).add(word)
    return list(found.items())


def _is_finishing(pid: int, words: set[str]) -> bool:
    return words == {""} and is_alive(pid)
