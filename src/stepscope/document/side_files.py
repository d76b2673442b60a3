"""What the recorder measured beside the traces, as keys of the report's JSON: devices, live collectives, memory of each
logged step, memory at the edges of regions, NCCL's log.
"""

from dataclasses import asdict
from typing import Any

import numpy as np

from stepscope.analyze.account import Account
from stepscope.document.plain_values import in_ms
from stepscope.run.collectives.groups import UNKNOWN_GROUP, Group
from stepscope.run.side_files import SideFiles
from stepscope.run.step_log import StepLog
from stepscope.trace.nccl.said import NcclLog

_MAX_POINTS = 400
_MEMORY = ("allocated_bytes", "reserved_bytes", "host_bytes")


def beside_json(account: Account) -> dict[str, Any]:
    """Return `devices`, `collectives_live`, `memory_steps`, `memory_edges`, `nccl` and `windows`."""
    beside = account.run.beside
    return {
        "devices": [{**asdict(d), "held_back": d.held_back} for d in account.devices],
        "collectives_live": [in_ms(c, ("time",)) for c in beside.collectives],
        "memory_steps": [memory_of_steps(log) for log in account.run.logs],
        "memory_edges": [asdict(e) for e in beside.memory[:_MAX_POINTS]],
        "memory_peaks": [{**peak, "rank": rank} for rank, peak in beside.memory_peaks.items()],
        "nccl": [asdict(n) for n in beside.nccl],
        "windows": [str(w) for w in beside.windows],
    }


def memory_of_steps(log: StepLog) -> dict[str, Any]:
    """Return the memory samples of one rank's step log, thinned to the largest of equal stretches of steps."""
    columns = {name: log.column(f"memory.{name}") for name in _MEMORY}
    sampled = np.flatnonzero(~np.all([np.isnan(c) for c in columns.values()], axis=0))
    stretches = np.array_split(sampled, max(1, min(len(sampled), _MAX_POINTS)))
    chosen = [s[np.argmax(_size(columns, s))] for s in stretches if len(s)]
    return {
        "rank": log.rank,
        "step": [int(log.step[i]) for i in chosen],
        **{name: [None if np.isnan(c[i]) else int(c[i]) for i in chosen] for name, c in columns.items()},
    }


def _size(columns: dict[str, Any], steps: Any) -> Any:
    known = columns["allocated_bytes"] if not np.isnan(columns["allocated_bytes"]).all() else columns["host_bytes"]
    return np.nan_to_num(known[steps])


def live_busbw(beside: SideFiles, op: str, group: Group) -> float | None:
    """Return the mean over ranks of the bus bandwidth over the whole job, None where it was not timed.

    Where the trace does not say the group, the only one that ran the operation is meant.
    """
    of_op = [c for c in beside.collectives if c.op == op]
    if group == UNKNOWN_GROUP:
        mine = of_op if len({c.group_desc for c in of_op}) == 1 else []
    else:
        names = {group.name, group.desc}
        mine = [c for c in of_op if {c.group, c.group_desc} & names and group.size in (None, c.group_size)]
    timed = [c.busbw_gb_per_s for c in mine if c.busbw_gb_per_s is not None]
    return float(np.mean(timed)) if timed else None


def logged_choice(beside: SideFiles, op: str, group: Group) -> dict[str, Any] | None:
    """Return what NCCL's logs say of an operation: algorithms, protocols, channels, transports; None without a log.

    Choices are logged by operation and size, not by group: a rank count that differs from the group's rules a log out.
    """
    logs = [log for log in beside.nccl if group.size is None or _made_for(log, group.size)]
    if not logs:
        return None
    chosen: dict[tuple[str, str, int | None], int] = {}
    for choice in (c for log in logs for c in log.choices if c.op == op):
        key = (choice.algorithm, choice.protocol, choice.channels)
        chosen[key] = chosen.get(key, 0) + choice.count
    names = ("algorithm", "protocol", "channels")
    ordered = sorted(chosen.items(), key=lambda item: -item[1])
    return {
        "choices": [{**dict(zip(names, key, strict=True)), "count": count} for key, count in ordered],
        "transports": sorted({name for log in logs for name in log.transports}),
    }


def _made_for(log: NcclLog, ranks: int) -> bool:
    """Return whether a log tells of a communicator of that many ranks; True where it tells of none."""
    return not log.communicators or any(c.num_ranks == ranks for c in log.communicators)
