"""Which fixes has the run made already? They are not advised again."""

from collections.abc import Callable

import numpy as np

from stepscope.analyze.account import Account
from stepscope.records import once_per_record
from stepscope.run.device_work import enclosing
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind, by_string

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
    """Return how much of the device's work graphs launch, None where that is less than half."""
    launched = [_graph_share(rank) for rank in account.run.ranks if rank.has_device]
    share = float(np.mean(launched)) if launched else 0.0
    return f"graphs launch {100 * share:.0f} % of the device's work already" if share > _MIN_SHARE else None


def _graph_share(rank: Rank) -> float:
    rows = rank.work.launch_row[(rank.work.launch_row >= 0) & (rank.work.step >= 0)]
    by_graph = by_string(rank.trace, rank.trace["name"][rows], lambda s: _GRAPH_LAUNCH in s)
    return float(by_graph.mean()) if len(rows) else 0.0


@once_per_record
def _compiled(account: Account) -> str | None:
    """Return that the model is compiled, where most of the device's work is launched inside regions of the compiler."""
    shares = [_compiled_share(rank) for rank in account.run.ranks if rank.has_device]
    share = float(np.mean(shares)) if shares else 0.0
    return f"{100 * share:.0f} % of the device's work is compiled already" if share > _MIN_SHARE else None


def _compiled_share(rank: Rank) -> float:
    """Return how much of the device's work, by time, compiled code launched."""
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
