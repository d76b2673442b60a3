"""The names that people read for the ids of the report's JSON, on the terminal, in pages, notebooks and pictures."""

from collections.abc import Mapping
from typing import Any

PARTS = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other_compute": "other compute",
    "compute": "compute",
    "exposed_transfer": "exposed communication",
    "wait": "waiting for other ranks",
    "pipeline_bubble": "pipeline bubble",
    "copy": "host-device copies",
    "data_loading": "data loading",
    "launch_gap": "kernel-launch gaps",
    "host_sync": "host synchronisation",
    "allocator": "memory allocation",
    "host_stall": "host stalled",
    "unmatched": "unmatched communication",
    "profiler": "the profiler itself",
    "unknown": "cause unknown",
    "other": "other",
}
#: the part of the step that a fault explains
PART_OF_FAULT = {
    "data-loading": "data_loading",
    "launch-overhead": "launch_gap",
    "host-device-sync": "host_sync",
    "host-to-device-copy": "copy",
    "host-stall": "host_stall",
    "allocator": "allocator",
}
#: losses between the chip's peak and the achieved FLOP rate
LOSSES = {
    **PARTS,
    "wait_for_stragglers": PARTS["wait"],
    "launch_gaps": PARTS["launch_gap"],
    "copies": PARTS["copy"],
    "other_idle": "other idle",
    "non_matmul_kernels": "non-matmul kernels",
    "precision": "FP32 or TF32 matmuls",
    "matmul_below_peak": "matmuls below peak",
    "achieved": "achieved (MFU)",
}
#: parts of a step by colour: charts of steps and ranks
GROUPS = {
    "compute": PARTS["compute"],
    "transfer": PARTS["exposed_transfer"],
    "wait": PARTS["wait"],
    "copy": PARTS["copy"],
    "input": PARTS["data_loading"],
    "host": "host (launch gaps, synchronisation, stalls)",
    "unknown": PARTS["unknown"],
}
#: slices of the timeline
KINDS = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": PARTS["other_compute"],
    "transfer": "communication",
    "unmatched": PARTS["unmatched"],
    "copy": "copies",
    "range": "host range",
    "idle": "idle, with its cause",
    "wait": PARTS["wait"],
}
#: why a device idles
CAUSES = {
    "launch": PARTS["launch_gap"],
    "device_turnaround": "between two operations",
    "host_sync": PARTS["host_sync"],
    "allocator": PARTS["allocator"],
    "data_loading": PARTS["data_loading"],
    "garbage_collector": "garbage collection",
    "host_stall": PARTS["host_stall"],
    "other_stream": "queued behind another stream",
    "queued": "queued, not started",
    "profiler": PARTS["profiler"],
    "unknown": PARTS["unknown"],
    "shared_device": "another rank on this device",
    "blocking_copy": "copies that block the host",
    "after_sync": "host work after a synchronisation",
    "slow_call": "long host calls",
}
#: what the critical path consists of
PATH = {
    "host": "host",
    "kernel": PARTS["compute"],
    "collective": "communication",
    "copy": "copies",
    "set": "memset",
    "launch": "launch latency and gaps",
    "other": "other",
}


def category_name(id_: str) -> str:
    """Return a category of memory as words.

    >>> category_name("kept"), category_name("optimizer_state")
    ('allocated before the window', 'optimizer state')
    """
    return "allocated before the window" if id_ == "kept" else words(id_)


def words(id_: str) -> str:
    """Return an id as words.

    >>> words("device_utilisation_pct"), words("all_reduce_pct_of_backward")
    ('device utilisation, %', 'all reduce, % of backward')
    """
    return id_.replace("_pct", ", %").replace("_", " ")


#: what the energy of a step goes into
ENERGY = {
    **{part: PARTS[part] for part in ("compute", "exposed_transfer", "wait")},
    "idle": "idle",
    "recurring": "rare long steps",
}
#: as the scripts of the pages read them
FOR_PAGES = {"parts": PARTS, "groups": GROUPS, "kinds": KINDS, "causes": CAUSES, "path": PATH, "energy": ENERGY}

#: where the time of a job went
JOB_PARTS = {
    "startup": "start-up",
    "compile": "compilation, first calls",
    "productive": "productive steps",
    "slowed": "slowed steps",
    "evaluation": "evaluation",
    "checkpoint_save": "checkpoint save",
    "checkpoint_load": "checkpoint load",
    "hang": "hangs and timeouts",
    "lost_work": "lost work",
    "restart": "restart",
    "shutdown": "shutdown",
    "unknown": "unknown",
}


def duration_text(seconds: float) -> str:
    """Return a time with three digits.

    >>> duration_text(0.25), duration_text(7.25), duration_text(754), duration_text(9000)
    ('250 ms', '7.25 s', '12.6 min', '2.5 h')
    """
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    for size, unit in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def shown_parts(step: Mapping[str, Any]) -> dict[str, float]:
    """Return the milliseconds of each part of the budget, communication without a counterpart on its own.

    The budget counts it as unknown: whether it waited for a rank or for the network is not.

    >>> shown_parts({"budget": [{"part": "unknown", "ms_per_step": 5.0}], "unmatched_comm_ms": 4.0})
    {'unknown': 1.0, 'unmatched': 4.0}
    """
    times: dict[str, float] = {row["part"]: row["ms_per_step"] for row in step["budget"]}
    unmatched = min(step.get("unmatched_comm_ms") or 0.0, times.get("unknown", 0.0))
    return {**times, "unknown": times["unknown"] - unmatched, "unmatched": unmatched} if unmatched else times
