"""One step as a bar of its parts, the way from peak to achieved FLOP rate, and what each fix leaves of the step."""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.budget import StepBudget
from stepscope.analyze.efficiency import Waterfall
from stepscope.analyze.owner_costs import CodeNode
from stepscope.analyze.pipeline import Action, ideal_schedule, pipeline_actions
from stepscope.diagnose.findings import Diagnosis
from stepscope.report.drawing import (
    Drawing,
    Scale,
    Shape,
    bottom_axis,
    polyline,
    rect,
    round_ticks,
    time_text,
    time_tick,
    words,
)
from stepscope.report.html.page_data import KINDS, LANE_OF_KIND, NO_MATCH, Slices
from stepscope.units import NS_PER_MS
from stepscope.whatif.settings import Switches

WIDTH, LEFT, LINE = 760, 210, 24
PART_COLOUR = {
    "other_compute": "other", "exposed_transfer": "transfer", "pipeline_bubble": "wait", "data_loading": "input",
    "launch_gap": "host", "host_sync": "host", "allocator": "host", "host_stall": "host",
}  # fmt: skip
_QUIET = ("non_matmul_kernels", "matmul_below_peak", "precision", "recomputation")
_PATH = {
    "host": "host", "kernel": "compute", "collective": "transfer", "copy": "copy", "set": "other", "launch": "input",
}  # fmt: skip


def budget_drawing(step: StepBudget) -> Drawing:
    """Return where the step goes as one bar per part."""
    rows = [(p.part, p.ns_per_step / NS_PER_MS, p.pct) for p in step.parts if p.pct > 0]
    bars = [(n.replace("_", " "), ms, f"{time_text(ms)}, {pct:.1f} %", PART_COLOUR.get(n, n)) for n, ms, pct in rows]
    whole = step.step_ns / NS_PER_MS
    return _bars("Where the step goes", sorted(bars, key=lambda b: -b[1]), f"A step of {time_text(whole)} by its parts")


def waterfall_drawing(found: Waterfall) -> Drawing | None:
    """Return what is lost between the chip's peak and the achieved FLOP rate, None where FLOPs are unknown."""
    if not found.rows:
        return None
    shapes, left, table = [*_line(0, "peak", 0, 100, 100, "compute", "100.0 %")], 100.0, []
    for k, row in enumerate(found.rows, start=1):
        last = row.loss == "achieved"
        share = row.pct_of_peak or 0.0
        left -= 0 if last else share
        colour = "compute" if last else "unknown" if row.loss in _QUIET else "wait"
        name, text = row.loss.replace("_", " "), f"{'' if last else '-'}{share:.1f} %"
        shapes += _line(k, name, 0 if last else left, share, 100, colour, text)
        table.append((name, f"{share:.1f} %"))
    return Drawing(
        title="From peak to achieved", width=WIDTH, height=LINE * (len(found.rows) + 1), shapes=tuple(shapes),
        label="Waterfall from peak to achieved FLOP rate", head=("loss", "of peak"), rows=tuple(table),
    )  # fmt: skip


def what_if_drawing(made: Switches, diagnosis: Diagnosis) -> Drawing:
    """Return the step as it is and with each fix alone, by what its critical path consists of."""
    shapes: list[Shape] = []
    whole = made.step_ns / NS_PER_MS
    singles = [s for s in made.states if len(s.fixes) < 2]
    for k, state in enumerate(singles):
        name = diagnosis.findings[state.fixes[0]].title if state.fixes else "as it is"
        at, y = float(LEFT), k * LINE
        shapes.append(words(LEFT - 8, y + 16, name if len(name) < 32 else name[:31] + "…", anchor="end"))
        for what, ns in state.path_ns.items():
            wide = (WIDTH - LEFT - 90) * ns / made.step_ns
            said = (name, f"{what} {time_text(ns / NS_PER_MS)}")
            shapes.append(rect(at, y + 4, wide, LINE - 8, _PATH.get(what, "unknown"), tip=said))
            at += wide
        shapes.append(words(at + 6, y + 16, time_text(whole - state.saving_ns / NS_PER_MS)))
    used = dict.fromkeys(what for s in singles for what in s.path_ns)
    return Drawing(
        title="The step with each fix alone", width=WIDTH, height=len(singles) * LINE + 4, shapes=tuple(shapes),
        label=f"A step of {time_text(whole)} and what {len(singles) - 1} fixes leave of it",
        legend=tuple((_PATH.get(what, "unknown"), what) for what in used),
    )  # fmt: skip


def _bars(title: str, rows: Sequence[tuple[str, float, str, str]], label: str) -> Drawing:
    most = max(ms for _, ms, _, _ in rows)
    shapes = [s for k, (name, ms, text, colour) in enumerate(rows) for s in _line(k, name, 0, ms, most, colour, text)]
    table = tuple((name, text) for name, _, text, _ in rows)
    return Drawing(title, WIDTH, LINE * len(rows) + 2, label, tuple(shapes), head=("part", "per step"), rows=table)


def _line(k: int, name: str, start: float, size: float, most: float, colour: str, text: str) -> list[Shape]:
    scale, y = (WIDTH - LEFT - 130) / (most or 1), k * LINE
    return [
        words(LEFT - 8, y + 16, name, anchor="end"),
        rect(LEFT + start * scale, y + 4, size * scale, LINE - 8, colour, tip=(name, text)),
        words(LEFT + (start + size) * scale + 6, y + 16, text),
    ]


# One step over all ranks as a picture that stands still: what each lane did, and waits and stalls by name.

TIMELINE_WIDTH, TIMELINE_LEFT, LANE, GAP = 1180, 120, 14, 8
_MAX_RANKS = 32
_MAX_SLICES = 6_000
_TEXT = {"range": "host range", "idle": "nothing ran", "other": "other compute"}


def timeline_drawing(slices: Slices) -> Drawing:
    """Return the picture; slices that are narrower than a third of a pixel are left out."""
    x = Scale(0, slices.span_ns, TIMELINE_LEFT, TIMELINE_WIDTH - 8)
    lane_of = np.array(LANE_OF_KIND)[slices.kind]
    lanes = sorted(set(lane_of.tolist()))
    height = len(lanes) * LANE + GAP
    shapes: list[Shape] = []
    for k, rank in enumerate(slices.ranks[:_MAX_RANKS]):
        shapes.append(words(0, k * height + (height - GAP) / 2 + 4, f"rank {rank}", fill="text"))
        for i, lane in enumerate(lanes):
            shapes.append(
                words(
                    TIMELINE_LEFT - 8,
                    k * height + (i + 0.8) * LANE,
                    ("compute", "comm", "copy", "host")[lane],
                    anchor="end",
                    small=True,
                )
            )
    least = slices.span_ns / (TIMELINE_WIDTH - TIMELINE_LEFT) / 3
    shown = np.flatnonzero((slices.dur_ns >= least) & (slices.rank < _MAX_RANKS))
    shown = shown[np.argsort(-slices.dur_ns[shown], kind="stable")[:_MAX_SLICES]]
    for i in np.sort(shown).tolist():
        shapes += _slice(slices, i, x, int(slices.rank[i]) * height + lanes.index(int(lane_of[i])) * LANE)
    bottom = min(len(slices.ranks), _MAX_RANKS) * height
    ticks = [t * NS_PER_MS for t in round_ticks(slices.span_ns / NS_PER_MS, about=8)]
    shapes += bottom_axis(
        [t for t in ticks if t <= slices.span_ns], x, y=bottom - 6, text=lambda ns: time_tick(ns / NS_PER_MS)
    )
    legend = [(kind, _TEXT.get(kind, kind)) for kind in [KINDS[k] for k in sorted(set(slices.kind.tolist()))]]
    legend += [("wait", "waiting for the last rank")] if slices.wait_ns.any() else []
    what = "The window" if slices.step is None else f"Step {slices.step}"
    notes = [f"{_MAX_RANKS} of {len(slices.ranks)} ranks"] if len(slices.ranks) > _MAX_RANKS else []
    return Drawing(
        title=f"{what}, {len(slices.ranks)} rank{'s' * (len(slices.ranks) != 1)}",
        width=TIMELINE_WIDTH, height=bottom + 18,
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
    if named and right - left > 90:
        fits = int((right - left - 6) / 5.6)
        shapes.append(words(left + 3, y + LANE - 3.5, name[:fits], fill="text", small=True))
    return shapes


# A pipeline's step as a diagram: each stage's micro-batches as they ran, and the same order if nothing ever waited.

PIPELINE_WIDTH, PIPELINE_LEFT, PIPELINE_LINE = 1180, 110, 24
_COLOUR = {"F": "forward", "B": "backward", "I": "backward", "W": "optimizer"}
_NAME = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights"}

# start and end in ms, and what it is
Bar = tuple[float, float, Action]


def pipeline_drawing(account: Account) -> Drawing | None:
    """Return the diagram of one step, None where the run has no pipeline whose micro-batches can be told."""
    found = pipeline_actions(account.shared, account.strategy, [view.window for view in account.ranks])
    if found is None or sum(map(len, found[1])) > 3_000:
        return None
    index, actions = found
    clocks, ranks = account.shared.clocks, account.run.ranks
    if not clocks.known[index].all():
        return None
    shift = [
        int(clocks.shared([i], np.array([a[0].start_ns]))[0]) - a[0].start_ns
        for i, a in zip(index, actions, strict=True)
    ]
    origin = min(a[0].start_ns + s for a, s in zip(actions, shift, strict=True))
    measured = [
        [((a.start_ns + s - origin) / NS_PER_MS, (a.end_ns + s - origin) / NS_PER_MS, a) for a in mine]
        for mine, s in zip(actions, shift, strict=True)
    ]
    ideal, durations = ideal_schedule(actions, equal=False)
    best: list[list[Bar]] = []
    if ideal is not None:
        best = [
            [(s / NS_PER_MS, (s + d) / NS_PER_MS, a) for s, d, a in zip(starts, took, mine, strict=True)]
            for starts, took, mine in zip(ideal.starts, durations, actions, strict=True)
        ]
    return diagram([ranks[i].rank for i in index], measured, best)


def diagram(ranks: Sequence[int], measured: Sequence[Sequence[Bar]], ideal: Sequence[Sequence[Bar]]) -> Drawing:
    """Return both schedules below each other on one scale of time."""
    end = max(b[1] for mine in (*measured, *ideal) for b in mine)
    x = Scale(0, end, PIPELINE_LEFT, PIPELINE_WIDTH - 8)
    blocks = [("measured", measured), *([("ideal: the same order, no waiting", ideal)] if ideal else [])]
    shapes: list[Shape] = []
    y = 0.0
    for title, stages in blocks:
        shapes.append(
            words(
                PIPELINE_LEFT, y + 14, f"{title}, {time_text(max(b[1] for mine in stages for b in mine))}", fill="text"
            )
        )
        y += 20
        for stage, (rank, bars) in enumerate(zip(ranks, stages, strict=True)):
            shapes.append(words(PIPELINE_LEFT - 8, y + 16, f"stage {stage} · rank {rank}", anchor="end"))
            shapes.append(
                polyline(
                    [(PIPELINE_LEFT, y + PIPELINE_LINE - 1), (PIPELINE_WIDTH - 8, y + PIPELINE_LINE - 1)],
                    "line",
                    width=1,
                )
            )
            for start, stop, a in bars:
                shapes += _pipeline_bar(x(start), x(stop), y, a, stop - start)
            y += PIPELINE_LINE
        y += 10
    shapes += bottom_axis([t for t in round_ticks(end, about=8) if t <= end], x, y=y - 8, text=time_tick)
    used = dict.fromkeys(a.kind for mine in measured for _, _, a in mine)
    span = [max(b[1] for mine in stages for b in mine) for _, stages in blocks]
    return Drawing(
        title="The pipeline's step", width=PIPELINE_WIDTH, height=int(y) + 16, shapes=tuple(shapes),
        label=f"Micro-batches of {len(ranks)} stages over {time_text(span[0])}"
        + (f"; without waiting {time_text(span[1])}" if len(span) > 1 else ""),
        legend=tuple(dict.fromkeys((_COLOUR[kind], _NAME[kind]) for kind in used)),
        notes=("Numbers are micro-batches. The ideal has each stage's mean times and messages that take none.",),
        head=("stage", "rank", "what", "micro-batch", "from", "took"),
        rows=tuple(
            (str(stage), str(ranks[stage]), _NAME[a.kind], str(a.microbatch), time_text(start), time_text(stop - start))
            for stage, mine in enumerate(measured)
            for start, stop, a in mine
        ),
    )  # fmt: skip


def _pipeline_bar(left: float, right: float, y: float, action: Action, took_ms: float) -> list[Shape]:
    said = (f"{_NAME[action.kind]}, micro-batch {action.microbatch}", f"stage {action.stage}, {time_text(took_ms)}")
    shapes = [rect(left, y + 2, max(right - left - 0.8, 0.8), PIPELINE_LINE - 6, _COLOUR[action.kind], tip=said)]
    number = str(action.microbatch)
    if right - left > 7 * len(number) + 3:
        shapes.append(words((left + right) / 2, y + 15, number, anchor="middle", fill="bright", small=True))
    return shapes


# Lines or modules as an icicle: what each takes, with what it calls below it.

CODE_WIDTH, CODE_LINE = 1180, 20
_MAX_DEPTH = 14
_COLOURS = ("other", "forward", "copy", "transfer", "input", "optimizer", "host")


def icicle_drawing(root: CodeNode, *, over: str) -> Drawing | None:
    """Return the icicle by host time (`lines`) or by device time (`modules`), None where there is none of it."""
    by = "device_ns" if over == "modules" and root.device_ns else "host_ns"
    whole = getattr(root, by)
    if not whole:
        return None
    shapes: list[Shape] = []
    rows: list[tuple[str, str, str]] = []
    deepest = 0

    def draw(node: CodeNode, left: float, depth: int) -> None:
        nonlocal deepest
        value = getattr(node, by)
        wide = CODE_WIDTH * value / whole
        if wide < 2.0 or depth >= _MAX_DEPTH:
            return
        deepest = max(deepest, depth)
        name = f"{node.name} {node.label}".strip() or "whole step"
        said = (name, f"{time_text(value / NS_PER_MS)}, {100 * value / whole:.1f} %")
        shapes.append(
            rect(left, depth * CODE_LINE, max(wide - 1, 1), CODE_LINE - 1, _COLOURS[depth % 7], opacity=0.4, tip=said)
        )
        if wide > 40:
            shapes.append(
                words(left + 4, depth * CODE_LINE + 14, name[: int((wide - 6) / 6.2)], fill="text", small=True)
            )
        rows.append((name, time_text(value / NS_PER_MS), f"{100 * value / whole:.1f} %"))
        for child in sorted(node.children, key=lambda c: -getattr(c, by)):
            draw(child, left, depth + 1)
            left += CODE_WIDTH * getattr(child, by) / whole

    draw(root, 0.0, 0)
    what = "device" if by == "device_ns" else "host"
    return Drawing(
        title=f"{what.capitalize()} time by {over}",
        width=CODE_WIDTH, height=(deepest + 1) * CODE_LINE, shapes=tuple(shapes),
        label=f"{time_text(whole / NS_PER_MS)} of {what} time by {over}, callers above what they call",
        head=(over, "per step", "share"), rows=tuple(rows),
    )  # fmt: skip
