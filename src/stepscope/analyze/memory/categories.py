"""What is the memory used for, as far as allocations and frees can tell?

    temporary         freed in the same stretch of forward, backward or optimizer that allocated it
    activations       allocated in forward and kept beyond it: for backward, or as inputs and outputs
    gradients         allocated in backward and kept beyond it
    optimizer_state   allocated in the optimizer's step and kept beyond it
    other             kept beyond the stretch between backward and optimizer that allocated it
    kept              there before the window and never freed in it: parameters, optimizer state, buffers

Blocks from before the window that are freed in it become what blocks of their size, freed in the same phase, are in
the rest of the window; where there are none, freed in backward means activations and elsewhere gradients.
"""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.memory.events import NOT_HERE, Blocks, MemoryEvents
from stepscope.analyze.step.phases import Passes, Phase, Phases
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.steps import Steps
from stepscope.trace.table import Int64s

CATEGORIES = ("temporary", "activations", "gradients", "optimizer_state", "other", "kept")
TEMPORARY, ACTIVATIONS, GRADIENTS, OPTIMIZER_STATE, OTHER, KEPT = range(len(CATEGORIES))

Categories = npt.NDArray[np.uint8]

_OF_PHASE = {
    Phase.UNKNOWN: OTHER,
    Phase.FORWARD: ACTIVATIONS,
    Phase.BACKWARD: GRADIENTS,
    Phase.AFTER_BACKWARD: OTHER,
    Phase.OPTIMIZER: OPTIMIZER_STATE,
}


@dataclass(frozen=True, eq=False, repr=False)
class CategorisedBlocks(ArrayRecord):
    """Blocks with what they were for, and how much was there all along."""

    blocks: Blocks
    category: Categories
    kept_bytes: int | None
    """there before the window and never freed in it; None where the totals were not recorded"""

    def over_time(self, num_events: int) -> npt.NDArray[np.int64]:
        """Return bytes by category and event, without `kept`."""
        change = np.zeros((len(CATEGORIES) - 1, num_events + 1), np.int64)
        b = self.blocks
        first = np.maximum(b.born, 0)  # from before the window: there from the first event on
        np.add.at(change, (self.category, first), b.size_bytes)
        freed = b.died != NOT_HERE
        np.add.at(change, (self.category[freed], b.died[freed]), -b.size_bytes[freed])
        return np.cumsum(change[:, :-1], axis=1)


def categorised(events: MemoryEvents, blocks: Blocks, found: Passes, steps: Steps) -> CategorisedBlocks:
    """Return what each block was for."""
    phase = found.at(events.time_ns, events.thread)
    stretch = _stretches(found, steps, events.time_ns)
    category = np.full(len(blocks), OTHER, np.uint8)
    here = blocks.born != NOT_HERE
    born, died = blocks.born[here], blocks.died[here]
    of_phase = np.array([_OF_PHASE[p] for p in Phase], np.uint8)[phase[born]]
    short = (died != NOT_HERE) & (stretch[born] == stretch[died])
    category[here] = np.where(short, TEMPORARY, of_phase)
    older = ~here
    category[older] = _like_the_others(blocks, category, here, older, phase)
    kept = None
    if events.before_bytes is not None:
        kept = events.before_bytes - int(blocks.size_bytes[older].sum())
    return CategorisedBlocks(blocks, category, kept)


def _stretches(found: Passes, steps: Steps, moment_ns: Int64s) -> Int64s:
    """Return the number of the uninterrupted stretch of one phase in one step that each moment lies in."""
    edges = np.concatenate(
        (found.backward.start, found.backward.end, found.optimizer.start, found.optimizer.end, steps.start_ns)
    )
    return np.searchsorted(np.sort(edges), moment_ns, side="right")


def _like_the_others(
    blocks: Blocks, category: Categories, here: npt.NDArray[np.bool_], older: npt.NDArray[np.bool_], phase: Phases
) -> Categories:
    """Return the category of blocks from before the window by that of later blocks of their size and end."""
    ended = here & (blocks.died != NOT_HERE) & (category != TEMPORARY)
    ends = [phase[blocks.died[which]].astype(np.int64) for which in (ended, older)]
    known, wanted = (
        blocks.size_bytes[which] * len(Phase) + end for which, end in zip((ended, older), ends, strict=True)
    )
    keys, first = np.unique(known, return_index=True)
    fallback = np.where(ends[1] == Phase.BACKWARD, ACTIVATIONS, GRADIENTS)
    if not len(keys):
        return fallback.astype(np.uint8)
    i = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[i] == wanted, category[ended][first[i]], fallback).astype(np.uint8)
