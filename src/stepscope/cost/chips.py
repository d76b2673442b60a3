"""Which chip a device is, from its name and memory as a trace records them, and what its peak is.

The name must match a row as a whole, or be what reports call it (`MI300X`, `H100 PCIe`); endings that say how a chip is
mounted or passed through (`VF`, `OAM`) do not count. A family's bare name (`H100`) means the variant that the table
states, with a note, unless the memory size identifies it.
Otherwise never a guess: a name that no row matches, or that leaves several chips open, gives no chip and a reason.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stepscope.contract.operations import PEAK_PRECISIONS
from stepscope.cost.operators import matches_whole
from stepscope.errors import InputError
from stepscope.records import dataclass
from stepscope.side_file import read_side_text

# Rows of the hardware table: ours, and a user's own read from TOML and checked field by field.
#
# People edit `hardware.toml`. `tools/write_hardware.py` checks it like a user's file and writes `hardware.json`, which
# is read in a twentieth of the time.

_MAX_TABLE_BYTES = 1 << 20
_NUMBERS = ("memory_gib", "memory_gb_per_s", "link_gb_per_s")
_FIELDS = ("name", "match", "tflops", "link", "compute", "multiprocessors", "source", *_NUMBERS)


@dataclass(frozen=True)
class Chip:
    """One device as a trace sees it. A peak it has no unit for is absent from `tflops`."""

    name: str
    #: patterns of the driver's name for it
    match: tuple[str, ...]
    #: dense TFLOP/s by precision
    tflops: Mapping[str, float]
    source: str
    memory_gib: float | None = None
    memory_gb_per_s: float | None = None
    link: str | None = None
    #: per direction, all links to peers together
    link_gb_per_s: float | None = None
    #: compute capability as the driver gives it, `9.0`
    compute: str | None = None
    multiprocessors: int | None = None

    def peak_flops(self, precision: str) -> float | None:
        """Return the dense peak in FLOP/s, None where the chip has no unit for the precision."""
        tflops = self.tflops.get(precision)
        return None if tflops is None else tflops * 1e12

    def matches(self, device_name: str) -> bool:
        return any(matches_whole(pattern, device_name) for pattern in self.match)


@dataclass(frozen=True)
class SharedName:
    """Device names that do not identify a chip, and why."""

    match: tuple[str, ...]
    reason: str

    def matches(self, device_name: str) -> bool:
        return any(matches_whole(pattern, device_name) for pattern in self.match)


@cache
def built_in_chips() -> tuple[Chip, ...]:
    """Return the rows that come with stepscope."""
    return tuple(Chip(**{**row, "match": tuple(row["match"])}) for row in _built_in()["chip"])


@cache
def shared_names() -> tuple[SharedName, ...]:
    """Return the names that several chips share."""
    return tuple(SharedName(tuple(row["match"]), row["reason"]) for row in _built_in()["shared_name"])


@cache
def families() -> Mapping[str, str]:
    """Return the chip that is meant where people name a family alone, by the family's name in lower case."""
    return {row["name"].lower(): row["chip"] for row in _built_in()["family"]}


def load_chips(path: str | Path) -> tuple[Chip, ...]:
    """Return the rows of a user's TOML file: one `[[chip]]` table each, fields as in docs/hardware.md."""
    import tomllib  # only for those who bring rows of their own

    try:
        table = tomllib.loads(read_side_text(path, max_bytes=_MAX_TABLE_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a TOML file of chips: {error}") from error
    except RecursionError as error:
        raise InputError(f"{path}: its values are nested too deeply; see docs/hardware.md") from error
    except ValueError as error:  # also a number of thousands of digits
        raise InputError(f"{path}: is not TOML: {error}; see docs/hardware.md") from error
    rows = table.get("chip")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: there is no [[chip]] table; see docs/hardware.md")
    return tuple(_chip(row, f"{path}, chip {i}") for i, row in enumerate(rows, start=1))


@cache
def _built_in() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_name("hardware.json").read_bytes())
    return table


def _chip(row: dict[str, Any], where: str) -> Chip:
    for field in row:
        if field not in _FIELDS:
            raise InputError(f"{where}: field '{field}' is not known; it can be {', '.join(_FIELDS)}")
    for field in ("link", "compute"):
        if row.get(field) is not None and not isinstance(row[field], str):
            raise InputError(f"{where}: field '{field}' has to be text, not {row[field]!r}")
    return Chip(
        name=_text(row, "name", where),
        match=_patterns(row, where),
        tflops=_tflops(row, where),
        source=_text(row, "source", where),
        link=row.get("link"),
        compute=row.get("compute"),
        multiprocessors=int(_number(row["multiprocessors"], "multiprocessors", where))
        if "multiprocessors" in row
        else None,
        **{field: _number(row[field], field, where) for field in _NUMBERS if field in row},
    )


def _text(row: dict[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: field '{field}' has to be text, not {value!r}")
    return value


def _patterns(row: dict[str, Any], where: str) -> tuple[str, ...]:
    value = row.get("match")
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise InputError(f"{where}: field 'match' has to be a list of device names, not {value!r}")
    try:
        for text in value:
            re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise InputError(f"{where}: field 'match' has to hold regular expressions: {error}") from error
    return tuple(value)


def _tflops(row: dict[str, Any], where: str) -> dict[str, float]:
    value = row.get("tflops")
    if not isinstance(value, dict) or not value:
        raise InputError(f"{where}: field 'tflops' has to be dense peaks like {{ bf16 = 989.4 }}, not {value!r}")
    for precision in value:
        if precision not in PEAK_PRECISIONS:
            known = ", ".join(PEAK_PRECISIONS)
            raise InputError(f"{where}: field 'tflops.{precision}' is not known; it can be {known}")
    return {name: _number(peak, f"tflops.{name}", where) for name, peak in value.items()}


def _number(value: object, field: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise InputError(f"{where}: field '{field}' has to be a number above 0, not {value!r}")
    return float(value)


GIB = 2**30
_VENDOR = re.compile(r"^(NVIDIA|AMD Instinct|AMD|Intel)\s+", re.IGNORECASE)
_TRADEMARK = re.compile(r"\((R|TM|C)\)", re.IGNORECASE)
# virtual function with the whole device behind it, module form, cooling: the chip is the same
_ENDING = re.compile(r"[ -](VF|HF|OAM|AC|LC|LS)$", re.IGNORECASE)
# Devices report up to a tenth less than their nominal memory: some is reserved for error correction and the driver.
_MEMORY_TOLERANCE = 0.1


@dataclass(frozen=True)
class Lookup:
    """The chip, or why there is none."""

    chip: Chip | None
    reason: str | None = None
    #: what was taken for granted to find it
    note: str | None = None


@dataclass(frozen=True)
class DeviceFacts:
    """Properties of a device in a header, other than its name."""

    memory_bytes: int | None = None
    #: compute capability, `9.0`
    compute: str | None = None
    multiprocessors: int | None = None


@dataclass(frozen=True)
class Peak:
    """The rate that 100 % MFU means, and its source."""

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
    return Lookup(None, f"device {name!r} is not in the hardware table; add it with --hardware FILE or give its peak")


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
    out = [name]
    while (shorter := _ENDING.sub("", out[-1])) != out[-1]:
        out.append(shorter)
    return out


def _called(spelt: str) -> list[Chip]:
    bare = _VENDOR.sub("", spelt).lower()
    return [row for row in built_in_chips() if bare in (row.name.lower(), row.name.lower().partition(" (")[0])]


def _family(name: str, spelt: str, memory_bytes: int | None) -> Lookup | None:
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
    fitting = [row for row in rows if memory_bytes is None or _fits(row, memory_bytes)]
    if len(fitting) == 1:
        return Lookup(fitting[0])
    known = ", ".join(row.name for row in rows)
    if not fitting:
        found = f"{(memory_bytes or 0) / GIB:.0f} GiB"
        return Lookup(None, f"device {name!r} with {found} of memory is none of the known variants: {known}")
    return Lookup(None, f"device {name!r} may be any of {known}; give its memory size")


def _fits(row: Chip, memory_bytes: int) -> bool:
    if row.memory_gib is None:
        return True
    return abs(memory_bytes / GIB - row.memory_gib) <= _MEMORY_TOLERANCE * row.memory_gib
