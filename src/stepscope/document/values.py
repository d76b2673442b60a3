"""Records as JSON values: names stay as they are, and only who writes a time says that it is in milliseconds."""

import math
from collections.abc import Collection
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from typing import Any

from stepscope.json_text import AS_IT_IS
from stepscope.stats.robust import Spread
from stepscope.units import NS_PER_MS, ms


def plain(value: Any) -> Any:
    """Return dataclasses, tuples, sets, enumerations and arrays as JSON values; what is not finite becomes null.

    >>> plain({"share": float("nan"), "ranks": (0, 1)})
    {'share': None, 'ranks': [0, 1]}
    """
    kind = type(value)
    if kind in AS_IT_IS:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if is_dataclass(kind):
        return {field.name: plain(getattr(value, field.name)) for field in fields(kind)}
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


def in_ms(record: Any, times: Collection[str]) -> dict[str, Any]:
    """Return a record as a JSON object whose `times` are in milliseconds: `wait_ns` of `wait` becomes `wait_ms`.

    >>> in_ms({"rank": 3, "wait_ns": 1_500_000, "busy_ns": None}, ("wait", "busy"))
    {'rank': 3, 'wait_ms': 1.5, 'busy_ms': None}
    """
    values: dict[str, Any] = record if isinstance(record, dict) else vars(record)
    written = {f"{name}_ns": f"{name}_ms" for name in times}
    return {written.get(k, k): _time(v) if k in written else plain(v) for k, v in values.items()}


def _time(time_ns: Any) -> Any:
    if isinstance(time_ns, tuple):
        return [ms_or_none(t) for t in time_ns]
    return (
        {name: v if name == "count" else v / NS_PER_MS for name, v in asdict(time_ns).items()}
        if isinstance(time_ns, Spread)
        else ms_or_none(time_ns)
    )
