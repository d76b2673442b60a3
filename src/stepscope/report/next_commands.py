"""What to run next, given what was found?"""

import shlex
from collections.abc import Sequence

from stepscope.diagnose.findings import Diagnosis
from stepscope.units import printable

_SETTING_OF = {
    "straggler": "straggler=off",
    "load-imbalance": "load=even",
    "no-overlap": "overlap=perfect",
    "communication-bound": "bytes=0.5x",
    "too-many-small-collectives": "bucket_mb=4",
    "data-loading": "data=instant",
    "host-device-sync": "sync=off",
    "launch-overhead": "launch=graph",
    "host-stall": "stalls=off",
    "allocator": "allocator=off",
    "host-to-device-copy": "copies=hidden",
    "recomputation": "recompute=off",
    "redundant-communication": "accumulation=no_sync",
    "optimizer": "optimizer=fused",
    "precision": "precision=16bit",
    "memory-bound-attention": "attention=fused",
    "memory-bound-kernels": "kernels=fused",
    "mixed-precision-overhead": "scaler=off",
    "expert-imbalance": "experts=even",
    "slow-link": "links=even",
}


def next_commands(diagnosis: Diagnosis, given: Sequence[str]) -> list[tuple[str, str]]:
    """Return command lines for the run and options that were `given` on one, and what each tells."""
    run = " ".join(shlex.quote(printable(word)) for word in given)
    lines = [
        (f"stepscope view {run}", "report, tables and timeline in the browser"),
        (f"stepscope report {run} --html report.html", "the whole report as one file"),
    ]
    settings = [_SETTING_OF[f.id] for f in diagnosis.findings if f.saving_ns > 0 and f.id in _SETTING_OF]
    if settings:
        lines.insert(0, (f"stepscope whatif {run} --set {settings[0]}", "the first fix, alone or with others"))
    return lines
