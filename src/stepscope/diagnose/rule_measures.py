"""Numbers that several rules ask for."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.owner_lines import LineWork, RankLines
from stepscope.analyze.replay.changes import Change, copies_to_device, without_waits
from stepscope.analyze.replay.program import NOTHING, Program
from stepscope.analyze.replay.removal import NO_PART, Choose, Part, part_for, taken_out
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.stacks import Line
from stepscope.analyze.training_step import COMMUNICATION, DATA_CAUSES, OUTSIDE, Recurring
from stepscope.contract.step_line import CHECKPOINT, COMPILATION, EVALUATION, GARBAGE_COLLECTION
from stepscope.dataclass import dataclass
from stepscope.diagnose.finding import Evidence, Where
from stepscope.records import once_per_record
from stepscope.run.matching import POINT_TO_POINT
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.stats.robust import OFTEN, lower_median, median
from stepscope.units import NS_PER_MS

Mask = npt.NDArray[np.bool_]


def host_ms(time_ns: float) -> float:
    """Return milliseconds as evidence shows them."""
    return round(time_ns / NS_PER_MS, 3)


def typical_host_ns(account: Account, part: str) -> float:
    """Return what the median rank's host spends on one part per step; 0 where the run cannot be replayed.

    Of two in the middle the lesser: what only half of the ranks do makes the others wait, and is theirs.
    """
    replay = account.replay
    if replay is None:
        return 0.0
    totals = [getattr(p.host, part).sum() + getattr(p.tail, part).sum() for p in replay.programs]
    return lower_median(totals) / len(replay.steps)


def host_part_ns(account: Account, part: str) -> float | None:
    """Return one part of a job on hosts alone, where removing it saves no more than itself; None on a device, where a
    part is what the device idles for and not what the host spends.
    """
    if account.step is None or any(rank.has_device for rank in account.run.ranks):
        return None
    return account.step.ns(part)


def items_per_step(account: Account) -> float:
    """Return how many device operations the mean rank launches per step."""
    replay = account.replay
    return float(np.mean([len(p) for p in replay.programs])) / len(replay.steps) if replay else 0.0


def device_ms(account: Account, chosen: Sequence[Mask]) -> float:
    """Return the device time of some work per step, mean over ranks; only work launched in recorded steps counts."""
    totals = []
    for rank, mask in zip(account.run.ranks, chosen, strict=True):
        mine = mask & (rank.work.step >= 0)
        totals.append((rank.work.end_ns - rank.work.start_ns)[mine].sum() / max(len(rank.steps), 1))
    return float(np.mean(totals)) / NS_PER_MS if totals else 0.0


def transfers_to_device(account: Account) -> list[Mask]:
    """Return per rank which work copies from the host to the device."""
    return [copies_to_device(rank) for rank in account.run.ranks]


@once_per_record
def other_waits(account: Account) -> list[int]:
    """Return how often each rank's host waited for the device, other than for copies to it."""
    if account.replay is None:
        return []
    return [_waits(program) for program in without_waits(account.replay)]


@once_per_record
def waits_for_copies(account: Account) -> list[int]:
    """Return how often each rank's host waited for copies to the device."""
    if account.replay is None:
        return []
    return [_waits(p) - other for p, other in zip(account.replay.programs, other_waits(account), strict=True)]


def _waits(program: Program) -> int:
    return int((program.released_by != NOTHING).sum())


# The time that a kind of fix can remove at most, per step: what its rule claims, by the budget.

_COMPUTE_PARTS = ("forward", "backward", "optimizer", "other_compute")


def not_busy_ns(account: Account) -> float | None:
    """Return the time in which the device neither computes nor copies nor moves data: what a faster host can remove.

    Waiting for other ranks is in it: their hosts become faster too.
    """
    step = account.step
    if step is None or not any(view.on_device for view in account.ranks):
        return None
    return step.step_ns - step.unmatched_ns - sum(step.ns(p) for p in (*_COMPUTE_PARTS, "copy", "exposed_transfer"))


def not_busy_or_copying_ns(account: Account) -> float | None:
    """Return the same with copies between host and device: what the host does there goes with them."""
    idle = not_busy_ns(account)
    return None if idle is None or account.step is None else idle + account.step.ns("copy")


def launching_ns(account: Account) -> float | None:
    """Return the time in which nothing but slow launching can be what the device waits for.

    Loading data, stalls, synchronisation and the allocator have causes of their own. So has waiting for a rank that
    is late: what the mean rank waits for it goes to the straggler, the rest to hosts that take turns at being slow.
    """
    step = account.step
    if step is None or not_busy_ns(account) is None:
        return None
    late = {s.rank: s.late_ns_per_step for s in account.stragglers}
    num_ranks = max(len(account.run.ranks), 1)
    for_late = max(late.values(), default=0.0) * (num_ranks - len(late)) / num_ranks
    return step.ns("launch_gap") + max(0.0, step.ns("wait") - for_late)


def not_computing_ns(account: Account) -> float | None:
    """Return the time without compute or copies: what any change of the communication can remove."""
    step = account.step
    if step is None or not any(view.on_device for view in account.ranks):
        return None
    return step.step_ns - sum(step.ns(p) for p in (*_COMPUTE_PARTS, "copy"))


def with_work_ns(account: Account, work_ns: float) -> float | None:
    """Return what can go with some device work: its own time, and the time in which the host launches it."""
    idle = not_busy_ns(account)
    return None if idle is None else idle + work_ns


# Which collectives synchronise gradients? What the rules on gradient communication share.


def gradient_groups_only(account: Account) -> bool:
    """Return whether all group communication of the run is data-parallel: what may move against compute freely.

    Collectives of tensor, expert or context parallelism stand inside the forward and backward pass: their results
    are needed at once, so starting them earlier is no fix.
    """
    return (
        account.replay is not None
        and communicates(account.replay)
        and not account.strategy.has(*("tp", "pp", "ep", "cp", "embedding"))
    )


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


# What recurs in some steps of the training, as rules ask for it: its cost, where it is common to the ranks, and how
# to say it.


@dataclass(frozen=True)
class CauseText:
    """How a finding says one recurring cause."""

    title: str
    cause: str
    remedy: str


_NAMED = {
    CHECKPOINT: CauseText(
        "Training stops for checkpoints",
        "checkpoint: the model is saved inside the training loop, and no step runs meanwhile",
        "Save less often, or in the background: torch.distributed.checkpoint.async_save, or copy the state to pinned "
        "memory and write it in a thread.",
    ),
    EVALUATION: CauseText(
        "Training stops for evaluations",
        "evaluation: forward passes without gradients run between training steps",
        "Evaluate less often or on fewer batches, in larger batches under torch.inference_mode(), or in a job of its own.",
    ),
    GARBAGE_COLLECTION: CauseText(
        "Python collects garbage inside steps",
        "garbage_collection: the interpreter's collector stops the training thread",
        "gc.freeze() after the model is built, gc.disable() in the loop and gc.collect() every N steps on all ranks at once.",
    ),
    COMPILATION: CauseText(
        "The model is compiled again during training",
        "compilation: torch.compile meets new shapes or values and compiles again",
        "Pad to a few shapes, or torch.compile(dynamic=True); TORCH_LOGS=recompiles says why each one happened.",
    ),
}


_OFTEN_EVALUATED = CauseText(
    "Passes without gradients come between training steps",
    "evaluation, or data that the job makes itself: every few steps forward passes without gradients run, and no step "
    "of training meanwhile",
    "Evaluate less often or in a job of its own. Where training needs what they make (a policy's answers), make it "
    "faster: larger batches, a cache of keys and values, launched as a graph.",
)


def named_cause(account: Account, cause: str) -> CauseText:
    """Return the words for a recurring cause; a region that the job named itself speaks for itself."""
    if may_be_needed(account, cause):
        return _OFTEN_EVALUATED
    return _NAMED.get(cause) or CauseText(
        f"Training stops for {cause}",
        f"{cause}: the region of that name takes long in some steps",
        "Do it less often, or in a thread or a job of its own.",
    )


def may_be_needed(account: Account, cause: str) -> bool:
    """Return whether training may need it: passes without gradients that come every few steps may make its data."""
    recurring = _recurring_of(account)
    if recurring is None or cause != EVALUATION or cause not in recurring.causes:
        return False
    steps, of = recurring.num_steps_with(cause)
    return steps >= OFTEN * of


def _recurring_of(account: Account) -> Recurring | None:
    replay = account.replay
    return replay.recurring if replay is not None and replay.recurring.causes else None


def stall_causes(account: Account) -> list[str]:
    """Return the named causes, common to the ranks, that stop the host and are not the loader's."""
    recurring = _recurring_of(account)
    causes = recurring.causes if recurring else ()
    others = (*DATA_CAUSES, OUTSIDE, COMMUNICATION)
    return [c for c in causes if c not in others and common_ns(account, (c,)) > 0]


def common_ns(account: Account, causes: tuple[str, ...]) -> float:
    """Return what causes take per step on the median rank; 0 where most ranks do not have them (one late rank is a
    straggler).
    """
    recurring = _recurring_of(account)
    if recurring is None:
        return 0.0
    by_rank = np.sum([recurring.rank_ns(c) for c in causes if c in recurring.causes], axis=0)
    if not np.any(by_rank):
        return 0.0
    # of the most on any rank: a rank that has less of a cause does not have it
    have = by_rank >= (1 / 3) * by_rank.max()
    return median(by_rank) if have.sum() * 2 > len(by_rank) else 0.0


def evidence_of(account: Account, causes: tuple[str, ...]) -> tuple[Evidence, ...]:
    """Return what the step logs say of causes: what each takes and in how many steps."""
    recurring = _recurring_of(account)
    lines = []
    for cause in causes if recurring else ():
        assert recurring is not None
        if cause in recurring.causes and recurring.rank_ns(cause).any():
            steps, of = recurring.num_steps_with(cause)
            where = f"in {steps} of {of} logged steps"
            each = host_ms(median(recurring.rank_ns(cause)))
            lines.append(Evidence(f"{cause} beyond the ordinary step, per step", each, "ms", where))
    return tuple(lines)


# The run without what lines or modules did: the change that stands for deleting or moving a line of the user's.


def without_parts(parts: Sequence[Part], *, factor: float = 0.0, collectives: bool = True) -> Change:
    """Return the change that takes parts out of all ranks."""

    def changed(replay: Replay) -> Replay:
        return taken_out(replay, parts, factor=factor, collectives=collectives)

    return changed


def without_lines(account: Account, lines: Sequence[Line], *, device: bool = True) -> Change:
    """Return the change that deletes lines on all ranks, with everything they called."""
    return without_parts(parts_of_lines(account, lines, device=device))


def parts_of_lines(account: Account, lines: Sequence[Line], *, device: bool = True) -> list[Part]:
    """Return what every rank did in some lines, with everything they called."""

    def of_lines(known: RankLines) -> Choose:
        holds = np.zeros(len(known.owned.stacks) + 1, bool)
        for line in lines:
            if line in known.lines:
                holds |= known.holding(line)
        return lambda _, things: holds[things.stack]

    return [
        NO_PART if known is None else part_for(known.owned, of_lines(known), device=device)
        for known in account.line_work
    ]


def host_only(part: Part) -> Part:
    """Return the same part with its host time alone."""
    return Part(part.host, part.python, np.zeros_like(part.work), np.zeros_like(part.collectives), part.calls[:0])


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


def at(line: Line, module: str | None = None, share: float = 1.0) -> Where:
    """Return a line as the place of a finding."""
    return Where(*line, module=module, share=share)
