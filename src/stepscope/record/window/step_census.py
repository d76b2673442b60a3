"""One step's operators, counted while they run: how many events a step makes and how many FLOPs it does.

A profiler with shapes watches the first step after the window. It only looks: no operator is replaced or decomposed, so
results stay bit-equal, compiled code included.
"""

import bisect
from collections.abc import Iterable
from typing import Any

from stepscope.record.config import RecordConfig
from stepscope.record.window.budget import TypicalStep
from stepscope.record.window.flops import flops_of
from stepscope.record.window.profiler_guard import ProfilerGuard
from stepscope.record.window.watched_step import WatchedStep

_BACKWARD = "autograd::engine::evaluate_function"


class StepCensus(WatchedStep):
    """Watches one step: `begin()` before it, `counts()` after it."""

    def __init__(self, guard: ProfilerGuard, config: RecordConfig, usual: TypicalStep) -> None:
        super().__init__(guard, config, usual, purpose="be counted", record_shapes=True)

    def counts(self) -> dict[str, int] | None:
        """Return `{"events", "total", "forward"}` of the watched step, None where it could not be watched."""
        results = self.end()
        if results is None:
            return None
        events = results.events()
        if len(events) > self._config.max_events:
            self.why_not = f"the step to be counted has {len(events)} events, {self._config.max_events} allowed"
            return None
        return {"events": len(events), **counted(events)}


def counted(events: Iterable[Any]) -> dict[str, int]:
    """Return the FLOPs of profiler events: in all, and of those outside the backward pass."""
    operators, backward = [], []
    for event in events:
        name = event.name()
        if name.startswith(_BACKWARD):
            backward.append((event.start_thread_id(), event.start_ns(), event.start_ns() + event.duration_ns()))
        else:
            flops = flops_of(name, event.shapes(), event.concrete_inputs())
            if flops:
                operators.append((event.start_thread_id(), event.start_ns(), flops))
    spans = _merged(backward)
    total = sum(flops for _, _, flops in operators)
    forward = sum(flops for thread, at_ns, flops in operators if not _within(spans, thread, at_ns))
    return {"total": total, "forward": forward}


def _merged(spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return disjoint `(thread, start, end)` in order; recomputation nests backward spans in each other."""
    out: list[tuple[int, int, int]] = []
    for thread, start_ns, end_ns in sorted(spans):
        if out and out[-1][0] == thread and start_ns <= out[-1][2]:
            out[-1] = (thread, out[-1][1], max(end_ns, out[-1][2]))
        else:
            out.append((thread, start_ns, end_ns))
    return out


def _within(spans: list[tuple[int, int, int]], thread: int, at_ns: int) -> bool:
    i = bisect.bisect_right(spans, (thread, at_ns, 1 << 63)) - 1
    return i >= 0 and spans[i][0] == thread and at_ns <= spans[i][2]
