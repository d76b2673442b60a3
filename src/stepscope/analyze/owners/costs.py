"""What does each line and each module cost per step?

Everything a rank did is summed by owner once (`sums`); lines and modules are sums over owners. A line's `own` cost is
where it is the innermost line of the user's; `inclusive` counts it wherever it is in the stack, so callers contain what
they call and lines do not add up. `backward` is the part of `inclusive` that ran in backward passes. Formulas:
`docs/metrics.md`.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.kernels.call_costs import CallCosts
from stepscope.analyze.owners.cost import CodeCosts, Cost, LineCost, ModuleCost
from stepscope.analyze.owners.ownership import Owned, Ownership
from stepscope.analyze.owners.sums import COLUMNS, FLOPS, MEMORY, Floats, OwnerSums, owner_sums
from stepscope.contract.owners import EXECUTING


def code_costs(owned: Sequence[Ownership], calls: Sequence[CallCosts]) -> CodeCosts | None:
    """Return the cost of lines and modules over these ranks, None where no rank has owners.

    `calls` are the FLOPs of each rank's operators, in the same order.
    """
    if not owned:
        return None
    sums = [owner_sums(one, flops) for one, flops in zip(owned, calls, strict=True)]
    lines, modules = _Gathered(len(owned)), _Gathered(len(owned))
    frame_of, module_of = {}, _Gathered(len(owned))
    for i, (one, found) in enumerate(zip(owned, sums, strict=True)):
        for frame in one.frames:
            frame_of.setdefault((frame.file, frame.line), frame)
        _add_lines(lines, module_of, i, one, found)
        _add_modules(modules, i, one, found)
    ranks = tuple(one.rank.rank for one in owned)
    favourite = _favourites(module_of)
    known = np.any([s.known for s in sums], axis=0)
    total = _cost(np.mean([s.amount.sum(axis=0) for s in sums], axis=0), known)
    unowned = _cost(np.mean([s.amount[s.owner.stack < 0].sum(axis=0) for s in sums], axis=0), known)
    return CodeCosts(
        lines=tuple(
            LineCost(
                *key,
                line_to=frame_of[key].line_to,
                function=frame_of[key].function,
                is_user=frame_of[key].is_user,
                **lines.costs(key, ranks, known),
                module=favourite.get(key),
            )
            for key in lines.largest_first(known)
        ),
        modules=tuple(ModuleCost(key, **modules.costs(key, ranks, known)) for key in modules.largest_first(known)),
        total=total,
        unowned=unowned,
        exact_lines=all(one.lines == EXECUTING for one in owned),
        ranks=ranks,
    )


class _Gathered:
    """Costs by key, one array per rank: own, inclusive and of that in backward."""

    def __init__(self, num_ranks: int) -> None:
        self.amounts: dict[object, Floats] = {}
        self._shape = (num_ranks, 3, len(COLUMNS))

    def add(self, key: object, rank: int, which: int, amount: Floats) -> None:
        if key not in self.amounts:
            self.amounts[key] = np.zeros(self._shape)
        self.amounts[key][rank, which] += amount

    def largest_first(self, known: npt.NDArray[np.bool_]) -> list:  # type: ignore[type-arg]
        return sorted(
            self.amounts, key=lambda k: (-_cost(self.amounts[k][:, 1].mean(axis=0), known).largest_ns, str(k))
        )

    def costs(self, key: object, ranks: tuple[int, ...], known: npt.NDArray[np.bool_]) -> dict:  # type: ignore[type-arg]
        each = self.amounts[key]
        own, inclusive, backward = (_cost(each[:, part].mean(axis=0), known) for part in range(3))
        by_rank = {rank: _cost(each[i, 1], known) for i, rank in enumerate(ranks)}
        return {"own": own, "inclusive": inclusive, "backward": backward, "by_rank": by_rank}


def _cost(amount: Floats, known: npt.NDArray[np.bool_]) -> Cost:
    values: list[float | None] = [float(value) for value in amount]
    for column in (FLOPS, MEMORY):
        if not known[column]:
            values[column] = None
    return Cost(*values)  # type: ignore[arg-type]


def _add_lines(lines: _Gathered, modules: _Gathered, rank: int, owned: Ownership, sums: OwnerSums) -> None:
    """Add each owner's cost to the lines of its stack, and to those of where it was called."""
    place = [(f.file, f.line) for f in owned.frames]
    is_user = [f.is_user for f in owned.frames]
    stacks = [tuple(dict.fromkeys(place[f] for f in stack)) for stack in owned.stacks]
    innermost = [_innermost(stack, place, is_user) for stack in owned.stacks]
    rows = zip(*(column.tolist() for column in _columns(sums.owner)), sums.amount, strict=True)
    for stack, caller, module, backward, amount in rows:
        if stack >= 0 and innermost[stack] is not None:
            lines.add(innermost[stack], rank, 0, amount)
            if module >= 0 and owned.modules[module]:
                modules.add((innermost[stack], owned.modules[module]), rank, 0, amount)
        held = [*(stacks[stack] if stack >= 0 else ()), *(stacks[caller] if caller >= 0 else ())]
        for key in dict.fromkeys(held):
            lines.add(key, rank, 1, amount)
            if backward:
                lines.add(key, rank, 2, amount)


def _innermost(stack: Iterable[int], place: list[tuple[str, int]], is_user: list[bool]) -> tuple[str, int] | None:
    """Return the innermost line of the user's, of a library's where there is none."""
    frames = list(stack)
    users = [f for f in frames if is_user[f]]
    return place[(users or frames)[-1]] if frames else None


def _add_modules(modules: _Gathered, rank: int, owned: Ownership, sums: OwnerSums) -> None:
    inside = [_around(path) for path in owned.modules]
    rows = zip(*(column.tolist() for column in _columns(sums.owner)), sums.amount, strict=True)
    for _, _, module, backward, amount in rows:
        if module < 0 or not owned.modules[module]:
            continue
        modules.add(owned.modules[module], rank, 0, amount)
        for path in inside[module]:
            modules.add(path, rank, 1, amount)
            if backward:
                modules.add(path, rank, 2, amount)


def _around(path: str) -> list[str]:
    """Return a module and those around it.

    >>> _around("blocks.1.up")
    ['blocks', 'blocks.1', 'blocks.1.up']
    """
    parts = path.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _columns(owner: Owned) -> tuple[npt.NDArray[np.generic], ...]:
    return owner.stack, owner.caller, owner.module, owner.backward


def _favourites(found: _Gathered) -> dict[object, str]:
    """Return for each line the module that holds most of its time."""
    best: dict[object, tuple[float, str]] = {}
    for (line, module), amount in found.amounts.items():  # type: ignore[misc]
        took = float(amount[:, 0, : COLUMNS.index("exposed_ns")].sum())
        best[line] = max(best.get(line, (0.0, "")), (took, module))
    return {line: module for line, (_, module) in best.items() if module}
