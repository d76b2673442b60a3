"""A profile window that somebody asks for while the job runs: which steps, or why not. One rank decides for all.

    every rank   a request is there  ->  its newest step and what a step takes, in its own file
    rank 0       all have answered   ->  a plan: steps that no rank will have reached when it hears of them
    every rank   the plan is there   ->  told to the training process

Nothing here waits: each helper looks when it wakes. Ranks answer at different moments, so a rank may be further than it
said: the plan leaves room for that, and a rank that hears of it too late records what is left.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.contract.live import RankStatus, WindowPlan, WindowRequest

WARMUP_STEPS = 2
ANSWER_S = 10.0
"""for which the ranks' answers are waited for, on top of a few looks"""
_LOOKS = 4
_ROOM_S = 1.0
_MIN_STEP_S = 1e-4
_MAX_NAMED = 4


@dataclass(frozen=True)
class Rules:
    """What rank 0 knows that bounds a plan."""

    world_size: int
    free_step: int
    """before which the run's own windows are not over"""
    number: int
    """of the next window"""
    look_s: float
    """how often helpers look"""
    since_last_s: float | None
    """since the last window that was asked for was over; None where there was none"""
    pause_s: float
    why_never: str | None = None


def plan_for(
    request: WindowRequest, answers: Mapping[int, RankStatus], rules: Rules, *, waited_s: float
) -> WindowPlan | None:
    """Return the plan for a request, refused or not; None where answers are still to come."""
    refused = _refusal(answers, rules, waited_s)
    if refused is not None:
        return WindowPlan(request.id, refused=refused)
    if len(answers) < rules.world_size:
        return None
    step_s = max(min(status.step_s or 0.0 for status in answers.values()), _MIN_STEP_S)
    room_s = waited_s + _LOOKS * rules.look_s + _ROOM_S
    reached = max(status.step or 0 for status in answers.values()) + 1
    ready = max(reached + math.ceil(room_s / step_s), rules.free_step)
    first = ready + WARMUP_STEPS
    return WindowPlan(
        request.id, first, first + request.steps, WARMUP_STEPS, rules.number, by=request.by, since=request.since
    )


def _refusal(answers: Mapping[int, RankStatus], rules: Rules, waited_s: float) -> str | None:
    if rules.why_never is not None:
        return rules.why_never
    if rules.since_last_s is not None and rules.since_last_s < rules.pause_s:
        left_s = math.ceil(rules.pause_s - rules.since_last_s)
        return f"the last window was over {rules.since_last_s:.0f} s ago; ask again in {left_s} s"
    for rank, status in sorted(answers.items()):
        if status.stall is not None:
            return f"rank {rank} has taken no step for {status.stall.for_s:.0f} s; stepscope watch says where it is"
    silent = [rank for rank in range(rules.world_size) if rank not in answers]
    if silent and waited_s > ANSWER_S + _LOOKS * rules.look_s:
        named = ", ".join(map(str, silent[:_MAX_NAMED])) + (", ..." if len(silent) > _MAX_NAMED else "")
        many = "rank" if len(silent) == 1 else "ranks"
        return f"{many} {named} did not answer within {waited_s:.0f} s: dead, or on a host that is gone"
    return None
