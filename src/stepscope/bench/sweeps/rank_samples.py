"""One measurement from those of all ranks: the job's samples, the fullest rank's memory, the median rank's time.

    rank 0   {"step_ms": [10, 12], "samples_per_step": 4, "peak_memory_allocated_gb": 1.0, ...}
    rank 1   {"step_ms": [11, 12], "samples_per_step": 4, "peak_memory_allocated_gb": 1.2, ...}
    job      {"step_ms": [10.5, 12], "samples_per_step": 8, "peak_memory_allocated_gb": 1.2, ...}

Standard library only.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

Record = dict[str, Any]

_MEDIAN = ("step_ms", "warmup_ms")
_MAX = ("peak_memory_allocated_gb", "peak_memory_reserved_gb", "peak_host_bytes")
_SUM = ("samples_per_step", "tokens_per_step", "flops_per_step")


def job_samples(ranks: Sequence[Record]) -> Record:
    """Return the record of the whole job."""
    return {
        **ranks[0],
        **{name: _by_step(ranks, name, statistics.median) for name in _MEDIAN},
        **{name: _whole(ranks, name, max) for name in _MAX},
        **{name: _whole(ranks, name, sum) for name in _SUM},
        "memory_allocated_gb": _by_step(ranks, "memory_allocated_gb", max),
        "losses": _by_step(ranks, "losses", statistics.fmean),
        "check": _check([rank["check"] for rank in ranks]),
        "reference": _check([rank["reference"] for rank in ranks]),
    }


def _by_step(ranks: Sequence[Record], name: str, over: Callable[[Sequence[float]], float]) -> list[float] | None:
    found = [rank[name] for rank in ranks]
    return None if None in found else [over(values) for values in zip(*found, strict=True)]


def _whole(ranks: Sequence[Record], name: str, over: Callable[[Sequence[float]], float]) -> float | None:
    found = [rank[name] for rank in ranks]
    return None if None in found else over(found)


def _check(ranks: Sequence[Record | None]) -> Record | None:
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks):
        return None
    return {
        **known[0],
        "losses": _by_step(known, "losses", statistics.fmean),
        "first_step_ms": max(rank["first_step_ms"] for rank in known),
    }
