"""The owners of all ranks of a run, and what they took."""

from stepscope.analyze.owners.from_frames import ownership_by_frames
from stepscope.analyze.owners.ownership import Ownership
from stepscope.run.load import Run


def ownership_of(run: Run) -> tuple[Ownership | None, ...]:
    """Return the owners of each rank, None where a rank recorded none."""
    by_rank = {owners.rank: owners for owners in run.owners}
    return tuple(
        ownership_by_frames(rank, by_rank[rank.rank]) if rank.rank in by_rank and len(rank.steps) else None
        for rank in run.ranks
    )
