"""Rank by rank: who waits for whom, who sends to whom, as squares of a matrix."""

from collections.abc import Callable
from math import ceil

import numpy as np
import numpy.typing as npt

from stepscope.analyze.ranks.rank_matrix import RankMatrix
from stepscope.report.pictures.axes import bytes_text, time_text
from stepscope.report.pictures.drawing import Drawing, Shape, rect, words
from stepscope.units import NS_PER_MS

MAX_SIDE = 32
"""more ranks are joined into blocks"""
_LEFT, _TOP, _PIXELS = 66, 34, 420
_LINE, _LETTER = 18, 9
"""room for the labels, as large as they are on a phone"""
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
    blocks = np.array_split(np.arange(len(found.ranks)), min(len(found.ranks), MAX_SIDE))
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
    order = np.argsort(-joined, axis=None)[:_MAX_ROWS].tolist()
    cells = [divmod(k, len(blocks)) for k in order]
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
