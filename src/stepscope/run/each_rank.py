"""One question asked of every rank, on as many threads as the run was read with; answers come in the order of ranks.

What a rank's answer follows from is that rank alone, so it is the same with any number of threads. Sorting, sums over
columns and the compiled module let other threads run meanwhile.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from stepscope.run.load import Run
from stepscope.run.rank import Rank

Answer = TypeVar("Answer")


def each_rank(run: Run, question: Callable[[int, Rank], Answer]) -> tuple[Answer, ...]:
    """Return `question(index, rank)` of every rank; what the first of them raises is raised."""
    threads = min(run.jobs, len(run.ranks))
    if threads <= 1:
        return tuple(question(index, rank) for index, rank in enumerate(run.ranks))
    with ThreadPoolExecutor(threads) as pool:
        return tuple(pool.map(question, range(len(run.ranks)), run.ranks))
