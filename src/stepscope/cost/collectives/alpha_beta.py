"""Latency and bandwidth of a link from sizes and times: time = alpha + bytes x time per byte.

The line is the one with the smallest sum of |log(predicted / measured)|: a relative error, so that microseconds count
as much as milliseconds, and its absolute value, so that single outliers do not pull. Such a line passes through two of
the points (or through one, with no latency or no bandwidth term), so the best is found by trying them all.
"""

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.errors import InputError
from stepscope.stats.distinct import distinct
from stepscope.stats.middle import median, quantiles

Floats = npt.NDArray[np.float64]

DEFAULT_LATENCY_NS = 20_000.0
"""What one call costs, about, where only one size was measured: the order of an NCCL call over any fabric."""
MAX_LATENCY_SHARE = 0.5
"""... but never more than this share of the measured time."""
_MAX_SIZES = 64
_COVERAGE = 0.9


@dataclass(frozen=True)
class Fit:
    """A line through measured times."""

    alpha_ns: float
    ns_per_byte: float
    relative_error: float
    """mean of |predicted - measured| / measured over the points it was fitted to"""
    spread: float
    """90 % of the measured times are within a factor exp(spread) of the line"""
    num_sizes: int
    """distinct sizes; with a single one alpha is assumed, not measured"""

    def time_ns(self, size_bytes: npt.ArrayLike) -> Floats:
        """Return the predicted times."""
        return self.alpha_ns + self.ns_per_byte * np.asarray(size_bytes, float)

    @property
    def gb_per_s(self) -> float | None:
        """Return the bandwidth, None where the times did not grow with the sizes."""
        return 1 / self.ns_per_byte if self.ns_per_byte else None


def fit(sizes_bytes: npt.ArrayLike, times_ns: npt.ArrayLike) -> Fit:
    """Return the line nearest to the points in relative error, with alpha and time per byte at least 0.

    Points of one size count by their median. With one size only, alpha is 20 us or half the time, the smaller.

    >>> line = fit([1e3, 1e6, 2e6], [20_500, 520_000, 1_020_000])
    >>> round(line.alpha_ns), round(line.gb_per_s, 2)
    (20000, 2.0)
    """
    sizes, times = checked_points(sizes_bytes, times_ns)
    x, y, weight = by_size(sizes, times, most=_MAX_SIZES)
    alpha, slope = _only_size(x[0], y[0]) if len(x) == 1 else _best_line(x, y, weight)
    ratio = (alpha + slope * sizes) / times
    return Fit(
        alpha_ns=alpha,
        ns_per_byte=slope,
        relative_error=float(np.abs(ratio - 1).mean()),
        spread=float(quantiles(np.abs(np.log(ratio)), _COVERAGE)),
        num_sizes=len(distinct(sizes)),
    )


def checked_points(sizes_bytes: npt.ArrayLike, times_ns: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return sizes and times as arrays, or say which of them cannot be."""
    sizes, times = np.asarray(sizes_bytes, float).ravel(), np.asarray(times_ns, float).ravel()
    if len(sizes) != len(times) or not len(sizes):
        raise InputError(
            f"each size needs a time, and one pair is the least; given are {len(sizes)} sizes and {len(times)} times"
        )
    for what, values in (("sizes", sizes), ("times", times)):
        wrong = np.flatnonzero(~np.isfinite(values) | (values <= 0))
        if len(wrong):
            raise InputError(f"{what} have to be above 0, but point {wrong[0] + 1} is {values[wrong[0]]:g}; remove it")
    return sizes, times


def by_size(sizes: Floats, times: Floats, *, most: int) -> tuple[Floats, Floats, Floats]:
    """Return at most `most` distinct sizes, the median time of each, and the square root of its number of points."""
    order = np.argsort(sizes, kind="stable")
    _, first = np.unique(sizes[order], return_index=True)
    if len(first) > most:
        first = first[np.linspace(0, len(first) - 1, most).astype(int)]
    parts = np.split(order, first[1:])
    x, y = (np.array([median(values[p]) for p in parts]) for values in (sizes, times))
    return x, y, np.sqrt([len(p) for p in parts])


def _only_size(size_bytes: float, time_ns: float) -> tuple[float, float]:
    alpha = min(DEFAULT_LATENCY_NS, MAX_LATENCY_SHARE * time_ns)
    return float(alpha), float((time_ns - alpha) / size_bytes)


def _best_line(x: Floats, y: Floats, weight: Floats) -> tuple[float, float]:
    """Return alpha and slope of the best of all lines through two points, or through one along an axis."""
    i, j = np.triu_indices(len(x), 1)
    slope = (y[j] - y[i]) / (x[j] - x[i])
    zero = np.zeros(len(x))
    slopes = np.concatenate((slope, zero, y / x))
    alphas = np.concatenate((y[i] - slope * x[i], y, zero))
    possible = np.flatnonzero((slopes >= 0) & (alphas >= 0))
    slopes, alphas = slopes[possible, None], alphas[possible, None]
    error = np.abs(np.log((alphas + slopes * x) / y)) @ weight
    best = int(error.argmin())
    return float(alphas[best, 0]), float(slopes[best, 0])
