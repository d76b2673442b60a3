"""One file of the training process, brought from local disk into the run folder: traces, dumps, files of samplers.

Standard library only: it runs in the helper process. What storage refuses is raised, for the helper to try again.
"""

from pathlib import Path
from typing import Any

from stepscope.record.collectives.groups import flight_lines
from stepscope.record.window.trace_file import compress_into, place_whole, trouble_with_export


def move_file(job: dict[str, Any], folder: Path, rank: int) -> dict[str, Any]:
    """Return the size of one file that was brought into the folder, or why it was not worth it."""
    plain, target = Path(job["plain"]), folder / job["name"]
    folder.stat()  # one that was removed is not made again, without its step log
    target.parent.mkdir(parents=True, exist_ok=True)
    if job["do"] == "file":
        place_whole(plain.read_bytes(), target)
        return {"status": "written", "bytes": target.stat().st_size}
    if job["do"] == "flight":
        place_whole(flight_lines(plain.read_bytes(), rank=rank, groups=job["process_groups"]), target)
        return {"kind": "flight", "status": "written", "bytes": target.stat().st_size}
    trouble = trouble_with_export(plain)
    if trouble:
        return {"status": "failed", "reason": trouble}
    return {"status": "written", "bytes": compress_into(plain, target)}
