"""Which chip a device is, from its name and memory as a trace records them, and what its peak is.

The name must match a row as a whole, or be what reports call it (`MI300X`, `H100 PCIe`); endings that say how a chip is
mounted or passed through (`VF`, `OAM`) do not count. A family's bare name (`H100`) means the variant that the table
states, with a note, unless the memory tells.
Otherwise never a guess: a name that no row matches, or that leaves several chips open, gives no chip and a reason.
"""

import re
from collections.abc import Sequence

from stepscope.cost.chips.table import Chip, built_in_chips, families, shared_names
from stepscope.dataclass import dataclass

GIB = 2**30
_VENDOR = re.compile(r"^(NVIDIA|AMD Instinct|AMD|Intel)\s+", re.IGNORECASE)
_TRADEMARK = re.compile(r"\((R|TM|C)\)", re.IGNORECASE)
_ENDING = re.compile(r"[ -](VF|HF|OAM|AC|LC|LS)$", re.IGNORECASE)
"""virtual function with the whole device behind it, module form, cooling: the chip is the same"""
_MEMORY_TOLERANCE = 0.1
"""Devices report up to a tenth less than their nominal memory: some is kept for error correction and the driver."""


@dataclass(frozen=True)
class Lookup:
    """The chip, or why there is none."""

    chip: Chip | None
    reason: str | None = None
    note: str | None = None
    """what was taken for granted to find it"""


@dataclass(frozen=True)
class DeviceFacts:
    """What a header says of a device beside its name."""

    memory_bytes: int | None = None
    compute: str | None = None
    """compute capability, `9.0`"""
    multiprocessors: int | None = None


@dataclass(frozen=True)
class Peak:
    """The rate that 100 % MFU means, and where it comes from."""

    flops_per_s: float
    precision: str
    source: str


def chip(device_name: str, *, memory_bytes: int | None = None, extra: Sequence[Chip] = ()) -> Chip | None:
    """Return the chip of a device, None where name and memory do not settle it."""
    return look_up(device_name, memory_bytes=memory_bytes, extra=extra).chip


def look_up(device_name: str, *, memory_bytes: int | None = None, extra: Sequence[Chip] = ()) -> Lookup:
    """Return the chip of a device or the reason why it stays unknown.

    `device_name` and `memory_bytes` are `name` and `totalGlobalMem` of the trace's `deviceProperties`. Rows in
    `extra` (a user's own) go before ours.
    """
    name = " ".join(_TRADEMARK.sub("", device_name).split())
    for spelt in _spellings(name):
        rows = [row for row in extra if row.matches(spelt)]
        if not rows:
            for shared in shared_names():
                if shared.matches(spelt):
                    return Lookup(None, f"device {name!r} is not in the hardware table: {shared.reason}")
            rows = [row for row in built_in_chips() if row.matches(spelt)] or _called(spelt)
        if rows:
            return _by_memory(name, rows, memory_bytes)
        family = _family(name, spelt, memory_bytes)
        if family is not None:
            return family
    return Lookup(None, f"device {name!r} is not in the hardware table; add a row of your own or give its peak")


def nameless(facts: DeviceFacts) -> Lookup:
    """Return the chip that capability, multiprocessors and memory leave as the only one, for a device without name."""
    if facts.compute is None or facts.multiprocessors is None:
        return Lookup(None, "the device has no name in the trace; give its peak")
    rows = [
        row
        for row in built_in_chips()
        if (row.compute, row.multiprocessors) == (facts.compute, facts.multiprocessors)
        and (facts.memory_bytes is None or _fits(row, facts.memory_bytes))
    ]
    what = f"compute capability {facts.compute} with {facts.multiprocessors} multiprocessors"
    if len(rows) != 1:
        known = f" may be any of {', '.join(row.name for row in rows)}" if rows else " is no chip of the hardware table"
        return Lookup(None, f"the device has no name in the trace, and {what}{known}; give its peak")
    return Lookup(rows[0], note=f"the device has no name in the trace: {what} is taken as {rows[0].name}")


def _spellings(name: str) -> list[str]:
    """Return the name, then without one ending after the other that leaves the chip the same."""
    out = [name]
    while (shorter := _ENDING.sub("", out[-1])) != out[-1]:
        out.append(shorter)
    return out


def _called(spelt: str) -> list[Chip]:
    """Return the row that reports call by this name, with or without its vendor's."""
    bare = _VENDOR.sub("", spelt).lower()
    return [row for row in built_in_chips() if bare in (row.name.lower(), row.name.lower().partition(" (")[0])]


def _family(name: str, spelt: str, memory_bytes: int | None) -> Lookup | None:
    """Return the variant that a family's bare name means, None where it is no family's name."""
    family = _VENDOR.sub("", spelt).lower()
    default = families().get(family)
    if default is None:
        return None
    rows = [row for row in built_in_chips() if row.name.lower().split()[0] == family]
    fitting = [row for row in rows if memory_bytes is None or _fits(row, memory_bytes)]
    chosen = next((row for row in fitting if row.name == default), fitting[0] if len(fitting) == 1 else None)
    if chosen is None:
        return _by_memory(name, rows, memory_bytes)
    if len(fitting) == 1:
        return Lookup(chosen)
    others = ", ".join(row.name for row in fitting if row is not chosen)
    return Lookup(chosen, note=f"device {name!r} is taken as {chosen.name}; it may also be {others}")


def mfu_peak(chip: Chip, *, eight_bit_share: float = 0.0) -> Peak | None:
    """Return the peak for MFU: dense 16-bit, for 32-bit runs too; 8-bit where most matmul FLOPs are 8-bit.

    `eight_bit_share` is the 8-bit part of the matmul FLOPs. None where the chip has no such unit.
    """
    sixteen_bit = [p for p in ("bf16", "fp16") if p in chip.tflops]
    if eight_bit_share > 0.5 and "fp8" in chip.tflops:
        precision = "fp8"
    elif sixteen_bit:
        precision = max(sixteen_bit, key=lambda name: chip.tflops[name])
    else:
        return None
    return Peak(chip.tflops[precision] * 1e12, precision, f"{chip.name}: {chip.source}")


def _by_memory(name: str, rows: Sequence[Chip], memory_bytes: int | None) -> Lookup:
    """Return the row whose memory is the device's; without a memory there must be only one."""
    fitting = [row for row in rows if memory_bytes is None or _fits(row, memory_bytes)]
    if len(fitting) == 1:
        return Lookup(fitting[0])
    known = ", ".join(row.name for row in rows)
    if not fitting:
        found = f"{(memory_bytes or 0) / GIB:.0f} GiB"
        return Lookup(None, f"device {name!r} with {found} of memory is none of the known variants: {known}")
    return Lookup(None, f"device {name!r} may be any of {known}; its memory size would tell")


def _fits(row: Chip, memory_bytes: int) -> bool:
    if row.memory_gib is None:
        return True
    return abs(memory_bytes / GIB - row.memory_gib) <= _MEMORY_TOLERANCE * row.memory_gib
