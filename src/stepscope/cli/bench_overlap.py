"""What of each series' communication was hidden? Read from the short traces that a comparison leaves."""

from pathlib import Path
from typing import Any

from stepscope.analyze.overlap import overlap_efficiency, rank_overlap
from stepscope.cli.progress import work_progress
from stepscope.errors import InputError
from stepscope.run.load import load
from stepscope.units import ms


def with_overlap(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the results with communication, exposed communication and overlap of each series that has traces."""
    rows = []
    with work_progress("reading traces") as progress:
        for i, row in enumerate(document["series"]):
            rows.append({**row, "summary": {**row["summary"], **overlap_summary(folder / "traces" / row["name"])}})
            if progress:
                progress(i + 1, len(document["series"]))
    return {**document, "series": rows}


def overlap_summary(traces: Path) -> dict[str, Any]:
    """Return means over ranks and steps, while profiled; None with a reason where there is no readable trace."""
    nothing = dict.fromkeys(("comm_ms_per_step", "exposed_comm_ms_per_step", "overlap_pct", "overlap_efficiency"))
    if not traces.is_dir():
        return {**nothing, "overlap_reason": "no trace was recorded"}
    try:
        run = load([str(traces)], cache=False)
    except InputError as error:
        return {**nothing, "overlap_reason": str(error)}
    found = [overlap for overlap in map(rank_overlap, run.ranks) if overlap is not None]
    if not found:
        return {**nothing, "overlap_reason": "the traces hold no steps"}
    comm, exposed, hidden = (
        sum(int(getattr(o, part).sum()) for o in found) for part in ("comm_ns", "exposed_ns", "together_ns")
    )
    steps = sum(len(o.periods) for o in found)
    return {
        "comm_ms_per_step": ms(comm / steps),
        "exposed_comm_ms_per_step": ms(exposed / steps),
        "overlap_pct": 100 * hidden / comm if comm else None,
        "overlap_efficiency": overlap_efficiency(found),
    }
