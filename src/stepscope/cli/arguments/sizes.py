"""Sizes and rates as people type them, into numbers."""

import argparse
import re
from collections.abc import Sequence
from typing import Any

from stepscope.units import printable

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}
_MAX_DIGITS = 15
# an exabyte is 2**60; beyond 2**63 no array holds the number
MAX_BYTES = 2**62
_SIZE = re.compile(r"([\d.]+(?:e\d+)?)\s*([a-z]*)", re.IGNORECASE)


def whole_number(text: str) -> int | None:
    """Return the number that plain digits spell, None for anything else, also for one beyond what anything counts.

    >>> whole_number("15"), whole_number("-1"), whole_number("\u00b2"), whole_number("9" * 5000)
    (15, None, None, None)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def size_bytes(text: str) -> int:
    """Return bytes: `1048576`, `1.5MB` (powers of 1000) or `1MiB` (powers of 1024).

    >>> size_bytes("25MB"), size_bytes("4KiB"), size_bytes("1e6")
    (25000000, 4096, 1000000)
    """
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[2].lower()) if found else None
    try:
        size = int(float(found[1]) * unit) if found and unit else 0
    except (ValueError, OverflowError):  # two dots, or beyond every float
        size = 0
    if not 1 <= size <= MAX_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size above 0; write it as 1048576, 25MB or 4KiB")
    return size


def at_least_one(text: str) -> int:
    """Return a whole number of 1 or more."""
    number = whole_number(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{printable(text)!r} is not a whole number of at least 1")
    return number


def at_least_zero(text: str) -> int:
    """Return a whole number of 0 or more."""
    number = whole_number(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{printable(text)!r} is not a whole number of at least 0")
    return number


def above_zero(text: str) -> float:
    """Return a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def world_sizes(text: str) -> list[int]:
    """Return the world sizes in `2,4`."""
    return [at_least_one(part) for part in text.split(",")]


class ExtendWorldSizes(argparse.Action):
    """Takes `--world-size 2,4` and, as older versions did, `2 4` or the option twice."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        lists = [values] if self.nargs is None else list(values or ())
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), *(n for sizes in lists for n in sizes)])  # type: ignore[union-attr]
