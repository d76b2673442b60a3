"""What in a window of steps is worth a word: pure rules over what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from stepscope.contract.late_ranks import RankScore

LONG_STEP = 2.0
"""times the window's median"""
SLOWER = 0.10
"""share by which the window's second half may be slower than its first"""
FULL = 0.95
"""share of the device's memory"""
_MIN_STEPS = 20


@dataclass(frozen=True)
class Alert:
    """One thing to look at."""

    id: str
    """long-step, slower, memory or straggler"""
    step: int
    text: str


def alerts_of(
    step: int,
    times_ms: Sequence[float],
    *,
    memory_share: float | None = None,
    late: Sequence[RankScore] = (),
    slower: float = SLOWER,
) -> list[Alert]:
    """Return what the last step and its window give reason to say; `times_ms` ends with the last step."""
    found = []
    if len(times_ms) >= _MIN_STEPS:
        usual = median(times_ms)
        if times_ms[-1] > LONG_STEP * usual:
            found.append(Alert("long-step", step, f"step {step} took {times_ms[-1]:.1f} ms, usually {usual:.1f} ms"))
        half = len(times_ms) // 2
        first, second = median(times_ms[:half]), median(times_ms[half:])
        if first > 0 and second > (1 + slower) * first:
            found.append(Alert("slower", step, f"steps take {second / first - 1:.0%} longer than {half} steps ago"))
    if memory_share is not None and memory_share >= FULL:
        found.append(Alert("memory", step, f"{memory_share:.0%} of the device's memory are reserved"))
    found += [
        Alert("straggler", step, f"rank {s.rank} is {s.late_ms:.1f} ms late, {s.slowdown:.2f} times the others' time")
        for s in late
    ]
    return found
