"""The samplers of a recording, by its settings. Each is made separately: one that fails is reported and left out."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from stepscope.record.collectives import LiveCollectives
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain, say
from stepscope.record.memory import MemorySampler, MemoryTimeline, memory_history
from stepscope.record.nccl_log import NcclLog
from stepscope.record.owners.graph_capture import graph_captures
from stepscope.record.thread_samples import ThreadSamples
from stepscope.record.window.schedule import close_look_at_memory


class Samplers:
    """The samplers of this process, called in the order in which they were added."""

    def __init__(self) -> None:
        self._samplers: list[Any] = []
        self._at_step_end: list[Any] = []  # found once: this is the way that every step takes

    def __iter__(self) -> Iterator[Any]:
        return iter(self._samplers)

    def add(self, sampler: Any) -> None:
        self._samplers.append(sampler)
        if hasattr(sampler, "on_step_end"):
            self._at_step_end.append(sampler.on_step_end)

    def has(self, moment: str) -> bool:
        return any(hasattr(sampler, moment) for sampler in self._samplers)

    @property
    def have_unsaved(self) -> bool:
        """Return whether one of them has something to write although no step has ended."""
        return any(getattr(sampler, "has_unsaved", False) for sampler in self._samplers)

    def tell(self, moment: str, *args: Any) -> None:
        for sampler in list(self._samplers):
            method = getattr(sampler, moment, None)
            try:
                if method is not None:
                    method(*args)
            except Exception as e:  # noqa: BLE001 - training comes first
                self._leave_out(sampler, e)

    def of_step(self, step: int) -> dict[str, Any]:
        """Return what the samplers have to say about a step that ended."""
        out: dict[str, Any] = {}
        for at_step_end in self._at_step_end:
            try:
                said = at_step_end(step)
            except Exception as e:  # noqa: BLE001 - training comes first
                self._leave_out(at_step_end.__self__, e)
                continue
            if said:
                out.update(said)
        return out

    def _leave_out(self, sampler: Any, error: Exception) -> None:
        self._samplers.remove(sampler)
        self._at_step_end = [s.on_step_end for s in self._samplers if hasattr(s, "on_step_end")]
        say(f"{type(sampler).__name__} is off from here on: {explain(error)}")


def standard_samplers(config: RecordConfig) -> list[Any]:
    """Return the samplers of this process, ready to be added to its recorder."""
    wanted: list[tuple[bool, str, Callable[[], Any]]] = [
        (True, "memory", MemorySampler),
        (config.collectives, "live collectives", LiveCollectives),
        (config.memory, "memory through the step", lambda: MemoryTimeline(first_step=close_look_at_memory(config))),
        (config.memory or config.memory_history, "memory history", memory_history),
        (config.graphs, "captures of CUDA graphs", lambda: graph_captures(config)),
        (config.nccl_log, "NCCL's log", NcclLog),
        (
            config.samples and hasattr(time, "pthread_getcpuclockid"),
            "samples of threads",
            lambda: ThreadSamples(with_text=config.source),
        ),
    ]
    made = []
    for is_wanted, what, make in wanted:
        try:
            if is_wanted:
                made.append(make())
        except Exception as e:  # noqa: BLE001 - training comes first
            say(f"{what} will not be recorded: {explain(e)}")
    return made
