"""What does each line and each module cost per step?

Everything a rank did is summed by owner once (`sums`); lines and modules are sums over owners. A line's `own` cost is
where it is the innermost line of the user's; `inclusive` counts it wherever it is in the stack, so callers contain what
they call and lines do not add up. `backward` is the part of `inclusive` that ran in backward passes. Formulas:
`docs/metrics/findings.md`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.analyze.owners.cost import CodeCosts, Cost, LineCost, ModuleCost
from stepscope.analyze.owners.ownership import Ownership
from stepscope.analyze.owners.stacks import Line
from stepscope.analyze.owners.sums import COLUMNS, FLOPS, MEMORY, Floats, OwnerSums
from stepscope.contract.owners import EXECUTING

Key = TypeVar("Key", Line, str, tuple[Line, str])
Mask = npt.NDArray[np.bool_]
_OWN, _INCLUSIVE, _BACKWARD = range(3)


def code_costs(owned: Sequence[Ownership], sums: Sequence[OwnerSums]) -> CodeCosts | None:
    """Return the cost of lines and modules over these ranks, None where no rank has owners.

    `sums` are of the same ranks, in the same order.
    """
    if not owned:
        return None
    known = np.any([s.known for s in sums], axis=0)
    ranks = [one.rank.rank for one in owned]
    lines, modules = _CostsByKey[Line](ranks, known), _CostsByKey[str](ranks, known)
    modules_of_lines = _CostsByKey[tuple[Line, str]](ranks, known)
    for i, (one, found) in enumerate(zip(owned, sums, strict=True)):
        _add_lines(lines, modules_of_lines, i, one, found)
        _add_modules(modules, i, one, found)
    return CodeCosts(
        lines=_line_costs(lines, modules_of_lines, owned),
        modules=tuple(
            ModuleCost(
                path=path,
                own=modules.cost(path, _OWN),
                inclusive=modules.cost(path, _INCLUSIVE),
                backward=modules.cost(path, _BACKWARD),
                by_rank=modules.by_rank(path),
            )
            for path in modules.largest_first()
        ),
        total=_cost(np.mean([s.amount.sum(axis=0) for s in sums], axis=0), known),
        unowned=_cost(np.mean([s.amount[s.owner.stack < 0].sum(axis=0) for s in sums], axis=0), known),
        exact_lines=all(one.lines == EXECUTING for one in owned),
        ranks=tuple(ranks),
    )


def _line_costs(
    lines: "_CostsByKey[Line]", modules: "_CostsByKey[tuple[Line, str]]", owned: Sequence[Ownership]
) -> tuple[LineCost, ...]:
    frames = {(f.file, f.line): f for one in reversed(owned) for f in reversed(one.frames)}
    favourite = _favourites(modules)
    return tuple(
        LineCost(
            file=key[0],
            line=key[1],
            line_to=frames[key].line_to,
            function=frames[key].function,
            is_user=frames[key].is_user,
            own=lines.cost(key, _OWN),
            inclusive=lines.cost(key, _INCLUSIVE),
            backward=lines.cost(key, _BACKWARD),
            by_rank=lines.by_rank(key),
            module=favourite.get(key),
        )
        for key in lines.largest_first()
    )


class _CostsByKey(Generic[Key]):
    """Costs by key: own, inclusive and of that in backward, of each rank."""

    def __init__(self, ranks: Sequence[int], known: Mask) -> None:
        self.amounts: dict[Key, Floats] = {}
        self._ranks, self._known = ranks, known

    def add(self, key: Key, rank: int, which: int, amount: Floats) -> None:
        if key not in self.amounts:
            self.amounts[key] = np.zeros((len(self._ranks), 3, len(COLUMNS)))
        self.amounts[key][rank, which] += amount

    def cost(self, key: Key, which: int) -> Cost:
        return _cost(self.amounts[key][:, which].mean(axis=0), self._known)

    def by_rank(self, key: Key) -> dict[int, Cost]:
        return {rank: _cost(self.amounts[key][i, _INCLUSIVE], self._known) for i, rank in enumerate(self._ranks)}

    def largest_first(self) -> list[Key]:
        return sorted(self.amounts, key=lambda key: (-self.cost(key, _INCLUSIVE).largest_ns, str(key)))


def _cost(amount: Floats, known: Mask) -> Cost:
    values = {name: float(value) for name, value in zip(COLUMNS, amount, strict=True)}
    return replace(
        Cost(**values),
        flops=values["flops"] if known[FLOPS] else None,
        memory_bytes=values["memory_bytes"] if known[MEMORY] else None,
    )


def _add_lines(
    lines: _CostsByKey[Line], modules: _CostsByKey[tuple[Line, str]], rank: int, owned: Ownership, sums: OwnerSums
) -> None:
    """Add each owner's cost to the lines of its stack, and to those of where it was called."""
    place, users, sets = [(f.file, f.line) for f in owned.frames], owned.stacks.innermost_user, owned.stacks.lines
    innermost = np.where(users >= 0, users, owned.stacks.innermost).tolist()
    for stack, _, module, _, amount in _rows(sums):
        if innermost[stack] >= 0:
            own = place[innermost[stack]]
            lines.add(own, rank, _OWN, amount)
            if module >= 0 and owned.modules[module]:
                modules.add((own, owned.modules[module]), rank, _OWN, amount)
    for n, rows in sets.things(sums.owner.stack, sums.owner.caller):
        lines.add(sets.lines[n], rank, _INCLUSIVE, sums.amount[rows].sum(axis=0))
        lines.add(sets.lines[n], rank, _BACKWARD, sums.amount[rows[sums.owner.backward[rows]]].sum(axis=0))


def _add_modules(modules: _CostsByKey[str], rank: int, owned: Ownership, sums: OwnerSums) -> None:
    around: dict[str, str] = {}
    for _, _, module, backward, amount in _rows(sums):
        if module < 0 or not owned.modules[module]:
            continue
        modules.add(owned.modules[module], rank, _OWN, amount)
        path = owned.modules[module]
        while path:
            modules.add(path, rank, _INCLUSIVE, amount)
            if backward:
                modules.add(path, rank, _BACKWARD, amount)
            if path not in around:
                around[path] = path.rpartition(".")[0]
            path = around[path]


def _rows(sums: OwnerSums) -> Iterable[tuple[int, int, int, bool, Floats]]:
    owner = sums.owner
    columns = (owner.stack.tolist(), owner.caller.tolist(), owner.module.tolist(), owner.backward.tolist())
    return zip(*columns, sums.amount, strict=True)


def _favourites(found: _CostsByKey[tuple[Line, str]]) -> dict[Line, str]:
    """Return for each line the module that holds most of its time."""
    best: dict[Line, tuple[float, str]] = {}
    times = slice(0, COLUMNS.index("exposed_ns"))
    for (line, module), amount in found.amounts.items():
        best[line] = max(best.get(line, (0.0, "")), (float(amount[:, _OWN, times].sum()), module))
    return {line: module for line, (_, module) in best.items() if module}
