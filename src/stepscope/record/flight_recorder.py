"""What torch's flight recorder holds: the newest collectives of this process, whoever issued them.

It sees what no wrapper in Python can: DDP's reducer and functional collectives issue theirs in C++. Reading it holds
the interpreter's lock for about 10 us per entry (20 ms for a full buffer of 2,000), so it is read rarely.
"""

import pickle
from typing import Any

import torch.distributed as dist

# NCCL keeps a recorder of its own; the other one serves gloo and the rest.
_DUMPS = ("_dump_fr_trace", "_dump_nccl_trace")


def newest_collectives() -> list[dict[str, Any]]:
    """Return the entries of every recorder in this process, oldest first; empty where torch has none or it is off."""
    if not dist.is_available():
        return []
    import torch._C._distributed_c10d as c10d

    entries: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name in _DUMPS:
        dump = getattr(c10d, name, None)
        found = pickle.loads(_without_stacks(dump)) if dump is not None else None
        for entry in found.get("entries", []) if isinstance(found, dict) else []:
            entries.setdefault((entry["time_created_ns"], entry["record_id"], entry["profiling_name"]), entry)
    return [entries[key] for key in sorted(entries)]


def _without_stacks(dump: Any) -> bytes:
    try:
        return bytes(dump(includeCollectives=True, includeStackTraces=False, onlyActive=False))
    except TypeError:  # before torch 2.5
        return bytes(dump())
