"""Records as JSON values: names stay as they are, and only who writes a time says that it is in milliseconds."""

import math
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any

from stepscope.units import ms


def plain(value: Any) -> Any:
    """Return dataclasses, tuples, sets, enumerations and arrays as JSON values; what is not finite becomes null.

    >>> plain({"share": float("nan"), "ranks": (0, 1)})
    {'share': None, 'ranks': [0, 1]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(v) for v in value)
    if isinstance(value, Enum):
        return value.name.lower()
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def ms_or_none(time_ns: float | None) -> float | None:
    """Return milliseconds of a time that may be unknown."""
    return None if time_ns is None else ms(time_ns)
