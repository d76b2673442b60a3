"""How far this host's clock is from rank 0's: a few questions and answers over the side channel.

    t1 here --ask--> t0 there --answer--> t4 here        offset = t0 - (t1 + t4) / 2, within (t4 - t1) / 2

Of several rounds the shortest one counts. Only the first rank of every other host asks; ranks of one host share its
clock, which the boot id shows. Asked before and after the window, so that drift is bounded too.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.record.helper.side_channel import SideChannel

ROUNDS = 8
_ANSWER_S = 2.0
_FIRST_S = 10.0
_LOOK_S = 0.0002
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """Return what identifies this boot of this machine, hence its clock; None where the system does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None


def register(channel: SideChannel, *, rank: int) -> int:
    """Return the number under which this rank will ask; rank 0 serves all numbers."""
    number = channel.count("clock/askers")
    channel.put(f"clock/asker/{number}", str(rank))
    return number


def ask(
    channel: SideChannel, *, number: int, when: str, clock: Callable[[], int] = time.time_ns
) -> dict[str, Any] | None:
    """Return `{"when", "at_ns", "offset_ns", "uncertainty_ns"}`: rank 0's clock minus ours; None if unanswered."""
    best: tuple[int, int, int] | None = None
    for k in range(ROUNDS):
        t1 = clock()
        channel.put(f"clock/{when}/{number}/ask/{k}", "")
        answer = _word(channel, f"clock/{when}/{number}/answer/{k}", first=k == 0)
        t4 = clock()
        if answer is None:
            break
        if best is None or t4 - t1 < best[0]:
            best = (t4 - t1, int(answer) - (t1 + t4) // 2, t4)
    if best is None:
        return None
    return {"when": when, "at_ns": best[2], "offset_ns": best[1], "uncertainty_ns": (best[0] + 1) // 2}


def serve(
    channel: SideChannel,
    *,
    when: str,
    clock: Callable[[], int] = time.time_ns,
    wait_for_more: Callable[[], bool] = bool,
) -> int:
    """Answer every registered asker in turn, giving up on those that stay silent; return how many asked.

    Others may register later, in short jobs after the first window began: `wait_for_more()` says whether to look again.
    """
    served = 0
    while True:
        askers = channel.count("clock/askers", 0)
        for number in range(served + 1, askers + 1):
            _answer(channel, number, when=when, clock=clock)
        served = askers
        if not wait_for_more():
            return served


def _answer(channel: SideChannel, number: int, *, when: str, clock: Callable[[], int]) -> None:
    for k in range(ROUNDS):
        if _word(channel, f"clock/{when}/{number}/ask/{k}", first=k == 0) is None:
            return
        channel.put(f"clock/{when}/{number}/answer/{k}", str(clock()))


def _word(channel: SideChannel, key: str, *, first: bool) -> str | None:
    return channel.wait_for(key, _FIRST_S if first else _ANSWER_S, every_s=_LOOK_S)
