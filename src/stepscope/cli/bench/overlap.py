"""What of each series' communication was hidden? Read from the short traces that a comparison leaves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.analyze.rank_windows import overlap_efficiency, rank_overlap
from stepscope.bench.session.rank_records import Records, every
from stepscope.cli.given.progress import work_progress
from stepscope.errors import InputError
from stepscope.run.load import load
from stepscope.units import ms


def with_overlap(document: dict[str, Any], records: Sequence[Records], folder: Path) -> dict[str, Any]:
    """Return the results with communication, exposed communication and overlap of each series that has traces.

    The records say which traces: the folder may hold those of an earlier benchmark as well.
    """
    rows = []
    with work_progress("reading traces", unit="series") as progress:
        for i, row in enumerate(document["series"]):
            found = every(records, what="trace", series=row["name"])
            overlap = overlap_summary(*(folder / trace["path"] for trace in found))
            rows.append({**row, "summary": {**row["summary"], **overlap}})
            if progress:
                progress(i + 1, len(document["series"]))
    return {**document, "series": rows}


def overlap_summary(*traces: Path) -> dict[str, Any]:
    """Return means over the ranks and steps of traces or folders of them; None with a reason where none is readable."""
    nothing = dict.fromkeys(("comm_ms_per_step", "exposed_comm_ms_per_step", "overlap_pct", "overlap_efficiency"))
    if not any(path.exists() for path in traces):
        return {**nothing, "overlap_reason": "no trace was recorded"}
    try:
        run = load(traces, cache=False)
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
