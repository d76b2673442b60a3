"""Which chip a device is, from its name and memory as a trace records them, and what its peak is.

Never a guess: a name that no row matches, or that leaves several chips open, gives no chip and a reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.cost.chips.table import Chip, built_in_chips, shared_names

GIB = 2**30
_MEMORY_TOLERANCE = 0.1
"""Devices report up to a tenth less than their nominal memory: some is kept for error correction and the driver."""


@dataclass(frozen=True)
class Lookup:
    """The chip, or why there is none."""

    chip: Chip | None
    reason: str | None = None


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
    name = device_name.strip()
    rows = [row for row in extra if row.matches(name)]
    if not rows:
        for shared in shared_names():
            if any(pattern.fullmatch(name) for pattern in shared.match):
                return Lookup(None, f"device {name!r} is not in the hardware table: {shared.reason}")
        rows = [row for row in built_in_chips() if row.matches(name)]
    if not rows:
        return Lookup(None, f"device {name!r} is not in the hardware table; add a row of your own or give its peak")
    return _by_memory(name, rows, memory_bytes)


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
