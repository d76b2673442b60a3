"""Scales with round ticks: times, bytes and plain numbers along a side of a picture."""

from collections.abc import Callable, Sequence
from math import ceil, floor, log10

from stepscope.dataclass import dataclass
from stepscope.report.pictures.drawing import Shape, polyline, words
from stepscope.units import readable_bytes

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def round_ticks(most: float, *, about: int = 4) -> list[float]:
    """Return round numbers from 0 to `most` or just above it.

    >>> round_ticks(77.7)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    rough = max(most, 1e-12) / about
    power = 10.0 ** floor(log10(rough))
    step = next(s for s in _STEPS if s * power >= rough * 0.999) * power
    return [i * step for i in range(ceil(most / step - 1e-9) + 1)]


def time_text(ms: float) -> str:
    """Return a time as people read it, with the digits that the page shows.

    >>> time_text(0), time_text(12.5), time_text(0.25), time_text(12_000)
    ('0 ms', '12.5 ms', '250 µs', '12.0 s')
    """
    if not ms:
        return "0 ms"
    for limit, scale, unit in ((10_000, 1e-3, "s"), (0.9995, 1, "ms"), (0.0009995, 1e3, "µs")):
        if abs(ms) >= limit:
            return f"{digits(ms * scale)} {unit}"
    return f"{ms * 1e6:.0f} ns"


def time_tick(ms: float) -> str:
    """Return a round time.

    >>> time_tick(0), time_tick(20), time_tick(2.5)
    ('0', '20 ms', '2.5 ms')
    """
    if not ms:
        return "0"
    number, unit = time_text(ms).split()
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def bytes_text(size: float) -> str:
    """Return a size as people read it."""
    return readable_bytes(round(size))


def bytes_tick(size: float) -> str:
    """Return a round size.

    >>> bytes_tick(0), bytes_tick(20_000_000), bytes_tick(2_500)
    ('0', '20 MB', '2.5 kB')
    """
    if not size:
        return "0"
    number, unit = readable_bytes(size).split()
    return f"{float(number):g} {unit}"


def digits(value: float) -> str:
    """Return a number with the digits that the page shows.

    >>> digits(2.954), digits(29.54), digits(2954)
    ('2.95', '29.5', '2,954')
    """
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{places}f}"


@dataclass(frozen=True)
class Scale:
    """Numbers from `low` to `high` onto a picture from `start` to `end`; logarithmic if asked."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a number."""
        low, high, at = (log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / ((high - low) or 1)


def powers(low: float, high: float) -> list[float]:
    """Return the powers of ten from the one at or below `low` to the one at or above `high`."""
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    return [10.0**k for k in range(first, max(last, first + 1) + 1)]


def left_axis(ticks: Sequence[float], y: Scale, *, x0: float, x1: float, text: Callable[[float], str]) -> list[Shape]:
    """Return lines across the picture with their numbers to the left."""
    shapes: list[Shape] = []
    for tick in ticks:
        shapes.append(polyline([(x0, y(tick)), (x1, y(tick))], "line", width=1))
        shapes.append(words(x0 - 8, y(tick) + 4, text(tick), anchor="end"))
    return shapes


def bottom_axis(ticks: Sequence[float], x: Scale, *, y: float, text: Callable[[float], str]) -> list[Shape]:
    """Return numbers below the picture."""
    if not ticks:
        return []
    first, last = ticks[0], ticks[-1]
    anchor = {t: "start" if t == first and x(t) < 80 else "end" if t == last else "middle" for t in ticks}
    return [words(x(t), y + 18, text(t), anchor=anchor[t]) for t in ticks]


def some_of(values: Sequence[float], most: int) -> list[float]:
    """Return at most so many of the values, evenly spread, the first among them."""
    every = max(1, ceil(len(values) / most))
    return list(values[::every])
