"""What is measured beside the steps by others: memory, collectives, telemetry.

A sampler has any of these methods. One that fails is left out from then on, with one warning.

    on_begin()                               the first step begins
    on_step_end(step) -> dict                merged into the step's line
    on_steps_passed(count)                   so many steps ended that were only timed
    on_region_begin(name), on_region_end(name)   on the training thread
    on_window_start(), on_window_end()
    after_window(folder, rank)               write files into `folder`; the helper takes them to the run folder
    on_close(folder, rank)                   the same, once more, at the end
"""

from collections.abc import Iterator
from typing import Any

from stepscope.record.failsafe import explain, say


class Samplers:
    """The samplers of this process, called in the order in which they came."""

    def __init__(self) -> None:
        self._samplers: list[Any] = []
        self._at_step_end: list[Any] = []  # found once: this is the way that every step takes

    def __iter__(self) -> Iterator[Any]:
        return iter(self._samplers)

    def add(self, sampler: Any) -> None:
        """Call this one too from now on."""
        self._samplers.append(sampler)
        if hasattr(sampler, "on_step_end"):
            self._at_step_end.append(sampler.on_step_end)

    def has(self, moment: str) -> bool:
        """Return whether any sampler wants to hear of `moment`."""
        return any(hasattr(sampler, moment) for sampler in self._samplers)

    def tell(self, moment: str, *args: Any) -> None:
        """Call `moment` on every sampler that has it."""
        for sampler in list(self._samplers):
            self._call(sampler, moment, *args)

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

    def _call(self, sampler: Any, moment: str, *args: Any) -> None:
        method = getattr(sampler, moment, None)
        if method is None:
            return
        try:
            method(*args)
        except Exception as e:  # noqa: BLE001 - training comes first
            self._leave_out(sampler, e)

    def _leave_out(self, sampler: Any, error: Exception) -> None:
        self._samplers.remove(sampler)
        self._at_step_end = [s.on_step_end for s in self._samplers if hasattr(s, "on_step_end")]
        say(f"{type(sampler).__name__} is off from here on: {explain(error)}")
