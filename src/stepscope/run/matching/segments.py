"""Medians of the segments of a flat array: segment `i` is `values[first[i]:first[i + 1]]`.

Segments of equal length are taken together, so that a thousand ranks or collectives take no loop over each.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.stats.distinct import distinct
from stepscope.stats.robust import MAD_TO_SIGMA
from stepscope.trace.table import Int64s

Floats = npt.NDArray[np.float64]
_Number = TypeVar("_Number", np.int64, np.float64)


def middle_values(values: npt.NDArray[_Number], first: Int64s) -> tuple[npt.NDArray[_Number], npt.NDArray[_Number]]:
    """Return the two middle values of each segment (one twice where its length is odd), 0 for empty segments."""
    count = np.diff(first)
    low, high = np.zeros(len(count), values.dtype), np.zeros(len(count), values.dtype)
    for n in distinct(count[count > 0]).tolist():
        alike = np.flatnonzero(count == n)
        block = np.partition(values[first[alike][:, None] + np.arange(n)], ((n - 1) // 2, n // 2), axis=1)
        low[alike], high[alike] = block[:, (n - 1) // 2], block[:, n // 2]
    return low, high


def median_times(times_ns: Int64s, first: Int64s) -> Int64s:
    """Return the median of each segment in whole nanoseconds: since 1970 they are more than a float holds."""
    low, high = middle_values(times_ns, first)
    return low + (high - low) // 2


def medians(values: Floats, first: Int64s) -> Floats:
    """Return the median of each segment, 0 for empty ones.

    >>> medians(np.array([1.0, 9.0, 2.0, 4.0, 6.0]), np.array([0, 3, 3, 5]))
    array([2., 0., 5.])
    """
    low, high = middle_values(values, first)
    return (low + high) / 2


def mad_sigmas(values: Floats, first: Int64s) -> Floats:
    """Return the standard deviation of each segment as its median absolute deviation gives it."""
    middle = np.repeat(medians(values, first), np.diff(first))
    return MAD_TO_SIGMA * medians(np.abs(values - middle), first)
