"""A pipeline's step as a diagram: each stage's micro-batches as they ran, and the same order if nothing ever waited."""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.parallel.pipeline.actions import Action
from stepscope.analyze.parallel.pipeline.bubble import ideal_schedule, pipeline_actions
from stepscope.report.pictures.axes import Scale, bottom_axis, round_ticks, time_text, time_tick
from stepscope.report.pictures.drawing import Drawing, Shape, polyline, rect, words
from stepscope.units import NS_PER_MS

WIDTH, LEFT, LINE = 1180, 110, 24
MAX_ACTIONS = 3_000
_COLOUR = {"F": "forward", "B": "backward", "I": "backward", "W": "optimizer"}
_NAME = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights"}

Bar = tuple[float, float, Action]
"""start and end in ms, and what it is"""


def pipeline_drawing(account: Account) -> Drawing | None:
    """Return the diagram of one step, None where the run has no pipeline whose micro-batches can be told."""
    windows = [view.window for view in account.ranks]
    found = pipeline_actions(account.shared, account.strategy, windows)
    if found is None or sum(map(len, found[1])) > MAX_ACTIONS:
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
    x = Scale(0, end, LEFT, WIDTH - 8)
    blocks = [("measured", measured), *([("ideal: the same order, no waiting", ideal)] if ideal else [])]
    shapes: list[Shape] = []
    y = 0.0
    for title, stages in blocks:
        shapes.append(
            words(LEFT, y + 14, f"{title}, {time_text(max(b[1] for mine in stages for b in mine))}", fill="text")
        )
        y += 20
        for stage, (rank, bars) in enumerate(zip(ranks, stages, strict=True)):
            shapes.append(words(LEFT - 8, y + 16, f"stage {stage} · rank {rank}", anchor="end"))
            shapes.append(polyline([(LEFT, y + LINE - 1), (WIDTH - 8, y + LINE - 1)], "line", width=1))
            for start, stop, a in bars:
                shapes += _bar(x(start), x(stop), y, a, stop - start)
            y += LINE
        y += 10
    shapes += bottom_axis([t for t in round_ticks(end, about=8) if t <= end], x, y=y - 8, text=time_tick)
    used = dict.fromkeys(a.kind for mine in measured for _, _, a in mine)
    span = [max(b[1] for mine in stages for b in mine) for _, stages in blocks]
    return Drawing(
        title="The pipeline's step", width=WIDTH, height=int(y) + 16, shapes=tuple(shapes),
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


def _bar(left: float, right: float, y: float, action: Action, took_ms: float) -> list[Shape]:
    said = (f"{_NAME[action.kind]}, micro-batch {action.microbatch}", f"stage {action.stage}, {time_text(took_ms)}")
    shapes = [rect(left, y + 2, max(right - left - 0.8, 0.8), LINE - 6, _COLOUR[action.kind], tip=said)]
    number = str(action.microbatch)
    if right - left > 7 * len(number) + 3:
        shapes.append(words((left + right) / 2, y + 15, number, anchor="middle", fill="bright", small=True))
    return shapes
