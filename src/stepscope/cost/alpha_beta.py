"""Latency and bandwidth of a link from sizes and times: time = alpha + bytes x time per byte.

The line is the one with the smallest sum of |log(predicted / measured)|: a relative error, so that microseconds count
as much as milliseconds, and its absolute value, so that single outliers do not pull. Such a line passes through two of
the points (or through one, with no latency or no bandwidth term), so the best is found by trying them all.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.errors import InputError
from stepscope.records import ArrayRecord, dataclass
from stepscope.stats.robust import median

Floats = npt.NDArray[np.float64]

# What one call costs, about, where only one size was measured: the order of an NCCL call over any fabric.
DEFAULT_LATENCY_NS = 20_000.0
# ... but never more than this share of the measured time.
_MAX_LATENCY_SHARE = 0.5


@dataclass(frozen=True)
class Fit:
    """A line through measured times."""

    alpha_ns: float
    ns_per_byte: float

    def time_ns(self, size_bytes: npt.ArrayLike) -> Floats:
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
    sizes, times = _checked_points(sizes_bytes, times_ns)
    x, y, weight = _by_size(sizes, times, most=64)
    alpha, slope = _only_size(x[0], y[0]) if len(x) == 1 else _best_line(x, y, weight)
    return Fit(alpha, slope)


def _checked_points(sizes_bytes: npt.ArrayLike, times_ns: npt.ArrayLike) -> tuple[Floats, Floats]:
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


def _by_size(sizes: Floats, times: Floats, *, most: int) -> tuple[Floats, Floats, Floats]:
    order = np.argsort(sizes, kind="stable")
    _, first = np.unique(sizes[order], return_index=True)
    if len(first) > most:
        first = first[np.linspace(0, len(first) - 1, most).astype(int)]
    parts = np.split(order, first[1:])
    x, y = (np.array([median(values[p]) for p in parts]) for values in (sizes, times))
    return x, y, np.sqrt([len(p) for p in parts])


def _only_size(size_bytes: float, time_ns: float) -> tuple[float, float]:
    alpha = min(DEFAULT_LATENCY_NS, _MAX_LATENCY_SHARE * time_ns)
    return float(alpha), float((time_ns - alpha) / size_bytes)


def _best_line(x: Floats, y: Floats, weight: Floats) -> tuple[float, float]:
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


# Time against size where one line is not enough: lines that join where the library changes its protocol.
#
#     time(n) = c0 + c1 ramp1(n) + c2 ramp2(n) + ...      every c at least 0, so time never falls as sizes grow
#
# A ramp rises from 0 to 1 over its piece, the last one goes on for ever. The coefficients minimise Huber's loss of
# log(predicted / measured). Joints are added one by one where they help most, at measured sizes; how many is decided by
# leaving out each size in turn.

_MAX_PIECES = 4
# relative errors beyond this count by their size, not by their square
_HUBER = 0.2
# with fewer sizes, one left out, there would be no place for the joints
_MIN_SIZES_FOR_PIECES = _MAX_PIECES + 2


class Piece(NamedTuple):
    """One line of several, from a size on."""

    from_bytes: float
    #: where the line meets size 0: the latency of the first piece, below 0 possible later
    alpha_ns: float
    ns_per_byte: float


@dataclass(frozen=True)
class Pieces:
    """Joined lines: time at the joints, the first of which is size 0, the last the largest measured size."""

    knot_bytes: tuple[float, ...]
    knot_ns: tuple[float, ...]
    #: inverse of the largest measured bandwidth, which larger sizes do not exceed
    least_ns_per_byte: float = 0.0

    def time_ns(self, size_bytes: npt.ArrayLike) -> Floats:
        """Return predicted times; beyond the last joint the last line goes on, at no more than measured bandwidth."""
        x = np.asarray(size_bytes, float)
        return np.maximum(self.line_ns(x), np.where(x > self.knot_bytes[-1], self.least_ns_per_byte * x, 0.0))

    def line_ns(self, size_bytes: npt.ArrayLike) -> Floats:
        """Return the times on the lines alone, the last of which goes on for ever."""
        x, knots, times = np.asarray(size_bytes, float), np.array(self.knot_bytes), np.array(self.knot_ns)
        piece = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
        return times[piece] + (np.diff(times) / np.diff(knots))[piece] * (x - knots[piece])

    def lines(self) -> list[Piece]:
        out = []
        for k in range(len(self.knot_bytes) - 1):
            left, right = self.knot_bytes[k : k + 2]
            slope = (self.knot_ns[k + 1] - self.knot_ns[k]) / (right - left)
            out.append(Piece(left, self.knot_ns[k] - slope * left, slope))
        return out


@dataclass(frozen=True, eq=False, repr=False)
class LeftOutErrors(ArrayRecord):
    """How far each measured size is from a fit that did not see it."""

    size_bytes: Floats
    #: log(measured / predicted)
    log_ratio: Floats


def fit_pieces(sizes_bytes: npt.ArrayLike, times_ns: npt.ArrayLike) -> tuple[Pieces, LeftOutErrors]:
    """Return the joined lines whose number predicts left-out sizes best, and the errors on those.

    Sizes may repeat (their median counts). Few sizes get one line, a single size the usual latency (see `alpha_beta`).
    """
    x, y, _ = _by_size(*_checked_points(sizes_bytes, times_ns), most=32)
    if len(x) == 1:
        latency = fit(x, y).alpha_ns
        least = float(y[0] / x[0])
        return Pieces((0.0, float(x[0])), (latency, float(y[0])), least), LeftOutErrors(x, np.full(1, np.nan))
    most = _MAX_PIECES if len(x) >= _MIN_SIZES_FOR_PIECES else 1
    out = np.empty((most, len(x)))
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        out[:, i] = [np.log(y[i] / pieces.time_ns(x[i])) for pieces in _fits(x[others], y[others], most)]
    errors = out
    inner = slice(1, -1) if len(x) > 2 else slice(None)
    best = int(np.abs(errors[:, inner]).mean(axis=1).argmin())
    return _fits(x, y, best + 1)[-1], LeftOutErrors(x, errors[best])


def _fits(x: Floats, y: Floats, most: int) -> list[Pieces]:
    joints = np.zeros((1, 0))
    coefficients, _ = _coefficients(x, y, joints)
    fits = [_pieces(x, y, joints[0], coefficients[0])]
    for _ in range(most - 1):
        tried = np.array([np.sort(np.append(joints, size)) for size in np.setdiff1d(x[1:-1], joints)])
        coefficients, loss = _coefficients(x, y, tried)
        best = int(loss.argmin())
        joints = tried[[best]]
        fits.append(_pieces(x, y, joints[0], coefficients[best]))
    return fits


def _pieces(x: Floats, y: Floats, joints: Floats, coefficients: Floats) -> Pieces:
    knots = (0.0, *joints.tolist(), float(x[-1]))
    return Pieces(knots, tuple(np.cumsum(coefficients).tolist()), float((y / x).min()))


def _coefficients(x: Floats, y: Floats, joints: Floats) -> tuple[Floats, Floats]:
    ramps, knots = _ramps(x, joints)
    start = np.interp(knots, x, y)
    logs = np.log(np.concatenate((start[:, :1], np.maximum(np.diff(start, axis=1), 0.02 * y.min())), axis=1))
    damping = 1e-3 * np.eye(logs.shape[1])
    for _ in range(20):
        residual, jacobian = _residuals(ramps, logs, y)
        weighted = jacobian * np.minimum(1, _HUBER / np.maximum(np.abs(residual), 1e-12))[..., None]
        curvature = np.swapaxes(weighted, 1, 2) @ jacobian + damping
        gradient = np.swapaxes(weighted, 1, 2) @ residual[..., None]
        logs = logs - np.clip(np.linalg.solve(curvature, gradient)[..., 0], -1, 1)
    error = np.abs(_residuals(ramps, logs, y)[0])
    return np.exp(logs), np.where(error < _HUBER, 0.5 * error**2, _HUBER * (error - 0.5 * _HUBER)).sum(axis=1)


def _ramps(x: Floats, joints: Floats) -> tuple[Floats, Floats]:
    rows = len(joints)
    knots = np.concatenate((np.zeros((rows, 1)), joints, np.full((rows, 1), x[-1])), axis=1)
    rise = (x[None, :, None] - knots[:, None, :-1]) / np.diff(knots, axis=1)[:, None, :]
    rise = np.maximum(rise, 0)
    rise[:, :, :-1] = np.minimum(rise[:, :, :-1], 1)
    return np.concatenate((np.ones((rows, len(x), 1)), rise), axis=2), knots


def _residuals(ramps: Floats, logs: Floats, y: Floats) -> tuple[Floats, Floats]:
    parts = ramps * np.exp(logs)[:, None, :]
    predicted = parts.sum(axis=2)
    return np.log(predicted / y), parts / predicted[..., None]


# Time against size of one operation on a number of ranks, fitted to measurements.

# a prediction off by its own size says little
_MAX_ERROR = 1.0


@dataclass(frozen=True, eq=False, repr=False)
class Curve(ArrayRecord):
    """Time against size of one operation on a number of ranks."""

    op: str
    world_size: int
    pieces: Pieces
    left_out: LeftOutErrors
    #: of log time
    r2: float
    mean_error: float
    #: relative, on the points it was fitted to; `left_out` has the honest ones
    max_error: float
    #: `(bytes, ns)` as measured
    points: tuple[tuple[int, float], ...]

    @property
    def left_out_error(self) -> float | None:
        """Return the mean relative error on sizes that the fit did not see, None with a single size."""
        ratio = np.exp(-self.left_out.log_ratio)
        return float(np.abs(ratio - 1).mean()) if np.isfinite(ratio).all() else None

    @property
    def doubt(self) -> str | None:
        """Return why the curve should not be believed, None where it may be."""
        error = max(self.max_error, self.left_out_error or 0.0)
        if error > _MAX_ERROR:
            why = f"off by up to {100 * error:.0f} %"
        elif self.r2 < 0.8:
            why = f"R2 is {self.r2:.2f}"
        else:
            return None
        return f"poor fit: {self.op} on {self.world_size} ranks, {why}; measure again on a quiet machine"
