"""What became of a finding from one run to the next? One answer for comparisons and investigations.

    came          only the second side has it
    went          only the first side has it
    mostly gone   both have it, less than half of its saving is left to gain
    grew          both have it, its saving has more than doubled
    stayed        both have it, about as it was

Findings are told apart by id and ranks: a straggler that moves to another rank went here and came there.
"""

from collections.abc import Iterable

CAME, WENT, MOSTLY_GONE, GREW, STAYED = "came", "went", "mostly gone", "grew", "stayed"
FATES = (CAME, GREW, WENT, MOSTLY_GONE, STAYED)
"""in the order in which they are told: what got worse first"""
FIXED = (WENT, MOSTLY_GONE)
_HALF = 0.5

Key = tuple[str, tuple[int, ...]]


def fate(before: float | None, after: float | None) -> str:
    """Return what became of a finding whose fix saved `before` and saves `after`; None where a side lacks it."""
    if before is None or after is None:
        return WENT if after is None else CAME
    if after < _HALF * before:
        return MOSTLY_GONE
    return GREW if before < _HALF * after else STAYED


def savings_by_key(findings: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return what findings of one id and the same ranks save, those of one key together."""
    out: dict[Key, float] = {}
    for key, saving in findings:
        out[key] = out.get(key, 0.0) + saving
    return out
