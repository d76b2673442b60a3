"""`straggler` by line: some ranks spend time in a line that the others do not."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.ownership import Ownership
from stepscope.analyze.owners.stacks import Line
from stepscope.analyze.owners.sums import host_waits
from stepscope.analyze.ranks.training_stragglers import cleared_by_logs
from stepscope.analyze.replay.owners.part import part_for
from stepscope.analyze.replay.owners.removal import NO_PART
from stepscope.dataclass import dataclass
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.owned_change import at, host_only, without_parts
from stepscope.diagnose.rules.measures import host_ms
from stepscope.intervals import covered_ns
from stepscope.stats.middle import lower_median
from stepscope.units import ms

_MIN_SHARE = 0.05
"""of the step: what a line takes more on a rank, to make it late"""
_MUCH_LESS = 0.5
"""of the late ranks' time is the others': noise does not halve a line"""


@dataclass(frozen=True)
class LateLine:
    """A line that takes longer on some ranks."""

    line: Line
    ranks: tuple[int, ...]
    late_ns: float
    """per step on the rank that takes longest"""
    usual_ns: float
    """per step on the others"""


def late_lines(account: Account) -> list[Candidate]:
    """Return ranks that are late for a line, where nothing else named them already."""
    if account.step is None or not all(account.ownership) or account.strategy.has("pp"):
        return []
    named = {s.rank for s in account.stragglers}
    found = [late for late in lines_of_late_ranks(account) if not set(late.ranks) <= named]
    return [_candidate(account, late) for late in found if not _cleared(account, late)]


def _cleared(account: Account, late: LateLine) -> bool:
    """Return whether the steps without the profiler say that none of these ranks is late."""
    more_ns = late.late_ns - late.usual_ns
    return all(cleared_by_logs(account.shared, rank, more_ns, account.run.logs) for rank in late.ranks)


def lines_of_late_ranks(account: Account) -> list[LateLine]:
    """Return the lines at work that take longer on at most half of the ranks, the largest difference first."""
    owned = [one for one in account.ownership if one is not None]
    if len(owned) < 2 or account.step is None:
        return []
    each = [own_line_ns(one) for one in owned]
    found = []
    for line in set().union(*each):
        took = np.array([one.get(line, 0.0) for one in each])
        usual = lower_median(took)
        more = took - usual
        if more.max() < _MIN_SHARE * account.step.step_ns:
            continue
        late = more >= _MUCH_LESS * more.max()
        others = took[~late]
        if not len(others) or 2 * late.sum() > len(took) or others.max() > _MUCH_LESS * took[late].min():
            continue
        ranks = tuple(one.rank.rank for one, is_late in zip(owned, late, strict=True) if is_late)
        found.append(LateLine(line, ranks, float(took.max()), usual))
    return sorted(found, key=lambda one: one.usual_ns - one.late_ns)


def own_line_ns(owned: Ownership) -> dict[Line, float]:
    """Return the host's own time per step, without waiting, by the innermost line of the user's."""
    host = owned.host
    took = (host.end_ns - host.start_ns) * host.runs
    took = took - covered_ns(host_waits(owned.rank), host.start_ns, host.end_ns) * host.runs
    known = host.owner.stack >= 0
    sums = np.bincount(host.owner.stack[known], took[known], minlength=len(owned.stacks))
    steps = max(len(owned.rank.steps), 1)
    found: dict[Line, float] = {}
    for stack, ns in enumerate(sums.tolist()):
        line = owned.stacks.user_line(stack)
        if line is not None and ns > 0:
            found[line] = found.get(line, 0.0) + ns / steps
    return found


def _candidate(account: Account, late: LateLine) -> Candidate:
    place = f"{late.line[0]}:{late.line[1]}"
    several = len(late.ranks) > 1
    named = f"Ranks {', '.join(map(str, late.ranks))}" if several else f"Rank {late.ranks[0]}"
    more = late.late_ns - late.usual_ns
    factor = late.usual_ns / late.late_ns
    parts = []
    for known in account.line_work:
        if known is None or known.owned.rank.rank not in late.ranks or late.line not in known.lines:
            parts.append(NO_PART)
            continue
        holds = known.holding(late.line)
        parts.append(host_only(part_for(known.owned, lambda _, things, holds=holds: holds[things.stack])))  # type: ignore[misc]
    return Candidate(
        id="straggler",
        title=f"{named} spend{'' if several else 's'} {ms(more):.1f} ms more in {place}",
        cause=f"host: {place} takes {ms(late.late_ns):.1f} ms per step there and {ms(late.usual_ns):.1f} ms on the other ranks",
        remedy="Look at what that line does on these ranks only (input, files, waiting); do it on all ranks in turn or "
        "less often. The saving is of the line as fast there as on the others.",
        change=without_parts(parts, factor=factor, collectives=False),
        ranks=late.ranks,
        cost_ns=more,
        limit_ns=more,
        evidence=tuple(
            Evidence("own time in the line beyond the others' per step", host_ms(more), "ms", f"rank {rank}")
            for rank in late.ranks
        ),
        where=(at(late.line),),
        what_if=("--scale", f"{place}={factor:.4f}", "--ranks", ",".join(map(str, late.ranks))),
    )
