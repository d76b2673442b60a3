"""What ran on each rank during one step, on one clock, within a budget of slices?

The first step shown is the one nearest to the median. Everything that overlaps it is shown, whichever step launched it,
because that is what the device did at the time.
"""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.step.periods import NO_STEP
from stepscope.contract.collectives import OPS
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.report.html.data import NO_MATCH, Grid, MatchedCollectives, Slices
from stepscope.report.html.launches import Launch, launches
from stepscope.report.html.rank_slices import RankSlices, rank_slices
from stepscope.trace.table import Int64s
from stepscope.units import readable_bytes

MAX_SLICES = 60_000
MAX_SLICES_OF_STEPS = 90_000
"""of all steps that the page can show"""
MAX_STEPS = 8
MAX_RANKS = 128
MAX_NAME_LENGTH = 160


@dataclass(frozen=True, eq=False, repr=False)
class _Window(ArrayRecord):
    """The step on each rank's own clock, and what to subtract to put it on the page."""

    step: int | None
    start_ns: Int64s
    end_ns: Int64s
    origin_ns: Int64s


def slices_of(
    account: Account,
    grid: Grid | None,
    *,
    step: int | None = None,
    wanted: Sequence[int] = (),
    most: int = MAX_SLICES,
) -> Slices | None:
    """Return the slices of one step, the typical one if no other is asked for. None where nothing ran.

    Ranks in `wanted` come first where not all fit.
    """
    window = _window(account, typical_step(grid) if grid and step is None else step)
    if window is None:
        return None
    chosen = _chosen(account, wanted)
    taken: list[tuple[int, RankSlices]] = []
    total = 0
    for index in chosen:
        found = rank_slices(account, index, start_ns=int(window.start_ns[index]), end_ns=int(window.end_ns[index]))
        if taken and total + len(found) > most:
            continue
        taken.append((index, found))
        total += len(found)
    taken.sort(key=lambda pair: pair[0])
    return _joined(account, window, taken, most=most)


def slices_of_other_steps(
    account: Account, grid: Grid | None, first: Slices | None, *, wanted: Sequence[int] = ()
) -> tuple[Slices, ...]:
    """Return the slices of further steps in their order: the longest and the shortest, then the others that fit."""
    if grid is None or first is None:
        return ()
    mean = np.nan_to_num(grid.group_ns.sum(axis=0)).mean(axis=0)
    by_length = np.argsort(mean, kind="stable").tolist()
    wanted_steps = dict.fromkeys([by_length[-1], by_length[0], *range(len(by_length))])
    numbers = [grid.steps[i] for i in wanted_steps if grid.steps[i] != first.step]
    found: list[Slices] = []
    left = MAX_SLICES_OF_STEPS - len(first)
    for number in numbers[: MAX_STEPS - 1]:
        if left < len(first) / 2:
            break
        one = slices_of(account, grid, step=number, wanted=wanted, most=min(left, MAX_SLICES))
        if one is not None:
            found.append(one)
            left -= len(one)
    return tuple(sorted(found, key=lambda s: s.step or 0))


def typical_step(grid: Grid) -> int:
    """Return the number of the step nearest to the median, of those that the most ranks have."""
    step_ns = grid.group_ns.sum(axis=0)
    ranks = (~np.isnan(step_ns)).sum(axis=0)
    mean = np.nansum(step_ns, axis=0) / np.maximum(ranks, 1)
    whole = np.flatnonzero(ranks == ranks.max())
    return grid.steps[int(whole[np.argmin(np.abs(mean[whole] - np.median(mean[whole])))])]


def _window(account: Account, number: int | None) -> _Window | None:
    """Return the span of a step over all ranks: from its first beginning to its last end on the shared clock."""
    clocks, num = account.shared.clocks, len(account.run.ranks)
    start, end, has = np.zeros(num, np.int64), np.zeros(num, np.int64), np.zeros(num, bool)
    for i, view in enumerate(account.ranks):
        rank, periods = view.rank, view.budget.periods if view.budget else None
        at = np.arange(len(periods)) if periods else np.empty(0, int)
        if periods and number is not None:
            at = at[periods.step != NO_STEP]
            at = at[rank.steps.number[periods.step[at]] == number]
        if periods and len(at):
            start[i], end[i], has[i] = periods.start_ns[at[0]], periods.end_ns[at[0]], True
    if not has.any():
        return None
    each = np.arange(num)
    shared_start, shared_end = clocks.shared(each, start), clocks.shared(each, end)
    tied = has & clocks.known if (has & clocks.known).any() else has & (each == np.flatnonzero(has)[0])
    first, last = int(shared_start[tied].min()), int(shared_end[tied].max())
    # A rank whose clock nothing ties to the others' begins its step where they begin theirs.
    shift = np.where(tied, shared_start - start, first - start)
    return _Window(number, np.where(has, first - shift, 0), np.where(has, last - shift, 0), first - shift)


def _chosen(account: Account, wanted: Sequence[int]) -> list[int]:
    """Return which ranks to show, most wanted first, then spread evenly over the job."""
    ranks = account.run.ranks
    first = [i for i, r in enumerate(ranks) if r.rank in set(wanted)]
    spread = np.linspace(0, len(ranks) - 1, min(len(ranks), MAX_RANKS)).round().astype(int).tolist()
    return list(dict.fromkeys([*first, *spread]))[:MAX_RANKS]


def _joined(account: Account, window: _Window, taken: list[tuple[int, RankSlices]], *, most: int) -> Slices:
    names: dict[str, int] = {}
    by_launch: dict[Launch, int] = {}
    parts = [found.kept(most) for _, found in taken]
    matches = np.concatenate([p.match for p in parts])
    used = np.unique(matches[matches != NO_MATCH])
    made = [launches(account, i, p.work) for (i, _), p in zip(taken, parts, strict=True)]
    launch = [by_launch.setdefault(one, len(by_launch)) if one else NO_MATCH for each, _ in made for one in each]
    span = max(int(window.end_ns[i] - window.start_ns[i]) for i, _ in taken)
    return Slices(
        step=window.step,
        ranks=tuple(account.run.ranks[i].rank for i, _ in taken),
        span_ns=span,
        rank=np.repeat(np.arange(len(parts)), [len(p) for p in parts]),
        kind=np.concatenate([p.kind for p in parts]),
        start_ns=np.concatenate([p.start_ns - window.origin_ns[i] for (i, _), p in zip(taken, parts, strict=True)]),
        dur_ns=np.concatenate([p.end_ns - p.start_ns for p in parts]),
        wait_ns=np.concatenate([p.wait_ns for p in parts]),
        name=np.array([names.setdefault(_short(n), len(names)) for p in parts for n in p.name], np.int64),
        match=np.where(matches == NO_MATCH, NO_MATCH, np.searchsorted(used, matches)),
        launch=np.array(launch, np.int64),
        delay_ns=np.concatenate([delay for _, delay in made]),
        names=tuple(names),
        launches=tuple(by_launch),
        matched=_matched(account, used),
        notes=tuple(_notes(account, parts, [f for _, f in taken])),
    )


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "…"


def _matched(account: Account, used: Int64s) -> MatchedCollectives:
    matches, arrival = account.shared.matches, account.shared.arrival_ns
    what, last = [], []
    for m in used.tolist():
        group = matches.groups[matches.group[m]]
        size = int(matches.size_bytes[m])
        words = [OPS[matches.op[m]], group.desc or group.name, readable_bytes(size) if size >= 0 else "size unknown"]
        what.append(" · ".join(words))
        first, end = int(matches.first[m]), int(matches.first[m + 1])
        latest = first + int(np.argmax(arrival[first:end]))
        last.append(account.run.ranks[int(matches.rank_index[latest])].rank)
    return MatchedCollectives(tuple(what), np.array(last, np.int64))


def _notes(account: Account, parts: list[RankSlices], whole: list[RankSlices]) -> list[str]:
    notes = []
    if len(parts) < len(account.run.ranks):
        notes.append(f"{len(parts)} of {len(account.run.ranks)} ranks are drawn, those that findings name first")
    left_out = sum(len(w) - len(p) for w, p in zip(whole, parts, strict=True))
    if left_out:
        notes.append(f"the {left_out:,} shortest slices are left out")
    return notes
