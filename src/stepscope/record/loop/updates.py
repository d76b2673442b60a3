"""What updates the parameters: torch's optimizers by their role in the loop, and updates that no hook sees.

A role outlives the optimizer object: a script may make a new one in every step or epoch. An optimizer that steps for
the first time takes the role of another one that stepped at the same place in the code, if it trains the same
parameters or the other one no longer exists.
"""

import weakref
from collections.abc import Hashable
from typing import Any

import torch

from stepscope.record.loop.places import Role, current_place


class Optimizers:
    """The optimizers that exist, held weakly: one that the script dropped is not waited for."""

    def __init__(self) -> None:
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inner: weakref.WeakSet[Any] = weakref.WeakSet()
        self._roles: weakref.WeakKeyDictionary[Any, Role] = weakref.WeakKeyDictionary()
        self._known: list[Role] = []

    def is_made(self, optimizer: Any) -> None:
        """Take note of a new optimizer."""
        self._alive.add(optimizer)

    def is_inner(self, optimizer: Any, *, of: Any) -> None:
        """Take note that another optimizer steps this one (ZeroRedundancyOptimizer and the like)."""
        if optimizer is not of:
            self._inner.add(optimizer)

    def main(self) -> Any:
        """Return the optimizer with the most parameters among those that step on their own, None without any."""
        own = [o for o in self._alive if o not in self._inner]
        return max(own, key=lambda o: sum(len(g["params"]) for g in o.param_groups), default=None)

    def role(self, optimizer: Any) -> Role:
        """Return the role of an optimizer that steps now."""
        role = self._roles.get(optimizer)
        if role is None:
            place, trains = current_place(), _first_parameter(optimizer)
            for role in self._known:
                if (role.trains == trains or role.optimizer() is None) and role.place == place:
                    break
            else:
                role = Role(place)
                self._known.append(role)
            role.trains, role.optimizer = trains, weakref.ref(optimizer)
            self._roles[optimizer] = role
        return role

    def expected(self) -> frozenset[Hashable]:
        """Return the roles of those that exist and step on their own; one that never stepped is its own role."""
        trained: dict[int, Hashable] = {role.trains: role for role in self._known}
        own = [o for o in self._alive if o not in self._inner]
        return frozenset(self._roles.get(o) or trained.get(_first_parameter(o), id(o)) for o in own)


def _first_parameter(optimizer: Any) -> int:
    return next((id(p) for group in optimizer.param_groups for p in group["params"]), 0)


# Did the parameters change since the last backward began? The one sign of an update that no optimizer hook sees.
#
# p -= lr * p.grad  (no_grad)     counts up `p._version`, on any device
# p.data = p.data - lr * p.grad   another place in memory
# p.data.add_(p.grad, ...)        neither: on a CPU the values are compared, a few hundred of them. Elsewhere reading
#                                 them would synchronise: there the update is detected when the gradients are reset for
#                                 the next backward, so the step's end is known a little late
# parameters made anew            gradients by `torch.autograd.grad`, which leaves none to add to: detected as late
#
# Sharding wrappers (FSDP) free and gather parameters around every pass, in the same version: an address is evidence
# only where there was one before and after.

State = tuple[int, int, bytes | None]
_MAX_NODES = 10_000


class ParameterWatch:
    """Two of the parameters that a backward reaches stand for all; a backward elsewhere in the code has others."""

    def __init__(self) -> None:
        self.role = Role(())  # of the last backward
        self._found: dict[Role, list[Any]] = {}  # held weakly
        self._states: list[State] = []
        self._gradients: list[tuple[int, int] | None] = []

    def recurs(self) -> bool:
        """Return whether the backward that begins now is at the same place as the last one."""
        return self.role.place == current_place()

    def backward_begins(self, outputs: Any) -> None:
        """Remember the parameters that this backward will reach."""
        place = current_place()
        self.role = next((role for role in self._found if role.place == place), None) or Role(place)
        parameters = self._parameters()
        if not parameters:
            parameters = _trained_by(outputs)
            self._found[self.role] = [weakref.ref(p) for p in parameters]
        self._states = [_state(p) for p in parameters]
        self._gradients = []

    def backward_ends(self) -> None:
        """Remember the gradients."""
        self._gradients = [_gradient(p) for p in self._parameters()]

    def changed(self) -> bool:
        """Return whether a parameter was changed since the last backward began, as far as that can be seen at once."""
        alive, before = self._parameters(), self._states
        if len(alive) != len(before):
            return False
        now = [_state(p) for p in alive]
        # once freed, its next place in memory is no sign
        self._states = [b if n[1] else (b[0], 0, None) for n, b in zip(now, before, strict=True)]
        return any(_differs(n, b) for n, b in zip(now, before, strict=True))

    def gradients_start_anew(self) -> bool:
        """Return whether gradients were set to zero or to None since the last backward, or it left none to add to."""
        alive = self._parameters()
        if len(alive) != len(self._gradients) or not any(self._gradients):
            return self.recurs()
        return any(b is not None and _gradient(p) != b for p, b in zip(alive, self._gradients, strict=True))

    def _parameters(self) -> list[Any]:
        return [p for p in (reference() for reference in self._found.get(self.role, ())) if p is not None]


def _trained_by(outputs: Any) -> list[Any]:
    """Return the parameter nearest to the outputs and the farthest one, which another model may hold."""
    nodes = [output.grad_fn for output in outputs if getattr(output, "grad_fn", None) is not None]
    seen, parameters, tensors = set(nodes), list[Any](), list[Any]()
    for node in nodes:  # which grows meanwhile
        variable = getattr(node, "variable", None)
        if variable is not None:
            (parameters if isinstance(variable, torch.nn.Parameter) else tensors).append(variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen and len(nodes) < _MAX_NODES:
                seen.add(following)
                nodes.append(following)
    found = parameters or tensors
    return list({id(p): p for p in (*found[:1], *found[-1:])}.values())


def _state(parameter: Any) -> State:
    if type(parameter) not in (torch.nn.Parameter, torch.Tensor) or not parameter.untyped_storage().size():
        return parameter._version, 0, None  # sharded or otherwise special: its version has to do
    values = None
    if parameter.device.type == "cpu":
        sample = parameter.detach().reshape(-1)[:256].clone()  # a storage that numpy saw can't be freed by FSDP
        values = sample.view(torch.uint8).numpy().tobytes()
    return parameter._version, parameter.data_ptr(), values


def _differs(now: State, before: State) -> bool:
    both_placed = bool(now[1] and before[1])
    return now[0] != before[0] or (both_placed and now != before)


def _gradient(parameter: Any) -> tuple[int, int] | None:
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)
