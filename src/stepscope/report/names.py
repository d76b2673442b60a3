"""The one name of each part of a step, on the terminal, in pages, notebooks and pictures.

Keys are those of the report's JSON. Standard library only: a cached report imports nothing heavy.
"""

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
    "unknown": "cause unknown",
    "other": "other",
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
    "unmatched": "unmatched communication",
    "copy": PARTS["copy"],
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
    "profiler": "profiler",
    "unknown": PARTS["unknown"],
    "shared_device": "another rank on this device",
}
#: what the critical path consists of
PATH = {
    "host": "host",
    "kernel": PARTS["compute"],
    "collective": "communication",
    "copy": PARTS["copy"],
    "set": "memset",
    "launch": "launch latency and gaps",
    "other": "other",
}
#: what the energy of a step goes into
ENERGY = {
    **{part: PARTS[part] for part in ("compute", "exposed_transfer", "wait")},
    "idle": "idle",
    "recurring": "rare long steps",
}
#: as the scripts of the pages read them
FOR_PAGES = {"parts": PARTS, "groups": GROUPS, "kinds": KINDS, "causes": CAUSES, "path": PATH, "energy": ENERGY}
