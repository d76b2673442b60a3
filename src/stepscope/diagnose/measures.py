"""Numbers and changes that several kinds use."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.budget import Cause, host_device_copies
from stepscope.analyze.owner_lines import LineWork, RankLines
from stepscope.analyze.owner_places import Where
from stepscope.analyze.ownership import Line
from stepscope.analyze.replay.changes import Change, copies_to_device, without_waits
from stepscope.analyze.replay.graph import NOTHING, Program
from stepscope.analyze.replay.removal import NO_PART, Part, part_for, taken_out, to_step
from stepscope.analyze.replay.replay import Replay
from stepscope.contract.step_line import Region
from stepscope.diagnose.recording import recording_of
from stepscope.intervals import EMPTY, Intervals, covered_ns, union
from stepscope.records import once_per_record
from stepscope.run.clocks import POINT_TO_POINT
from stepscope.run.rank import Rank
from stepscope.stats.robust import among, distinct, lower_median
from stepscope.trace.table import EventKind
from stepscope.units import NS_PER_MS

Mask = npt.NDArray[np.bool_]
COMPUTE = ("forward", "backward", "optimizer", "other_compute")
HOST = ("launch_gap", "host_sync", "allocator", "host_stall")


def typical_host_ns(account: Account, part: str) -> float:
    """Return what the median rank's host spends on one part per step; 0 where the run cannot be replayed.

    Of two in the middle the lesser: what only half of the ranks do makes the others wait, and is theirs.
    """
    if account.replay is None:
        return 0.0
    totals = [getattr(p.host, part).sum() + getattr(p.tail, part).sum() for p in account.replay.programs]
    return lower_median(totals) / len(account.replay.steps)


def host_part_ns(account: Account, part: str) -> float | None:
    """Return one part of a job on hosts alone, where removing it saves no more than itself; None on a device, where a
    part is what the device idles for and not what the host spends.
    """
    return None if account.step is None or has_device(account) else account.step.ns(part)


def has_device(account: Account) -> bool:
    """Return whether any rank ran work on a device."""
    return any(rank.has_device for rank in account.run.ranks)


def per_step(account: Account, chosen: Sequence[Mask]) -> float:
    """Return how many of some things the average rank has per step."""
    pairs = zip(chosen, account.run.ranks, strict=True)
    return float(np.mean([mask.sum() / max(len(rank.steps), 1) for mask, rank in pairs] or [0.0]))


def device_ns(account: Account, chosen: Sequence[Mask]) -> float:
    """Return how long the device runs some work per step, mean over ranks; only work launched in recorded steps counts.

    Work that overlaps counts once.
    """
    return _per_step_ns(account, chosen, lambda rank, mine: union(rank.work.start_ns[mine], rank.work.end_ns[mine]))


def host_ns(account: Account, chosen: Sequence[Mask]) -> float:
    """Return the host's time for launching some work, per step and mean over ranks."""
    return _per_step_ns(account, chosen, launching)


def _per_step_ns(account: Account, chosen: Sequence[Mask], busy: Callable[[Rank, Mask], Intervals]) -> float:
    """Return a time of work that recorded steps launched; where it lies outside of them, no step has more than itself."""
    totals = [
        busy(rank, mask & (rank.work.step >= 0)).total_ns / max(len(rank.steps), 1)
        for rank, mask in zip(account.run.ranks, chosen, strict=True)
    ]
    spent = float(np.mean(totals)) if totals else 0.0
    return spent if account.step is None else min(spent, account.step.step_ns)


def launching(rank: Rank, chosen: Mask) -> Intervals:
    """Return when the host launched some work: from the launch before each to the end of its operator, which may wait
    for it.
    """
    trace, work = rank.trace, rank.work
    launched = np.flatnonzero(work.launch_row >= 0)
    launched = launched[np.argsort(trace["ts_ns"][work.launch_row[launched]], kind="stable")]
    launch, mine = work.launch_row[launched], chosen[launched]
    ends = trace["ts_ns"][launch] + trace["dur_ns"][launch]
    before = np.append(trace["ts_ns"][launch[:1]], ends[:-1])
    operator = np.where(work.op_row[launched] >= 0, work.op_row[launched], launch)
    last = np.maximum(ends, trace["ts_ns"][operator] + trace["dur_ns"][operator])
    return union(before[mine], last[mine])


def transfers_to_device(account: Account) -> list[Mask]:
    """Return per rank which work copies from the host to the device."""
    return [copies_to_device(rank) for rank in account.run.ranks]


@once_per_record
def host_waits(account: Account) -> tuple[list[int], list[int]]:
    """Return how often each rank's host waited for copies to the device, and how often for anything else on it."""
    if account.replay is None:
        return [], []
    others = [_waits(program) for program in without_waits(account.replay)]
    return [_waits(p) - n for p, n in zip(account.replay.programs, others, strict=True)], others


def _waits(program: Program) -> int:
    return int((program.released_by != NOTHING).sum()) + (program.tail_released_by != NOTHING)


# The time that a kind of fix can remove at most, per step: what its kind claims, by the budget.


def _without_parts_ns(account: Account, *parts: str) -> float | None:
    step = account.step
    if step is None or not any(view.on_device for view in account.ranks):
        return None
    return step.step_ns - sum(step.ns(p) for p in (*COMPUTE, *parts))


def not_busy_ns(account: Account) -> float | None:
    """Return the time in which the device neither computes nor copies nor moves data: what a faster host can remove.

    Waiting for other ranks is in it: their hosts become faster too.
    """
    rest = _without_parts_ns(account, "copy", "exposed_transfer")
    return None if rest is None or account.step is None else rest - account.step.unmatched_ns


def not_busy_or_copying_ns(account: Account) -> float | None:
    """Return the same with copies between host and device: what the host does there goes with them."""
    idle = not_busy_ns(account)
    return None if idle is None or account.step is None else idle + account.step.ns("copy")


def launching_ns(account: Account) -> float | None:
    """Return the time in which nothing but slow launching can be what the device waits for.

    Loading data, stalls, synchronisation and the allocator have causes of their own. So has waiting for a rank that
    is late: what the average rank waits for it goes to the straggler, the rest to hosts that take turns at being slow.
    """
    step = account.step
    if step is None or not_busy_ns(account) is None:
        return None
    late = {s.rank: s.late_ns_per_step for s in account.stragglers}
    num_ranks = max(len(account.run.ranks), 1)
    for_late = max(late.values(), default=0.0) * (num_ranks - len(late)) / num_ranks
    return float(kernel_gaps(account).sum()) + max(0.0, step.ns("wait") - for_late)


@once_per_record
def kernel_gaps(account: Account) -> npt.NDArray[np.float64]:
    """Return the idle time per step before kernels that the host launched late, by the `Region` of the kernel.

    Before copies it was late with data; in a call that takes far longer than a launch, with what that does.
    """
    late, before_kernels = 0, np.zeros(len(Region))
    for view in account.ranks:
        if view.budget is None or view.budget.idle is None:
            continue
        slices, gaps, regions = view.budget.idle.slices, view.budget.idle.gaps, view.budget.regions
        of_launch = np.flatnonzero(among(slices.label, (Cause.LAUNCH, Cause.TURNAROUND, Cause.SLOW_CALL)))
        took = (slices.end - slices.start)[of_launch]
        ended_by = gaps.next_work[np.searchsorted(gaps.start_ns, slices.start[of_launch], side="right") - 1]
        others = host_device_copies(view.rank)[ended_by] & (ended_by >= 0)
        others |= slices.label[of_launch] == Cause.SLOW_CALL
        of_kernel = Region.OTHER if regions is None else np.where(ended_by >= 0, regions.region[ended_by], Region.OTHER)
        late += int(took.sum())
        np.add.at(before_kernels, of_kernel, np.where(others, 0, took))
    return before_kernels * (account.step.ns("launch_gap") / max(late, 1) if account.step else 0.0)


def not_computing_ns(account: Account) -> float | None:
    """Return the time without compute or copies: what any change of the communication can remove."""
    return _without_parts_ns(account, "copy")


def with_work_ns(account: Account, work_ns: float) -> float | None:
    """Return what can go with some device work: its own time, and the time in which the host launches it where that is
    proved; first calls are gone in a warm step anyway.
    """
    idle = 0.0 if recording_of(account).rules_out("host-bound") else not_busy_ns(account)
    return None if idle is None else idle + work_ns


# Which collectives synchronise gradients?


def gradient_groups_only(account: Account) -> bool:
    """Return whether all group communication of the run is data-parallel: what may move against compute freely.

    Collectives of tensor, expert or context parallelism stand inside the forward and backward pass: their results
    are needed at once, so starting them earlier is no fix.
    """
    parallel = account.strategy.has("tp", "pp", "ep", "cp", "embedding")
    return account.replay is not None and communicates(account.replay) and not parallel


def communicates(replay: Replay) -> bool:
    """Return whether ranks take part in collectives of several ranks, also where only one of them was recorded."""
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        used = distinct(rank.collectives.group[program.collective[program.collective != NOTHING]])
        if any(rank.collectives.groups[g].size != 1 for g in used.tolist()):
            return True
    return bool(replay.meetings)


def group_rows(rank: Rank) -> npt.NDArray[np.int64]:
    """Return a rank's group collectives launched in recorded steps, in the order they were issued."""
    c = rank.collectives
    rows = np.flatnonzero((c.step >= 0) & ~among(c.op, POINT_TO_POINT))
    return rows[np.argsort(c.issue_ns[rows], kind="stable")]


# The run without what lines or modules did: the change that stands for deleting, batching or moving a line.


def host_part(rank: Rank, host: Intervals, work: Mask | None = None) -> Part:
    """Return a rank's host in these intervals, with its calls of the device's runtime there, and some device work."""
    calls = np.flatnonzero(rank.kinds == EventKind.RUNTIME)
    start = rank.trace["ts_ns"][calls]
    inside = covered_ns(host, start, start + 1) > 0
    nothing = np.zeros(len(rank.work), bool)
    return Part(host, EMPTY, nothing if work is None else work, np.zeros(len(rank.collectives), bool), calls[inside])


def without_parts(
    parts: Sequence[Part], *, factor: float = 0.0, collectives: bool = True, waits: bool = True
) -> Change:
    """Return the change in which parts of all ranks take `factor` of their time; with 0 they are gone."""
    return lambda replay: taken_out(replay, parts, factor=factor, collectives=collectives, waits=waits)


def parts_of_lines(
    account: Account, lines: Sequence[Line], *, device: bool = True, ranks: Sequence[int] | None = None
) -> list[Part]:
    """Return what ranks (all, or some) did in some lines, with everything they called."""

    def part(known: RankLines | None) -> Part:
        if known is None or (ranks is not None and known.owned.rank.rank not in ranks):
            return NO_PART
        holds = known.holding_any(lines)
        return part_for(known.owned, lambda _, things: holds[things.stack] | holds[things.caller], device=device)

    return [part(known) for known in account.line_work]


def without_lines(account: Account, lines: Sequence[Line], *, device: bool = True) -> Change:
    """Return the change that deletes lines on all ranks, with everything they called."""
    return without_parts(parts_of_lines(account, lines, device=device))


def critical_ns(account: Account, lines: Sequence[Line]) -> float:
    """Return the time per step that some lines hold of the critical path, with everything they called."""
    found = 0.0
    for known, work in zip(account.line_work, account.critical_work, strict=True):
        if known is not None and work is not None:
            holds = known.holding_any(lines)
            found += float(work[1][holds[work[0].stack] | holds[work[0].caller]].sum())
    return found * to_step(account.owned_replay, account.step.step_ns if account.step else 0.0)


def lines_on_all(account: Account, wanted: Callable[[RankLines, LineWork], bool]) -> list[Line]:
    """Return the outermost lines that a condition holds of, on every rank that has the line and most ranks have it."""
    known = [one for one in account.line_work if one is not None]
    found: dict[Line, int] = {}
    for one in known:
        chosen = {line: work for line, work in one.lines.items() if work.top_calls and wanted(one, work)}
        for line in one.outermost(chosen):
            found[line] = found.get(line, 0) + 1
    return [line for line, ranks in found.items() if 2 * ranks > len(known)]


def ranks_with(account: Account, line: Line) -> list[RankLines]:
    """Return what is known of the ranks whose steps have a line."""
    return [known for known in account.line_work if known is not None and line in known.lines]


def place_of(line: Line) -> str:
    """Return a line as reports name it."""
    return f"{line[0]}:{line[1]}"


def at(line: Line, module: str | None = None, share: float = 1.0) -> Where:
    """Return a line as the place of a finding."""
    return Where(*line, module=module, share=share)


def ms_text(time_ns: float) -> str:
    """Return milliseconds as sentences say them."""
    return f"{time_ns / NS_PER_MS:.1f}"
