"""Names of the data-parallel implementations, and the search for the best bucket size. Standard library only.

    sizes    1  2  3  5  8  12  18  25 ...      larger: fewer messages, so faster; larger still: less overlap, so slower
    coarse   x        x         x       ...     every third and both ends
    refine         x  X  x                      the best one's neighbours, until none is better

Sizes are only compared within one round, in which they take turns: a machine that is slower in a later round is slower
for all of them.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from stepscope.errors import UsageError

# a rank holds only a part of the gradients
SHARDED = ("fsdp2_zero2", "fsdp2_zero3", "fsdp2_hybrid", "deepspeed_zero1", "deepspeed_zero2", "deepspeed_zero3")
_EVERY = ("ddp", "ddp_individual", "ddp_individual_v2", "ddp_bucketed", "pytorch_ddp", "zero1", *SHARDED)
# those that run on any number of ranks
NAMES = tuple(name for name in _EVERY if name != "fsdp2_hybrid")
# the fewest that hybrid sharding divides: two groups of two
HYBRID_RANKS = 4

SIZES_MB = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 18.0, 25.0, 35.0, 50.0, 75.0, 100.0, 150.0, 250.0)
DEFAULT_MB = 25.0
DDP_OPTIONS = ("gradient_as_bucket_view", "static_graph", "find_unused_parameters")
_COARSE = 3

# places in the list of sizes -> their times, measured in turns
Times = Callable[[Sequence[int]], Sequence[float]]


def available(names: tuple[str, ...] = NAMES) -> tuple[str, ...]:
    """Return the names that can run here: DeepSpeed's only where it is installed."""
    return tuple(name for name in names if not name.startswith("deepspeed") or find_spec("deepspeed") is not None)


def checked_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names, all known and able to run here."""
    for name in names:
        if name not in _EVERY:
            raise UsageError(f"unknown implementation {name!r}; use some of {', '.join(NAMES)}")
        if not available((name,)):
            raise UsageError(f"{name} needs DeepSpeed, which is not installed here; install it or leave it out")
    return names


def finalists(implementation: str, best_mb: float) -> list[dict[str, Any]]:
    """Return the series to compare: the default size first, then the best, then each option on top of the best."""
    options: dict[str, dict[str, Any]] = {f"{DEFAULT_MB:g}MB-default": {"bucket_size_mb": DEFAULT_MB}}
    if best_mb != DEFAULT_MB:
        options[f"{best_mb:g}MB"] = {"bucket_size_mb": best_mb}
    if implementation == "pytorch_ddp":
        options |= {f"{best_mb:g}MB-{name}": {"bucket_size_mb": best_mb, name: True} for name in DDP_OPTIONS}
    return [{"name": name, "implementation": implementation, "options": given} for name, given in options.items()]


class SearchResult(NamedTuple):
    """Place of the best size, and of all tried ones the time over that of the best."""

    best: int
    ratios: dict[int, float]


def search(count: int, times_of: Times, *, exhaustive: bool = False) -> SearchResult:
    """Return the place of the best of `count` sizes."""
    best, ratios = _round(range(count) if exhaustive else sorted({*range(0, count, _COARSE), count - 1}), times_of)
    while near := [place for place in (best - 1, best + 1) if 0 <= place < count and place not in ratios]:
        better, latest = _round(sorted([best, *near]), times_of)
        best, ratios = better, {**{place: ratio * latest[best] for place, ratio in ratios.items()}, **latest}
    return SearchResult(best, dict(sorted(ratios.items())))


def _round(places: Sequence[int], times_of: Times) -> tuple[int, dict[int, float]]:
    times = dict(zip(places, times_of(places), strict=True))
    best = min(times, key=times.__getitem__)
    return best, {place: time / times[best] for place, time in times.items()}
