"""Rows of the hardware table: ours, and a user's own read from TOML and checked field by field.

People edit `hardware.toml`. `tools/write_hardware.py` checks it like a user's file and writes `hardware.json`, which is
read in a twentieth of the time.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from stepscope.contract.precisions import PEAK_PRECISIONS
from stepscope.cost.name_patterns import matches_whole
from stepscope.dataclass import dataclass
from stepscope.errors import InputError
from stepscope.side_file import read_side_text

_MAX_TABLE_BYTES = 1 << 20
_NUMBERS = ("memory_gib", "memory_gb_per_s", "link_gb_per_s")
_FIELDS = ("name", "match", "tflops", "link", "compute", "multiprocessors", "source", *_NUMBERS)


@dataclass(frozen=True)
class Chip:
    """One device as a trace sees it. A peak it has no unit for is absent from `tflops`."""

    name: str
    match: tuple[str, ...]
    """patterns of the driver's name for it"""
    tflops: Mapping[str, float]
    """dense TFLOP/s by precision"""
    source: str
    memory_gib: float | None = None
    memory_gb_per_s: float | None = None
    link: str | None = None
    link_gb_per_s: float | None = None
    """per direction, all links to peers together"""
    compute: str | None = None
    """compute capability as the driver gives it, `9.0`"""
    multiprocessors: int | None = None

    def peak_flops(self, precision: str) -> float | None:
        """Return the dense peak in FLOP/s, None where the chip has no unit for the precision."""
        tflops = self.tflops.get(precision)
        return None if tflops is None else tflops * 1e12

    def matches(self, device_name: str) -> bool:
        """Return whether the driver's name is one of this chip's."""
        return any(matches_whole(pattern, device_name) for pattern in self.match)


@dataclass(frozen=True)
class SharedName:
    """Device names that do not tell which chip it is, and why."""

    match: tuple[str, ...]
    reason: str

    def matches(self, device_name: str) -> bool:
        """Return whether the driver's name is one of these."""
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
