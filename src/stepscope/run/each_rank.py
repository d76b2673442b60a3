"""One question asked of every rank, on as many threads as the run was read with; answers come in the order of ranks.

What a rank's answer follows from is that rank alone, so it is the same with any number of threads. Sorting, sums over
columns and the compiled module let other threads run meanwhile.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from stepscope.run.load import Run
from stepscope.run.rank import Rank

Answer = TypeVar("Answer")


def each_rank(run: Run, question: Callable[[int, Rank], Answer]) -> tuple[Answer, ...]:
    """Return `question(index, rank)` of every rank; what the first of them raises is raised."""
    return side_by_side(run.jobs, question, range(len(run.ranks)), run.ranks)


def side_by_side(jobs: int, question: Callable[..., Answer], *given: Iterable[Any]) -> tuple[Answer, ...]:
    """Return what `question` answers to the first of all that is given, to the second and so on, on so many threads."""
    rows = tuple(zip(*given, strict=True))
    threads = min(jobs, len(rows))
    if threads <= 1:
        return tuple(question(*row) for row in rows)
    with ThreadPoolExecutor(threads) as pool:
        return tuple(pool.map(lambda row: question(*row), rows))
