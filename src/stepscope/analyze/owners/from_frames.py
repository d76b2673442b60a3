"""Owners of a rank's recorded steps by its file of owners: matched, inherited, or between two lines."""

from collections.abc import Callable

import numpy as np

from stepscope.analyze.host.calls import HostCalls
from stepscope.analyze.owners.align import NOTHING
from stepscope.analyze.owners.host_time import GapShares, host_time
from stepscope.analyze.owners.linked import LinkedThread, linked_threads
from stepscope.analyze.owners.match import OperatorMatch, matched
from stepscope.analyze.owners.ownership import HostTime, Ids, OwnedWork, Ownership, nobody
from stepscope.analyze.owners.stacks import NOBODY, Stacks
from stepscope.analyze.step.regions import marks_of
from stepscope.contract.owners import TRAINING
from stepscope.dataclass import dataclass
from stepscope.run.owners import RankOwners
from stepscope.run.rank import Rank
from stepscope.trace.table import Int64s


@dataclass
class Modules:
    """Module paths by number; more can be added."""

    known: list[str]

    def __post_init__(self) -> None:
        self._ids = {path: i for i, path in reversed(list(enumerate(self.known)))}

    def common(self, one: int, other: int) -> int:
        """Return the module that two modules lie in; NOBODY where either is unknown or they share none."""
        if one < 0 or other < 0 or one == other:
            return min(one, other)
        a, b = self.known[one].split("."), self.known[other].split(".")
        same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        if not same:
            return NOBODY
        found = self._ids.setdefault(".".join(a[:same]), len(self.known))
        if found == len(self.known):
            self.known.append(".".join(a[:same]))
        return found


def ownership_by_frames(rank: Rank, owners: RankOwners) -> Ownership:
    """Return who owns what a rank did, by the steps it recorded with Python frames."""
    marks = marks_of(rank)
    stacks, modules = Stacks(owners.frames, owners.stacks), Modules(list(owners.modules))
    threads = linked_threads(owners, stacks)
    found = matched(rank, marks, owners, threads)
    by_call = _inherited(found.calls, _of_matched(found, threads))
    by_call = _between_lines(found.calls, by_call, rank, stacks, modules)

    def between(previous: Int64s, following: Int64s) -> OwnedWork:
        return python_between(found.calls, by_call, previous, following, stacks, modules)

    gaps = _gap_shares(rank, found, threads)
    host = host_time(rank, marks, found.calls, by_call, gaps, between)
    in_steps = rank.steps.of(found.calls.start_ns) >= 0
    return Ownership(
        rank=rank,
        lines=owners.lines,
        frames=owners.frames,
        stacks=stacks,
        modules=tuple(modules.known),
        calls=found.calls,
        by_call=by_call,
        host=host,
        by_work=work_owners(rank, found.calls, by_call, host),
        by_collective=collective_owners(rank, found.calls, by_call, host),
        matched_share=float((found.position[in_steps] != NOTHING).mean()) if in_steps.any() else 0.0,
    )


def _of_matched(found: OperatorMatch, threads: list[LinkedThread]) -> OwnedWork:
    """Return the owners of the calls that have a counterpart."""
    out = nobody(len(found.calls))
    stack, caller, module = out.stack.copy(), out.caller.copy(), out.module.copy()
    backward = out.backward.copy()
    for index, known in enumerate(threads):
        mine = np.flatnonzero(found.thread == index)
        at = found.position[mine]
        stack[mine], caller[mine] = known.stack[at], known.caller[at]
        module[mine], backward[mine] = known.module[at], known.backward[at]
    return OwnedWork(stack, caller, module, backward)


def _inherited(calls: HostCalls, owned: OwnedWork) -> OwnedWork:
    """Return the owners with those of calls that have none from the call around them."""
    around = calls.nearest(owned.stack >= 0) if len(calls) else np.empty(0, np.int64)
    return owned.where(owned.stack >= 0, owned.at(around))


def _between_lines(calls: HostCalls, owned: OwnedWork, rank: Rank, stacks: Stacks, modules: Modules) -> OwnedWork:
    """Return the owners with those of calls that still have none from what their neighbours have in common."""
    missing = np.flatnonzero((owned.stack < 0) & (rank.steps.of(calls.start_ns) >= 0))
    if not len(missing):
        return owned
    known = np.flatnonzero(owned.stack >= 0)
    after = np.searchsorted(known, missing)
    bounded = np.concatenate(([-1], known, [-1]))
    previous, following = bounded[after], bounded[after + 1]
    for side in (previous, following):
        side[calls.thread[side] != calls.thread[missing]] = -1
    both = (previous >= 0) & (following >= 0)
    stack, module = owned.stack.copy(), owned.module.copy()
    stack[missing] = np.where(both, _paired(owned.stack, previous, following, stacks.common), NOBODY)
    module[missing] = np.where(both, _paired(owned.module, previous, following, modules.common), NOBODY)
    caller = np.where(owned.stack < 0, stack, owned.caller).astype(np.int32)
    return OwnedWork(stack, caller, module, owned.backward)


def _paired(ids: Ids, one: Int64s, other: Int64s, common: Callable[[int, int], int]) -> Ids:
    """Return `common(id of one, id of other)` for each pair, asked once per distinct pair."""
    base = int(ids.max(initial=0)) + 2
    a, b = (np.append(ids, NOBODY).astype(np.int64)[np.where(side >= 0, side, -1)] for side in (one, other))
    pairs, at = np.unique((a + 1) * base + b + 1, return_inverse=True)
    found = np.array([common(pair // base - 1, pair % base - 1) for pair in pairs.tolist()], np.int32)
    return found[at.reshape(-1)]


def python_between(
    calls: HostCalls, owned: OwnedWork, previous: Int64s, following: Int64s, stacks: Stacks, modules: Modules
) -> OwnedWork:
    """Return the owners of Python before a call: those of the call, for it is what Python was about to do."""
    one = owned.at(following)
    use = owned.at(previous).where(one.stack < 0, one)
    module = _paired(owned.module, previous, following, modules.common)
    return OwnedWork(use.stack, use.caller, module, use.backward)


Gap = tuple[list[int], list[int]]
"""stacks and times"""


def _gap_shares(rank: Rank, found: OperatorMatch, threads: list[LinkedThread]) -> GapShares:
    """Return the stacks in the gap before each matched call; before a step's first also those after the step's last."""
    gap_of_call = np.full(len(found.calls), -1, np.int64)
    entries: list[Gap] = []
    last = -1
    for index, known in enumerate(threads):
        gaps, first_gap, tail = _gaps_of(known)
        numbers = np.full(len(known), -1, np.int64)
        for position, entry in gaps.items():
            numbers[position] = len(entries)
            entries.append(entry)
        mine = np.flatnonzero(found.thread == index)
        gap_of_call[mine] = numbers[found.position[mine]]
        if first_gap[0]:
            later = mine[(found.position[mine] == 0) & (rank.steps.of(found.calls.start_ns[mine]) > 0)]
            gap_of_call[later] = len(entries)
            entries.append(first_gap)
        if tail[0] and known.thread.role == TRAINING:
            last = len(entries)
            entries.append(tail)
    sizes = np.array([len(stacks) for stacks, _ in entries], np.int64)
    stack = np.array([s for stacks, _ in entries for s in stacks], np.int32)
    took = np.array([t for _, times in entries for t in times], np.float64)
    first = np.concatenate(([0], np.cumsum(sizes)))
    total = np.add.reduceat(took, first[:-1]) if len(sizes) else took
    return GapShares(gap_of_call, first, stack, took / np.maximum(np.repeat(total, sizes), 1), last)


def _gaps_of(known: LinkedThread) -> tuple[dict[int, Gap], Gap, Gap]:
    """Return the gap before each operator of a thread, the one from a step's last operator to the next step's first,
    and of that the part before the step's end.
    """
    thread = known.thread
    place = np.searchsorted(known.at, thread.gap_before)  # the next one stands for a mark of a step
    gaps: dict[int, Gap] = {}
    tail: Gap = ([], [])
    for position, stack, took in zip(place.tolist(), thread.gap_stack.tolist(), thread.gap_ns.tolist(), strict=True):
        if stack < 0 or took <= 0:
            continue
        stacks, times = gaps.setdefault(position, ([], [])) if position < len(known) else tail
        stacks.append(stack)
        times.append(took)
    head = gaps.get(0, ([], []))
    return gaps, ([*tail[0], *head[0]], [*tail[1], *head[1]]), tail


def work_owners(rank: Rank, calls: HostCalls, by_call: OwnedWork, host: HostTime) -> OwnedWork:
    """Return the owners of device operations: of the operator that launched each, else of the moment of the launch."""
    work, trace = rank.work, rank.trace
    by_operator = by_call.at(calls.at_rows(work.op_row))
    launch = np.maximum(work.launch_row, 0)
    moment = host.at(trace["tid"][launch], trace["ts_ns"][launch]) if len(work) else work.launch_row
    by_moment = host.owner.at(np.where(work.launch_row >= 0, moment, -1))
    return by_operator.where(by_operator.stack >= 0, by_moment)


def collective_owners(rank: Rank, calls: HostCalls, by_call: OwnedWork, host: HostTime) -> OwnedWork:
    """Return the owners of collectives: of the operator that asked for each, else of its kernel."""
    c = rank.collectives
    by_record = by_call.at(calls.at_rows(c.record_row))
    by_kernel = work_owners(rank, calls, by_call, host).at(c.device_index)
    return by_record.where(by_record.stack >= 0, by_kernel)
