"""JSON that every reader takes: numbers that are not finite become null, and are named.

`NaN` and `Infinity` are no JSON: `jq`, browsers and most languages refuse the whole file for one of them. Standard
library only: the job side imports it.
"""

import json
import math
from typing import Any

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
