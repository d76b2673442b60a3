"""Time against size where one line is not enough: lines that join where the library changes its protocol.

    time(n) = c0 + c1 ramp1(n) + c2 ramp2(n) + ...      every c at least 0, so time never falls as sizes grow

A ramp rises from 0 to 1 over its piece, the last one goes on for ever. The coefficients minimise Huber's loss of
log(predicted / measured). Joints are added one by one where they help most, at measured sizes; how many is decided by
leaving out each size in turn.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.cost.collectives.alpha_beta import Floats, by_size, checked_points, fit
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord

MAX_PIECES = 4
_MAX_SIZES = 32
_HUBER = 0.2
"""relative errors beyond this count by their size, not by their square"""
_ITERATIONS = 20
_MIN_SIZES_FOR_PIECES = MAX_PIECES + 2
"""with fewer sizes, one left out, there would be no place for the joints"""


class Piece(NamedTuple):
    """One line of several, from a size on."""

    from_bytes: float
    alpha_ns: float
    """where the line meets size 0: the latency of the first piece, below 0 possible later"""
    ns_per_byte: float


@dataclass(frozen=True)
class Pieces:
    """Joined lines: time at the joints, the first of which is size 0, the last the largest measured size."""

    knot_bytes: tuple[float, ...]
    knot_ns: tuple[float, ...]

    def time_ns(self, size_bytes: npt.ArrayLike) -> Floats:
        """Return predicted times; beyond the last joint the last line goes on."""
        x, knots, times = np.asarray(size_bytes, float), np.array(self.knot_bytes), np.array(self.knot_ns)
        piece = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
        slope = np.diff(times) / np.diff(knots)
        return times[piece] + slope[piece] * (x - knots[piece])

    def lines(self) -> list[Piece]:
        """Return the lines one by one."""
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
    log_ratio: Floats
    """log(measured / predicted)"""


def fit_pieces(sizes_bytes: npt.ArrayLike, times_ns: npt.ArrayLike) -> tuple[Pieces, LeftOutErrors]:
    """Return the joined lines whose number predicts left-out sizes best, and the errors on those.

    Sizes may repeat (their median counts). Few sizes get one line, a single size the usual latency (see `alpha_beta`).
    """
    x, y, _ = by_size(*checked_points(sizes_bytes, times_ns), most=_MAX_SIZES)
    if len(x) == 1:
        latency = fit(x, y).alpha_ns
        return Pieces((0.0, float(x[0])), (latency, float(y[0]))), LeftOutErrors(x, np.full(1, np.nan))
    most = MAX_PIECES if len(x) >= _MIN_SIZES_FOR_PIECES else 1
    errors = _left_out(x, y, most)
    inner = slice(1, -1) if len(x) > 2 else slice(None)
    best = int(np.abs(errors[:, inner]).mean(axis=1).argmin())
    return _fits(x, y, best + 1)[-1], LeftOutErrors(x, errors[best])


def _left_out(x: Floats, y: Floats, most: int) -> Floats:
    """Return log(measured / predicted) of each size from fits to the others, a row per number of pieces."""
    out = np.empty((most, len(x)))
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        fits = _fits(x[others], y[others], most)
        out[:, i] = [np.log(y[i] / pieces.time_ns(x[i])) for pieces in fits]
    return out


def _fits(x: Floats, y: Floats, most: int) -> list[Pieces]:
    """Return the best lines with one piece, two and so on, joints added one after another."""
    joints = np.zeros((1, 0))
    coefficients, _ = _coefficients(x, y, joints)
    fits = [_pieces(x, joints[0], coefficients[0])]
    for _ in range(most - 1):
        free = np.setdiff1d(x[1:-1], joints)
        tried = np.array([np.sort(np.append(joints, size)) for size in free])
        coefficients, loss = _coefficients(x, y, tried)
        best = int(loss.argmin())
        joints = tried[[best]]
        fits.append(_pieces(x, joints[0], coefficients[best]))
    return fits


def _pieces(x: Floats, joints: Floats, coefficients: Floats) -> Pieces:
    return Pieces((0.0, *joints.tolist(), float(x[-1])), tuple(np.cumsum(coefficients).tolist()))


def _coefficients(x: Floats, y: Floats, joints: Floats) -> tuple[Floats, Floats]:
    """Return coefficients and loss for each row of joints (damped Gauss-Newton on their logarithms)."""
    ramps, knots = _ramps(x, joints)
    start = np.interp(knots, x, y)
    steps = np.maximum(np.diff(start, axis=1), 0.02 * y.min())
    logs = np.log(np.concatenate((start[:, :1], steps), axis=1))
    damping = 1e-3 * np.eye(logs.shape[1])
    for _ in range(_ITERATIONS):
        residual, jacobian = _residuals(ramps, logs, y)
        weighted = jacobian * np.minimum(1, _HUBER / np.maximum(np.abs(residual), 1e-12))[..., None]
        curvature = np.swapaxes(weighted, 1, 2) @ jacobian + damping
        gradient = np.swapaxes(weighted, 1, 2) @ residual[..., None]
        logs = logs - np.clip(np.linalg.solve(curvature, gradient)[..., 0], -1, 1)
    error = np.abs(_residuals(ramps, logs, y)[0])
    loss = np.where(error < _HUBER, 0.5 * error**2, _HUBER * (error - 0.5 * _HUBER)).sum(axis=1)
    return np.exp(logs), loss


def _ramps(x: Floats, joints: Floats) -> tuple[Floats, Floats]:
    """Return the constant and the ramps at each size, and all knots, for each row of joints."""
    rows = len(joints)
    knots = np.concatenate((np.zeros((rows, 1)), joints, np.full((rows, 1), x[-1])), axis=1)
    rise = (x[None, :, None] - knots[:, None, :-1]) / np.diff(knots, axis=1)[:, None, :]
    rise = np.maximum(rise, 0)
    rise[:, :, :-1] = np.minimum(rise[:, :, :-1], 1)
    return np.concatenate((np.ones((rows, len(x), 1)), rise), axis=2), knots


def _residuals(ramps: Floats, logs: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return log(predicted / measured) and its derivative by the logarithms of the coefficients."""
    parts = ramps * np.exp(logs)[:, None, :]
    predicted = parts.sum(axis=2)
    return np.log(predicted / y), parts / predicted[..., None]
