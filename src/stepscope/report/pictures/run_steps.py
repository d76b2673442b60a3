"""Step time over the whole run, all ranks: the band from the fastest to the slowest, the median, single ranks, and what
is special about single steps.
"""

import numpy as np

from stepscope.analyze.step.run_steps import MARKED, RunSteps
from stepscope.report.pictures.axes import Scale, bottom_axis, left_axis, round_ticks, some_of, time_text, time_tick
from stepscope.report.pictures.drawing import Drawing, Shape, dot, polygon, polyline, rect
from stepscope.units import NS_PER_MS

WIDTH, HEIGHT, LEFT, BASE, TOP = 1180, 250, 66, 224, 22
MAX_POINTS = 600
MAX_LINES = 6
MAX_DOTS = 300
"""special steps that are marked, the longest first"""
_CLIP = 4.0
"""times of the median that the picture reaches at most for a few outliers; what is beyond is drawn at its edge"""
_LINES = ("forward", "copy", "input", "optimizer", "host", "transfer")
_MARKS = dict(zip(MARKED, ("input", "copy", "optimizer", "transfer", "host"), strict=True))


def run_steps_drawing(found: RunSteps, *, outliers: frozenset[int] = frozenset()) -> Drawing:
    """Return the picture; `outliers` are numbers of steps that stand out from their neighbours."""
    ms = found.dur_ns / NS_PER_MS
    with np.errstate(all="ignore"):
        low, middle, high = (np.nanmin(ms, axis=0), np.nanmedian(ms, axis=0), np.nanmax(ms, axis=0))
    usual = float(np.nanmedian(middle))
    ticks = round_ticks(min(float(np.nanmax(high)), max(_CLIP * usual, float(np.nanpercentile(high, 95)))))
    y = Scale(0, ticks[-1], BASE, TOP)
    first, last = int(found.step[0]), int(found.step[-1])
    x = Scale(first, max(last, first + 1), LEFT, WIDTH - 10)
    kept = _buckets(high, len(found.step))
    steps = found.step[kept]
    shapes: list[Shape] = _windows(found, x)
    shapes += left_axis(ticks, y, x0=LEFT, x1=WIDTH - 4, text=time_tick)

    def line(values: np.ndarray) -> list[tuple[float, float]]:
        return [(x(s), y(min(v, ticks[-1]))) for s, v in zip(steps, values[kept], strict=True) if v == v]

    many = len(found.ranks) > 1
    if many:
        shapes.append(polygon([*line(low), *reversed(line(high))], "other", opacity=0.35))
    named = _lines_of(found, ms)
    for k, (rank, values) in enumerate(named):
        shapes.append(polyline(line(values), _LINES[k], width=1, tip=(f"rank {rank}",)))
    shapes.append(polyline(line(middle), "text", width=1.5))
    shapes += _dots(found, x, y, middle, high, outliers)
    shapes += bottom_axis([float(s) for s in some_of(steps.tolist(), 8)], x, y=BASE, text=lambda s: f"{s:.0f}")
    return Drawing(
        title="Step time of the whole run",
        width=WIDTH,
        height=HEIGHT,
        label=f"Times of steps {first} to {last} on {len(found.ranks)} ranks, median {time_text(usual)}",
        shapes=tuple(shapes),
        legend=tuple(_legend(found, [rank for rank, _ in named], outliers)),
        notes=tuple(_notes(found, len(kept))),
        head=("step", "median over ranks", "fastest", "slowest", "slowest rank", "remark"),
        rows=tuple(_row(found, k, low, middle, high, ms, outliers) for k in kept),
    )


def _buckets(high: np.ndarray, num: int) -> list[int]:
    """Return which steps are drawn: all, or the longest of equal stretches."""
    stretches = np.array_split(np.arange(num), min(num, MAX_POINTS))
    return [int(s[np.nanargmax(np.nan_to_num(high[s]))]) for s in stretches if len(s)]


def _windows(found: RunSteps, x: Scale) -> list[Shape]:
    """Return the stretches of steps that ran under the profiler as one band each."""
    if found.profiled.all():
        return []
    edges = np.flatnonzero(np.diff(np.concatenate(([False], found.profiled, [False])).astype(int)))
    bands = []
    for begin, end in edges.reshape(-1, 2).tolist():
        left, right = x(int(found.step[begin]) - 0.5), x(int(found.step[end - 1]) + 0.5)
        said = f"profiled: steps {found.step[begin]} to {found.step[end - 1]}"
        bands.append(
            rect(max(left, LEFT), TOP, right - max(left, LEFT), BASE - TOP, "range", opacity=0.55, tip=(said,))
        )
    return bands


def _lines_of(found: RunSteps, ms: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return the ranks that get a line of their own: all of a few, else those that are slowest."""
    if len(found.ranks) < 2:
        return []
    by_median = np.argsort(-np.nan_to_num(np.nanmedian(ms, axis=1)), kind="stable")[:MAX_LINES]
    return [(found.ranks[r], ms[r]) for r in (sorted(by_median.tolist()))]


def _dots(
    found: RunSteps, x: Scale, y: Scale, middle: np.ndarray, high: np.ndarray, outliers: frozenset[int]
) -> list[Shape]:
    shapes = []
    special = [k for k, step in enumerate(found.step.tolist()) if step in outliers or step in found.marks]
    for k in sorted(special, key=lambda k: -float(high[k]))[:MAX_DOTS]:
        step = int(found.step[k])
        mark = found.marks.get(step)
        colour = _MARKS[mark] if mark else "high"
        said = [f"step {step}: {time_text(float(middle[k]))}", *([mark.replace("_", " ")] if mark else ["outlier"])]
        shapes.append(dot(x(step), y(min(float(high[k]), y.high)), 4, colour, tip=said))
    return shapes


def _legend(found: RunSteps, named: list[int], outliers: frozenset[int]) -> list[tuple[str, str]]:
    entries = [("text", "median over ranks" if len(found.ranks) > 1 else "step")]
    if len(found.ranks) > 1:
        entries.append(("other", "fastest to slowest rank"))
    entries += [(_LINES[k], f"rank {rank}") for k, rank in enumerate(named)]
    entries += [] if found.profiled.all() else [("range", "profiled")]
    entries += [(_MARKS[mark], mark.replace("_", " ")) for mark in dict.fromkeys(found.marks.values())]
    return entries + ([("high", "outlier")] if outliers - found.marks.keys() else [])


def _notes(found: RunSteps, drawn: int) -> list[str]:
    all_ = len(found.step)
    lines = [f"From the {found.source}{'' if found.source == 'step logs' else ', all of them profiled'}."]
    if drawn < all_:
        lines.append(f"Of {all_:,} steps the longest of each of {drawn} stretches is drawn.")
    if len(found.ranks) > MAX_LINES:
        lines.append(f"The {MAX_LINES} ranks with the longest steps have a line of their own.")
    return lines


def _row(
    found: RunSteps, k: int, low: np.ndarray, middle: np.ndarray, high: np.ndarray, ms: np.ndarray,
    outliers: frozenset[int],
) -> tuple[str, ...]:  # fmt: skip
    step = int(found.step[k])
    mark = found.marks.get(step, "").replace("_", " ")
    remark = ", ".join(
        w for w in (mark, "outlier" if step in outliers else "", "profiled" * bool(found.profiled[k])) if w
    )
    slowest = found.ranks[int(np.nanargmax(np.nan_to_num(ms[:, k])))]
    return (str(step), *(time_text(float(v[k])) for v in (middle, low, high)), f"rank {slowest}", remark)
