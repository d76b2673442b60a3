"""What a collective is called, and how many bytes it is about, by what torch's flight recorder says of it."""

from collections.abc import Mapping
from math import prod
from typing import Any

from stepscope.contract.collectives import (
    ALL_GATHER,
    BROADCAST,
    GATHER,
    RECV,
    SCATTER,
    UNKNOWN_OP,
    element_bytes,
    op_name,
)


def operation_of(profiling_name: str) -> str:
    """Return the operation behind a backend's name.

    `nccl:_all_gather_base` is an `all_gather`, `nccl:send 0->1` a `send`. A name that says none of them
    (`nccl:coalesced`) comes back as it is, without the backend.
    """
    name = profiling_name.rsplit(":", 1)[-1].split(" ", 1)[0]
    operation = op_name(name)
    return name if operation == UNKNOWN_OP else operation


def entry_bytes(entry: Mapping[str, Any], *, group_size: int) -> int | None:
    """Return the full buffer of a flight recorder's entry, None where a type in it is unknown."""
    operation = operation_of(entry["profiling_name"])
    side = "output" if operation in (ALL_GATHER, BROADCAST, SCATTER, RECV) else "input"
    total = _total_bytes(entry[f"{side}_sizes"], entry[f"{side}_dtypes"])
    if total is not None and operation in (GATHER, SCATTER):
        return total * group_size
    return total


def _total_bytes(sizes: list[list[int]], dtypes: list[str]) -> int | None:
    if len(dtypes) == 1 and len(sizes) > 1:
        dtypes = dtypes * len(sizes)
    each = [element_bytes(dtype) for dtype in dtypes]
    if None in each:
        return None
    return sum(prod(shape) * size for shape, size in zip(sizes, each, strict=False) if size is not None)
