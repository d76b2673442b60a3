"""A run without traces on one screen: what its step logs say of each rank, and which rank is late."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from stepscope.analyze.ranks.log_stragglers import WAITING, Floats, LateRank, late_ranks
from stepscope.contract.step_line import BACKWARD, DATA_LOADING, FORWARD, GRADIENT_SYNC, OPTIMIZER
from stepscope.report.fit import print_fitting
from stepscope.report.text.terminal import name_text, plain_table
from stepscope.run.step_log import StepLog, unprofiled_step
from stepscope.units import NS_PER_MS, ms

_PREFIX, _SUFFIX = "regions.", ".ns"
_FIRST = (DATA_LOADING, FORWARD, BACKWARD, GRADIENT_SYNC, OPTIMIZER)
_MAX_RANKS = 32
_RARE = 0.5
"""of the steps lack it"""


def print_steps(folder: Path, logs: Sequence[StepLog], out: Console, *, warnings: Sequence[str] = ()) -> None:
    """Print step and region times by rank, late ranks first, and how to see more."""
    step = unprofiled_step(logs)
    ranks = "1 rank" if len(logs) == 1 else f"{len(logs)} ranks"
    out.print(
        name_text(folder.absolute().name, style="bold").append(f"  {ranks}, {max(map(len, logs))} steps, no trace")
    )
    if step is not None:
        out.print(f"step {ms(step.median_ns):.2f} ms, median of {step.num_steps} steps without the profiler")
    if step is not None and step.uneven:
        out.print(step.uneven)
    late = late_ranks(logs)
    out.print()
    _table(logs, late, out)
    for one in late:
        out.print(
            f"straggler: rank {one.rank} is {ms(one.late_ns):.2f} ms late per step ({one.slowdown:.2f} x the others)"
        )
    out.print("medians in ms, of steps without the profiler; ?: not seen on that rank")
    for name in (name for name in _regions(logs) if _is_rare(logs, name)):
        out.print(name_text(_rare_line(logs, name), width=120))
    for line in warnings:
        out.print(name_text(f"warning: {line}"))
    out.print()
    out.print("What happens inside the steps is in a trace: record without --light, with --steps that the job reaches")


def _table(logs: Sequence[StepLog], late: Sequence[LateRank], out: Console) -> None:
    names = [name for name in _regions(logs) if not _is_rare(logs, name)]
    table = plain_table(out, "rank", "steps", "step", *names)
    order = {one.rank: i for i, one in enumerate(late)}
    for log in sorted(logs, key=lambda log: order.get(log.rank, len(order)))[:_MAX_RANKS]:
        cells = [_median(log, log.column(f"{_PREFIX}{name}{_SUFFIX}")) for name in names]
        table.add_row(str(log.rank), str(len(log)), _median(log, log.dur_ns.astype(float)), *cells)
    smallest_first = sorted(names, key=lambda name: _largest_ns(logs, name))
    print_fitting(table, out, least_needed=("steps", *smallest_first[:-1]), elsewhere="a wider terminal shows all")
    if len(logs) > _MAX_RANKS:
        out.print(f"and {len(logs) - _MAX_RANKS} more ranks")


def _regions(logs: Sequence[StepLog]) -> list[str]:
    """Return the regions that any rank has, in the order of a step."""
    paths = {path for log in logs for path in log.numbers if path.startswith(_PREFIX) and path.endswith(_SUFFIX)}
    names = {path.removeprefix(_PREFIX).removesuffix(_SUFFIX) for path in paths}
    return [*(n for n in _FIRST if n in names), *sorted(names.difference(_FIRST))]


def _is_rare(logs: Sequence[StepLog], name: str) -> bool:
    """Return whether a region is in few of the steps, so that a median says nothing of what it costs."""
    return name not in _FIRST and all(np.isnan(_times(log, name)).mean() > _RARE for log in logs)


def _rare_line(logs: Sequence[StepLog], name: str) -> str:
    times = [_times(log, name) for log in logs]
    steps = max(int((~np.isnan(one)).sum()) for one in times)
    mean_ns = max(float(np.nansum(one)) / max(len(one), 1) for one in times)
    return f"{name}: {mean_ns / NS_PER_MS:.2f} ms per step on average, in {steps} of {max(map(len, logs))} steps"


def _times(log: StepLog, name: str) -> Floats:
    return log.column(f"{_PREFIX}{name}{_SUFFIX}")


def _largest_ns(logs: Sequence[StepLog], name: str) -> float:
    times = [_times(log, name) for log in logs]
    return max((float(np.nanmedian(one)) for one in times if not np.isnan(one).all()), default=0.0)


def _median(log: StepLog, values_ns: Floats) -> str:
    known = values_ns[log.unprofiled & _split(log) & ~np.isnan(values_ns)]
    return f"{np.median(known) / NS_PER_MS:.2f}" if len(known) else "?"


def _split(log: StepLog) -> npt.NDArray[np.bool_]:
    """Return the steps whose wait was told apart from the backward pass, all where that was done in none."""
    told = ~np.isnan(log.column(WAITING))
    return told if told.any() else np.ones(len(log), bool)
