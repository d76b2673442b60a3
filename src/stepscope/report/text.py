"""The account on one screen of a terminal."""

from rich.console import Console
from rich.text import Text

from stepscope.analyze.account import Account
from stepscope.analyze.rank_account import RankAccount
from stepscope.report.terminal import name_text, plain_table, speaks_unicode
from stepscope.units import NS_PER_MS

_MOST_RANKS = 16
_MOST_WARNINGS = 8


def print_summary(account: Account, out: Console) -> None:
    """Print what was recorded, where the time went per rank, and what to be careful about."""
    _heading(account, out)
    _shares(account, out)
    _ranks(account, out)
    _warnings(account, out)


def _heading(account: Account, out: Console) -> None:
    run = account.run
    world = run.world_size
    ranks = f"{len(run.ranks)} of {world} ranks" if world and world != len(run.ranks) else f"{len(run.ranks)} ranks"
    if len(run.ranks) == 1 and world in (None, 1):
        ranks = "1 rank"
    events = sum(r.trace.num_events for r in run.ranks)
    line = name_text(run.name, style="bold")
    device = run.ranks[0].device_name or "device unknown"
    line.append(f"  {ranks}, {account.num_steps} steps, {events:,} events, ").append_text(name_text(device))
    out.print(line)


def _shares(account: Account, out: Console) -> None:
    """Print the mean rank's window as one bar: compute, exposed communication, copies, idle."""
    known = [a for a in account.ranks if a is not None]
    window = sum(a.window_ns for a in known)
    if not window:
        return
    exposed = sum(a.exposed_comm.total_ns for a in known)
    idle = sum(a.idle_ns for a in known)
    compute = sum(a.compute.total_ns for a in known)
    parts = (
        ("compute", compute, "green"),
        ("exposed comm", exposed, "red"),
        ("copies alone", window - compute - exposed - idle, "yellow"),
        ("idle", idle, "bright_black"),
    )
    fill = "█" if speaks_unicode(out) else "#"
    bar, legend = Text(), Text()
    for i, (name, part_ns, colour) in enumerate(parts):
        share = part_ns / window
        mark = fill if out.is_terminal else name[0]
        bar.append(mark * round(60 * share), style=colour)
        legend.append(f"{'  ' if i else ''}{name} {100 * share:.1f} %", style=colour)
    out.print(bar)
    out.print(legend)


def _ranks(account: Account, out: Console) -> None:
    table = plain_table(
        out, "rank", "window ms", "compute", "comm", "exposed", "copies", "idle", "overlap %", "step ms"
    )
    shown = list(zip(account.run.ranks, account.ranks, strict=True))
    for rank, a in shown[:_MOST_RANKS]:
        periods = rank.steps.end_ns - rank.steps.start_ns
        step = f"{periods.mean() / NS_PER_MS:.2f}" if len(periods) else "?"
        table.add_row(str(rank.rank), *_cells(a), step)
    out.print(table)
    if len(shown) > _MOST_RANKS:
        out.print(f"... and {len(shown) - _MOST_RANKS} more ranks; --json has them all")


def _cells(a: RankAccount | None) -> list[str]:
    if a is None:
        return ["?"] * 7
    times = (a.window_ns, a.compute.total_ns, a.comm.total_ns, a.exposed_comm.total_ns)
    overlap = "-" if a.overlap_pct is None else f"{a.overlap_pct:.1f}"
    memory = "-" if a.memory is None else f"{a.memory.total_ns / NS_PER_MS:.2f}"
    return [*(f"{t / NS_PER_MS:.2f}" for t in times), memory, f"{a.idle_ns / NS_PER_MS:.2f}", overlap]


def _warnings(account: Account, out: Console) -> None:
    for line in account.warnings[:_MOST_WARNINGS]:
        out.print(Text("! ", style="yellow").append_text(name_text(line, width=300)))
    if len(account.warnings) > _MOST_WARNINGS:
        out.print(f"! ... and {len(account.warnings) - _MOST_WARNINGS} more warnings; --json has them all")
