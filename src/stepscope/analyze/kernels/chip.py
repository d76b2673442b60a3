"""Which chip did the run compute on?"""

from collections.abc import Sequence

from stepscope.cost.chips.hardware import Lookup, look_up
from stepscope.cost.chips.table import Chip
from stepscope.run.rank import Rank


def run_chip(ranks: Sequence[Rank], *, extra: Sequence[Chip] = ()) -> Lookup:
    """Return the chip that all ranks have, or why it is unknown. Rows in `extra` (a user's own) go first."""
    found = [_rank_chip(rank, extra) for rank in ranks]
    names = {one.chip.name for one in found if one.chip}
    if len(names) > 1:
        return Lookup(None, f"ranks have different chips ({', '.join(sorted(names))}): no single peak holds for all")
    unknown = next((one for one in found if one.chip is None), None)
    return unknown or (found[0] if found else Lookup(None, "no rank was read"))


def _rank_chip(rank: Rank, extra: Sequence[Chip]) -> Lookup:
    name = rank.device_name
    if name is None:
        return Lookup(None, f"the trace of rank {rank.rank} does not name its device; give its peak")
    return look_up(name, memory_bytes=_memory_bytes(rank), extra=extra)


def _memory_bytes(rank: Rank) -> int | None:
    """Return the device's memory as the trace's header gives it."""
    listed = rank.trace.header.get("deviceProperties")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and entry.get("name") == rank.device_name:
            size = entry.get("totalGlobalMem")
            return size if isinstance(size, int) else None
    return None
