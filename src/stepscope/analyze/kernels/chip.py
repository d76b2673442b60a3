"""Which chip did the run compute on?"""

from collections.abc import Sequence

from stepscope.cost.chips.hardware import DeviceFacts, Lookup, look_up, nameless
from stepscope.cost.chips.table import Chip
from stepscope.run.device_name import CPU
from stepscope.run.rank import Rank


def run_chip(ranks: Sequence[Rank], *, extra: Sequence[Chip] = ()) -> Lookup:
    """Return the chip that all ranks have, or why it is unknown. Rows in `extra` (a user's own) go first."""
    found = [_rank_chip(rank, extra) for rank in ranks]
    names = {one.chip.name for one in found if one.chip}
    if len(names) > 1:
        return Lookup(None, f"ranks have different chips ({', '.join(sorted(names))}): no single peak holds for all")
    unknown = next((one for one in found if one.chip is None), None)
    return unknown or (found[0] if found else Lookup(None, "no rank was read"))


def device_in_words(rank: Rank, found: Lookup) -> str | None:
    """Return a device's name as the driver gave it; where it gave none, the chip it was taken for, else what kernels
    or metadata say of it.
    """
    if rank.device.source != "properties" and found.chip is not None and rank.device.name != CPU:
        return found.chip.name
    return rank.device.name


def _rank_chip(rank: Rank, extra: Sequence[Chip]) -> Lookup:
    device, facts = rank.device, device_facts(rank)
    if device.name is not None:
        found = look_up(device.name, memory_bytes=facts.memory_bytes, extra=extra)
        if found.chip is not None or device.source == "properties" or device.name == CPU:
            return found
    if device.properties:
        return nameless(facts)
    if device.name is not None:
        return Lookup(
            None, f"the trace of rank {rank.rank} says no more of its device than {device.name}; give its peak"
        )
    return Lookup(None, f"the trace of rank {rank.rank} does not name its device; give its peak")


def device_facts(rank: Rank) -> DeviceFacts:
    """Return what the trace's header says of the device beside its name."""
    of = rank.device.properties
    major, minor = of.get("computeMajor"), of.get("computeMinor")
    known = isinstance(major, int) and isinstance(minor, int)
    return DeviceFacts(
        memory_bytes=_whole(of.get("totalGlobalMem")),
        compute=f"{major}.{minor}" if known else None,
        multiprocessors=_whole(of.get("numSms")),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
