"""How large is what an operator was given? From the shapes and types as the profiler writes them.

They come from a file that anybody may have written: what is no shape is unknown, never an error.
"""

import math
from functools import lru_cache
from typing import Any

from stepscope.contract.collectives import element_bytes
from stepscope.side_file import parsed_json

_MAX_ELEMENTS = 1 << 50
"""a tensor of more than a petabyte is no tensor"""
_MAX_DIMENSIONS = 64
UNKNOWN = -1


def shape_bytes(dims: str | None, types: str | None) -> int:
    """Return the bytes of the first input whose shape and type are recorded, UNKNOWN where there is none.

    >>> shape_bytes("[[6144], []]", '["float", ""]')
    24576
    """
    for shape, kind in zip(_listed(dims), _listed(types), strict=False):
        size = element_bytes(kind if isinstance(kind, str) else None)
        elements = shape_elements(shape)
        if size and elements is not None:
            return elements * size
    return UNKNOWN


@lru_cache(maxsize=4096)
def element_counts(dims: str | None) -> frozenset[int]:
    """Return how many elements each of the inputs has, those in lists of tensors too.

    >>> sorted(element_counts("[[[4, 8], [10]], [3], []]"))
    [3, 10, 32]
    """
    counts = set()
    for shape in _listed(dims):
        each = [shape] if shape_elements(shape) is not None else shape if isinstance(shape, list) else []
        counts |= {n for n in map(shape_elements, each) if n is not None}
    return frozenset(counts)


def _listed(text: str | None) -> list[Any]:
    try:
        found = parsed_json(text or "[]").value
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def shape_elements(shape: Any) -> int | None:
    """Return the number of elements of one shape, None where it is none (an empty one stands for no tensor)."""
    if not isinstance(shape, list) or not 0 < len(shape) <= _MAX_DIMENSIONS:
        return None
    if not all(type(n) is int and n >= 0 for n in shape):
        return None
    elements = math.prod(shape)
    return elements if elements <= _MAX_ELEMENTS else None
