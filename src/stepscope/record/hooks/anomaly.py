"""Autograd's anomaly detection: how long a step takes to keep a stack for every node of the graph.

With `torch.autograd.set_detect_anomaly(True)` every operator that builds a node asks Python for its stack, inside the
operator: no event of a profiler shows it. torch asks for it by name in a module, so that name is where it is timed.
"""

import sys
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch

from stepscope.contract.step_line import ANOMALY_DETECTION
from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.patches import Patches

MODULE = "torch.fx.traceback"


def install(loop: Loop, patches: Patches) -> None:
    """Time the function that torch asks for stacks; its module has been imported."""

    def watched(format_stack: Any) -> Any:
        def timed() -> list[str]:
            begin_ns = perf_counter_ns()
            stack: list[str] = format_stack()
            if stack and __file__ in stack[-1]:  # our own frame is nothing that the job did
                stack = stack[:-1]
            if torch.is_anomaly_enabled() and loop.is_training_thread(get_ident()):
                loop.interruptions.add(ANOMALY_DETECTION, begin_ns, perf_counter_ns())
            return stack

        return timed

    patches.replace(sys.modules[MODULE], "format_stack", watched)
