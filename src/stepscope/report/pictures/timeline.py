"""One step over all ranks as a picture that stands still: what each lane did, and waits and stalls by name."""

import numpy as np

from stepscope.report.html.data import KINDS, LANE_OF_KIND, NO_MATCH, Slices
from stepscope.report.pictures.axes import Scale, bottom_axis, round_ticks, time_text, time_tick
from stepscope.report.pictures.drawing import Drawing, Shape, rect, words
from stepscope.units import NS_PER_MS

WIDTH, LEFT, LANE, GAP = 1180, 120, 14, 8
MAX_RANKS = 32
MAX_SLICES = 6_000
_LANES = ("compute", "comm", "copy", "host")
_TEXT = {"range": "host range", "idle": "nothing ran", "other": "other compute"}
_MIN_NAME_PX = 90


def timeline_drawing(slices: Slices) -> Drawing:
    """Return the picture; slices that are narrower than a third of a pixel are left out."""
    x = Scale(0, slices.span_ns, LEFT, WIDTH - 8)
    lane_of = np.array(LANE_OF_KIND)[slices.kind]
    lanes = sorted(set(lane_of.tolist()))
    height = len(lanes) * LANE + GAP
    shapes: list[Shape] = []
    for k, rank in enumerate(slices.ranks[:MAX_RANKS]):
        shapes.append(words(0, k * height + (height - GAP) / 2 + 4, f"rank {rank}", fill="text"))
        for i, lane in enumerate(lanes):
            shapes.append(words(LEFT - 8, k * height + (i + 0.8) * LANE, _LANES[lane], anchor="end", small=True))
    least = slices.span_ns / (WIDTH - LEFT) / 3
    shown = np.flatnonzero((slices.dur_ns >= least) & (slices.rank < MAX_RANKS))
    shown = shown[np.argsort(-slices.dur_ns[shown], kind="stable")[:MAX_SLICES]]
    for i in np.sort(shown).tolist():
        y = int(slices.rank[i]) * height + lanes.index(int(lane_of[i])) * LANE
        shapes += _slice(slices, i, x, y)
    bottom = min(len(slices.ranks), MAX_RANKS) * height
    ticks = [t * NS_PER_MS for t in round_ticks(slices.span_ns / NS_PER_MS, about=8)]
    shapes += bottom_axis(
        [t for t in ticks if t <= slices.span_ns], x, y=bottom - 6, text=lambda ns: time_tick(ns / NS_PER_MS)
    )
    kinds = [KINDS[k] for k in sorted(set(slices.kind.tolist()))]
    legend = [(kind, _TEXT.get(kind, kind)) for kind in kinds]
    legend += [("wait", "waiting for the last rank")] if slices.wait_ns.any() else []
    what = "The window" if slices.step is None else f"Step {slices.step}"
    notes = [f"{MAX_RANKS} of {len(slices.ranks)} ranks"] if len(slices.ranks) > MAX_RANKS else []
    return Drawing(
        title=f"{what}, {len(slices.ranks)} rank{'s' * (len(slices.ranks) != 1)}", width=WIDTH, height=bottom + 18,
        shapes=tuple(shapes), legend=tuple(legend), notes=tuple(notes),
        label=f"What ran on {len(slices.ranks)} ranks during {time_text(slices.span_ns / NS_PER_MS)}",
    )  # fmt: skip


def _slice(slices: Slices, i: int, x: Scale, y: float) -> list[Shape]:
    start, dur, wait = (int(column[i]) for column in (slices.start_ns, slices.dur_ns, slices.wait_ns))
    name, kind = slices.names[slices.name[i]], KINDS[slices.kind[i]]
    match = int(slices.match[i])
    shapes: list[Shape] = []
    if wait:
        whom = f"waiting for rank {slices.matched.last_rank[match]}" if match != NO_MATCH else "waiting"
        shapes += _bar(x(start), x(start + wait), y, "wait", whom, wait, named=True)
    if dur > wait:
        shapes += _bar(x(start + wait), x(start + dur), y, kind, name, dur - wait, named=kind == "idle")
    return shapes


def _bar(left: float, right: float, y: float, kind: str, name: str, dur_ns: int, *, named: bool) -> list[Shape]:
    said = (name, time_text(dur_ns / NS_PER_MS))
    shapes = [rect(left, y + 1, right - left, LANE - 2, kind, tip=said, opacity=0.45 if named else 1.0)]
    if named and right - left > _MIN_NAME_PX:
        fits = int((right - left - 6) / 5.6)
        shapes.append(words(left + 3, y + LANE - 3.5, name[:fits], fill="text", small=True))
    return shapes
