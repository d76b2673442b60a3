"""A run without traces on one screen: what its step logs say of each rank, which is late, and measured kernels."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console

from stepscope.analyze.kernels import function_of, measured_kernels
from stepscope.analyze.log_stragglers import Floats, LateRank, is_rare, late_ranks, median_ns, region_names, region_ns
from stepscope.report.terminal import name_text, plain_table, print_fitting, print_table, row_name
from stepscope.run.light import LightRun
from stepscope.run.step_log import StepLog, unprofiled_step
from stepscope.units import NS_PER_MS, NS_PER_US, ms

_MAX_RANKS = 32
_MAX_KERNELS = 20


def print_steps(run: LightRun, out: Console) -> None:
    """Print step and region times by rank, late ranks first, what was measured of kernels, and how to see more."""
    logs = run.logs
    step = unprofiled_step(logs)
    ranks = "1 rank" if len(logs) == 1 else f"{len(logs)} ranks"
    out.print(name_text(run.name, style="bold").append(f"  {ranks}, {max(map(len, logs))} steps, no trace"))
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
    for name in (name for name in region_names(logs) if is_rare(logs, name)):
        out.print(name_text(_rare_line(logs, name), width=120))
    for line in run.warnings:
        out.print(name_text(f"warning: {line}"))
    out.print()
    if run.measured:
        kernels = measured_kernels(run.measured)
        out.print(f"Kernels as Nsight Compute measured them, each alone: {sum(k.count for k in kernels):.0f} launches")
        print_table(
            out,
            kernels[:_MAX_KERNELS],
            ("kernel", lambda k: row_name(function_of(k.name), width=80 if out.soft_wrap else 26)),
            ("launches", lambda k: f"{k.count:.0f}"),
            ("us", lambda k: _number(k.mean_ns / NS_PER_US, 1)),
            ("occupancy %", lambda k: _number(k.occupancy_pct)),
            ("SM %", lambda k: _number(k.sm_pct)),
            ("DRAM %", lambda k: _number(k.dram_pct)),
            ("tensor %", lambda k: _number(k.tensor_pct)),
            ("bound", lambda k: k.bound or "?"),
            ("waits for", lambda k: k.stall or "?"),
            least_needed=("launches", "waits for", "occupancy %", "tensor %"),
        )
        if len(kernels) > _MAX_KERNELS:
            out.print(f"and {len(kernels) - _MAX_KERNELS} more kernels, in --json")
        out.print()
    instead_of = "--ncu" if run.measured else "--light"
    out.print(
        f"What happens inside the steps is in a trace: record without {instead_of}, with --steps that the job reaches"
    )


def _number(value: float | None, digits: int = 0) -> str:
    return "?" if value is None or np.isnan(value) else f"{value:.{digits}f}"


def _table(logs: Sequence[StepLog], late: Sequence[LateRank], out: Console) -> None:
    names = [name for name in region_names(logs) if not is_rare(logs, name)]
    table = plain_table(out, "rank", "steps", "step", *names)
    order = {one.rank: i for i, one in enumerate(late)}
    for log in sorted(logs, key=lambda log: order.get(log.rank, len(order)))[:_MAX_RANKS]:
        cells = [_median(log, region_ns(log, name)) for name in names]
        table.add_row(str(log.rank), str(len(log)), _median(log, log.dur_ns.astype(float)), *cells)
    smallest_first = sorted(names, key=lambda name: _largest_ns(logs, name))
    print_fitting(table, out, least_needed=("steps", *smallest_first[:-1]), elsewhere="a wider terminal shows all")
    if len(logs) > _MAX_RANKS:
        out.print(f"and {len(logs) - _MAX_RANKS} more ranks")


def _rare_line(logs: Sequence[StepLog], name: str) -> str:
    times = [region_ns(log, name) for log in logs]
    steps = max(int((~np.isnan(one)).sum()) for one in times)
    mean_ns = max(float(np.nansum(one)) / max(len(one), 1) for one in times)
    return f"{name}: {mean_ns / NS_PER_MS:.2f} ms per step on average, in {steps} of {max(map(len, logs))} steps"


def _largest_ns(logs: Sequence[StepLog], name: str) -> float:
    times = [region_ns(log, name) for log in logs]
    return max((float(np.nanmedian(one)) for one in times if not np.isnan(one).all()), default=0.0)


def _median(log: StepLog, values_ns: Floats) -> str:
    found = median_ns(log, values_ns)
    return "?" if found is None else f"{found / NS_PER_MS:.2f}"
