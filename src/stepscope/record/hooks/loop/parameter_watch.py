"""Did the parameters change since the last backward? The one sign of an update that no optimizer hook sees.

p -= lr * p.grad  (no_grad)     counts up `p._version`, on any device
p.data = p.data - lr * p.grad   another place in memory
p.data.add_(p.grad, ...)        neither: on a CPU the values are compared, a few hundred of them. Elsewhere reading
                                them would synchronise: there the gradients tell, once they are reset for the next
                                backward, and the step's end is known a little late

Sharding wrappers (FSDP) free and gather parameters around every pass, in the same version: a place in memory says
something only where there was one before and after.
"""

import weakref
from typing import Any

import torch

_SAMPLE = 256
_MAX_NODES = 10_000
State = tuple[int, int, bytes | None]


class ParameterWatch:
    """The first and the last parameter of the trained model stand for all."""

    def __init__(self) -> None:
        self._parameters: list[Any] = []
        self._states: list[State] = []
        self._gradients: list[tuple[int, int] | None] = []

    def watch(self, module: Any) -> None:
        """Watch parameters of this module, if it trains some and none are watched yet."""
        if not any(reference() is not None for reference in self._parameters):
            found = [p for p in module.parameters() if p.requires_grad]
            self._parameters = [weakref.ref(p) for p in {id(p): p for p in (*found[:1], *found[-1:])}.values()]
            self.remember()

    def watch_trained_by(self, outputs: Any) -> None:
        """Watch parameters that a backward from these outputs will reach, where no module is known yet."""
        if any(reference() is not None for reference in self._parameters):
            return
        found: list[Any] = []
        waiting = [output.grad_fn for output in outputs if getattr(output, "grad_fn", None) is not None]
        seen = set(waiting)
        while waiting and len(found) < 2 and len(seen) < _MAX_NODES:
            node = waiting.pop()
            variable = getattr(node, "variable", None)
            if isinstance(variable, torch.nn.Parameter):
                found.append(variable)
            new = {n for n, _ in node.next_functions if n is not None} - seen
            seen |= new
            waiting += new
        self._parameters = [weakref.ref(p) for p in found]
        self.remember()

    def remember(self) -> None:
        """Remember the state after a backward."""
        alive = self._alive()
        self._states = [_state(p) for p in alive]
        self._gradients = [_gradient(p) for p in alive]

    def changed(self) -> bool:
        """Return whether a parameter was changed since `remember`, as far as that can be seen at once."""
        alive = self._alive()
        return len(alive) == len(self._states) and any(
            _differs(_state(p), before) for p, before in zip(alive, self._states, strict=True)
        )

    def gradients_reset(self) -> bool:
        """Return whether a gradient was set to zero or to None since `remember`."""
        alive = self._alive()
        return len(alive) == len(self._gradients) and any(
            before is not None and _gradient(p) != before for p, before in zip(alive, self._gradients, strict=True)
        )

    def _alive(self) -> list[Any]:
        return [p for p in (reference() for reference in self._parameters) if p is not None]


def _state(parameter: Any) -> State:
    """Return version, place (0 without one) and some values (None where reading them would wait for a device)."""
    if type(parameter) is not torch.nn.Parameter or not parameter.untyped_storage().size():
        return parameter._version, 0, None  # sharded or otherwise special: its version has to do
    values = None
    if parameter.device.type == "cpu":
        sample = parameter.detach().reshape(-1)[:_SAMPLE].clone()  # a storage that numpy saw can't be freed by FSDP
        values = sample.view(torch.uint8).numpy().tobytes()
    return parameter._version, parameter.data_ptr(), values


def _differs(now: State, before: State) -> bool:
    both_placed = bool(now[1] and before[1])
    return now[0] != before[0] or (both_placed and now != before)


def _gradient(parameter: Any) -> tuple[int, int] | None:
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)
