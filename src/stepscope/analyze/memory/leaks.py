"""Which lines keep what they allocate in every step? Leak suspects."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.memory.categories import ACTIVATIONS, OTHER, CategorisedBlocks
from stepscope.analyze.memory.events import NOT_HERE
from stepscope.dataclass import dataclass
from stepscope.trace.table import Int64s

_MIN_STEPS = 2
_MAX_LEAKS = 12


@dataclass(frozen=True)
class Leak:
    """A line that keeps, of several steps, what it allocated there outside backward and optimizer."""

    name: str
    steps: int
    size_bytes: int
    bytes_per_step: float


def kept_over_steps(categories: CategorisedBlocks, step: npt.NDArray[np.integer], *, last_step: int) -> Int64s:
    """Return the blocks that were allocated in a step before the last one, and are there when the window ends.

    `step` is that of each event. Gradients and optimizer state are left out: they are kept on purpose.
    """
    blocks = categories.blocks
    kept = (blocks.born != NOT_HERE) & (blocks.died == NOT_HERE)
    kept &= np.isin(categories.category, (ACTIVATIONS, OTHER))
    rows = np.flatnonzero(kept)
    born_in = step[blocks.born[rows]]
    return rows[(born_in >= 0) & (born_in < last_step)]


def leaks(names: Sequence[str | None], step: npt.NDArray[np.integer], size_bytes: Int64s) -> tuple[Leak, ...]:
    """Return the names that keep something of at least two steps, the most first."""
    kept: dict[str, Counter[int]] = {}
    for name, of_step, size in zip(names, step.tolist(), size_bytes.tolist(), strict=True):
        if name:
            kept.setdefault(name, Counter())[of_step] += size
    found = [
        Leak(name, len(steps), sum(steps.values()), sum(steps.values()) / len(steps))
        for name, steps in kept.items()
        if len(steps) >= _MIN_STEPS
    ]
    return tuple(sorted(found, key=lambda leak: -leak.size_bytes)[:_MAX_LEAKS])
