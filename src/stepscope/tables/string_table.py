"""Texts of several ranks as numbers into one list, each distinct text once."""

import numpy as np
import numpy.typing as npt

from stepscope.stats.distinct import numbered
from stepscope.trace.table import Trace

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

    def strings(self, trace: Trace, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the numbers of string ids."""
        used, back = numbered(ids)
        texts = [trace.text(i) for i in used.tolist()]
        return np.array([self.place(UNNAMED if t is None else t) for t in texts], np.int32)[back]

    def process_ids(self, trace: Trace, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the numbers of `pid` or `tid` values as people read them."""
        used, back = numbered(ids)
        return np.array([self.place(trace.id_text(i)) for i in used.tolist()], np.int32)[back]
