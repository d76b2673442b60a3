"""What a run folder holds, read right after the job for the launcher's last words. Standard library only."""

from dataclasses import dataclass
from pathlib import Path

from stepscope.run_folder import RUN_JSON, json_object_in, rank_of


@dataclass(frozen=True)
class Recorded:
    """One run: which ranks left a step log, how many steps, and what became of the profiled window."""

    folder: Path
    ranks: tuple[int, ...]
    steps: int  # of the rank with the most
    traces: int
    window: str | None  # the profiled steps of the run, e.g. "10-14"
    trouble: str | None  # why there is no trace


def recorded_in(folder: Path) -> Recorded:
    """Return what is in the folder so far."""
    logs = sorted(folder.glob("rank*.steps.jsonl"))
    ranks = tuple(rank for log in logs if (rank := rank_of(log.name)) is not None)
    windows = json_object_in(folder / RUN_JSON).get("windows") or []
    per_rank = [w for window in windows for w in window["ranks"].values()]
    written = [w for w in per_rank if w.get("status") == "written" and w["last_step"] > w["first_step"]]
    return Recorded(
        folder=folder,
        ranks=ranks,
        steps=max((_steps(log) for log in logs), default=0),
        traces=len(list(folder.glob("rank*.pt.trace.json.gz"))),
        window=f"{written[0]['first_step']}-{written[0]['last_step'] - 1}" if written else None,
        trouble=next((str(w["reason"]) for w in per_rank if w.get("reason")), None),
    )


def _steps(log: Path) -> int:
    with log.open("rb") as f:
        return max(0, sum(1 for _ in f) - 1)  # the first line is the header
