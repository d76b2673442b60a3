"""The job that finds the bucket size: a search in short rounds, then the finalists measured properly.

settings   those of `compare`, and {"implementation", "sizes_mb", "exhaustive", "round_steps", "round_warmup"}
records    {"what": "round", "sizes_mb", "times_ms"}     {"what": "found", "best_mb", "tried_mb", "same_as"}
           then those of `compare` for the series: 25 MB (the default), the best size, the best with each option
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from stepscope.bench.data_parallel.bucket_finalists import DEFAULT_MB, entry, finalists
from stepscope.bench.data_parallel.bucket_search import SIZES_MB, SearchResult, search
from stepscope.bench.data_parallel.compare import compare
from stepscope.bench.data_parallel.contender import Contender, clear_memory
from stepscope.bench.data_parallel.implementations.ddp_bucketed import partition
from stepscope.bench.data_parallel.implementations.parallel import trainable
from stepscope.bench.session.measure import measure
from stepscope.bench.session.rank import Bench
from stepscope.bench.workloads.build import workload
from stepscope.bench.workloads.workload import WorkloadSpec

_TURNS = 3


def bucket_sweep(bench: Bench, settings: dict[str, Any]) -> None:
    """Find the best bucket size on these ranks, then compare it with the default and DDP's options."""
    every = sorted({DEFAULT_MB, *map(float, settings.get("sizes_mb") or SIZES_MB)})
    sizes, same_as = distinct_sizes(WorkloadSpec(**settings["workload"]), every)
    rounds = Rounds(bench, settings, sizes)
    found = _everything(len(sizes), rounds) if settings.get("exhaustive") else search(len(sizes), rounds.times)
    best_mb = sizes[found.best]
    if same_as.get(DEFAULT_MB) == best_mb:
        best_mb = DEFAULT_MB  # the same buckets
    bench.emit(
        what="found",
        best_mb=best_mb,
        tried_mb=[sizes[place] for place in found.tried],
        ratios={str(sizes[place]): ratio for place, ratio in sorted(found.ratios.items())},
        same_as={str(size): other for size, other in same_as.items()},
    )
    compare(bench, {**settings, "series": finalists(settings["implementation"], best_mb)})


def distinct_sizes(spec: WorkloadSpec, sizes: Sequence[float]) -> tuple[list[float], dict[float, float]]:
    """Return the sizes that cut this model into different buckets, and for the others which one they equal."""
    parameters = trainable(workload(spec, "cpu").model)[::-1]
    kept: dict[tuple[int, ...], float] = {}
    same: dict[float, float] = {}
    for size in sizes:
        cut = tuple(len(bucket) for bucket in partition(parameters, size_mb=size))
        if cut in kept:
            same[size] = kept[cut]
        kept.setdefault(cut, size)
    return list(kept.values()), same


class Rounds:
    """Measures sizes in turns, a few steps each; every rank gets the slowest rank's times, so all decide alike."""

    def __init__(self, bench: Bench, settings: dict[str, Any], sizes: Sequence[float]) -> None:
        self._bench, self._settings, self._sizes = bench, settings, sizes

    def times(self, places: Sequence[int]) -> list[float]:
        """Return the median step time of each place, in ms."""
        step_ms: dict[int, list[float]] = {place: [] for place in places}
        for _ in range(int(self._settings.get("round_turns", _TURNS))):
            for place in places:
                step_ms[place] += self.turn(self._sizes[place])
        medians = torch.tensor([_median(step_ms[place]) for place in places], device=self._bench.device)
        dist.all_reduce(medians, op=dist.ReduceOp.MAX)
        times_ms = [float(time) for time in medians]
        self._bench.emit(what="round", sizes_mb=[self._sizes[place] for place in places], times_ms=times_ms)
        return times_ms

    def turn(self, size_mb: float) -> tuple[float, ...]:
        """Return the step times of one turn of a size, with a new model, in ms."""
        series = entry(self._settings["implementation"], f"{size_mb:g}MB", {"bucket_size_mb": size_mb})
        contender = Contender.of(self._settings, series)
        clear_memory(self._bench)
        training = contender.training(self._bench)
        warmup, steps = int(self._settings.get("round_warmup", 3)), int(self._settings.get("round_steps", 10))
        return measure(training.step, warmup_steps=warmup, steps=steps, device=self._bench.device).step_ms


def _everything(count: int, rounds: Rounds) -> SearchResult:
    times = rounds.times(range(count))
    best = min(range(count), key=lambda place: times[place])
    return SearchResult(best, tuple(range(count)), {place: time / times[best] for place, time in enumerate(times)})


def _median(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).median())
