"""The pictures of a comparison: both budgets, changes with their intervals, one step of each side on one scale."""

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.analyze.account import Account
from stepscope.contract.names import PARTS
from stepscope.diagnose.findings import Diagnosis
from stepscope.report.charts import WIDE, Axis, Bar, Lane, Line, bar_chart, lane_chart, line_chart
from stepscope.report.drawing import Drawing
from stepscope.report.html.page_data import Slices, grid_of
from stepscope.report.html.timeline_data import slices_of
from stepscope.report.pages.compare import STEP
from stepscope.report.pictures import PART_COLOUR
from stepscope.report.sheet import unit_text
from stepscope.report.step_pictures import legend_of, rank_lanes
from stepscope.units import NS_PER_MS

Document = Mapping[str, Any]


def both_budgets(rows: Sequence[Document]) -> Drawing:
    """Return the parts of both steps."""
    bars = [
        Bar(side.upper(), [(PART_COLOUR.get(r["part"]) or r["part"], PARTS[r["part"]], r[side]) for r in rows])
        for side in "ab"
    ]
    return bar_chart("Both steps by their parts", bars, "ms", width=WIDE, left=40)


def changes(rows: Sequence[Document]) -> Drawing | None:
    """Return changes with their intervals around zero."""
    if not rows:
        return None
    reach = max(abs(v) for r in rows for v in (r["change"], r["low"] or 0.0, r["high"] or 0.0)) or 1.0
    bars = []
    for r in rows:
        chance = r["low"] is None or r["low"] <= 0 <= r["high"]
        kind = ("unknown", "may be chance") if chance else ("high", "longer") if r["change"] > 0 else ("low", "shorter")
        low, high = (None if v is None else reach + v for v in (r["low"], r["high"]))
        name, said = PARTS.get(r["part"]) or str(r["part"]), unit_text(r["change"], "signed_ms")
        start = reach + min(0.0, r["change"])
        bars.append(Bar(name, [(*kind, abs(r["change"]))], said, start=start, low=low, high=high))
    label = "Changes with their intervals; the table below holds the numbers"
    return bar_chart("Changes", bars, "ms", width=760, axis=False, limit=reach, label=label)


def step_times(document: Document) -> Drawing | None:
    """Return the steps of both sides in their order."""
    lines = []
    for side, colour in (("a", "input"), ("b", "compute")):
        points = [(i, t) for run in document[side]["runs"] for i, t in enumerate(run["step_times_ms"])]
        level = document["step_ms"][side]
        name = f"{side.upper()}: {document[side]['name']}"
        lines += [Line(name, points, colour, "dots", radius=2)] if points else []
        lines += [Line("", [(0, level), (len(points) - 1, level)], colour, dashed=True)] if points and level else []
    x, y = Axis("step, warm-up left out", "count", zero=False), Axis("step time", "ms", zero=False)
    note = [f"Dashed: the {STEP[document['step']]}."]
    return line_chart("Step times", lines, x, y, width=WIDE, notes=note) if lines else None


Side = tuple[Account, Diagnosis]


def side_by_side(a: Side, b: Side) -> list[Drawing]:
    """Return one step of both sides on one scale, of the first rank and of the worst; none where they share no rank."""
    shared = sorted({r.rank for r in a[0].run.ranks} & {r.rank for r in b[0].run.ranks})
    chosen = ({shared[0]: "the first rank"} | _worst(a, b, shared)) if shared else {}
    drawn = [slices_of(side[0], grid_of(side[0]), wanted=list(chosen)) for side in (a, b)]
    sides = [slices for slices in drawn if slices]
    both = [(rank, why) for rank, why in chosen.items() if all(rank in slices.ranks for slices in sides)]
    return [_one_step_each(rank, why, sides) for rank, why in both] if len(sides) == 2 else []


def _one_step_each(rank: int, why: str, sides: Sequence[Slices]) -> Drawing:
    rows = []
    for name, slices in zip("AB", sides, strict=True):
        step = "" if slices.step is None else f", step {slices.step}"
        rows += [Lane(f"{name}{step}: {unit_text(slices.span_ns / NS_PER_MS, 'ms')}"), *rank_lanes(slices, rank)]
    legend = dict.fromkeys(entry for slices in sides for entry in legend_of(slices))
    end = max(slices.span_ns for slices in sides) / NS_PER_MS
    notes = ["The step nearest to the median of the first run of each side."]
    return lane_chart(f"Rank {rank}, {why}", rows, end, legend=list(legend), notes=notes, left=70)


def _worst(a: Side, b: Side, shared: Sequence[int]) -> dict[int, str]:
    named = [
        (f.alone_ns, rank, f"{f.id} in {name}")
        for name, (_, diagnosis) in (("A", a), ("B", b))
        for f in diagnosis.findings
        for rank in f.ranks[:1]
        if rank in shared and len(f.ranks) < len(shared)
    ]
    if not named:
        return {}
    _, rank, why = max(named)
    return {rank: why}
