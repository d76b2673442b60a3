"""What a run folder holds, read right after the job for the launcher's last words. Standard library only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import RUN_JSON, json_object_in, rank_of


@dataclass(frozen=True)
class RecordedRun:
    """One run: which ranks left a step log, how many steps, and what became of the profiled window."""

    folder: Path
    ranks: tuple[int, ...]
    steps: int  # in the log of the rank with the most
    steps_ended: int  # of the rank with the most, whether their lines could be written or not
    described: bool  # there is a run.json
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
        described=bool(description),
        traces=len(list(folder.glob("rank*.pt.trace.json.gz"))),
        window=f"{written[0]['first_step']}-{written[0]['last_step'] - 1}" if written else None,
        trouble=next((str(w["reason"]) for w in per_rank if w.get("reason")), None),
        not_written=_not_written(of_ranks),
        unit=description.get("step_unit"),
        warnings=tuple(description.get("warnings") or ()),
    )


def _not_written(of_ranks: list[dict[str, Any]]) -> str | None:
    """Return how often writing failed, why, and what was lost by it; None where all went well."""
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
