"""The account on one screen of a terminal: verdict, step, what to fix first, where the time went, what to doubt."""

from rich.console import Console
from rich.text import Text

from stepscope.analyze.account import Account
from stepscope.analyze.parts import PARTS
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import Diagnosis
from stepscope.diagnose.verdict import verdict
from stepscope.report.terminal import name_text, plain_table, speaks_unicode
from stepscope.units import NS_PER_MS

_MOST_FINDINGS = 5
_MOST_RANKS = 8
_MOST_WARNINGS = 6
_BAR_WIDTH = 60
_COLOURS = {
    "forward": "green",
    "backward": "green",
    "optimizer": "green",
    "other_compute": "green",
    "exposed_transfer": "red",
    "wait": "magenta",
    "pipeline_bubble": "magenta",
    "copy": "yellow",
    "data_loading": "yellow",
    "launch_gap": "cyan",
    "host_sync": "cyan",
    "allocator": "cyan",
    "host_stall": "cyan",
    "unknown": "bright_black",
}


def print_summary(account: Account, diagnosis: Diagnosis, out: Console) -> None:
    """Print the report on one screen."""
    _heading(account, out)
    _step_line(account, out)
    _findings(diagnosis, out)
    _budget(account, out)
    _ranks(account, out)
    _warnings(account, out)


def _heading(account: Account, out: Console) -> None:
    run = account.run
    world = run.world_size
    ranks = "1 rank" if len(run.ranks) == 1 else f"{len(run.ranks)} ranks"
    if world and world != len(run.ranks):
        ranks = f"{len(run.ranks)} of {world} ranks"
    line = name_text(run.name, style="bold")
    device = name_text(run.ranks[0].device_name or "device unknown", width=40)
    steps = "1 step" if account.num_steps == 1 else f"{account.num_steps} steps"
    line.append(f"  {ranks}, {steps}, {account.strategy.name}, ").append_text(device)
    out.print(line)


def _step_line(account: Account, out: Console) -> None:
    """Print verdict, step time and MFU on one line."""
    step, used = account.step, account.efficiency
    line = Text()
    named = verdict(account)
    if named:
        line.append(f"{named}", style="bold")
    if step:
        line.append(f"  step {step.step_ns / NS_PER_MS:.2f} ms")
        if step.overhead_pct is not None:
            line.append(f" ({step.profiled_ns / NS_PER_MS:.2f} ms while profiled, +{step.overhead_pct:.0f} %)")
        else:
            line.append(" while profiled")
    if used.mfu is not None:
        line.append(f"  MFU {100 * used.mfu:.1f} %")
    if used.tokens_per_s is not None:
        line.append(f"  {used.tokens_per_s:,.0f} tokens/s")
    if line:
        out.print(line)


def _findings(diagnosis: Diagnosis, out: Console) -> None:
    """Print what to fix first."""
    out.print()
    saving = [f for f in diagnosis.findings if f.saving_ns > 0]
    if not saving:
        out.print("Nothing worth fixing was found.")
        return
    out.print(Text("What to fix first", style="bold"))
    for n, finding in enumerate(saving[:_MOST_FINDINGS], start=1):
        _finding(n, finding, out)
    if len(saving) > 1:
        ids, together = diagnosis.combined[min(len(saving), _MOST_FINDINGS) - 1]
        out.print(f"   the first {len(ids)} together save {together / NS_PER_MS:.1f} ms per step")
    if len(saving) > _MOST_FINDINGS:
        out.print(f"   and {len(saving) - _MOST_FINDINGS} more with --json")


def _finding(n: int, f: Finding, out: Console) -> None:
    line = Text(f"{n}. ").append_text(name_text(f.title, width=100, style="bold"))
    line.append(
        f"  saves {f.saving_ns / NS_PER_MS:.1f} ms ({f.saving_pct:.0f} %; "
        f"{f.low_ns / NS_PER_MS:.1f} to {f.high_ns / NS_PER_MS:.1f})",
        style="green",
    )
    out.print(line)
    out.print(Text("   ").append_text(name_text(f"{f.id}: {f.cause}", width=160)))
    out.print(Text("   ").append_text(name_text(f.remedy.split(". ")[0], width=160)))


def _budget(account: Account, out: Console) -> None:
    """Print the step as one bar and its parts, largest first."""
    step = account.step
    if step is None or not step.step_ns:
        return
    parts = [(part, step.ns(part)) for part in PARTS if step.ns(part) > 0]
    bar = Text()
    fill = "█" if speaks_unicode(out) else "#"
    for part, part_ns in parts:
        bar.append(fill * round(_BAR_WIDTH * part_ns / step.step_ns), style=_COLOURS.get(part, ""))
    out.print()
    out.print(Text("Where the step goes", style="bold").append("  (mean rank)", style="not bold"))
    if out.is_terminal and not out.no_color:
        out.print(bar)
    legend = Text()
    shown = sorted(parts, key=lambda p: -p[1])
    for i, (part, part_ns) in enumerate(p for p in shown if p[1] >= 0.005 * step.step_ns):
        share = 100 * part_ns / step.step_ns
        legend.append("   " if i else "")
        legend.append(f"{part} {part_ns / NS_PER_MS:.2f} ms {share:.1f} %", style=_COLOURS.get(part, ""))
    out.print(legend)


def _ranks(account: Account, out: Console) -> None:
    """Print the window of each rank, the late ones marked."""
    late = {s.rank: s for s in account.stragglers}
    table = plain_table(
        out, "rank", "window ms", "compute", "comm", "exposed", "wait", "idle", "overlap %", "late ms/step"
    )
    shown = list(zip(account.run.ranks, account.ranks, account.waits, strict=True))
    shown.sort(key=lambda row: (row[0].rank not in late, row[0].rank))
    for rank, a, w in shown[:_MOST_RANKS]:
        if a is None:
            table.add_row(str(rank.rank), *["?"] * 8)
            continue
        overlap = "-" if a.overlap_pct is None else f"{a.overlap_pct:.1f}"
        wait = "?" if w is None or w.wait_ns is None else f"{w.wait_ns / NS_PER_MS:.2f}"
        behind = late.get(rank.rank)
        times = (a.window_ns, a.compute.total_ns, a.comm.total_ns, a.exposed_comm.total_ns)
        table.add_row(
            str(rank.rank),
            *(f"{t / NS_PER_MS:.2f}" for t in times),
            wait,
            f"{a.idle_ns / NS_PER_MS:.2f}",
            overlap,
            f"{behind.late_ns_per_step / NS_PER_MS:.1f} ({behind.cause})" if behind else "",
        )
    out.print(table)
    if len(shown) > _MOST_RANKS:
        out.print(f"... and {len(shown) - _MOST_RANKS} more ranks with --json")
    _last_to_arrive(account, out)


def _last_to_arrive(account: Account, out: Console) -> None:
    """Print who the others waited for where that is worth a line: over 1 % of its window each."""
    others = len(account.run.ranks) - 1
    for rank, a, w in zip(account.run.ranks, account.ranks, account.waits, strict=True):
        each_ns = w.waited_for_ns / others if w and w.waited_for_ns and others else 0
        if rank.rank == account.late_rank and a and each_ns > 0.01 * a.window_ns:
            out.print(f"last to arrive: rank {rank.rank}; the others waited {each_ns / NS_PER_MS:.2f} ms each for it")


def _warnings(account: Account, out: Console) -> None:
    for line in account.warnings[:_MOST_WARNINGS]:
        out.print(Text("! ", style="yellow").append_text(name_text(line, width=300)))
    if len(account.warnings) > _MOST_WARNINGS:
        out.print(f"! ... and {len(account.warnings) - _MOST_WARNINGS} more warnings with --json")
