"""One step as a bar of its parts, the way from peak to achieved FLOP rate, and what each fix leaves of the step."""

from collections.abc import Sequence

from stepscope.analyze.attribution.waterfall import Waterfall
from stepscope.analyze.attribution.without_profiler import StepBudget
from stepscope.diagnose.findings import Diagnosis
from stepscope.report.pictures.axes import time_text
from stepscope.report.pictures.drawing import Drawing, Shape, rect, words
from stepscope.units import NS_PER_MS
from stepscope.whatif.switches import Switches

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
