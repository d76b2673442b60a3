"""Pictures of the timeline's data: recorded steps by their parts, the ranks' own times, one step over all ranks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepscope.contract import names
from stepscope.report.charts import (
    BARS,
    WIDE,
    Axis,
    Bar,
    Lane,
    Line,
    Span,
    Stack,
    bar_chart,
    column_chart,
    lane_chart,
    line_chart,
)
from stepscope.report.drawing import Drawing, Scale, Shape, polyline
from stepscope.report.html.page_data import GROUPS, KINDS, LANE_OF_KIND, NO_MATCH, Grid, Slices
from stepscope.report.pictures import node_edges
from stepscope.report.sheet import table_of, unit_text
from stepscope.units import NS_PER_MS

_MAX_COLUMNS = 60
_MAX_BARS = 32


def step_times(grid: Grid) -> Drawing | None:
    """Return the recorded steps by their parts, mean over ranks; None for a single step."""
    if len(grid.steps) < 2:
        return None
    with np.errstate(all="ignore"):
        mean = np.nan_to_num(np.nansum(grid.group_ns, axis=1) / (~np.isnan(grid.group_ns)).sum(axis=1)) / NS_PER_MS
    total = mean.sum(axis=0)
    stretches = np.array_split(np.arange(len(total)), min(len(total), _MAX_COLUMNS))
    kept = [int(s[np.argmax(total[s])]) for s in stretches]
    used = [k for k in range(len(GROUPS)) if mean[k].any()]
    columns = [
        Stack(str(grid.steps[s]), [(GROUPS[k], names.GROUPS[GROUPS[k]], float(mean[k, s])) for k in used]) for s in kept
    ]
    few = len(kept) < len(total)
    width = 760 if len(columns) > 16 else BARS
    return column_chart(
        "Recorded steps" + (", mean over ranks" if len(grid.ranks) > 1 else ""), columns, "ms", width=width,
        x_title="step of the job", every=max(1, -(-len(kept) // 8)),
        label=f"Times of {len(total)} steps, median {unit_text(float(np.median(total)), 'ms')}",
        notes=[f"Of {len(total):,} steps the longest of each of {len(kept)} stretches is drawn."] if few else [],
    )  # fmt: skip


def rank_times(grid: Grid, document: Mapping[str, Any]) -> Drawing | None:
    """Return each rank's own time per step, on a scale that shows how they differ; None for a single rank."""
    if len(grid.ranks) < 2:
        return None
    waited = grid.group_ns[[GROUPS.index("wait"), GROUPS.index("transfer")]].sum(axis=0)
    with np.errstate(all="ignore"):
        own = np.nanmedian((grid.group_ns.sum(axis=0) - waited) / NS_PER_MS, axis=1)
    if np.isnan(own).all():
        return None
    late = {s["rank"] for s in document["stragglers"]}
    low, middle, high = float(np.nanmin(own)), float(np.nanmedian(own)), float(np.nanmax(own))
    # Bars begin at 0 unless that would hide the differences.
    least = 0.0 if low < 0.7 * high else max(0.0, low - 0.5 * (high - low) - 0.02 * high)
    rows = [(rank, float(value)) for rank, value in zip(grid.ranks, own, strict=True) if value == value]
    begins = f" The scale begins at {unit_text(least, 'ms')}." if least else ""
    notes = [
        f"Median profiled step without waiting and communication, stalls included; the line is the median rank.{begins}"
    ]
    title, kinds = "Own time of each rank", {True: ("high", "straggler"), False: ("compute", "own time per step")}
    label = f"{title}: from {unit_text(low, 'ms')} to {unit_text(high, 'ms')} per step"
    if len(rows) <= _MAX_BARS:
        bars = [
            Bar(f"rank {rank}", [(*kinds[rank in late], value)],
                f"{unit_text(value, 'ms')} (+{unit_text(value - middle, 'ms')})" if rank in late else None)
            for rank, value in rows
        ]  # fmt: skip
        return bar_chart(title, bars, "ms", left=64, right=130, least=least, limit=middle, label=label, notes=notes)
    edges = node_edges(document, grid.ranks)

    def nodes(x: Scale, y: Scale) -> list[Shape]:
        return [polyline([(x(grid.ranks[k] - 0.5), y.start), (x(grid.ranks[k] - 0.5), y.end)], "line") for k in edges]

    lines = [
        Line(name, [r for r in rows if (r[0] in late) == is_late], colour, "dots")
        for is_late, (colour, name) in kinds.items()
    ]
    median = Line("median rank", [(rows[0][0], middle), (rows[-1][0], middle)], "text", dashed=True)
    return line_chart(
        title, [*(line for line in lines if line.points), median], Axis("rank", "count", zero=False),
        Axis("own time", "ms", zero=not least), width=WIDE, label=label, below=nodes,
        notes=[*notes, *(["Lines separate nodes."] if edges else [])],
        table=table_of(sorted(rows, key=lambda r: -r[1]), ("rank", "number", lambda r: r[0]),
                       ("own time", "ms", lambda r: r[1]), most=200),
    )  # fmt: skip


# One step over all ranks as a static picture

_MAX_RANKS = 32
_MAX_SLICES = 6_000
LANES = ("compute", "comm", "copy", "host")


def timeline_drawing(slices: Slices) -> Drawing:
    """Return the picture."""
    most = _MAX_SLICES // len(slices.ranks)
    lanes = [
        lane for rank in slices.ranks[:_MAX_RANKS] for lane in (Lane(f"rank {rank}"), *rank_lanes(slices, rank, most))
    ]
    what = "The window" if slices.step is None else f"Step {slices.step}"
    num, span_ms = len(slices.ranks), slices.span_ns / NS_PER_MS
    return lane_chart(
        f"{what}, {num} rank{'s' * (num != 1)}", lanes, span_ms, legend=legend_of(slices), left=70,
        notes=[f"{_MAX_RANKS} of {num} ranks"] if num > _MAX_RANKS else [],
        label=f"What ran on {num} ranks during {unit_text(span_ms, 'ms')}",
    )  # fmt: skip


def legend_of(slices: Slices) -> list[tuple[str, str]]:
    """Return the kinds of these slices with their names."""
    kinds = [KINDS[k] for k in np.unique(slices.kind).tolist()] + ["wait"] * bool(slices.wait_ns.any())
    return [(kind, names.KINDS[kind]) for kind in kinds]


def rank_lanes(slices: Slices, rank: int, most: int = _MAX_SLICES) -> list[Lane]:
    """Return the lanes of one rank; the longest `most` slices of each, none narrower than a third of a pixel."""
    lane_of = np.array(LANE_OF_KIND)[slices.kind]
    drawn = (slices.rank == slices.ranks.index(rank)) & (slices.dur_ns >= slices.span_ns / WIDE / 3)
    lanes = []
    for lane, title in enumerate(LANES):
        mine = np.flatnonzero(drawn & (lane_of == lane))
        mine = np.sort(mine[np.argsort(-slices.dur_ns[mine], kind="stable")[:most]])
        lanes.append(Lane(title, [span for i in mine.tolist() for span in _spans(slices, i)], height=15))
    return [lane for lane in lanes if lane.spans]


def _spans(slices: Slices, i: int) -> list[Span]:
    start, dur, wait = (int(column[i]) / NS_PER_MS for column in (slices.start_ns, slices.dur_ns, slices.wait_ns))
    name, kind, match = slices.names[slices.name[i]], KINDS[slices.kind[i]], int(slices.match[i])
    spans = []
    if wait:
        whom = f"waiting for rank {slices.matched.last_rank[match]}" if match != NO_MATCH else "waiting"
        spans.append(Span(start, start + wait, "wait", (whom, unit_text(wait, "ms")), whom, pale=True))
    if dur > wait:
        idle = kind == "idle"
        tip = (name, unit_text(dur - wait, "ms"))
        spans.append(Span(start + wait, start + dur, kind, tip, name if idle else "", pale=idle))
    return spans
