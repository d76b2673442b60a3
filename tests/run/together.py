"""Jobs of several ranks whose clocks, arrivals and transfers are known to the nanosecond.

Each rank arrives at each collective at its own time; the transfer starts when the last one has arrived and ends on
all of them at nearly the same moment. That is all that alignment, matching and the split of waiting rest on.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.analyze.build import RankTrace, built_run

from stepscope.run.load import Run

OPS = ("allreduce", "_allgather_base", "_reduce_scatter_base")


@dataclass
class Job:
    """What is put into the traces, and what must come out. Times in microseconds of true time."""

    ranks: int = 4
    steps: int = 6
    per_step: int = 5
    step_us: float = 20_000
    late_us: Sequence[float] = ()
    """per rank: how late it comes to every collective"""
    offset_us: Sequence[float] = ()
    drift_ppm: Sequence[float] = ()
    arrival_jitter_us: float = 500
    end_jitter_us: float = 2
    transfer_us: float = 800
    seed: int = 1
    wait_us: list[float] = field(default_factory=list)
    """truth, per rank: the sum of its waits"""
    transfer_sum_us: list[float] = field(default_factory=list)
    truth_us: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    """per step and rank: waits and transfers, of all its collectives together"""

    def traces(self, *, skip_steps: Sequence[int] = ()) -> list[RankTrace]:
        """Return the ranks' traces; rank r begins recording `skip_steps[r]` steps later than the job."""
        rng = random.Random(self.seed)
        built = [
            RankTrace(
                r, world_size=self.ranks, clock_offset_us=_at(self.offset_us, r), drift_ppm=_at(self.drift_ppm, r)
            )
            for r in range(self.ranks)
        ]
        self.wait_us, self.transfer_sum_us = [0.0] * self.ranks, [0.0] * self.ranks
        self.truth_us = {step: [(0.0, 0.0)] * self.ranks for step in range(self.steps)}
        for step in range(self.steps):
            begin = step * self.step_us
            for r, trace in enumerate(built):
                if step >= _at(skip_steps, r):
                    trace.step(step, begin, begin + self.step_us - 10)
                    trace.kernel("gemm", at=begin + 5, start=begin + 15, end=begin + 115)
            for k in range(self.per_step):
                self._collective(
                    built, step, begin + (k + 0.2) * self.step_us / (self.per_step + 0.5), k, rng, skip_steps
                )
        return built

    def run(self, folder: Path) -> Run:
        """Return the job as loaded from its files."""
        return built_run(folder, self.traces())

    def _collective(
        self, built: list[RankTrace], step: int, ready: float, k: int, rng: random.Random, skip_steps: Sequence[int]
    ) -> None:
        arrival = [ready + _at(self.late_us, r) + rng.uniform(0, self.arrival_jitter_us) for r in range(self.ranks)]
        arrival = [round(a, 3) for a in arrival]
        last = max(arrival)
        transfer = self.transfer_us * (1 + 0.2 * k)
        for r, trace in enumerate(built):
            end = round(last + transfer + rng.uniform(-self.end_jitter_us, self.end_jitter_us), 3)
            if step >= _at(skip_steps, r):
                trace.collective(OPS[k % 3], at=ready - 20, start=arrival[r], end=end, elements=1024 * (k + 1))
                self.wait_us[r] += last - arrival[r]
                self.transfer_sum_us[r] += end - last
                wait, moved = self.truth_us[step][r]
                self.truth_us[step][r] = (wait + last - arrival[r], moved + end - last)


def _at(values: Sequence[float], r: int) -> float:
    return values[r] if r < len(values) else 0
