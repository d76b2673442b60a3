"""One line of `rankNNNNN.steps.jsonl`: a step that ended, when, in which phase of the recording, and its regions.

    {"schema": 1, "rank": 0, "world_size": 2, ...}                              header
    {"step": 7, "start_ns", "end_ns", "dur_ns", "device_ns", "profiled", "phase",
     "regions": {"forward_pass": {"ns", "n"}}, ...what samplers add}            one per step

`start_ns` and `end_ns` are epoch times, `dur_ns` is by a clock that never jumps; `device_ns` is the time between the
device's ends of two steps, of short ones the mean of a few, None where it was not measured. A region's time is its own,
without regions inside it.
"""

from typing import Any, NotRequired, TypedDict

BEFORE, WARMUP, WINDOW, AFTER = "before", "warmup", "window", "after"
"""the phases of a recording: up to the window, the profiler's own warm-up, the window itself, and later"""

DATA_LOADING = "data_loading"
FORWARD = "forward_pass"
BACKWARD = "backward_pass"
GRADIENT_SYNC = "gradient_sync"
OPTIMIZER = "optimizer_step"
LR_SCHEDULING = "lr_scheduling"
CLIPPING = "gradient_clipping_warmup"
# What recurs in some steps only.
LOADER_START = "loader_start"
CHECKPOINT = "checkpoint"
EVALUATION = "evaluation"
GARBAGE_COLLECTION = "garbage_collection"
COMPILATION = "compilation"

ANOMALY_DETECTION = "anomaly_detection"
"""in every step of a job that has autograd's anomaly detection on: stacks kept for its messages"""

RegionTimes = dict[str, dict[str, int]]
"""`{name: {"ns": own time, "n": how often}}`"""


class StepLine(TypedDict):
    """A line of the log; samplers may add more under names of their own."""

    step: int
    start_ns: int
    end_ns: int
    dur_ns: int
    device_ns: int | None
    profiled: bool
    phase: str
    regions: RegionTimes
    memory: NotRequired[dict[str, Any]]
    collectives: NotRequired[dict[str, Any]]
