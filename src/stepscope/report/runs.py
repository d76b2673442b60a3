"""A folder of runs: what is shown of each one, as rows for every rendering and as a table on the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from stepscope.records import dataclass
from stepscope.report.terminal import name_text, number_text, print_table, row_name


@dataclass(frozen=True)
class RunEntry:
    """One run of a folder."""

    name: str
    created: str | None
    #: its JSON, None where it could not be read
    report: dict[str, Any] | None
    #: why it could not
    reason: str = ""


def in_order(runs: Sequence[RunEntry]) -> list[RunEntry]:
    """Return the runs as they were made, where that is known of all; else by name."""
    dated = all(run.created for run in runs)
    return sorted(runs, key=lambda run: (run.created or "" if dated else "", run.name))


def run_rows(runs: Sequence[RunEntry]) -> list[dict[str, Any]]:
    """Return the runs as plain rows; a run that could not be read has a reason and nothing else."""
    return [_row(run) for run in runs]


def step_ms(run: RunEntry) -> float | None:
    """Return the step of a run: without the profiler where known."""
    step: dict[str, Any] = run.report["step"] if run.report else {}
    unprofiled: float | None = step.get("unprofiled_ms")
    return unprofiled if unprofiled is not None else step.get("profiled_ms")


def print_runs(folder: str, runs: Sequence[RunEntry], out: Console) -> None:
    """Print one line per run."""
    out.print(name_text(folder, style="bold").append(f"  {len(runs)} runs"))
    print_table(
        out,
        run_rows([run for run in runs if run.report]),
        ("run", lambda row: row_name(row["name"], width=40)),
        ("step ms", lambda row: number_text(row["step_ms"], ".2f")),
        ("MFU %", lambda row: number_text(row["mfu"] and 100 * row["mfu"], ".1f")),
        ("ranks", lambda row: str(row["num_ranks"])),
        ("verdict", lambda row: row["verdict"]),
        ("first finding", lambda row: row["first_finding"] or "-"),
        ("saves ms", lambda row: number_text(row["saving_alone_ms"], ".2f")),
        ("created", lambda row: (row["created"] or "?")[:16]),
        least_needed=("created", "ranks", "MFU %", "saves ms", "verdict"),
    )
    for run in runs:
        if run.report is None:
            out.print(name_text(f"{run.name}: not read: {run.reason}", width=200))


def _row(run: RunEntry) -> dict[str, Any]:
    report = run.report
    if report is None:
        return {"name": run.name, "created": run.created, "reason": run.reason}
    first = next(iter(report["findings"]), None)
    return {
        "name": run.name,
        "created": run.created,
        "num_ranks": report["run"]["num_ranks"],
        "step_ms": step_ms(run),
        "mfu": report["efficiency"]["mfu"],
        "tokens_per_s": report["step"]["tokens_per_s"],
        "verdict": report["verdict"],
        "first_finding": first and first["id"],
        "saving_alone_ms": first and first["saving_alone_ms"],
    }
