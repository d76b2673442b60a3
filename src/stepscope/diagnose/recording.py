"""What a rule has to have before its silence means that all is well.

A rule works as far as it can with less; what it does not find then, nobody has looked for, and the report says so.
"""

from collections.abc import Callable
from enum import Enum

import numpy as np

from stepscope.analyze.account import Account
from stepscope.cost.chips import mfu_peak
from stepscope.records import once_per_record
from stepscope.run.device_work import enclosing
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind, by_string, of_kinds


class Need(Enum):
    """Something that a trace, or a set of traces, may lack."""

    STEPS = "steps"
    ALL_RANKS = "all ranks"
    DEVICE = "device activity"
    HOST = "host activity"
    LAUNCHES = "launches"
    SHAPES = "shapes"
    SIZES = "message sizes"
    PEAK = "device peak"
    PASSES = "forward and backward told apart"
    MEMORY = "memory"
    UNPROFILED = "unprofiled step time"
    LINES = "lines of the user's code"


class Scope(Enum):
    """Which jobs a rule is about."""

    ANY = "any job"
    SEVERAL_RANKS = "jobs of several ranks"
    DEVICE = "jobs with a device"
    HOST = "jobs that compute on the host"


def applies(account: Account, scope: Scope) -> bool:
    """Return whether a job can have the fault at all."""
    ranks = account.run.ranks
    if scope is Scope.SEVERAL_RANKS:
        return len(ranks) > 1 or (account.run.world_size or 1) > 1 or any(len(r.collectives) for r in ranks)
    if scope is Scope.HOST:
        return bool(ranks) and not any(r.has_device or r.device_unseen for r in ranks)
    return scope is Scope.ANY or any(r.has_device or _calls(r) for r in ranks)


def missing(account: Account, need: Need) -> str | None:
    """Return what is lacking and how to get it, None where it is there."""
    return None if _IS_THERE[need](account) else _HOW[need](account)


def _calls(rank: Rank) -> bool:
    return bool(of_kinds(rank.kinds, (EventKind.RUNTIME,)).any())


def _every_rank(account: Account) -> bool:
    return len(account.run.ranks_read) >= (account.run.world_size or 1)


def _ranks_said(account: Account) -> str:
    return f"all {account.run.world_size} ranks: {len(account.run.ranks_read)} recorded"


@once_per_record
def _has_operators(account: Account) -> bool:
    return all(of_kinds(r.kinds, (EventKind.HOST_OP,)).any() for r in account.run.ranks)


def _has_launches(account: Account) -> bool:
    with_device = [r for r in account.run.ranks if r.has_device]
    return not with_device or all((r.work.launch_row >= 0).any() for r in with_device)


@once_per_record
def _has_shapes(account: Account) -> bool:
    shapes = [(r.kinds, r.trace.arg("input_dims")) for r in account.run.ranks]
    of_shapes = (kinds.take(known.rows[known.values >= 0]) for kinds, known in shapes)
    return any(of_kinds(kinds, (EventKind.HOST_OP,)).any() for kinds in of_shapes)


def _has_sizes(account: Account) -> bool:
    talking = [r for r in account.run.ranks if len(r.collectives)]
    return all((r.collectives.full_bytes > 0).any() for r in talking)


_IS_THERE: dict[Need, Callable[[Account], bool]] = {
    Need.STEPS: lambda a: a.num_steps > 0,
    Need.ALL_RANKS: _every_rank,
    Need.DEVICE: lambda a: any(r.has_device for r in a.run.ranks),
    Need.HOST: _has_operators,
    Need.LAUNCHES: _has_launches,
    Need.SHAPES: _has_shapes,
    Need.SIZES: _has_sizes,
    Need.PEAK: lambda a: a.chip.chip is not None and mfu_peak(a.chip.chip) is not None,
    Need.PASSES: lambda a: a.step is not None and a.step.ns("backward") > 0,
    Need.MEMORY: lambda a: a.memory is not None,
    Need.UNPROFILED: lambda a: a.step is not None and a.step.unprofiled_ns is not None,
    Need.LINES: lambda a: all(one is not None for one in a.ownership),
}
_HOW: dict[Need, Callable[[Account], str]] = {
    Need.STEPS: lambda a: "steps: profiler.step() in the loop, or stepscope record",
    Need.ALL_RANKS: _ranks_said,
    Need.DEVICE: lambda a: "device activity: ProfilerActivity.CUDA",
    Need.HOST: lambda a: "operators of the host: ProfilerActivity.CPU",
    Need.LAUNCHES: lambda a: "the launches of device work: ProfilerActivity.CPU",
    Need.SHAPES: lambda a: "shapes: record_shapes=True, or stepscope record --shapes",
    Need.SIZES: lambda a: "sizes of messages: a torch that records them, or --shapes",
    Need.PEAK: lambda a: "the device's peak: --hardware FILE",
    Need.PASSES: lambda a: "a backward pass that the trace tells from the forward one",
    Need.MEMORY: lambda a: "memory: stepscope record --memory",
    Need.UNPROFILED: lambda a: "the step without the profiler: --unprofiled-step-ms, or stepscope record",
    Need.LINES: lambda a: "lines of the code: stepscope record without --light and --no-owners, or with_stack=True",
}


# Which fixes has the run made already? They are not advised again.

_MIN_SHARE = 0.5
_GRAPH_LAUNCH = "GraphLaunch"
_COMPILED = ("Torch-Compiled Region", "CompiledFunction", "## Call CompiledFxGraph")
_NARROW = ("half", "bfloat16", "float8")


def applied(account: Account) -> dict[str, str]:
    """Return the findings whose fix the run has made, and how that shows."""
    known = ((finding, made_already(account, finding)) for finding in _SHOWS)
    return {finding: why for finding, why in known if why is not None}


def made_already(account: Account, finding: str) -> str | None:
    """Return how it shows that the run has made a finding's fix, None where it does not."""
    return _SHOWS[finding](account) if finding in _SHOWS else None


def sixteen_bit_messages(account: Account) -> bool:
    """Return whether most bytes of the collectives travel in 16 bit or less."""
    sent = narrow = 0
    for rank in account.run.ranks:
        c = rank.collectives
        rows = np.flatnonzero((c.record_row >= 0) & (c.step >= 0) & (c.full_bytes > 0))
        types = rank.trace.arg("dtype").at(c.record_row[rows], missing=-1)
        is_narrow = by_string(rank.trace, types.astype(np.int32), _is_narrow).astype(bool)
        sent += int(c.full_bytes[rows].sum())
        narrow += int(c.full_bytes[rows][is_narrow].sum())
    return sent > 0 and narrow > _MIN_SHARE * sent


def _is_narrow(dtype: str) -> bool:
    return any(word in dtype.lower() for word in _NARROW)


@once_per_record
def _graphs(account: Account) -> str | None:
    launched = [_graph_share(rank) for rank in account.run.ranks if rank.has_device]
    share = float(np.mean(launched)) if launched else 0.0
    return f"graphs launch {100 * share:.0f} % of the device's work already" if share > _MIN_SHARE else None


def _graph_share(rank: Rank) -> float:
    rows = rank.work.launch_row[(rank.work.launch_row >= 0) & (rank.work.step >= 0)]
    by_graph = by_string(rank.trace, rank.trace["name"][rows], lambda s: _GRAPH_LAUNCH in s)
    return float(by_graph.mean()) if len(rows) else 0.0


@once_per_record
def _compiled(account: Account) -> str | None:
    shares = [_compiled_share(rank) for rank in account.run.ranks if rank.has_device]
    share = float(np.mean(shares)) if shares else 0.0
    return f"{100 * share:.0f} % of the device's work is compiled already" if share > _MIN_SHARE else None


def _compiled_share(rank: Rank) -> float:
    work = rank.work
    regions = rank.rows_named(lambda s: s.startswith(_COMPILED), EventKind.HOST_OP, EventKind.ANNOTATION)
    launched = np.flatnonzero((work.launch_row >= 0) & (work.step >= 0))
    if not len(regions) or not len(launched):
        return 0.0
    inside = enclosing(rank.trace, regions, work.launch_row[launched]) >= 0
    took = (work.end_ns - work.start_ns)[launched]
    return float(took[inside].sum() / max(took.sum(), 1))


_SHOWS: dict[str, Callable[[Account], str | None]] = {
    "launch-overhead": _graphs,
    "memory-bound-kernels": _compiled,
}
