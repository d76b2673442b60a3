"""Numbers in the units people read: nanoseconds to ms, bytes to MB, names made safe to print."""

import json
import math
from collections.abc import Sequence
from typing import Any

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
_MAX_MS = 1e12  # thirty years


def ms(time_ns: int | float) -> float:
    """Return milliseconds, rounded to the nanosecond so that sums stay exact in print."""
    return round(float(time_ns) / NS_PER_MS, 6)


def ns_of_ms(time_ms: object) -> int | None:
    """Return whole nanoseconds of milliseconds from a file or an option, None where they are no finite number.

    >>> ns_of_ms(1.5), ns_of_ms(float("nan")), ns_of_ms("1.5")
    (1500000, None, None)
    """
    if not isinstance(time_ms, int | float) or isinstance(time_ms, bool) or not abs(time_ms) <= _MAX_MS:
        return None
    return round(time_ms * NS_PER_MS)


def us(time_ns: int | float) -> float:
    """Return microseconds."""
    return round(float(time_ns) / NS_PER_US, 3)


def readable_bytes(size_bytes: int | float) -> str:
    """Return `1.5 MB` style text in powers of 1000."""
    size = float(size_bytes)
    if abs(size) < 999.5:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if abs(size) < 999.95:  # as printed below 1000
            return f"{size:.1f} {unit}"
    size /= 1000
    return f"{size:.1f} TB"


def printable(name: str, *, width: int = 200) -> str:
    """Return `name` with control, escape and bidirectional characters shown as escapes, cut to `width`.

    Names come from traces and traces are untrusted: they may hold terminal escape sequences.
    """
    safe = escaped(name[: width + 1])  # what is cut off needs no escaping
    return safe if len(safe) <= width else safe[: width - 1] + "…"


def escaped(text: str, *, keep: str = "") -> str:
    """Return `text` with what steers a terminal or turns its letters around as escapes, except the letters in `keep`.

    >>> escaped("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text
    )


#: for outputs that hold no other letters
ASCII_SIGNS = str.maketrans(
    {
        "−": "-",  # noqa: RUF001
        **dict(zip("▁▂▃▄▅▆▇", "..--==#", strict=True)),
        "–": "-",  # noqa: RUF001
        "→": "->",
        "≥": ">=",
        "×": "x",  # noqa: RUF001
        "±": "+-",
        "·": "-",
        "█": "#",
        "◀": "<",
        "…": "...",
        **dict.fromkeys("▏▎▍▌▋▊▉", "#"),
    }
)


# JSON that every reader takes: numbers that are not finite become null, and are named.
#
# `NaN` and `Infinity` are no JSON: `jq`, browsers and most languages refuse the whole file for one of them. Standard
# library only: the job side imports it.

_MAX_NAMED = 3
# types of values that are written as they are; a number with a fraction may not be finite
AS_IT_IS = frozenset({str, int, bool, type(None)})
_WARNINGS = "warnings"


def json_text(document: Any, *, indent: int | None = None) -> str:
    """Return a document as JSON text, null for what is not finite.

    >>> json_text({"step_ms": float("inf")})
    '{"step_ms": null, "warnings": ["step_ms: the number was not finite, so it is left unknown"]}'
    """
    return json_with_notes(document, indent=indent)[0]


def json_with_notes(document: Any, *, indent: int | None = None) -> tuple[str, list[str]]:
    """Return a document as JSON text, null for what is not finite, and a line that names what was not."""
    try:
        return json.dumps(document, indent=indent, allow_nan=False), []
    except ValueError:  # the usual document needs no second look
        finite, notes = finite_document(document)
        return json.dumps(finite, indent=indent, allow_nan=False), notes


def finite_document(document: Any) -> tuple[Any, list[str]]:
    """Return a document with None for every number that is not finite, and a line that names them.

    An object says so itself, in its `warnings`.
    """
    found: list[str] = []
    finite = _finite(document, "", found)
    if not found:
        return finite, []
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    were = "the number was not finite, so it is" if len(found) == 1 else "the numbers were not finite, so they are"
    note = f"{', '.join(found[:_MAX_NAMED])}{more}: {were} left unknown"
    if isinstance(finite, dict) and isinstance(finite.setdefault(_WARNINGS, []), list):
        finite[_WARNINGS].append(note)
    return finite, [note]


def _finite(value: Any, name: str, found: list[str]) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        found.append(name or "the document")
        return None
    if isinstance(value, dict):
        return {
            key: one if type(one) in AS_IT_IS else _finite(one, f"{name}.{key}" if name else str(key), found)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_finite(one, f"{name}.{i}" if name else str(i), found) for i, one in enumerate(value)]
    return value


# A fingerprint: a short text that depends on the whole content.
#
# `hashlib` loads OpenSSL, 3 MB that nothing else here needs, and takes longer for that than to tell a file.

try:
    from _blake2 import blake2b
except ImportError:  # an interpreter that was built without
    from hashlib import blake2b

_BYTES = 16


class Digest:
    """A digest in the making; the same bytes in other pieces give the same."""

    def __init__(self, first: bytes = b"") -> None:
        self._state = blake2b(first, digest_size=_BYTES)

    def add(self, more: bytes) -> None:
        self._state.update(more)

    def text(self, characters: int = 2 * _BYTES) -> str:
        return self._state.hexdigest()[:characters]


def digest_of(content: bytes, characters: int = 2 * _BYTES) -> str:
    """Return the first hexadecimal digits of a content's digest.

    >>> digest_of(b"a", 8), digest_of(b"b", 8)
    ('27c35e6e', '96172b4c')
    """
    return Digest(content).text(characters)


def rank_ranges(numbers: Sequence[int]) -> str:
    """Return `0-3, 7` for [0, 1, 2, 3, 7]."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
