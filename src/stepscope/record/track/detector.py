"""`stepscope.StragglerDetector`: which rank makes the others wait, while training runs.

    detector = stepscope.StragglerDetector(window=100, threshold=2.0)
    for batch in loader:
        with detector.own_time():             # what this rank does before it waits for others
            loss = model(batch)
        loss.backward()                       # DDP's waiting is in here
        optimizer.step()
        detector.step()
        for late in detector.stragglers():
            print(late.rank, late.late_ms)

After a collective all ranks have the same step time, so own time is what tells. No collective is called: times go
through the job's store, or through files in `folder`, on a thread of their own, once in ten steps.
"""

import atexit
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

from stepscope.contract.late_ranks import (
    DEFAULT_SCORE,
    DEFAULT_SLOWDOWN,
    DEFAULT_WINDOW_STEPS,
    RankScore,
    rank_scores,
)
from stepscope.errors import UsageError
from stepscope.record.rank import place_of_process
from stepscope.record.track.exchange import Channel, Exchange, FolderChannel, job_channel

_EVERY_STEPS = 10


class StragglerDetector:
    """Own times of this rank over a window of steps, and the scores of all ranks as last heard.

    `threshold` is the score from which on a rank is late (the distance to the others' median in their spread), and
    `slowdown` how many times as slow as the others' mean it has to be as well. `every` is how often times are
    exchanged, in steps.
    """

    def __init__(
        self,
        window: int = DEFAULT_WINDOW_STEPS,
        threshold: float = DEFAULT_SCORE,
        *,
        slowdown: float = DEFAULT_SLOWDOWN,
        every: int = _EVERY_STEPS,
        folder: str | Path | None = None,
        channel: Channel | None = None,
    ) -> None:
        if window < 1 or every < 1:
            raise UsageError(f"window and every have to be whole numbers of at least 1, not {window} and {every}")
        place = place_of_process()
        self.rank, self.world_size = place.rank, place.world_size
        self.threshold, self.slowdown = threshold, slowdown
        self._own_ms: deque[float] = deque(maxlen=window)
        self._every, self._steps, self._spent_ns = every, 0, 0
        if channel is None and place.world_size > 1:
            channel = FolderChannel(folder) if folder is not None else job_channel()
        self._exchange = Exchange(rank=place.rank, world_size=place.world_size, channel=channel)
        atexit.register(self.close)

    @contextmanager
    def own_time(self) -> Iterator[None]:
        """Time what this rank does by itself; several blocks in a step add up."""
        began_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self._spent_ns += time.perf_counter_ns() - began_ns

    def step(self, own_ms: float | None = None) -> None:
        """End a step; `own_ms` is its own time where it was measured by somebody else."""
        self._own_ms.append(self._spent_ns / 1e6 if own_ms is None else own_ms)
        self._spent_ns = 0
        self._steps += 1
        if self._steps % self._every == 0:
            self._exchange.tell(fmean(self._own_ms))

    update = record = step  # names that other detectors use

    def scores(self) -> list[RankScore]:
        """Return every rank's score as last heard, the latest first; empty while fewer than two ranks are known."""
        return rank_scores(self._exchange.known, threshold=self.threshold, slowdown=self.slowdown)

    def stragglers(self) -> list[RankScore]:
        """Return the ranks that are late."""
        return [score for score in self.scores() if score.straggler]

    detect = check = stragglers

    @property
    def is_straggler(self) -> bool:
        """Return whether this rank is late."""
        return any(score.rank == self.rank for score in self.stragglers())

    def close(self) -> None:
        """End the exchange; what was heard stays."""
        atexit.unregister(self.close)
        self._exchange.close()
