"""Sizes and rates as people type them, into numbers."""

import argparse
import re

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}
_SIZE = re.compile(r"([\d.]+(?:e\d+)?)\s*([a-z]*)", re.IGNORECASE)


def size_bytes(text: str) -> int:
    """Return bytes: `1048576`, `1.5MB` (powers of 1000) or `1MiB` (powers of 1024).

    >>> size_bytes("25MB"), size_bytes("4KiB"), size_bytes("1e6")
    (25000000, 4096, 1000000)
    """
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[2].lower()) if found else None
    try:
        size = int(float(found[1]) * unit) if found and unit else 0
    except ValueError:
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"expected a size above 0 such as 1048576, 25MB or 4KiB, found {text!r}")
    return size


def at_least_one(text: str) -> int:
    """Return a whole number of 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return number


def above_zero(text: str) -> float:
    """Return a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return number
