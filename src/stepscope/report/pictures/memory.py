"""Memory of every rank over the recorded steps and over the whole run, and what is alive at the peak."""

from collections.abc import Callable, Sequence

import numpy as np

from stepscope.analyze.memory.usage import MemoryView, RankMemory
from stepscope.report.pictures.axes import Scale, bottom_axis, bytes_text, bytes_tick, left_axis, round_ticks
from stepscope.report.pictures.axes import time_tick as time_text
from stepscope.report.pictures.drawing import Drawing, Shape, dot, polyline, rect, words
from stepscope.run.step_log import StepLog
from stepscope.units import NS_PER_MS

WIDTH, HEIGHT, LEFT, BASE, TOP = 560, 230, 66, 198, 12
MAX_LINES = 6
MAX_POINTS = 150
MAX_HOLDERS = 10
_LINES = ("forward", "transfer", "copy", "input", "optimizer", "host")

Curve = tuple[int, Sequence[float], Sequence[float]]
"""rank, where, bytes"""


def memory_over_steps_drawing(view: MemoryView) -> Drawing | None:
    """Return what each rank had allocated over the recorded steps, None where no allocation was recorded."""
    curves: list[Curve] = []
    for rank in view.ranks:
        line = rank.timeline
        if line is None or not line.time_ns:
            continue
        kept = _thinned(np.array(line.allocated_bytes, float))
        times = [line.time_ns[i] / NS_PER_MS for i in kept]
        curves.append((rank.rank, times, [float(line.allocated_bytes[i]) for i in kept]))
    peaks = {r.rank: (r.peak.time_ns / NS_PER_MS, float(r.peak.allocated_bytes)) for r in view.ranks if r.peak}
    if not curves:
        return None
    title, said = "Memory over the recorded steps, every rank", "Allocated, since the first recorded step began."
    return _lines(curves, title, note=said, across=time_text, steps=True, peaks=peaks)


def memory_over_run_drawing(logs: Sequence[StepLog]) -> Drawing | None:
    """Return what each rank had allocated, else resident, at each logged step; None where nothing was sampled."""
    for name, what in (("allocated_bytes", "allocated on the device"), ("host_bytes", "resident in the process")):
        curves: list[Curve] = []
        for log in logs:
            values = log.column(f"memory.{name}")
            known = np.flatnonzero(np.isfinite(values))
            kept = known[_thinned(values[known])] if len(known) else known
            if len(kept) > 1:
                curves.append((log.rank, log.step[kept].astype(float).tolist(), values[kept].tolist()))
        if curves and any(max(c[2]) > 0 for c in curves):
            note = f"Memory {what}, sampled once per step."
            return _lines(curves, "Memory over the run, every rank", note=note, across=lambda s: f"step {s:.0f}")
    return None


def peak_drawing(view: MemoryView) -> Drawing | None:
    """Return what is alive at the fullest rank's peak as bars, None where blocks could not be told."""
    rank = next((r for r in view.ranks if r.rank == view.fullest_rank), None)
    if rank is None or rank.peak is None:
        return None
    rows = _alive(rank)
    if not rows:
        return None
    most = max(size for _, size, _ in rows)
    line, left, right = 22, 230, WIDTH - 96
    shapes: list[Shape] = []
    for k, (name, size, colour) in enumerate(rows):
        y = k * line
        short = name if len(name) <= 34 else "…" + name[-33:]
        shapes.append(words(left - 8, y + 15, short, anchor="end"))
        shapes.append(rect(left, y + 4, (right - left) * size / most, line - 8, colour, tip=(name, bytes_text(size))))
        shapes.append(words(left + (right - left) * size / most + 6, y + 15, bytes_text(size)))
    peak = rank.peak
    during = f", during {peak.operator}" if peak.operator else ""
    where = f"in step {peak.step}" if peak.step is not None else "outside of all steps"
    return Drawing(
        title=f"Alive at the peak of rank {rank.rank}", width=WIDTH, height=len(rows) * line + 4, shapes=tuple(shapes),
        label=f"{bytes_text(peak.allocated_bytes)} are allocated at the peak of rank {rank.rank}",
        legend=(("forward", "by category"), ("copy", "by line, or operator, that allocated it")),
        notes=(f"{bytes_text(peak.allocated_bytes)} {where} ({peak.phase} pass{during}).",),
        head=("what", "alive"), rows=tuple((name, bytes_text(size)) for name, size, _ in rows),
    )  # fmt: skip


def _alive(rank: RankMemory) -> list[tuple[str, int, str]]:
    """Return categories, then lines (operators where no line is known), the largest first."""
    if rank.peak is None:
        return []
    categories = [(n.replace("_", " "), s, "forward") for n, s in (rank.peak.by_category or {}).items() if s]
    holders = rank.peak.by_source_line or rank.peak.by_operator
    lines = [(h.name, h.size_bytes, "copy") for h in holders[:MAX_HOLDERS] if h.size_bytes > 0]
    return [*sorted(categories, key=lambda c: -c[1]), *lines]


def _thinned(values: np.ndarray) -> np.ndarray:
    """Return places of the largest of equal stretches, so that no peak is lost."""
    stretches = np.array_split(np.arange(len(values)), min(len(values), MAX_POINTS))
    return np.array([s[np.argmax(values[s])] for s in stretches if len(s)], np.int64)


def _lines(
    curves: list[Curve], title: str, *, note: str, across: Callable[[float], str], steps: bool = False,
    peaks: dict[int, tuple[float, float]] | None = None,
) -> Drawing:  # fmt: skip
    """Return one line per rank: those that need most by name, all others as a band."""
    first, last = min(c[1][0] for c in curves), max(c[1][-1] for c in curves)
    ticks = round_ticks(max(max(c[2]) for c in curves))
    x, y = Scale(first, last if last > first else first + 1, LEFT, WIDTH - 8), Scale(0, ticks[-1], BASE, TOP)
    shapes = left_axis(ticks, y, x0=LEFT, x1=WIDTH - 4, text=bytes_tick)
    by_most = sorted(curves, key=lambda c: -max(c[2]))
    named, others = sorted(by_most[:MAX_LINES], key=lambda c: c[0]), by_most[MAX_LINES:]
    for rank, where, values in others:
        shapes.append(polyline(_path(where, values, x, y, steps=steps), "unknown", width=0.8, tip=(f"rank {rank}",)))
    for k, (rank, where, values) in enumerate(named):
        said = (f"rank {rank}", f"at most {bytes_text(max(values))}")
        shapes.append(polyline(_path(where, values, x, y, steps=steps), _LINES[k], tip=said))
        if peaks and rank in peaks:
            at, size = peaks[rank]
            shapes.append(
                dot(x(min(max(at, first), last)), y(min(size, ticks[-1])), 3.5, _LINES[k], tip=("peak", *said))
            )
    marks = [t for t in round_ticks(last, about=5) if first <= t <= last and (steps or t == int(t))] or [first, last]
    shapes += bottom_axis(marks, x, y=BASE, text=across)
    legend = [(_LINES[k], f"rank {c[0]}") for k, c in enumerate(named)]
    return Drawing(
        title=title, width=WIDTH, height=HEIGHT, shapes=tuple(shapes),
        label=f"{title}: at most {bytes_text(max(max(c[2]) for c in curves))} of {len(curves)} ranks",
        legend=(*legend, *([("unknown", f"{len(others)} other ranks")] if others else [])),
        notes=(note,), head=("rank", "least", "most"),
        rows=tuple((str(c[0]), bytes_text(min(c[2])), bytes_text(max(c[2]))) for c in curves),
    )  # fmt: skip


def _path(
    where: Sequence[float], values: Sequence[float], x: Scale, y: Scale, *, steps: bool
) -> list[tuple[float, float]]:
    """Return the points of a line; memory stays what it is until the next event where `steps` says so."""
    points: list[tuple[float, float]] = []
    for at, value in zip(where, values, strict=True):
        if steps and points:
            points.append((x(at), points[-1][1]))
        points.append((x(at), y(value)))
    return points
