"""The search for the best bucket size against known truth."""

import random
from collections.abc import Sequence

from stepscope.bench.data_parallel.bucket_finalists import finalists
from stepscope.bench.data_parallel.bucket_search import SIZES_MB, search


def cost(size_mb: float, *, latency: float, overlap: float) -> float:
    """More messages for small buckets, less overlap for large ones."""
    return 100 + latency * 200 / size_mb + overlap * size_mb


def test_search_finds_a_size_within_5_percent_of_the_best_whatever_the_shape() -> None:
    for latency in (0.01, 0.1, 0.5, 2.0):
        for overlap in (0.0, 0.05, 0.3, 2.0):
            truth = [cost(size, latency=latency, overlap=overlap) for size in SIZES_MB]
            found = search(len(truth), lambda places, t=truth: [t[p] for p in places])  # type: ignore[misc]
            assert truth[found.best] <= 1.05 * min(truth), (latency, overlap)
            assert len(found.tried) < len(truth)


def test_search_stays_near_the_best_under_noise() -> None:
    misses = 0
    for seed in range(40):
        noise = random.Random(seed)
        truth = [cost(size, latency=0.5, overlap=0.3) for size in SIZES_MB]
        found = search(len(truth), lambda places, t=truth, n=noise: [t[p] * n.gauss(1, 0.01) for p in places])  # type: ignore[misc]
        misses += truth[found.best] > 1.05 * min(truth)
    assert misses == 0


def test_machine_that_slows_down_between_rounds_does_not_mislead() -> None:
    truth, rounds = [cost(size, latency=0.5, overlap=0.3) for size in SIZES_MB], [0]

    def times(places: Sequence[int]) -> list[float]:
        rounds[0] += 1
        return [truth[p] * rounds[0] for p in places]

    found = search(len(truth), times)
    assert truth[found.best] <= 1.05 * min(truth)
    assert abs(found.ratios[0] - truth[0] / truth[found.best]) < 1e-9


def test_one_size_needs_no_search() -> None:
    assert search(1, lambda places: [1.0]).best == 0


def test_finalists_hold_the_default_first_and_each_option_on_the_best_size() -> None:
    rows = finalists("pytorch_ddp", 8.0)
    assert [r["name"] for r in rows][:2] == ["25MB-default", "8MB"]
    assert [r["options"]["bucket_size_mb"] for r in rows[1:]] == [8.0] * 4
    assert len(finalists("ddp_bucketed", 25.0)) == 1
