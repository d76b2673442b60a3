"""Which places do sequences have in common? Each member's calls of a step, laid over those of the others.

    member 0   A B C D        A B C D      the longest sequence is the reference
    member 1     B C     ->     B C        placed where it fits in exactly one way
    member 2   A B X D                     fits nowhere: left out
                              a column is what at least two members share

All sequences are flat arrays in which an entry is one call, so that a thousand ranks take no loop over calls.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.trace.table import Int64s

NO_STEP = -1
_UNPLACED = -1


@dataclass(frozen=True, eq=False, repr=False)
class Columns(ArrayRecord):
    """What several sequences share; column `c` has the entries `entry[first[c]:first[c + 1]]`, by member."""

    entry: Int64s
    first: Int64s
    step: Int64s
    """of each column, NO_STEP where the members share no step number"""


def shared_columns(key: Int64s, *, step: Int64s, member: Int64s, signature: Int64s) -> Columns:
    """Return the columns of each key and step that at least two members share.

    Entries of one key, step and member are a sequence in the order they come. Where no two members of a key have a
    step in common, their whole sequences are compared.
    """
    order = np.lexsort((member, step, key))
    common = _common_steps(key[order], step[order], member[order])
    step = np.where(common, step[order], NO_STEP)
    if not common.all():  # whole sequences of one member have to lie together
        again = np.lexsort((member[order], step, key[order]))
        order, step = order[again], step[again]
    block = _starts(key[order], step)
    sequence = block | _starts(member[order])
    place = _places(block, sequence, signature[order])
    return _columns(order, step, np.cumsum(block), place)


def _starts(*columns: Int64s) -> npt.NDArray[np.bool_]:
    """Return where any of the columns differs from the entry before."""
    out = np.zeros(len(columns[0]), bool)
    out[:1] = True
    for column in columns:
        out[1:] |= column[1:] != column[:-1]
    return out


def _common_steps(key: Int64s, step: Int64s, member: Int64s) -> npt.NDArray[np.bool_]:
    """Return for each sorted entry whether two members of its key have a step in common."""
    block = _starts(key, step)
    another = _starts(member) & ~block
    of_key = np.cumsum(_starts(key)) - 1
    return (np.bincount(of_key, another) > 0)[of_key] if len(key) else another


def _places(block: npt.NDArray[np.bool_], sequence: npt.NDArray[np.bool_], signature: Int64s) -> Int64s:
    """Return each entry's place in the reference of its block, _UNPLACED where its sequence has none."""
    begin = np.flatnonzero(sequence)
    length = np.diff(np.append(begin, len(sequence)))
    of_sequence = np.cumsum(sequence) - 1
    place = np.arange(len(sequence)) - begin[of_sequence]
    first = np.flatnonzero(block)
    of_block = np.cumsum(block) - 1
    reference = first[of_block] + np.minimum(place, length[of_sequence[first]][of_block] - 1)
    same = (signature == signature[reference]) & (length[of_sequence] == length[of_sequence[first]][of_block])
    uneven = np.flatnonzero(np.bincount(of_block, ~same)) if len(place) else first
    bounds = np.append(first, len(sequence))
    for b in uneven.tolist():
        mine = slice(int(bounds[b]), int(bounds[b + 1]))
        place[mine] = _placed(signature[mine], np.append(np.flatnonzero(sequence[mine]), mine.stop - mine.start))
    return place


def _placed(signature: Int64s, cuts: Int64s) -> Int64s:
    """Return the places of the entries of one block, whose sequences lie between the cuts."""
    longest = int(np.argmax(np.diff(cuts)))
    reference = signature[cuts[longest] : cuts[longest + 1]]
    place = np.full(len(signature), _UNPLACED, np.int64)
    for begin, end in pairwise(cuts.tolist()):
        at = _only_fit(reference, signature[begin:end])
        if at is not None:
            place[begin:end] = at + np.arange(end - begin)
    return place


def _only_fit(reference: Int64s, sequence: Int64s) -> int | None:
    """Return where `sequence` lies in `reference`, None where it fits nowhere or in several ways."""
    fit = None
    for at in np.flatnonzero(reference[: len(reference) - len(sequence) + 1] == sequence[0]).tolist():
        if np.array_equal(reference[at : at + len(sequence)], sequence):
            if fit is not None:
                return None
            fit = at
    return fit


def _columns(order: Int64s, step: Int64s, block: Int64s, place: Int64s) -> Columns:
    """Return the entries of equal block and place together, where there are at least two."""
    by_place = np.lexsort((place, block))
    by_place = by_place[place[by_place] != _UNPLACED]
    start = _starts(block[by_place], place[by_place])
    count = np.diff(np.append(np.flatnonzero(start), len(start)))
    kept = by_place[np.repeat(count > 1, count)]
    first = np.concatenate(([0], np.cumsum(count[count > 1])))
    return Columns(order[kept], first, step[kept[first[:-1]]])
