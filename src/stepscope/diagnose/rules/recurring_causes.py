"""What recurs in some steps of the training, as rules ask for it: its cost, where it is common to the ranks, and how
to say it.
"""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.step.recurring import COMMUNICATION, DATA_CAUSES, OUTSIDE, Recurring
from stepscope.contract.step_line import CHECKPOINT, COMPILATION, EVALUATION, GARBAGE_COLLECTION
from stepscope.dataclass import dataclass
from stepscope.diagnose.finding import Evidence
from stepscope.diagnose.rules.measures import host_ms
from stepscope.stats.middle import median
from stepscope.stats.robust import OFTEN

_SAME_ORDER = 1 / 3
"""of the most on any rank: a rank that has less of a cause does not have it"""


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
    recurring = recurring_of(account)
    if recurring is None or cause != EVALUATION or cause not in recurring.causes:
        return False
    steps, of = recurring.num_steps_with(cause)
    return steps >= OFTEN * of


def recurring_of(account: Account) -> Recurring | None:
    """Return what recurs in the run's replay, None where nothing does."""
    replay = account.replay
    return replay.recurring if replay is not None and replay.recurring.causes else None


def stall_causes(account: Account) -> list[str]:
    """Return the named causes, common to the ranks, that stop the host and are not the loader's."""
    recurring = recurring_of(account)
    causes = recurring.causes if recurring else ()
    others = (*DATA_CAUSES, OUTSIDE, COMMUNICATION)
    return [c for c in causes if c not in others and common_ns(account, (c,)) > 0]


def common_ns(account: Account, causes: tuple[str, ...]) -> float:
    """Return what causes take per step on the median rank; 0 where most ranks do not have them (one late rank is a
    straggler).
    """
    recurring = recurring_of(account)
    if recurring is None:
        return 0.0
    by_rank = np.sum([recurring.rank_ns(c) for c in causes if c in recurring.causes], axis=0)
    if not np.any(by_rank):
        return 0.0
    have = by_rank >= _SAME_ORDER * by_rank.max()
    return median(by_rank) if have.sum() * 2 > len(by_rank) else 0.0


def evidence_of(account: Account, causes: tuple[str, ...]) -> tuple[Evidence, ...]:
    """Return what the step logs say of causes: what each takes and in how many steps."""
    recurring = recurring_of(account)
    lines = []
    for cause in causes if recurring else ():
        assert recurring is not None
        if cause in recurring.causes and recurring.rank_ns(cause).any():
            steps, of = recurring.num_steps_with(cause)
            where = f"in {steps} of {of} logged steps"
            each = host_ms(median(recurring.rank_ns(cause)))
            lines.append(Evidence(f"{cause} beyond the ordinary step, per step", each, "ms", where))
    return tuple(lines)
