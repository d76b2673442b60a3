"""The search and the exhaustive sweep on the same ranks in one run, then what both chose against each other."""

from typing import Any

from stepscope.bench.data_parallel.bucket_search import search
from stepscope.bench.data_parallel.bucket_sweep import Rounds, distinct_sizes
from stepscope.bench.session.rank import Bench
from stepscope.bench.workloads.workload import WorkloadSpec


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
    bench.emit(what="both", exhaustive=turns[best], search=turns[found.best], tried=len(found.tried), sizes=len(sizes))
