"""How full is each rank of an expert-parallel job, against an even load?"""

from stepscope.analyze.parallel.experts import ExpertsView
from stepscope.report.pictures.axes import Scale, bytes_text, time_text
from stepscope.report.pictures.drawing import Drawing, Shape, polyline, rect, words
from stepscope.units import NS_PER_MS

WIDTH, LEFT, LINE = 760, 90, 22
MAX_RANKS = 64


def experts_drawing(view: ExpertsView) -> Drawing | None:
    """Return the load per step of each rank with the mean as a line, None where the load is unknown."""
    ranks = [(r, r.load_bytes) for r in view.ranks if r.load_bytes is not None]
    if not ranks or not any(load for _, load in ranks):
        return None
    mean = sum(load for _, load in ranks) / len(ranks)
    shown = sorted(ranks, key=lambda pair: -pair[1])[:MAX_RANKS] if len(ranks) > MAX_RANKS else ranks
    x = Scale(0, max(load for _, load in ranks), LEFT, WIDTH - 230)
    bottom = len(shown) * LINE
    even = polyline([(x(mean), 0), (x(mean), bottom)], "high", dashed=True, tip=("mean", bytes_text(mean)))
    shapes: list[Shape] = []
    remarks: list[Shape] = []
    for k, (rank, load) in enumerate(shown):
        y, waited = k * LINE, "" if rank.wait_ns is None else f", {time_text(rank.wait_ns / NS_PER_MS)} waiting"
        said = (f"rank {rank.rank}", f"{bytes_text(load)} per step, {load / mean:.2f} times the mean{waited}")
        shapes.append(words(LEFT - 8, y + 15, f"rank {rank.rank}", anchor="end"))
        shapes.append(rect(LEFT, y + 3, x(load) - LEFT, LINE - 6, "compute", tip=said))
        remarks.append(words(max(x(load), x(mean) if load < mean else 0) + 8, y + 15, f"{bytes_text(load)}{waited}"))
    what = "embedding rows" if view.kind == "embedding" else "tokens"
    return Drawing(
        title="Load of each rank", width=WIDTH, height=bottom + 4, shapes=(*shapes, even, *remarks),
        label=f"Load of {len(ranks)} ranks per step, mean {bytes_text(mean)}",
        legend=(("compute", f"{what} to work on, in bytes per step"), ("high", "an even load")),
        head=("rank", "load", "of the mean"),
        rows=tuple((str(r.rank), bytes_text(load), f"{load / mean:.2f}") for r, load in ranks),
    )  # fmt: skip
