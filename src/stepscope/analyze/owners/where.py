"""Where in the user's code does some time lie? The lines and modules behind a finding, with their shares.

    where_of(owned, weighted)      [Where("train.py", 52, "statistics", None, 0.93), ...]

First the innermost line that holds most of the time, with all it calls; then the lines that hold large parts of it
themselves. A line that holds most of the whole step (`main()`, `train()`) says nothing and is left out.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyze.owners.cost import CodeCosts
from stepscope.analyze.owners.ownership import Owned, Ownership

MOSTLY = 0.5
MIN_SHARE = 0.1
_WHOLE_STEP = 0.8
_MAX_PLACES = 4

Line = tuple[str, int]


@dataclass(frozen=True)
class Where:
    """A line, and how much of some time it holds."""

    file: str
    line: int
    function: str
    module: str | None
    """in which most of it lies, None where it lies in none"""
    share: float
    """of the time asked about, 0 to 1"""

    @property
    def owner(self) -> str:
        """Return what `--without` takes."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Weighted:
    """Things of one rank with how much of the time each is."""

    owned: Ownership
    things: Owned
    weight_ns: npt.NDArray[np.float64]


def owner_of_rows(owned: Ownership, rows: npt.NDArray[np.int64]) -> Weighted:
    """Return rows of the event table (operators, calls, kernels) weighted by how long each took."""
    took = np.maximum(owned.rank.trace["dur_ns"][rows], 0).astype(float)
    return Weighted(owned, owned.of_rows(rows), took)


def where_of(found: Sequence[Weighted], code: CodeCosts | None) -> tuple[Where, ...]:
    """Return where some time lies: the innermost line that holds most of it, then those with large parts of their own.

    Without any owner there is no place. `code` tells which lines hold the whole step.
    """
    total = sum(float(one.weight_ns.sum()) for one in found)
    if total <= 0:
        return ()
    tally = _Tally()
    for one in found:
        tally.add(one)
    too_wide = _whole_step_lines(code)
    deepest = [line for line in tally.inclusive if line not in too_wide and tally.inclusive[line] > MOSTLY * total]
    first = sorted(deepest, key=lambda line: (tally.inclusive[line] > MOSTLY * total, tally.depth[line]))[-1:]
    largest = [line for line, took in tally.own.most_common(_MAX_PLACES) if took >= MIN_SHARE * total]
    places = [(line, tally.inclusive[line]) for line in first]
    places += [(line, tally.own[line]) for line in largest if line not in first]
    return tuple(
        Where(*line, tally.function[line], tally.module_of(line), took / total) for line, took in places[:_MAX_PLACES]
    )


def _whole_step_lines(code: CodeCosts | None) -> set[Line]:
    """Return the lines that hold most of the step, whatever it is made of."""
    if code is None:
        return set()
    host = code.total.host_ns + code.total.blocked_ns
    device = code.total.device_ns + code.total.comm_ns
    wide = (
        (line.file, line.line)
        for line in code.lines
        if line.inclusive.host_ns + line.inclusive.blocked_ns >= _WHOLE_STEP * host
        and line.inclusive.device_ns + line.inclusive.comm_ns >= _WHOLE_STEP * device
    )
    return set(wide)


class _Tally:
    """Time by line: its own and with all it calls."""

    def __init__(self) -> None:
        self.own: Counter[Line] = Counter()
        self.inclusive: Counter[Line] = Counter()
        self.depth: dict[Line, int] = {}
        self.function: dict[Line, str] = {}
        self._modules: Counter[tuple[Line, str]] = Counter()

    def add(self, one: Weighted) -> None:
        owned, things = one.owned, one.things
        base = len(owned.modules) + 1
        key = (things.stack.astype(np.int64) + 1) * base + things.module + 1
        distinct, at = np.unique(key, return_inverse=True)
        took = np.bincount(at.reshape(-1), one.weight_ns, minlength=len(distinct))
        for number, weight in zip(distinct.tolist(), took.tolist(), strict=True):
            stack, module = number // base - 1, number % base - 1
            if stack >= 0 and weight > 0:
                self._add(owned, owned.stacks[stack], owned.modules[module] if module >= 0 else "", weight)

    def _add(self, owned: Ownership, stack: Iterable[int], module: str, weight: float) -> None:
        users = [owned.frames[f] for f in stack if owned.frames[f].is_user]
        lines = list(dict.fromkeys((f.file, f.line) for f in users))
        for depth, (line, frame) in enumerate(zip(lines, users, strict=False)):
            self.inclusive[line] += weight
            self.depth[line] = max(depth, self.depth.get(line, 0))
            self.function.setdefault(line, frame.function)
        if lines:
            self.own[lines[-1]] += weight
            if module:
                self._modules[lines[-1], module] += weight

    def module_of(self, line: Line) -> str | None:
        """Return the module in which most of a line's own time lies."""
        best = [(took, module) for (at, module), took in self._modules.items() if at == line]
        return max(best)[1] if best else None
