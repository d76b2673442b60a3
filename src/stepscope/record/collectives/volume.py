"""What a collective is called, how many bytes it is about, and what its bus bandwidth is.

The size of a collective is its *full buffer*: what every rank has at the end of an all-gather, what every rank had
at the beginning of a reduce-scatter or an all-to-all. With P ranks and a time t for n bytes,

    algorithm bandwidth = n / t        bus bandwidth = factor x n / t

where the factor is the share of the buffer that has to cross each link, so that the bus bandwidth can be held against
the link whatever the operation and the number of ranks.
"""

from collections.abc import Mapping
from typing import Any

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
ALL_TO_ALL, BROADCAST, REDUCE = "all_to_all", "broadcast", "reduce"
GATHER, SCATTER, BARRIER, SEND, RECV = "gather", "scatter", "barrier", "send", "recv"

# What the name holds, underscores aside; the first match wins.
_NAMED = {
    "barrier": BARRIER,
    "allreduce": ALL_REDUCE,
    "reducescatter": REDUCE_SCATTER,
    "allgather": ALL_GATHER,
    "alltoall": ALL_TO_ALL,
    "broadcast": BROADCAST,
    "gather": GATHER,
    "scatter": SCATTER,
    "reduce": REDUCE,
    "recv": RECV,
    "send": SEND,
}
_BYTES = {
    **dict.fromkeys(("Double", "Long", "ComplexFloat", "UInt64"), 8),
    **dict.fromkeys(("Float", "Int", "UInt32"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
    "ComplexDouble": 16,
}


def operation_of(profiling_name: str) -> str:
    """Return the operation behind a backend's name.

    `nccl:_all_gather_base` is an `all_gather`, `nccl:send 0->1` a `send`. A name that says none of them
    (`nccl:coalesced`) comes back as it is, without the backend.
    """
    name = profiling_name.rsplit(":", 1)[-1].split(" ", 1)[0]
    plain = name.replace("_", "").lower()
    return next((operation for part, operation in _NAMED.items() if part in plain), name)


def bus_factor(operation: str, group_size: int) -> float:
    """Return bus bandwidth / algorithm bandwidth of an operation over the full buffer."""
    if operation == ALL_REDUCE:
        return 2 * (group_size - 1) / group_size
    if operation in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER):
        return (group_size - 1) / group_size
    return 1.0


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
    total = 0
    for shape, dtype in zip(sizes, dtypes, strict=False):
        if dtype not in _BYTES:
            return None
        elements = 1
        for extent in shape:
            elements *= extent
        total += elements * _BYTES[dtype]
    return total
