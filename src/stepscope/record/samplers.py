"""What is measured beside the steps by others: memory, collectives, telemetry.

A sampler has any of these methods. One that fails is left out from then on, with one warning.

    on_begin()                               the first step begins
    on_step_end(step) -> dict                merged into the step's line
    on_region_begin(name), on_region_end(name)   on the training thread
    on_window_start(), on_window_end()
    after_window(folder, rank)               write files into `folder`; the helper takes them to the run folder
    on_close(folder, rank)                   the same, once more, at the end
"""

from typing import Any

from stepscope.record.undisturbed import explain, say


class Samplers:
    """The samplers of this process, called in the order in which they came."""

    def __init__(self) -> None:
        self._samplers: list[Any] = []

    def add(self, sampler: Any) -> None:
        """Call this one too from now on."""
        self._samplers.append(sampler)

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
        for sampler in list(self._samplers):
            out.update(self._call(sampler, "on_step_end", step) or {})
        return out

    def _call(self, sampler: Any, moment: str, *args: Any) -> Any:
        method = getattr(sampler, moment, None)
        if method is None:
            return None
        try:
            return method(*args)
        except Exception as e:  # noqa: BLE001 - training comes first
            self._samplers.remove(sampler)
            say(f"{type(sampler).__name__} is off from here on: {explain(e)}")
            return None
