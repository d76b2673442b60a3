"""The owners of all ranks of a run, and what they took."""

from stepscope.analyze.owners.ownership import Ownership
from stepscope.run.load import Run
from stepscope.run.owners import RankOwners
from stepscope.run.rank import Rank
from stepscope.run.source_text import SourceText
from stepscope.trace.classify import EventKind


def ownership_of(run: Run) -> tuple[Ownership | None, ...]:
    """Return the owners of each rank: by its file of owners, else by frames in its trace; None where it has neither."""
    by_rank = {owners.rank: owners for owners in run.owners}
    return tuple(_ownership(rank, by_rank.get(rank.rank), run.source) for rank in run.ranks)


def _ownership(rank: Rank, owners: RankOwners | None, source: SourceText) -> Ownership | None:
    if not len(rank.steps):
        return None
    if owners is not None:
        from stepscope.analyze.owners.from_frames import ownership_by_frames  # only where owners were recorded
        from stepscope.analyze.owners.operator_lines import with_operator_lines

        return ownership_by_frames(rank, with_operator_lines(owners, source))
    if has_frames(rank):
        from stepscope.analyze.owners.foreign import ownership_by_own_frames  # only where there are frames

        return ownership_by_own_frames(rank)
    return None


def has_frames(rank: Rank) -> bool:
    """Return whether a trace holds Python frames."""
    return bool((rank.kinds == EventKind.PYTHON).any())
