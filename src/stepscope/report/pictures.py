"""Every picture of a run by name; a picture that has nothing to show is missing."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.collective_costs import CollectiveRow, RankMatrix, rank_matrix
from stepscope.analyze.kernels import FIRST_BIN_NS, NUM_BINS, QUEUE_EDGES, Distributions, Kernel, distributions
from stepscope.analyze.memory import MemoryView, RankMemory
from stepscope.analyze.model_parallel import ExpertsView
from stepscope.analyze.steadiness import MARKED, RunSteps, run_steps
from stepscope.contract.collectives import bus_factor
from stepscope.cost.calibration import Calibration
from stepscope.cost.chips import Chip
from stepscope.diagnose.findings import Diagnosis
from stepscope.errors import UsageError
from stepscope.report.drawing import (
    Drawing,
    Scale,
    Shape,
    bottom_axis,
    bytes_text,
    bytes_tick,
    digits,
    dot,
    left_axis,
    polygon,
    polyline,
    powers,
    rect,
    round_ticks,
    some_of,
    time_text,
    vertical_grid,
    words,
)
from stepscope.report.drawing import time_tick as axes_time_text
from stepscope.report.step_pictures import pipeline_drawing
from stepscope.units import NS_PER_MS, ms
from stepscope.whatif.settings import Switches, switches

# What bandwidth did each group's collectives reach, and what does this machine's calibration say they could?

WIDTH, LINE, LEFT, RIGHT = 560, 26, 190, 470
MAX_ROWS = 14
_UNITS = (("GB/s", 1.0, 0.1), ("MB/s", 1e3, 1e-4), ("kB/s", 1e6, 0.0))


def bandwidth_drawing(rows: Sequence[CollectiveRow], calibration: Calibration | None) -> Drawing | None:
    """Return bus bandwidth by operation and group, None where none is known."""
    known = [(r, r.busbw_gb_per_s) for r in rows if r.busbw_gb_per_s and r.size_bytes and r.count]
    if not known:
        return None
    known = sorted(known, key=lambda pair: -(pair[0].size_bytes or 0))[:MAX_ROWS]
    could = [_calibrated(calibration, row) for row, _ in known]
    most = max(*(bw for _, bw in known), *(c or 0 for c in could))
    unit, per = next((u, p) for u, p, least in _UNITS if most >= least)
    ticks = [tick / per for tick in round_ticks(most * per)]
    x = Scale(0, ticks[-1], LEFT, RIGHT)
    bottom = len(known) * LINE
    shapes = vertical_grid(ticks, x, bottom=bottom, text=lambda tick: f"{tick * per:g}")
    shapes.append(words((LEFT + RIGHT) / 2, bottom + 32, f"{unit} on the bus", anchor="middle"))
    table = []
    for k, ((row, bw), limit) in enumerate(zip(known, could, strict=True)):
        y, name = k * LINE, f"{row.op} · {row.group.desc or row.group.name}"
        size = bytes_text((row.size_bytes or 0) / row.count)
        share = f", {100 * bw / limit:.0f} % of the calibrated {digits(limit * per)}" if limit else ""
        said = (name, f"{digits(bw * per)} {unit}{share}", f"{row.count:,} of {size} each")
        shapes.append(words(LEFT - 8, y + 17, name if len(name) <= 28 else name[:27] + "…", anchor="end"))
        shapes.append(rect(LEFT, y + 5, x(bw) - LEFT, LINE - 10, "transfer", tip=said))
        if limit:
            shapes.append(rect(x(limit) - 1.5, y + 1, 3, LINE - 2, "text", tip=said))
        shapes.append(words(max(x(bw), x(limit or 0)) + 6, y + 17, f"{digits(bw * per)}"))
        table.append((name, size, f"{digits(bw * per)}", f"{digits(limit * per)}" if limit else "unknown"))
    calibrated = any(could)
    note = "Lines are what this machine's calibration measured for the mean size." if calibrated else (
        "Without a calibration of this machine there is no line to hold them against (stepscope calibrate)."
    )  # fmt: skip
    return Drawing(
        title="Bandwidth of each group's collectives", width=WIDTH, height=bottom + 38, shapes=tuple(shapes),
        label=f"Bus bandwidth of {len(known)} operations, at most {digits(most * per)} {unit}",
        legend=(("transfer", "in this run, without waiting"), *((("text", "calibrated"),) if calibrated else ())),
        notes=(note,), head=("collective", "mean size", unit, f"calibrated {unit}"), rows=tuple(table),
    )  # fmt: skip


def _calibrated(calibration: Calibration | None, row: CollectiveRow) -> float | None:
    ranks = row.group.size
    if calibration is None or not ranks or ranks < 2:
        return None
    size = (row.size_bytes or 0) / row.count
    try:
        took = calibration.predict(row.op, size_bytes=size, world_size=ranks).time_ns
    except UsageError:
        return None
    return size * bus_factor(row.op, ranks) / took if took else None


# How long kernels are, and how much work lies queued: two pictures of bars.

DISTRIBUTIONS_WIDTH, HEIGHT, DISTRIBUTIONS_LEFT, BASE, TOP = 560, 250, 66, 206, 10
_MAX_FAMILIES = 6
# as elsewhere on the page: communication is orange, copies are green
_COLOURS = {
    "communication": "transfer", "gemm": "forward", "attention": "input", "elementwise": "other",
    "normalisation": "host", "copy": "copy", "optimizer": "optimizer", "others": "unknown",
}  # fmt: skip
_FURTHER = ("unmatched", "range", "backward", "idle", "input", "host", "optimizer")


def durations_drawing(found: Distributions) -> Drawing:
    """Return the time in kernels of each duration, by family."""
    kept = [*found.families[:_MAX_FAMILIES], *(["others"] if len(found.families) > _MAX_FAMILIES else [])]
    colours = _colours(kept)
    time_ms, count = _joined(found.time_ns) / NS_PER_MS, _joined(found.count)
    used = [b for b in range(NUM_BINS) if sum(float(row[b]) for row in count) > 0]
    bins = list(range(used[0], used[-1] + 1))
    ticks = round_ticks(max(sum(float(row[b]) for row in time_ms) for b in bins))
    y, wide = Scale(0, ticks[-1], BASE, TOP), (DISTRIBUTIONS_WIDTH - DISTRIBUTIONS_LEFT - 8) / len(bins)
    shapes = left_axis(ticks, y, x0=DISTRIBUTIONS_LEFT, x1=DISTRIBUTIONS_WIDTH - 4, text=axes_time_text)
    for k, b in enumerate(bins):
        below, at = 0.0, DISTRIBUTIONS_LEFT + k * wide
        for colour, name, times, counts in zip(colours, kept, time_ms, count, strict=True):
            value = float(times[b])
            if value > 0:
                said = (f"{_range(b)}: {name}", f"{time_text(value)} in {counts[b]:,.0f} kernels")
                shapes.append(rect(at + 2, y(below + value), wide - 4, y(below) - y(below + value), colour, tip=said))
            below += value
        if k % (1 if len(bins) <= 8 else 3) == 0:
            shapes.append(words(at + wide / 2, BASE + 16, _edge(b), anchor="middle"))
    shapes.append(
        words((DISTRIBUTIONS_LEFT + DISTRIBUTIONS_WIDTH) / 2, HEIGHT - 8, "duration of a kernel", anchor="middle")
    )
    rows = [
        (_range(b), name, f"{counts[b]:,.0f}", time_text(float(times[b])))
        for b in bins
        for name, times, counts in zip(kept, time_ms, count, strict=True)
        if counts[b] > 0
    ]
    return Drawing(
        title="Time in kernels of each duration",
        width=DISTRIBUTIONS_WIDTH, height=HEIGHT, shapes=tuple(shapes),
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
    y, wide = Scale(0, ticks[-1], BASE, TOP), (DISTRIBUTIONS_WIDTH - DISTRIBUTIONS_LEFT - 8) / len(bins)
    shapes: list[Shape] = left_axis(
        ticks, y, x0=DISTRIBUTIONS_LEFT, x1=DISTRIBUTIONS_WIDTH - 4, text=lambda v: f"{v:g} %"
    )
    for k in bins:
        said = (f"{_length(k)} launched and not begun", f"{shares[k]:.1f} % of the time")
        colour = "wait" if k == 0 else "host" if k < 3 else "forward"
        shapes.append(
            rect(DISTRIBUTIONS_LEFT + k * wide + 2, y(shares[k]), wide - 4, BASE - y(shares[k]), colour, tip=said)
        )
        shapes.append(words(DISTRIBUTIONS_LEFT + (k + 0.5) * wide, BASE + 16, str(QUEUE_EDGES[k]), anchor="middle"))
    shapes.append(
        words(
            (DISTRIBUTIONS_LEFT + DISTRIBUTIONS_WIDTH) / 2,
            HEIGHT - 8,
            "operations in the queue, at least",
            anchor="middle",
        )
    )
    return Drawing(
        title="Work queued on the device",
        width=DISTRIBUTIONS_WIDTH, height=HEIGHT, shapes=tuple(shapes),
        label="Share of time by length of the device's queue; the table below holds its numbers",
        legend=(("wait", "empty: the device waits"), ("host", "nearly empty"), ("forward", "the host is ahead")),
        notes=(f"Half of all launches find {found.queue_median:,.0f} or more before them.",)
        + (("Mean over ranks.",) if several_ranks else ()),
        head=("in the queue", "of the time"), rows=tuple((_length(k), f"{shares[k]:.1f} %") for k in bins),
    )  # fmt: skip


def _colours(families: Sequence[str]) -> list[str]:
    used = {_COLOURS[name] for name in families if name in _COLOURS}
    further = iter([colour for colour in _FURTHER if colour not in used])
    return [_COLOURS[name] if name in _COLOURS else next(further, "unknown") for name in families]


def _joined(by_family: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if len(by_family) <= _MAX_FAMILIES:
        return by_family
    return np.vstack((by_family[:_MAX_FAMILIES], by_family[_MAX_FAMILIES:].sum(axis=0)))


def _edge(b: int) -> str:
    return "< 2 µs" if b == 0 else axes_time_text(FIRST_BIN_NS * 2 ** (b - 1) / NS_PER_MS)


def _range(b: int) -> str:
    low = FIRST_BIN_NS * 2 ** (b - 1) / NS_PER_MS
    if b == 0:
        return "below 2 µs"
    return (
        f"{axes_time_text(low)} to {axes_time_text(2 * low)}" if b < NUM_BINS - 1 else f"{axes_time_text(low)} and more"
    )


def _length(k: int) -> str:
    low = QUEUE_EDGES[k]
    if k + 1 == len(QUEUE_EDGES):
        return f"{low} or more"
    high = QUEUE_EDGES[k + 1] - 1
    return str(low) if high == low else f"{low} to {high}"


# How full is each rank of an expert-parallel job, against an even load?

EXPERTS_WIDTH, EXPERTS_LEFT, EXPERTS_LINE = 760, 90, 22
_MAX_RANKS = 64


def _experts_drawing(view: ExpertsView) -> Drawing | None:
    ranks = [(r, r.load_bytes) for r in view.ranks if r.load_bytes is not None]
    if not ranks or not any(load for _, load in ranks):
        return None
    mean = sum(load for _, load in ranks) / len(ranks)
    shown = sorted(ranks, key=lambda pair: -pair[1])[:_MAX_RANKS] if len(ranks) > _MAX_RANKS else ranks
    x = Scale(0, max(load for _, load in ranks), EXPERTS_LEFT, EXPERTS_WIDTH - 230)
    bottom = len(shown) * EXPERTS_LINE
    even = polyline([(x(mean), 0), (x(mean), bottom)], "high", dashed=True, tip=("mean", bytes_text(mean)))
    shapes: list[Shape] = []
    remarks: list[Shape] = []
    for k, (rank, load) in enumerate(shown):
        y, waited = k * EXPERTS_LINE, "" if rank.wait_ns is None else f", {time_text(rank.wait_ns / NS_PER_MS)} waiting"
        said = (f"rank {rank.rank}", f"{bytes_text(load)} per step, {load / mean:.2f} times the mean{waited}")
        shapes.append(words(EXPERTS_LEFT - 8, y + 15, f"rank {rank.rank}", anchor="end"))
        shapes.append(rect(EXPERTS_LEFT, y + 3, x(load) - EXPERTS_LEFT, EXPERTS_LINE - 6, "compute", tip=said))
        remarks.append(words(max(x(load), x(mean) if load < mean else 0) + 8, y + 15, f"{bytes_text(load)}{waited}"))
    what = "embedding rows" if view.kind == "embedding" else "tokens"
    return Drawing(
        title="Load of each rank", width=EXPERTS_WIDTH, height=bottom + 4, shapes=(*shapes, even, *remarks),
        label=f"Load of {len(ranks)} ranks per step, mean {bytes_text(mean)}",
        legend=(("compute", f"{what} to work on, in bytes per step"), ("high", "an even load")),
        head=("rank", "load", "of the mean"),
        rows=tuple((str(r.rank), bytes_text(load), f"{load / mean:.2f}") for r, load in ranks),
    )  # fmt: skip


# Memory of every rank over the recorded steps and over the whole run, and what is alive at the peak.

MEMORY_WIDTH, MEMORY_HEIGHT, MEMORY_LEFT, MEMORY_BASE, MEMORY_TOP = 560, 230, 66, 198, 12
_MAX_LINES = 6
_MAX_POINTS = 150
_MAX_HOLDERS = 10
_LINES = ("forward", "transfer", "copy", "input", "optimizer", "host")

# rank, where, bytes
Curve = tuple[int, Sequence[float], Sequence[float]]


def _memory_over_steps_drawing(view: MemoryView) -> Drawing | None:
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
    return _lines(curves, title, note=said, across=axes_time_text, steps=True, peaks=peaks)


def _peak_drawing(view: MemoryView) -> Drawing | None:
    rank = next((r for r in view.ranks if r.rank == view.fullest_rank), None)
    if rank is None or rank.peak is None:
        return None
    rows = _alive(rank)
    if not rows:
        return None
    most = max(size for _, size, _ in rows)
    line, left, right = 22, 230, MEMORY_WIDTH - 96
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
        title=f"Alive at the peak of rank {rank.rank}",
        width=MEMORY_WIDTH, height=len(rows) * line + 4, shapes=tuple(shapes),
        label=f"{bytes_text(peak.allocated_bytes)} are allocated at the peak of rank {rank.rank}",
        legend=(("forward", "by category"), ("copy", "by line, or operator, that allocated it")),
        notes=(f"{bytes_text(peak.allocated_bytes)} {where} ({peak.phase} pass{during}).",),
        head=("what", "alive"), rows=tuple((name, bytes_text(size)) for name, size, _ in rows),
    )  # fmt: skip


def _alive(rank: RankMemory) -> list[tuple[str, int, str]]:
    if rank.peak is None:
        return []
    categories = [(n.replace("_", " "), s, "forward") for n, s in (rank.peak.by_category or {}).items() if s]
    holders = rank.peak.by_source_line or rank.peak.by_operator
    lines = [(h.name, h.size_bytes, "copy") for h in holders[:_MAX_HOLDERS] if h.size_bytes > 0]
    return [*sorted(categories, key=lambda c: -c[1]), *lines]


def _thinned(values: np.ndarray) -> np.ndarray:
    stretches = np.array_split(np.arange(len(values)), min(len(values), _MAX_POINTS))
    return np.array([s[np.argmax(values[s])] for s in stretches if len(s)], np.int64)


def _lines(
    curves: list[Curve], title: str, *, note: str, across: Callable[[float], str], steps: bool = False,
    peaks: dict[int, tuple[float, float]] | None = None,
) -> Drawing:  # fmt: skip
    first, last = min(c[1][0] for c in curves), max(c[1][-1] for c in curves)
    ticks = round_ticks(max(max(c[2]) for c in curves))
    x, y = (
        Scale(first, last if last > first else first + 1, MEMORY_LEFT, MEMORY_WIDTH - 8),
        Scale(0, ticks[-1], MEMORY_BASE, MEMORY_TOP),
    )
    shapes = left_axis(ticks, y, x0=MEMORY_LEFT, x1=MEMORY_WIDTH - 4, text=bytes_tick)
    by_most = sorted(curves, key=lambda c: -max(c[2]))
    named, others = sorted(by_most[:_MAX_LINES], key=lambda c: c[0]), by_most[_MAX_LINES:]
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
    shapes += bottom_axis(marks, x, y=MEMORY_BASE, text=across)
    legend = [(_LINES[k], f"rank {c[0]}") for k, c in enumerate(named)]
    return Drawing(
        title=title, width=MEMORY_WIDTH, height=MEMORY_HEIGHT, shapes=tuple(shapes),
        label=f"{title}: at most {bytes_text(max(max(c[2]) for c in curves))} of {len(curves)} ranks",
        legend=(*legend, *([("unknown", f"{len(others)} other ranks")] if others else [])),
        notes=(note,), head=("rank", "least", "most"),
        rows=tuple((str(c[0]), bytes_text(min(c[2])), bytes_text(max(c[2]))) for c in curves),
    )  # fmt: skip


def _path(
    where: Sequence[float], values: Sequence[float], x: Scale, y: Scale, *, steps: bool
) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for at, value in zip(where, values, strict=True):
        if steps and points:
            points.append((x(at), points[-1][1]))
        points.append((x(at), y(value)))
    return points


# Rank by rank: who waits for whom, who sends to whom, as squares of a matrix.

_LEFT, _TOP, _PIXELS = 66, 34, 420
# room for the labels, as large as they are on a phone
_LINE, _LETTER = 18, 9
_MAX_ROWS = 40


def waiting_drawing(found: RankMatrix) -> Drawing | None:
    """Return who waits for whom, None where nobody does."""
    return _drawing(
        found, found.waited_ns / NS_PER_MS, "wait", "Who waits for whom", "waits for", time_text,
        "Per step, from a rank's own arrival at a collective to the last one's; waits that lie within the clocks' "
        "doubt are nobody's.",
    )  # fmt: skip


def sending_drawing(found: RankMatrix) -> Drawing | None:
    """Return who sends how much to whom, None where nothing is sent."""
    rings, messages = bool(found.ring_bytes.any()), bool(found.message_bytes.any())
    how = [
        *(["Messages from rank to rank are as recorded."] if messages else []),
        *(
            ["Collectives are counted as a ring sends them, to the next rank of the group: no trace says the way."]
            * rings
        ),
    ]
    sent = found.message_bytes + found.ring_bytes
    return _drawing(found, sent, "transfer", "Who sends to whom", "sends to", bytes_text, "Per step. " + " ".join(how))


def _drawing(
    found: RankMatrix,
    values: npt.NDArray[np.float64],
    colour: str,
    title: str,
    verb: str,
    text: Callable[[float], str],
    note: str,
) -> Drawing | None:
    if not values.any():
        return None
    # more ranks are joined into blocks
    blocks = np.array_split(np.arange(len(found.ranks)), min(len(found.ranks), 32))
    names = [_name(found.ranks, block) for block in blocks]
    joined = np.array([[values[np.ix_(a, b)].sum() for b in blocks] for a in blocks])
    side = min(44.0, _PIXELS / len(blocks))
    most = float(joined.max())
    shapes: list[Shape] = [words(_LEFT, 12, f"row {verb} column", small=False)]
    down, across = ceil(_LINE / side), ceil((_LETTER * max(map(len, names)) + 8) / side)
    for k, name in enumerate(names):
        if k % down == 0:
            shapes.append(words(_LEFT - 8, _TOP + (k + 0.5) * side + 4, name, anchor="end"))
        if k % across == 0:
            shapes.append(words(_LEFT + (k + 0.5) * side, _TOP - 5, name, anchor="middle"))
    for i, row in enumerate(joined):
        for j, value in enumerate(row.tolist()):
            x, y = _LEFT + j * side, _TOP + i * side
            if i == j and len(blocks) == len(found.ranks):
                continue
            said = (f"rank {names[i]} {verb} rank {names[j]}", f"{text(value)} per step")
            if value > 0:
                shapes.append(
                    rect(x + 0.5, y + 0.5, side - 1, side - 1, colour, opacity=0.12 + 0.88 * value / most, tip=said)
                )
            elif len(blocks) <= 16:
                shapes.append(rect(x + 0.5, y + 0.5, side - 1, side - 1, "line", opacity=0.35, tip=said))
    cells = [divmod(k, len(blocks)) for k in np.argsort(-joined, axis=None)[:_MAX_ROWS].tolist()]
    size = int(side * len(blocks))
    return Drawing(
        title=title, width=max(_LEFT + size + 10, 300), height=_TOP + size + 8, shapes=tuple(shapes),
        label=f"{title}: a matrix of {len(blocks)} by {len(blocks)}; the darkest is {text(most)} per step",
        legend=((colour, f"up to {text(most)} per step"),), notes=(note,),
        head=("rank", verb, "per step"),
        rows=tuple((names[i], names[j], text(float(joined[i, j]))) for i, j in cells if joined[i, j] > 0),
    )  # fmt: skip


def _name(ranks: tuple[int, ...], block: npt.NDArray[np.int64]) -> str:
    first, last = ranks[int(block[0])], ranks[int(block[-1])]
    return str(first) if first == last else f"{first}-{last}"


# How fast is each kernel against what the chip can do at its arithmetic intensity?

ROOFLINE_WIDTH, ROOFLINE_HEIGHT, ROOFLINE_LEFT, ROOFLINE_BASE, ROOFLINE_TOP = 560, 300, 66, 262, 26
_MAX_KERNELS = 60
_COLOUR = {"compute-bound": "forward", "memory-bound": "transfer", "latency": "wait"}


def _roofline_drawing(kernels: Sequence[Kernel], chip: Chip | None) -> Drawing | None:
    known = [k for k in kernels if k.tflops and k.gb_per_s][:_MAX_KERNELS]
    if not known or chip is None or not chip.memory_gb_per_s:
        return None
    used = [k.precision for k in known if k.precision]
    roofs = {p: chip.tflops[p] for p in dict.fromkeys(used) if p in chip.tflops} or dict(list(chip.tflops.items())[:1])
    if not roofs:
        return None
    points = [((1e3 * (k.tflops or 0.0) / (k.gb_per_s or 1.0)), k) for k in known]
    ridge = max(roofs.values()) * 1e3 / chip.memory_gb_per_s
    across = powers(min(min(i for i, _ in points), ridge / 9), max(max(i for i, _ in points), ridge * 4))
    up = powers(max(min(k.tflops or 0 for k in known), 1e-3), max(*roofs.values(), *(k.tflops or 0 for k in known)))
    x = Scale(across[0], across[-1], ROOFLINE_LEFT, ROOFLINE_WIDTH - 12, log=True)
    y = Scale(up[0], up[-1], ROOFLINE_BASE, ROOFLINE_TOP, log=True)
    shapes = left_axis(up, y, x0=ROOFLINE_LEFT, x1=ROOFLINE_WIDTH - 8, text=lambda v: f"{v:g}")
    shapes += [words(x(v), ROOFLINE_BASE + 16, f"{v:g}", anchor="end" if v == across[-1] else "middle") for v in across]
    shapes += [
        words(
            (ROOFLINE_LEFT + ROOFLINE_WIDTH) / 2,
            ROOFLINE_HEIGHT - 4,
            "FLOP per byte of the device's memory",
            anchor="middle",
        )
    ]
    shapes += _roofs(roofs, chip.memory_gb_per_s, x, y)
    most = max(k.total_ns for k in known)
    for intensity, k in sorted(points, key=lambda p: -p[1].total_ns):
        radius = 3 + 9 * (k.total_ns / most) ** 0.5
        shapes.append(
            dot(
                x(intensity),
                y(max(k.tflops or 0, up[0])),
                radius,
                _COLOUR.get(k.bound or "", "unknown"),
                tip=_tip(k, intensity),
                opacity=0.8,
            )
        )
    measured = sum(k.measured_share > 0 for k in known)
    return Drawing(
        title="Roofline",
        width=ROOFLINE_WIDTH,
        height=ROOFLINE_HEIGHT,
        label=f"TFLOP/s of {len(known)} kernels by arithmetic intensity below the roof of {chip.name}",
        shapes=tuple(shapes),
        legend=tuple((colour, bound) for bound, colour in _COLOUR.items() if any(k.bound == bound for k in known)),
        notes=(
            f"TFLOP/s over FLOP per byte; a dot is a kernel, its area the time in it. {_source(measured, len(known))}",
            f"The roof is {chip.name}'s dense peak and {chip.memory_gb_per_s:,.0f} GB/s.",
        ),
        head=("kernel", "FLOP per byte", "TFLOP/s", "of the roof", "total", "from"),
        rows=tuple(_row(k, i, roofs, chip.memory_gb_per_s) for i, k in points),
    )


def _source(measured: int, num: int) -> str:
    if not measured:
        return "Modelled: FLOPs and the least bytes from recorded shapes; what really moved was not measured."
    return f"Bytes of {measured} of {num} kernels as Nsight Compute measured them; the others modelled from shapes."


def _roofs(roofs: dict[str, float], gb_per_s: float, x: Scale, y: Scale) -> list[Shape]:
    shapes = []
    for name, tflops in roofs.items():
        ridge = tflops * 1e3 / gb_per_s
        start = max(x.low, y.low * 1e3 / gb_per_s)
        line = [(start, start * gb_per_s / 1e3), (ridge, tflops), (x.high, tflops)]
        shapes.append(polyline([(x(i), y(t)) for i, t in line if i <= x.high], "quiet", width=1.5))
        shapes.append(words(x(x.high), y(tflops) - 5, f"{name} {tflops:,.0f} TFLOP/s", anchor="end"))
    return shapes


def _tip(k: Kernel, intensity: float) -> list[str]:
    source = "measured" if k.measured_share > 0 else "modelled from shapes"
    return [
        k.name,
        f"{k.tflops:,.1f} TFLOP/s, {intensity:,.1f} FLOP per byte ({source})",
        f"{time_text(k.total_ns / NS_PER_MS)} in {k.count:,.0f} launches, {k.bound or 'bound unknown'}",
    ]


def _row(k: Kernel, intensity: float, roofs: dict[str, float], gb_per_s: float) -> tuple[str, ...]:
    flat = roofs.get(k.precision or "", max(roofs.values()))
    share = 100 * (k.tflops or 0) / min(flat, intensity * gb_per_s / 1e3)
    return (
        k.name, f"{intensity:,.1f}", f"{k.tflops:,.1f}", f"{share:.0f} %", time_text(k.total_ns / NS_PER_MS),
        "measured" if k.measured_share > 0 else "shapes",
    )  # fmt: skip


# Step time over the whole run, all ranks: the band from the fastest to the slowest, the median, single ranks, and what
# is special about single steps.

RUN_STEPS_WIDTH, RUN_STEPS_HEIGHT, RUN_STEPS_LEFT, RUN_STEPS_BASE, RUN_STEPS_TOP = 1180, 250, 66, 224, 22

_RUN_STEPS_LINES = ("forward", "copy", "input", "optimizer", "host", "transfer")
_MARKS = dict(zip(MARKED, ("input", "copy", "optimizer", "transfer", "host"), strict=True))


def run_steps_drawing(found: RunSteps, *, outliers: frozenset[int] = frozenset()) -> Drawing:
    """Return the picture; `outliers` are numbers of steps that stand out from their neighbours."""
    ms = found.dur_ns / NS_PER_MS
    with np.errstate(all="ignore"):
        low, middle, high = (np.nanmin(ms, axis=0), np.nanmedian(ms, axis=0), np.nanmax(ms, axis=0))
    usual = float(np.nanmedian(middle))
    # times of the median that the picture reaches at most for a few outliers; what is beyond is drawn at its edge
    ticks = round_ticks(min(float(np.nanmax(high)), max(4.0 * usual, float(np.nanpercentile(high, 95)))))
    y = Scale(0, ticks[-1], RUN_STEPS_BASE, RUN_STEPS_TOP)
    first, last = int(found.step[0]), int(found.step[-1])
    x = Scale(first, max(last, first + 1), RUN_STEPS_LEFT, RUN_STEPS_WIDTH - 10)
    num = len(found.step)
    stretches = np.array_split(np.arange(num), min(num, 600))
    kept = [int(s[np.nanargmax(np.nan_to_num(high[s]))]) for s in stretches if len(s)]
    steps = found.step[kept]
    shapes: list[Shape] = _windows(found, x)
    shapes += left_axis(ticks, y, x0=RUN_STEPS_LEFT, x1=RUN_STEPS_WIDTH - 4, text=axes_time_text)

    def line(values: np.ndarray) -> list[tuple[float, float]]:
        return [(x(s), y(min(v, ticks[-1]))) for s, v in zip(steps, values[kept], strict=True) if v == v]

    if len(found.ranks) > 1:
        shapes.append(polygon([*line(low), *reversed(line(high))], "other", opacity=0.35))
    named = _lines_of(found, ms)
    for k, (rank, values) in enumerate(named):
        shapes.append(polyline(line(values), _RUN_STEPS_LINES[k], width=1, tip=(f"rank {rank}",)))
    shapes.append(polyline(line(middle), "text", width=1.5))
    shapes += _dots(found, x, y, middle, high, outliers)
    shapes += bottom_axis(
        [float(s) for s in some_of(steps.tolist(), 8)], x, y=RUN_STEPS_BASE, text=lambda s: f"{s:.0f}"
    )
    drawn = len(kept)
    all_ = len(found.step)
    lines = [f"From the {found.source}{'' if found.source == 'step logs' else ', all of them profiled'}."]
    if drawn < all_:
        lines.append(f"Of {all_:,} steps the longest of each of {drawn} stretches is drawn.")
    if len(found.ranks) > _MAX_LINES:
        lines.append(f"The {_MAX_LINES} ranks with the longest steps have a line of their own.")
    return Drawing(
        title="Step time of the whole run",
        width=RUN_STEPS_WIDTH,
        height=RUN_STEPS_HEIGHT,
        label=f"Times of steps {first} to {last} on {len(found.ranks)} ranks, median {time_text(usual)}",
        shapes=tuple(shapes),
        legend=tuple(_legend(found, [rank for rank, _ in named], outliers)),
        notes=tuple(lines),
        head=("step", "median over ranks", "fastest", "slowest", "slowest rank", "remark"),
        rows=tuple(_run_steps_row(found, k, low, middle, high, ms, outliers) for k in kept),
    )


def _windows(found: RunSteps, x: Scale) -> list[Shape]:
    if found.profiled.all():
        return []
    edges = np.flatnonzero(np.diff(np.concatenate(([False], found.profiled, [False])).astype(int)))
    bands = []
    for begin, end in edges.reshape(-1, 2).tolist():
        left, right = x(int(found.step[begin]) - 0.5), x(int(found.step[end - 1]) + 0.5)
        said = f"profiled: steps {found.step[begin]} to {found.step[end - 1]}"
        bands.append(
            rect(
                max(left, RUN_STEPS_LEFT),
                RUN_STEPS_TOP,
                right - max(left, RUN_STEPS_LEFT),
                RUN_STEPS_BASE - RUN_STEPS_TOP,
                "range",
                opacity=0.55,
                tip=(said,),
            )
        )
    return bands


def _lines_of(found: RunSteps, ms: np.ndarray) -> list[tuple[int, np.ndarray]]:
    if len(found.ranks) < 2:
        return []
    by_median = np.argsort(-np.nan_to_num(np.nanmedian(ms, axis=1)), kind="stable")[:_MAX_LINES]
    return [(found.ranks[r], ms[r]) for r in (sorted(by_median.tolist()))]


def _dots(
    found: RunSteps, x: Scale, y: Scale, middle: np.ndarray, high: np.ndarray, outliers: frozenset[int]
) -> list[Shape]:
    shapes = []
    special = [k for k, step in enumerate(found.step.tolist()) if step in outliers or step in found.marks]
    # special steps that are marked, the longest first
    for k in sorted(special, key=lambda k: -float(high[k]))[:300]:
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
    entries += [(_RUN_STEPS_LINES[k], f"rank {rank}") for k, rank in enumerate(named)]
    entries += [] if found.profiled.all() else [("range", "profiled")]
    entries += [(_MARKS[mark], mark.replace("_", " ")) for mark in dict.fromkeys(found.marks.values())]
    return entries + ([("high", "outlier")] if outliers - found.marks.keys() else [])


def _run_steps_row(
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


_Found = TypeVar("_Found")
# fewer make no line over the run
_FEW_STEPS = 4


def _run_steps(account: Account) -> Drawing | None:
    found = run_steps(account.run, account.run.logs)
    if found is not None and not account.run.logs and (len(found.ranks) == 1 or len(found.step) < _FEW_STEPS):
        return None  # the page's own picture of the recorded steps shows as much
    spikes = account.steadiness.spikes if account.steadiness else ()
    return None if found is None else run_steps_drawing(found, outliers=frozenset(s.step for s in spikes))


def _memory_run(account: Account) -> Drawing | None:
    for name, what in (("allocated_bytes", "allocated on the device"), ("host_bytes", "resident in the process")):
        curves: list[Curve] = []
        for log in account.run.logs:
            values = log.column(f"memory.{name}")
            known = np.flatnonzero(np.isfinite(values))
            kept = known[_thinned(values[known])] if len(known) else known
            if len(kept) > 1:
                curves.append((log.rank, log.step[kept].astype(float).tolist(), values[kept].tolist()))
        if curves and any(max(c[2]) > 0 for c in curves):
            note = f"Memory {what}, sampled once per step."
            return _lines(curves, "Memory over the run, every rank", note=note, across=lambda s: f"step {s:.0f}")
    return None


PICTURES: Mapping[str, Callable[[Account], Drawing | None]] = {
    "run_steps": _run_steps,
    "roofline": lambda account: _roofline_drawing(account.kernels.kernels, account.chip.chip),
    "durations": lambda account: _of(_distributions(account), durations_drawing),
    "queue": lambda account: _of(
        _distributions(account), partial(queue_drawing, several_ranks=len(account.run.ranks) > 1)
    ),
    "waiting": lambda account: _of(rank_matrix(account.shared), waiting_drawing),
    "sending": lambda account: _of(rank_matrix(account.shared), sending_drawing),
    "memory_steps": lambda account: _of(account.memory, _memory_over_steps_drawing),
    "memory_run": _memory_run,
    "memory_peak": lambda account: _of(account.memory, _peak_drawing),
    "pipeline": pipeline_drawing,
    "experts": lambda account: _of(account.views.experts, _experts_drawing),
}


def pictures_of(account: Account, diagnosis: Diagnosis, calibration: Calibration | None = None) -> dict[str, Any]:
    """Return what the page draws besides its own sections, as plain values."""
    drawings = {name: make(account) for name, make in PICTURES.items()}
    drawings["bandwidth"] = bandwidth_drawing(account.collectives, calibration)
    made = switches(account, diagnosis)
    return {
        **{name: drawing.as_json() for name, drawing in drawings.items() if drawing is not None},
        **({"switches": switches_json(made)} if made is not None else {}),
    }


def switches_json(made: Switches) -> dict[str, Any]:
    """Return the steps with fixes made as plain values, times in milliseconds."""
    return {
        "step_ms": ms(made.step_ns),
        "findings": list(made.findings),
        "has_pairs": made.has_pairs,
        "states": [
            {"fixes": list(s.fixes), "saving_ms": ms(s.saving_ns), "path": {k: ms(v) for k, v in s.path_ns.items()}}
            for s in made.states
        ],
    }


def _distributions(account: Account) -> Distributions | None:
    return distributions([view.costs for view in account.ranks])


def _of(found: _Found | None, draw: Callable[[_Found], Drawing | None]) -> Drawing | None:
    return None if found is None else draw(found)
