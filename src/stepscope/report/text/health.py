"""The health of a run on the terminal: one table of ranks, the checks, and the gates."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from stepscope.analyze.account import Account
from stepscope.compare.conditions import GateResult
from stepscope.diagnose.checks import COLUMNS, FAIL, NOT_MEASURED, Check, Guide, RankHealth, rank_health
from stepscope.diagnose.verdict import Conclusion
from stepscope.report.terminal import name_text, number_text, plain_table, print_fitting, print_indented, print_table
from stepscope.units import NS_PER_MS

_MAX_RANKS = 32
_STYLE = {"pass": "green", "fail": "red", "not measured": "bright_black"}


def print_health(
    account: Account, conclusion: Conclusion, checks: Sequence[Check], gates: Sequence[GateResult], out: Console
) -> None:
    """Print the table of ranks, who is late, what fails and whether the gates hold."""
    step = account.step
    line = name_text(account.run.name, style="bold")
    ranks = len(account.run.ranks)
    line.append(f"  {ranks} rank{'s' * (ranks != 1)}, {account.num_steps} steps")
    if step is not None:
        known = "unprofiled" if step.unprofiled_ns else "profiled"
        line.append(f", {account.whole} {step.step_ns / NS_PER_MS:.2f} ms {known}")
    out.print(line)
    said = Text(conclusion.verdict, style="bold").append(f": {conclusion.reason}", style="not bold")
    print_indented(out, said, indent="  ")
    print_rank_health(rank_health(account), out)
    if not account.stragglers:
        alone = len(account.run.ranks) < 2
        out.print("stragglers: one rank alone cannot be late" if alone else "stragglers: none")
    for s in account.stragglers:
        late = f"rank {s.rank} is {s.late_ns_per_step / NS_PER_MS:.2f} ms late in {s.steps_late} of {s.num_steps} steps"
        out.print(Text(f"straggler: {late}, because of its {s.cause}", style="bold red"))
    print_table(
        out,
        checks,
        ("check", lambda c: c.id),
        ("value", lambda c: number_text(c.value, ".1f")),
        ("good", lambda c: c.good),
        ("bad", lambda c: c.bad or "-"),
        ("status", lambda c: Text(c.status, style=_STYLE[c.status])),
        least_needed=("bad", "good"),
    )
    for c in checks:
        if c.status == FAIL:
            print_indented(out, Text(f"{c.id}: {c.reason}"), indent="  ")
    for reason in dict.fromkeys(c.reason for c in checks if c.status == NOT_MEASURED):
        same = ", ".join(c.id for c in checks if c.status == NOT_MEASURED and c.reason == reason)
        print_indented(out, Text(f"{same}: not measured, {reason}", style="bright_black"), indent="  ")
    for result in gates:
        held = Text("holds ", style="green") if result.holds else Text("FAILS ", style="bold red")
        print_indented(out, held.append(f"--fail-on {result.gate}: {result.said}", style=""), indent="  ")


def print_rank_health(rows: Sequence[RankHealth], out: Console) -> None:
    """Print a row per rank, those that are late in any case."""
    shown = [c for c in COLUMNS if any(r.pct[c] >= 0.05 for r in rows)]
    table = plain_table(out, "rank", "profiled ms", *(f"{c} %" for c in shown), "late ms")
    for r in _worth_showing(rows):
        late = "" if r.late_ns is None else f"{r.late_ns / NS_PER_MS:.2f} {r.cause}"
        cells = [f"{r.step_ns / NS_PER_MS:.2f}", *(f"{r.pct[c]:.1f}" for c in shown), late]
        table.add_row(str(r.rank), *cells, style="bold red" if r.late_ns is not None else "")
    smallest_first = sorted(shown, key=lambda c: max(r.pct[c] for r in rows))
    print_fitting(table, out, least_needed=[f"{c} %" for c in smallest_first[:-1]])
    if len(rows) > _MAX_RANKS:
        out.print(f"... {len(rows) - _MAX_RANKS} more ranks are like these; --json has them all")


def _worth_showing(rows: Sequence[RankHealth]) -> list[RankHealth]:
    late = [r for r in rows if r.late_ns is not None][:_MAX_RANKS]
    others = [r for r in rows if r.late_ns is None][: _MAX_RANKS - len(late)]
    return sorted([*late, *others], key=lambda r: r.rank)


# Guides on the terminal: every item with its number, its mark and, where it fails, what to do.


def print_guides(guides: Sequence[Guide], out: Console) -> None:
    """Print the guides that apply, or that none does."""
    if not guides:
        out.print("guides: none applies")
    for guide in guides:
        out.print()
        out.print(Text(guide.title, style="bold").append(f"  {guide.why}", style=""))
        for item in guide.items:
            check = item.check
            value = "" if check.value is None else f"{check.value:.4g} (good {check.good})"
            line = Text("  ").append(
                f"{check.status:<13}",
                style={"pass": "green", "fail": "bold red", "not measured": "bright_black"}[check.status],
            )
            line.append(f"{check.id:<24} {value:<24} ").append(check.reason, style="bright_black")
            out.print(line.append(f"\n{'':<15}-> {item.remedy}") if check.status == FAIL else line)
