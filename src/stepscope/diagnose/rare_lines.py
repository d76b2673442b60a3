"""Where is the time of what recurs in some steps only: checkpoints, evaluations, a loader that starts again?

The recorded steps that are not ordinary hold it, if any do. A line that the step with frames never met has no owner:
its operators stand between those of two lines that have one. Then it is said to come after the first of them.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.ownership import Ownership
from stepscope.analyze.owners.stacks import Line
from stepscope.analyze.replay.replay import Replay
from stepscope.diagnose.finding import Where

_MIN_SHARE = 0.25
_ALWAYS = 0.99
"""of the owned time has a line in its stack: it calls the whole step"""

Place = tuple[str, int, bool]
"""file, line, and whether it is the line after which it ran"""


def rare_places(account: Account, replay: Replay, *, ranks: Sequence[int] = ()) -> tuple[Where, ...]:
    """Return the lines of what the steps outside the replay take more than those in it, on some ranks or all."""
    more: dict[Place, float] = defaultdict(float)
    for owned in account.ownership:
        if owned is not None and (not ranks or owned.rank.rank in ranks):
            for place, ns in _excess(owned, replay).items():
                more[place] += ns
    total = sum(ns for ns in more.values() if ns > 0)
    found = [
        Where(file, line, share=float(ns / total), after=after)
        for (file, line, after), ns in more.items()
        if ns > 0 and ns >= _MIN_SHARE * total
    ]
    return tuple(sorted(found, key=lambda place: -place.share))


def _excess(owned: Ownership, replay: Replay) -> dict[Place, float]:
    """Return by place what unusual steps take beyond the mean of the ordinary ones."""
    host, steps = owned.host, owned.rank.steps
    ordinary = np.isin(steps.number, replay.steps)
    if ordinary.all() or not ordinary.any():
        return {}
    main = owned.host.thread == _busiest(owned)
    step = steps.of(host.start_ns)
    others = _other_lines(owned, whole_step_lines(owned))
    usual: dict[Place, float] = defaultdict(float)
    unusual: dict[Place, float] = defaultdict(float)
    before: tuple[str, int] | None = None
    for i in np.flatnonzero(main & (step >= 0)).tolist():
        stack = int(host.owner.stack[i])
        lines = others[stack] if stack >= 0 else None
        if lines:
            before = lines[0]
        if before is not None and host.runs[i]:
            place = (*(lines[1] if lines else before), not lines)
            into = usual if ordinary[step[i]] else unusual
            into[place] += float(host.end_ns[i] - host.start_ns[i])
    share = (~ordinary).sum() / ordinary.sum()
    return {place: ns - share * usual.get(place, 0.0) for place, ns in unusual.items()}


def _busiest(owned: Ownership) -> int:
    threads, count = np.unique(owned.host.thread[owned.host.is_python], return_counts=True)
    return int(threads[count.argmax()]) if len(threads) else -1


def whole_step_lines(owned: Ownership) -> set[tuple[str, int]]:
    """Return the lines that nearly all owned time has in its stack: those that call the step as a whole."""
    host = owned.host
    took = (host.end_ns - host.start_ns) * (host.runs & (host.owner.stack >= 0))
    by_stack = np.bincount(np.maximum(host.owner.stack, 0), took, minlength=len(owned.stacks))
    sets = owned.stacks.user_lines
    held = sets.sums(by_stack)
    return {sets.lines[n] for n in np.flatnonzero((held > 0) & (held >= _ALWAYS * by_stack.sum())).tolist()}


def _other_lines(owned: Ownership, trivial: set[Line]) -> list[tuple[Line, Line] | None]:
    """Return for each stack the outermost and the innermost of the user's lines that are not trivial."""
    lines = [(f.file, f.line) if f.is_user else None for f in owned.frames]

    def grown(above: tuple[Line, Line] | None, frame: int) -> tuple[Line, Line] | None:
        line = lines[frame]
        return above if line is None or line in trivial else (above[0] if above else line, line)

    return owned.stacks.folded(None, grown)
