"""Which number does a text hold, in the locale of whoever wrote it?

1,234.5   1234.5   1'234.5        the point is the decimal mark
1.234,5   1234,5   1 234,5        the comma is
1,234                             either: the other numbers of the file tell
"""

import math
import re

MAX_CHARACTERS = 64
_NUMERAL = re.compile(r"^[+-]?[\d.,'\s\u00a0\u202f]+(?:[eE][+-]?\d{1,3})?$")
_GROUPS = re.compile(r"['\s\u00a0\u202f]")


def marks_of(text: str) -> str:
    """Return the decimal mark that one number must have, nothing where it could be either or is no number.

    >>> marks_of("12,5"), marks_of("1.234,5"), marks_of("1,234"), marks_of("1,234,567")
    (',', ',', '', '.')
    """
    return _mark(text) or ""


def decimal_mark(seen: set[str]) -> str | None:
    """Return the decimal mark by what `marks_of` said of all numbers, `.` where none tells; None where two are seen."""
    known = seen - {""}
    return None if len(known) > 1 else next(iter(known), ".")


def number(text: str, mark: str) -> float | None:
    """Return a number, None where the text holds none or one that is not finite.

    >>> number("1.234,5", ","), number("1,234.5", "."), number("n/a", "."), number("1e999", ".")
    (1234.5, 1234.5, None, None)
    """
    plain = text.strip()
    if len(plain) > MAX_CHARACTERS or not _NUMERAL.match(plain):
        return None
    plain = _GROUPS.sub("", plain).replace("," if mark == "." else ".", "")
    try:
        value = float(plain.replace(mark, "."))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _mark(text: str) -> str | None:
    """Return the decimal mark that one number must have, None where it could be either."""
    plain = text.strip()
    if len(plain) > MAX_CHARACTERS or not _NUMERAL.match(plain):
        return None
    plain = re.split(r"[eE]", _GROUPS.sub("", plain))[0]
    points, commas = plain.count("."), plain.count(",")
    if points and commas:
        return "." if plain.rfind(".") > plain.rfind(",") else ","
    if points + commas != 1:  # several of one kind are groups of thousands
        return None if not points + commas else "," if points > 1 else "."
    sign = "." if points else ","
    whole, _, rest = plain.partition(sign)
    groups_of_three = len(rest) == 3 and 1 <= len(whole.lstrip("+-")) <= 3 and whole.lstrip("+-") != "0"
    return None if groups_of_three else sign
