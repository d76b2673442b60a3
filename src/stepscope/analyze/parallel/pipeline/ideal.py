"""Which schedule does a pipeline follow, and how much of the step would it idle if everything else were perfect?

The textbook share (p - 1) / (m + p - 1) holds for GPipe and 1F1B with equal stages; interleaving over v chunks per
rank divides p - 1 by v. For any order of actions the answer comes from replaying it: an action starts when its rank
is free and what it needs has been computed, messages take no time.

    F(s, i) needs F(s - 1, i)      B(s, i) needs B(s + 1, i), on the last stage F(s, i)      W(s, i) needs I(s, i)
"""

from collections.abc import Sequence

from stepscope.analyze.parallel.pipeline.actions import Action
from stepscope.dataclass import dataclass

GPIPE, ONE_F_ONE_B, INTERLEAVED, LOOPED, ZERO_BUBBLE, OTHER = (
    "gpipe", "1f1b", "interleaved-1f1b", "interleaved-gpipe", "zero-bubble", "other",
)  # fmt: skip


@dataclass(frozen=True)
class Replay:
    """A schedule run with given durations and no other delay."""

    makespan: float
    idle_share: tuple[float, ...]
    """per rank, of the makespan"""
    starts: tuple[tuple[float, ...], ...] = ()
    """per rank, when each of its actions begins"""

    @property
    def mean_idle_share(self) -> float:
        """Return the bubble: the mean over ranks."""
        return sum(self.idle_share) / len(self.idle_share)


def textbook_bubble(stages: int, microbatches: int, *, chunks: int = 1) -> float:
    """Return the idle share of the step: (p - 1) / (m v + p - 1).

    >>> round(textbook_bubble(4, 4), 4), round(textbook_bubble(4, 4, chunks=2), 4)
    (0.4286, 0.2727)
    """
    return (stages - 1) / (microbatches * chunks + stages - 1)


def schedule_name(ranks: Sequence[Sequence[Action]], *, chunks: int) -> str:
    """Return the schedule that the orders of actions follow, one sequence per rank in the order of the stages."""
    kinds = [[a.kind for a in actions] for actions in ranks]
    if any(kind in ("I", "W") for sequence in kinds for kind in sequence):
        return ZERO_BUBBLE
    all_forward_first = all("F" not in sequence[sequence.index("B") :] for sequence in kinds if "B" in sequence)
    if chunks > 1:
        return LOOPED if all_forward_first else INTERLEAVED
    if all_forward_first:
        return GPIPE
    return ONE_F_ONE_B if all(map(_is_1f1b, kinds, range(len(kinds)), [len(kinds)] * len(kinds))) else OTHER


def replayed(ranks: Sequence[Sequence[Action]], durations: Sequence[Sequence[float]]) -> Replay | None:
    """Return when these orders of actions would end with these durations, None where they wait for each other."""
    last_stage = max(a.stage for actions in ranks for a in actions)
    ends: dict[tuple[str, int, int], float] = {}
    at, clock, busy = [0] * len(ranks), [0.0] * len(ranks), [0.0] * len(ranks)
    starts: list[list[float]] = [[] for _ in ranks]
    while any(i < len(actions) for i, actions in zip(at, ranks, strict=True)):
        moved = False
        for r, actions in enumerate(ranks):
            while at[r] < len(actions):
                action, took = actions[at[r]], durations[r][at[r]]
                ready = _ready(action, last_stage, ends)
                if ready is None:
                    break
                starts[r].append(max(clock[r], ready))
                clock[r] = starts[r][-1] + took
                busy[r] += took
                ends[_key(action)] = clock[r]
                at[r] += 1
                moved = True
        if not moved:
            return None
    makespan = max(clock)
    if makespan <= 0:
        return None
    return Replay(makespan, tuple(1 - b / makespan for b in busy), tuple(map(tuple, starts)))


def _is_1f1b(kinds: Sequence[str], position: int, stages: int) -> bool:
    """Return whether never more micro-batches are in flight than stages follow, and forwards never bunch up late."""
    in_flight = most = 0
    for kind in kinds:
        in_flight += 1 if kind == "F" else -1
        most = max(most, in_flight)
    microbatches = kinds.count("F")
    return most == min(microbatches, stages - position) and in_flight == 0


def _key(a: Action) -> tuple[str, int, int]:
    # A full backward gives the gradients of inputs as its first half does.
    return ("I" if a.kind == "B" else a.kind, a.stage, a.microbatch)


def _ready(a: Action, last_stage: int, ends: dict[tuple[str, int, int], float]) -> float | None:
    """Return when an action's input was computed, None where it was not yet."""
    if a.kind == "F":
        return 0.0 if a.stage == 0 else ends.get(("F", a.stage - 1, a.microbatch))
    if a.kind == "W":
        return ends.get(("I", a.stage, a.microbatch))
    if a.stage == last_stage:
        return ends.get(("F", a.stage, a.microbatch))
    return ends.get(("I", a.stage + 1, a.microbatch))
