"""The parts of a step's budget, as the contract names them, and what becomes of each region of training."""

from stepscope.contract.regions import Region

PARTS = (
    "forward", "backward", "optimizer", "other_compute", "exposed_transfer", "wait", "pipeline_bubble", "copy",
    "data_loading", "launch_gap", "host_sync", "allocator", "host_stall", "unknown",
)  # fmt: skip
PART_CODE = {part: code for code, part in enumerate(PARTS)}

COMPUTE_PART = {
    Region.FORWARD: "forward",
    Region.BACKWARD: "backward",
    Region.OPTIMIZER: "optimizer",
    Region.OTHER: "other_compute",
    Region.DATA: "data_loading",
}
"""what computing in a region is; where two run at once the first of these counts"""
