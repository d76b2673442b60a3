"""Each rank's window on the terminal, the late ones first, in as many columns as the terminal holds."""

from rich.console import Console

from stepscope.analyze.account import Account
from stepscope.analyze.rank_view import RankWindow
from stepscope.analyze.ranks.stragglers import Straggler
from stepscope.report.fit import print_fitting
from stepscope.report.text.terminal import plain_table
from stepscope.units import NS_PER_MS

MAX_RANKS = 8
_COLUMNS = ("window ms", "compute", "comm", "exposed", "wait", "idle", "overlap %", "late ms/step")
_OF_SEVERAL = ("comm", "exposed", "wait", "overlap %", "late ms/step")
_LEFT_OUT_FIRST = ("overlap %", "window ms", "comm", "idle", "compute", "exposed")
"""where the terminal is too narrow"""


def print_ranks(account: Account, out: Console) -> None:
    """Print the window of each rank and who the others waited for."""
    late = {s.rank: s for s in account.stragglers}
    shown = sorted(account.ranks_read, key=lambda view: (view.rank.rank not in late, view.rank.rank))
    rows = [(str(view.rank.rank), _cells(view, late.get(view.rank.rank))) for view in shown[:MAX_RANKS]]
    out.print()
    columns = [c for c in _COLUMNS if _communicates(account) or c not in _OF_SEVERAL]
    table = plain_table(out, "rank", *columns)
    for rank, cells in rows:
        table.add_row(rank, *(cells[c] for c in columns))
    print_fitting(table, out, least_needed=_LEFT_OUT_FIRST)
    if len(shown) > MAX_RANKS:
        out.print(f"... and {len(shown) - MAX_RANKS} more ranks with --json")
    _last_to_arrive(account, out)


def _communicates(account: Account) -> bool:
    return len(account.ranks) > 1 or any(v.window is not None and v.window.comm.total_ns for v in account.ranks)


def _cells(view: RankWindow, behind: Straggler | None) -> dict[str, str]:
    a, w = view.window, view.wait
    if a is None or a.host_only:
        return dict.fromkeys(_COLUMNS, "?") | ({"window ms": f"{a.window_ns / NS_PER_MS:.2f}"} if a else {})
    wait = "?" if w is None or w.wait_ns is None else f"{w.wait_ns / NS_PER_MS:.2f}"
    times = (a.window_ns, a.compute.total_ns, a.comm.total_ns, a.exposed_comm.total_ns)
    return dict(
        zip(
            _COLUMNS,
            (
                *(f"{t / NS_PER_MS:.2f}" for t in times),
                wait,
                f"{a.idle_ns / NS_PER_MS:.2f}",
                "-" if a.overlap_pct is None else f"{a.overlap_pct:.1f}",
                f"{behind.late_ns_per_step / NS_PER_MS:.1f} ({behind.cause})" if behind else "",
            ),
            strict=True,
        )
    )


def _last_to_arrive(account: Account, out: Console) -> None:
    """Print who the others waited for where that is worth a line: over 1 % of its window each."""
    others = len(account.ranks_read) - 1
    for view in account.ranks_read:
        number, a, w = view.rank.rank, view.window, view.wait
        each_ns = w.waited_for_ns / others if w and w.waited_for_ns and others else 0
        if number == account.late_rank and a and each_ns > 0.01 * a.window_ns:
            out.print(f"last to arrive: rank {number}; the others waited {each_ns / NS_PER_MS:.2f} ms each")
