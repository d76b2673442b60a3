"""The search and the exhaustive sweep on the same ranks in one run, then what both chose against each other."""

from typing import Any

from stepscope.bench.config import WorkloadSpec
from stepscope.bench.data_parallel import Rounds, distinct_sizes
from stepscope.bench.rank import Bench
from stepscope.bench.strategies import search


def both(bench: Bench, settings: dict[str, Any]) -> None:
    sizes, _ = distinct_sizes(WorkloadSpec(**settings["workload"]), settings["sizes_mb"])
    rounds = Rounds(bench, settings, sizes)
    times = rounds.times(range(len(sizes)))
    best = min(range(len(sizes)), key=lambda place: times[place])
    found = search(len(sizes), rounds.times)
    turns: dict[int, list[list[float]]] = {best: [], found.best: []}
    for _ in range(settings["final_turns"]):
        for place, series in turns.items():
            series.append(list(rounds.turn(sizes[place])))
    bench.emit(what="both", exhaustive=turns[best], search=turns[found.best], tried=len(found.ratios), sizes=len(sizes))
