"""Memory of the logged steps as one line: the fullest rank, drawn from the lowest to the highest sample."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rich.console import Console

from stepscope.analyze.account import Account
from stepscope.document.side_files import memory_of_steps
from stepscope.units import readable_bytes

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40
_MIN_POINTS = 3
_FLAT = 0.9


def print_memory(account: Account, out: Console) -> None:
    """Print the memory of each step on the rank that uses most; nothing where no step log has it."""
    logged = [memory_of_steps(log) for log in account.run.logs]
    for name, where in (("allocated_bytes", "on the device"), ("host_bytes", "of the process")):
        known = [(one["rank"], [(s, b) for s, b in zip(one["step"], one[name], strict=True) if b]) for one in logged]
        enough = [(rank, points) for rank, points in known if len(points) >= _MIN_POINTS]
        if enough:
            rank, points = max(enough, key=lambda one: max(b for _, b in one[1]))
            out.print(_line(rank, points, where))
            return


def _line(rank: int, points: Sequence[tuple[Any, int]], where: str) -> str:
    sizes = [b for _, b in points]
    span = f"steps {points[0][0]} to {points[-1][0]}"
    return (
        f"memory {where}, rank {rank}, {span}: {spark_line(sizes)} "
        f"{readable_bytes(min(sizes))} to {readable_bytes(max(sizes))}"
    )


def spark_line(values: Sequence[float], *, width: int = _WIDTH) -> str:
    """Return values as bars, the largest of each stretch where there are more than `width`.

    >>> spark_line([0, 1, 2, 3])
    '▁▃▅█'
    """
    count = min(len(values), width)
    cuts = [round(i * len(values) / count) for i in range(count + 1)]
    heights = [max(values[a:b]) for a, b in pairwise(cuts)]
    high = max(heights)
    low = min(min(heights), _FLAT * high)  # a change of a few percent is to look like one
    return "".join(_BARS[int((len(_BARS) - 1) * (h - low) / (high - low)) if high > low else 0] for h in heights)
