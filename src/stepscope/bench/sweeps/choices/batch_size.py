"""How large may a batch be, and from which size on does it no longer pay?

Doubling from 32 until memory runs out, then bisection; afterwards the sizes that fit are measured like any variants.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.bench.sweeps.choices.sweep import Sweep, Variant, rounding

START = 32
# bisection ends when the next size would be about a sixteenth larger
_RESOLUTION = 16


def next_probe(known: Mapping[int, bool], *, start: int = START, limit: int = 1 << 16) -> int | None:
    """Return the size to try next, None when the largest that fits is known well enough.

    >>> next_probe({}), next_probe({32: True}), next_probe({32: True, 64: False}), next_probe({32: False})
    (32, 64, 48, 16)
    """
    fits = [size for size, fitted in known.items() if fitted]
    fails = [size for size, fitted in known.items() if not fitted]
    if not known:
        return start
    if not fails:
        return 2 * max(fits) if 2 * max(fits) <= limit else None
    if not fits:
        return min(fails) // 2 or None
    low, high = max(fits), min(fails)
    gap = 1 << max((low // _RESOLUTION).bit_length() - 1, 0)  # a power of two, so that sizes stay round
    middle = low + max((high - low) // 2 // gap * gap, gap)
    return middle if low < middle < high else None


def largest_fitting(known: Mapping[int, bool]) -> int | None:
    """Return the largest size that fitted, None if none did."""
    return max((size for size, fitted in known.items() if fitted), default=None)


def sweep(spec: Mapping[str, Any], *, sizes: Sequence[int]) -> Sweep:
    """Return the sweep over sizes that fit.

    Batches of different sizes hold different samples, so each is checked against the same samples in two halves.
    """
    return Sweep(
        name="batch-size",
        question="how large may a batch be, and which size is best per sample?",
        variants=tuple(Variant(str(size), spec={"batch_size": size}) for size in sizes),
        tolerance=rounding(spec["precision"]),
        goal="both",
        reference="halves",
    )


def measured_sizes(known: Mapping[int, bool]) -> list[int]:
    """Return the sizes worth measuring: all that fitted while doubling, and the largest of all."""
    fits = sorted(size for size, fitted in known.items() if fitted)
    doubled = [size for size in fits if size & (size - 1) == 0]
    return sorted({*doubled, *fits[-1:]})
