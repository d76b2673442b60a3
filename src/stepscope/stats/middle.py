"""The middle of some values. As `np.median`, which imports numpy's masked arrays first."""

import numpy as np
import numpy.typing as npt


def median(values: npt.ArrayLike) -> float:
    """Return the median of all values, NaN where one of them is or there is none.

    >>> median([3, 1, 2]), median([4.0, 1.0, 2.0, 3.0])
    (2.0, 2.5)
    """
    x = np.asarray(values).ravel()
    if not len(x):
        return float("nan")
    at = len(x) // 2
    first = at - 1 + len(x) % 2
    parted = np.partition(x, [first, at, len(x) - 1])  # NaN comes last
    return float("nan") if parted[-1] != parted[-1] else float(parted[first : at + 1].mean())


def medians(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the median of each row of a table, NaN where one of its values is.

    >>> medians(np.array([[3.0, 1.0, 2.0], [4.0, 4.0, 5.0]])).tolist()
    [2.0, 4.0]
    """
    at = rows.shape[-1] // 2
    first = at - 1 + rows.shape[-1] % 2
    middle = np.partition(rows, [first, at], axis=-1)[..., first : at + 1].mean(axis=-1)
    return np.where(np.isnan(rows).any(axis=-1), np.nan, middle)


def medians_between(values: npt.NDArray[np.float64], cuts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the median of the values between each cut and the next, at least one, NaN where one of them is.

    >>> medians_between(np.array([3.0, 1.0, 2.0, 4.0, 5.0]), np.array([0, 3, 5])).tolist()
    [2.0, 4.5]
    """
    count = np.diff(cuts)
    ordered = values[np.lexsort((values, np.repeat(np.arange(len(count)), count)))]  # NaN comes last
    middle = (ordered[cuts[:-1] + (count - 1) // 2] + ordered[cuts[:-1] + count // 2]) / 2
    return np.where(np.isnan(ordered[cuts[1:] - 1]), np.nan, middle)


def quantiles(values: npt.ArrayLike, shares: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return below which value each share of the values lies, interpolated between neighbours as `np.quantile` does.

    >>> quantiles([4, 1, 3, 2], [0.0, 0.5, 0.9]).tolist()
    [1.0, 2.5, 3.7]
    """
    ordered = np.sort(np.asarray(values).ravel())
    place = (len(ordered) - 1) * np.asarray(shares, float)
    below = np.floor(place).astype(np.int64)
    part, low, high = place - below, ordered[below], ordered[np.minimum(below + 1, len(ordered) - 1)]
    apart = high - low
    return np.where(part >= 0.5, high - apart * (1 - part), low + apart * part).astype(float)


def lower_median(values: npt.ArrayLike) -> float:
    """Return the median, the smaller one of two in the middle.

    >>> lower_median([4, 1, 3, 2])
    2.0
    """
    ordered = np.sort(np.asarray(values).ravel())
    return float(ordered[(len(ordered) - 1) // 2])
