"""Texts of several ranks as numbers into one list, each distinct text once."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stepscope.stats.distinct import numbered
from stepscope.trace.table import Trace

Numbers = npt.NDArray[np.int32]
_FEW_IDS = 1 << 16
UNNAMED = "?"
"""stands for an event without the text"""


class StringTable:
    """Grows while ranks are added."""

    def __init__(self) -> None:
        self._place: dict[str, int] = {}

    @property
    def listed(self) -> tuple[str, ...]:
        """Return all texts by number."""
        return tuple(self._place)

    def place(self, text: str) -> int:
        """Return the number of one text."""
        return self._place.setdefault(text, len(self._place))

    def strings(self, trace: Trace, ids: npt.NDArray[np.int64]) -> Numbers:
        """Return the numbers of string ids."""
        return _of_each(ids, lambda i: self.place(UNNAMED if (text := trace.text(i)) is None else text))

    def process_ids(self, trace: Trace, ids: npt.NDArray[np.int64]) -> Numbers:
        """Return the numbers of `pid` or `tid` values as people read them."""
        return _of_each(ids, lambda i: self.place(trace.id_text(i)))


def _of_each(ids: npt.NDArray[np.int64], number_of: Callable[[int], int]) -> Numbers:
    """Return the number of each id; each distinct one is asked for once, in order."""
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    if high - low > len(ids) + _FEW_IDS:
        used, back = numbered(ids)
        return np.array([number_of(i) for i in used.tolist()], np.int32)[back]
    place = np.subtract(ids, low, dtype=np.intp)
    numbers = np.zeros(high - low + 1, np.int32)
    numbers[place] = 1
    used = np.flatnonzero(numbers)
    numbers[used] = [number_of(i) for i in (used + low).tolist()]
    return numbers.take(place)
