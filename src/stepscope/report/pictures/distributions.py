"""How long kernels are, and how much work lies queued: two pictures of bars."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.kernels.distributions import FIRST_BIN_NS, NUM_BINS, QUEUE_EDGES, Distributions
from stepscope.report.pictures.axes import Scale, left_axis, round_ticks, time_text, time_tick
from stepscope.report.pictures.drawing import Drawing, Shape, rect, words
from stepscope.units import NS_PER_MS

WIDTH, HEIGHT, LEFT, BASE, TOP = 560, 250, 66, 206, 10
MAX_FAMILIES = 6
_COLOURS = {
    "communication": "transfer", "gemm": "forward", "attention": "input", "elementwise": "other",
    "normalisation": "host", "copy": "copy", "optimizer": "optimizer", "others": "unknown",
}  # fmt: skip
"""as elsewhere on the page: communication is orange, copies are green"""
_FURTHER = ("unmatched", "range", "backward", "idle", "input", "host", "optimizer")


def durations_drawing(found: Distributions) -> Drawing:
    """Return the time in kernels of each duration, by family."""
    kept = [*found.families[:MAX_FAMILIES], *(["others"] if len(found.families) > MAX_FAMILIES else [])]
    colours = _colours(kept)
    time_ms, count = _joined(found.time_ns) / NS_PER_MS, _joined(found.count)
    used = [b for b in range(NUM_BINS) if sum(float(row[b]) for row in count) > 0]
    bins = list(range(used[0], used[-1] + 1))
    ticks = round_ticks(max(sum(float(row[b]) for row in time_ms) for b in bins))
    y, wide = Scale(0, ticks[-1], BASE, TOP), (WIDTH - LEFT - 8) / len(bins)
    shapes = left_axis(ticks, y, x0=LEFT, x1=WIDTH - 4, text=time_tick)
    for k, b in enumerate(bins):
        below, at = 0.0, LEFT + k * wide
        for colour, name, times, counts in zip(colours, kept, time_ms, count, strict=True):
            value = float(times[b])
            if value > 0:
                said = (f"{_range(b)}: {name}", f"{time_text(value)} in {counts[b]:,.0f} kernels")
                shapes.append(rect(at + 2, y(below + value), wide - 4, y(below) - y(below + value), colour, tip=said))
            below += value
        if k % (1 if len(bins) <= 8 else 3) == 0:
            shapes.append(words(at + wide / 2, BASE + 16, _edge(b), anchor="middle"))
    shapes.append(words((LEFT + WIDTH) / 2, HEIGHT - 8, "duration of a kernel", anchor="middle"))
    rows = [
        (_range(b), name, f"{counts[b]:,.0f}", time_text(float(times[b])))
        for b in bins
        for name, times, counts in zip(kept, time_ms, count, strict=True)
        if counts[b] > 0
    ]
    return Drawing(
        title="Time in kernels of each duration",
        width=WIDTH, height=HEIGHT, shapes=tuple(shapes),
        label=f"Time in kernels by duration, from {_edge(bins[0])} to {_edge(bins[-1])}",
        legend=tuple(zip(colours, kept, strict=True)),
        notes=("Per rank over the window. Bins double; one below 10 µs is about as short as its launch.",),
        head=("duration", "family", "kernels", "time"), rows=tuple(rows),
    )  # fmt: skip


def queue_drawing(found: Distributions, *, several_ranks: bool = True) -> Drawing | None:
    """Return how long the device's queue was for how much of the time, None where no launch was recorded."""
    if found.queue_median is None:
        return None
    shares = [100 * float(s) for s in found.queue_share]
    bins = list(range(max(k for k, s in enumerate(shares) if s > 0 or k == 0) + 1))
    ticks = round_ticks(max(shares))
    y, wide = Scale(0, ticks[-1], BASE, TOP), (WIDTH - LEFT - 8) / len(bins)
    shapes: list[Shape] = left_axis(ticks, y, x0=LEFT, x1=WIDTH - 4, text=lambda v: f"{v:g} %")
    for k in bins:
        said = (f"{_length(k)} launched and not begun", f"{shares[k]:.1f} % of the time")
        colour = "wait" if k == 0 else "host" if k < 3 else "forward"
        shapes.append(rect(LEFT + k * wide + 2, y(shares[k]), wide - 4, BASE - y(shares[k]), colour, tip=said))
        shapes.append(words(LEFT + (k + 0.5) * wide, BASE + 16, str(QUEUE_EDGES[k]), anchor="middle"))
    shapes.append(words((LEFT + WIDTH) / 2, HEIGHT - 8, "operations in the queue, at least", anchor="middle"))
    return Drawing(
        title="Work queued on the device",
        width=WIDTH, height=HEIGHT, shapes=tuple(shapes),
        label="Share of time by length of the device's queue; the table below holds its numbers",
        legend=(("wait", "empty: the device waits"), ("host", "nearly empty"), ("forward", "the host is ahead")),
        notes=(f"Half of all launches find {found.queue_median:,.0f} or more before them.",)
        + (("Mean over ranks.",) if several_ranks else ()),
        head=("in the queue", "of the time"), rows=tuple((_length(k), f"{shares[k]:.1f} %") for k in bins),
    )  # fmt: skip


def _colours(families: Sequence[str]) -> list[str]:
    """Return a colour for each family, the same in every run for the usual ones."""
    used = {_COLOURS[name] for name in families if name in _COLOURS}
    further = iter([colour for colour in _FURTHER if colour not in used])
    return [_COLOURS[name] if name in _COLOURS else next(further, "unknown") for name in families]


def _joined(by_family: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the first families as they are and all others as one."""
    if len(by_family) <= MAX_FAMILIES:
        return by_family
    return np.vstack((by_family[:MAX_FAMILIES], by_family[MAX_FAMILIES:].sum(axis=0)))


def _edge(b: int) -> str:
    return "< 2 µs" if b == 0 else time_tick(FIRST_BIN_NS * 2 ** (b - 1) / NS_PER_MS)


def _range(b: int) -> str:
    low = FIRST_BIN_NS * 2 ** (b - 1) / NS_PER_MS
    if b == 0:
        return "below 2 µs"
    return f"{time_tick(low)} to {time_tick(2 * low)}" if b < NUM_BINS - 1 else f"{time_tick(low)} and more"


def _length(k: int) -> str:
    low = QUEUE_EDGES[k]
    if k + 1 == len(QUEUE_EDGES):
        return f"{low} or more"
    high = QUEUE_EDGES[k + 1] - 1
    return str(low) if high == low else f"{low} to {high}"
