"""What a run can be bound by: which parts of the budget, and which findings, stand for each category."""

from stepscope.analyze.account import Account
from stepscope.diagnose.finding import Finding

UNCLEAR = "unclear"
BALANCED = "balanced"
MEMORY = "memory-bound"

PARTS_OF = {
    "compute-bound": ("forward", "backward", "optimizer", "other_compute"),
    "communication-bound": ("exposed_transfer",),
    "straggler-bound": ("wait",),
    "pipeline-bound": ("pipeline_bubble",),
    "copy-bound": ("copy",),
    "data-bound": ("data_loading",),
    "host-bound": ("launch_gap", "host_sync", "allocator", "host_stall"),
    UNCLEAR: ("unknown",),
}
"""every part of the budget is in one category"""

NOUN_OF = {
    "compute-bound": "compute",
    "communication-bound": "exposed communication",
    "straggler-bound": "waiting for other ranks",
    "pipeline-bound": "the pipeline's bubble",
    "copy-bound": "copying between host and device",
    "data-bound": "waiting for input",
    "host-bound": "the host",
    UNCLEAR: "what has no known cause",
}

CATEGORY_OF_FINDING = {
    "data-loading": "data-bound",
    "launch-overhead": "host-bound",
    "host-device-sync": "host-bound",
    "host-stall": "host-bound",
    "allocator": "host-bound",
    "host-to-device-copy": "copy-bound",
    "precision": "compute-bound",
    "memory-bound-attention": "compute-bound",
    "memory-bound-kernels": "compute-bound",
    "mixed-precision-overhead": "compute-bound",
    "optimizer": "compute-bound",
    "recomputation": "compute-bound",
    "communication-bound": "communication-bound",
    "no-overlap": "communication-bound",
    "too-many-small-collectives": "communication-bound",
    "redundant-communication": "communication-bound",
    "slow-link": "communication-bound",
    "straggler": "straggler-bound",
    "load-imbalance": "straggler-bound",
    "expert-imbalance": "straggler-bound",
    "pipeline-bubble": "pipeline-bound",
}
"""what a run is bound by when this finding comes first; findings without a saving of their own never do"""

_OR_THE_HOST = ("mixed-precision-overhead", "optimizer", "recomputation", "host-to-device-copy")
"""they cost their own time, or the host's that launches them or waits for them"""


def category_times_ns(account: Account) -> dict[str, float]:
    """Return what each category takes of the step; communication that no rank matches is communication."""
    step = account.step
    if step is None:
        return dict.fromkeys(PARTS_OF, 0.0)
    times = {name: sum(step.ns(p) for p in parts) for name, parts in PARTS_OF.items()}
    times["communication-bound"] += step.unmatched_ns
    times[UNCLEAR] -= step.unmatched_ns
    return times


def category_of_finding(account: Account, finding: Finding) -> str | None:
    """Return what a run is bound by whose largest fixable loss is this finding's; None for one that saves nothing.

    Work that need not be done costs the device's time, or the host's that launches it or waits for it: whichever is the
    larger here.
    """
    if finding.on_device:
        return "compute-bound"
    category = CATEGORY_OF_FINDING.get(finding.id)
    if category is None or finding.id not in _OR_THE_HOST:
        return category
    times = category_times_ns(account)
    return max((category, "host-bound"), key=lambda name: times[name])
