"""The account on one screen of a terminal: verdict, step, what to fix first, where the time went, what to doubt."""

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from stepscope.analyze.account import Account
from stepscope.analyze.collective_costs import RankWindow
from stepscope.analyze.layers import PARTS
from stepscope.analyze.step_periods import Serving
from stepscope.analyze.stragglers import Straggler
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import Diagnosis, by_need
from stepscope.diagnose.verdict import UNCLEAR, Conclusion, conclude
from stepscope.document.code import CodeRow, code_view
from stepscope.report.terminal import name_text, plain_table, print_fitting, print_indented, speaks_unicode
from stepscope.report.text.memory import print_memory
from stepscope.units import NS_PER_MS, ms, printable

# The step's parts, largest first, on a terminal each with a bar: they sum to the step.

_MIN_SHARE = 0.005
_COLOURS = {
    "forward": "green", "backward": "green", "optimizer": "green", "other_compute": "green",
    "exposed_transfer": "red", "wait": "magenta", "pipeline_bubble": "magenta",
    "copy": "yellow", "data_loading": "yellow",
    "launch_gap": "cyan", "host_sync": "cyan", "allocator": "cyan", "host_stall": "cyan",
    "unknown": "bright_black",
}  # fmt: skip


def _print_budget(account: Account, out: Console) -> None:
    step = account.step
    if step is None or not step.step_ns:
        return
    parts = sorted(((part, step.ns(part)) for part in PARTS if step.ns(part) > 0), key=lambda p: -p[1])
    shown = [(part, ns) for part, ns in parts if ns >= _MIN_SHARE * step.step_ns]
    rest = [(part, ns) for part, ns in parts if ns < _MIN_SHARE * step.step_ns]
    out.print()
    out.print(Text(f"Where the {account.whole} goes", style="bold").append("  (mean rank)", style="not bold"))
    widest = max((len(part) for part, _ in shown), default=0)
    for part, part_ns in shown:
        line = Text(f"{part:<{widest}} {part_ns / NS_PER_MS:>9.2f} ms {100 * part_ns / step.step_ns:>5.1f} %")
        if out.is_terminal:
            most = max(1, min(40, out.width - len(line) - 3))
            line.append("  ").append(_bar(part_ns / shown[0][1], most, out), style=_COLOURS.get(part, ""))
        out.print(line)
    if rest:
        together = sum(ns for _, ns in rest) / NS_PER_MS
        out.print(f"{together:.2f} ms in {', '.join(part for part, _ in rest)}", style="dim")


def _bar(share: float, most: int, out: Console) -> str:
    if not speaks_unicode(out):
        return "#" * max(1, round(share * most))
    whole, eighths = divmod(max(1, round(8 * share * most)), 8)
    return "█" * whole + ("" if eighths == 0 else "▏▎▍▌▋▊▉"[eighths - 1])


# Where in the code the step goes: the first lines on one screen of the report, where owners were recorded.

_MAX_LINES = 5
_MIN_PCT = 1.0
_MAX_WIDTH = 400


def print_where(account: Account, out: Console) -> None:
    """Print the lines whose deletion would save most, with what they cost; nothing where nobody recorded owners."""
    view = code_view(account)
    if view is None:
        return
    rows = [row for row in view.lines if not row.is_around_step and (row.step_pct or 0.0) >= _MIN_PCT]
    rows = sorted(rows, key=lambda row: -1.0 if row.saving_ns is None else row.saving_ns, reverse=True)[:_MAX_LINES]
    if not rows:
        return
    out.print()
    out.print(Text("Where in the code", style="bold").append("  (stepscope code has all lines)", style="not bold"))
    places = [name_text(row.owner, width=30).plain for row in rows]
    width = max(map(len, places))
    for place, row in zip(places, rows, strict=True):
        line = Text(f"   {place:<{width}}  {_cost(row)}  ")
        source = name_text(row.source or "", width=_MAX_WIDTH, style="dim")
        if not out.soft_wrap:
            source.truncate(max(0, out.width - line.cell_len), overflow="ellipsis")
        line.append_text(source)
        line.rstrip()
        out.print(line, soft_wrap=True)


def _cost(row: CodeRow) -> str:
    took_ns = max(row.host_ns, row.device_ns + row.comm_ns)
    saves = "" if row.saving_ns is None else f", saves {row.saving_ns / NS_PER_MS:6.1f}"
    return f"{took_ns / NS_PER_MS:7.1f} ms{saves:>14}"


# Each rank's window on the terminal, the late ones first, in as many columns as the terminal holds.

_MAX_RANKS = 8
_COLUMNS = ("window ms", "compute", "comm", "exposed", "wait", "idle", "overlap %", "late ms/step")
# where the terminal is too narrow
_LEFT_OUT_FIRST = ("overlap %", "window ms", "comm", "idle", "compute", "exposed")


def print_ranks(account: Account, out: Console) -> None:
    """Print the window of each rank and who the others waited for."""
    late = {s.rank: s for s in account.stragglers}
    shown = sorted(account.ranks_read, key=lambda view: (view.rank.rank not in late, view.rank.rank))
    rows = [(str(view.rank.rank), _cells(view, late.get(view.rank.rank))) for view in shown[:_MAX_RANKS]]
    out.print()
    columns = [
        c
        for c in _COLUMNS
        if _communicates(account) or c not in ("comm", "exposed", "wait", "overlap %", "late ms/step")
    ]
    table = plain_table(out, "rank", *columns)
    for rank, cells in rows:
        table.add_row(rank, *(cells[c] for c in columns))
    print_fitting(table, out, least_needed=_LEFT_OUT_FIRST)
    if len(shown) > _MAX_RANKS:
        out.print(f"... and {len(shown) - _MAX_RANKS} more ranks with --json")
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
    others = len(account.ranks_read) - 1
    for view in account.ranks_read:
        number, a, w = view.rank.rank, view.window, view.wait
        each_ns = w.waited_for_ns / others if w and w.waited_for_ns and others else 0
        if number == account.late_rank and a and each_ns > 0.01 * a.window_ns:
            out.print(f"last to arrive: rank {number}; the others waited {each_ns / NS_PER_MS:.2f} ms each")


# What a serving engine did, a line per kind of step.


def _print_serving(serving: Serving | None, out: Console) -> None:
    if serving is None:
        return
    for kind in serving.kinds:
        steps = "1 step" if kind.steps == 1 else f"{kind.steps} steps"
        parts = [f"{kind.kind}: {steps} of {ms(kind.step_ns):.2f} ms"]
        if kind.requests_per_step is not None:
            parts.append(f"{kind.requests_per_step:,.0f} requests")
        if kind.tokens_per_step is not None:
            parts.append(f"{kind.tokens_per_step:,.0f} tokens")
        rate = "" if kind.tokens_per_s is None else f"; {kind.tokens_per_s:,.0f} tokens/s"
        out.print(", ".join(parts) + rate)
    if serving.generated_per_s:
        out.print(f"generated {serving.generated_per_s:,.0f} tokens/s")


# What to run next, given what was found?

_PAGE = "report.html"


def next_commands(
    diagnosis: Diagnosis, given: Sequence[str], *, has_page: bool = False, has_lines: bool = False
) -> list[tuple[str, str]]:
    """Return command lines for the run and options that were `given` on one, and what each tells.

    `has_page`: there is a page from before, which only --force overwrites. `has_lines`: it is known which lines of the
    user's code cost what.
    """
    run = " ".join(shlex.quote(printable(word)) for word in given)
    lines = [
        (f"stepscope view {run}", "report, tables and timeline in the browser"),
        (f"stepscope report {run} --html {_PAGE}{' --force' * has_page}", "the whole report as one file"),
    ]
    first = diagnosis.worth[0] if diagnosis.worth else None
    options = () if first is None else first.what_if
    if options:
        words = " ".join(shlex.quote(printable(word)) for word in options)
        lines.insert(0, (f"stepscope whatif {run} {words}", "the first fix, alone or with others"))
    elif has_lines if first is None else first.where:
        lines.insert(0, (f"stepscope code {run}", "source lines with what they cost"))
    return lines


_MAX_FINDINGS = 5
_MAX_WARNINGS = 6
_WORTH_TELLING = 0.05


def print_summary(
    account: Account, diagnosis: Diagnosis, out: Console, *, given: Sequence[str] = (), has_page: bool = False
) -> None:
    """Print the report on one screen. `given` is how the run was named on the command line, for what to run next."""
    conclusion = conclude(account, diagnosis)
    _heading(account, out)
    line = Text(conclusion.verdict, style="bold").append(f": {conclusion.reason}", style="not bold")
    print_indented(out, line, first="", indent="  ")
    _step_line(account, out)
    _print_serving(account.serving, out)
    _findings(account, diagnosis, conclusion, out)
    _print_budget(account, out)
    print_where(account, out)
    print_ranks(account, out)
    print_memory(account, out)
    _warnings(account, out)
    _next(diagnosis, given, out, has_page=has_page, has_lines=any(owners is not None for owners in account.ownership))


def _heading(account: Account, out: Console) -> None:
    run = account.run
    world = run.world_size
    read = len(run.ranks_read)
    ranks = "1 rank" if read == 1 else f"{read} ranks"
    if world and world != read:
        ranks = f"{read} of {world} ranks"
    if run.everyone:
        ranks += f" ({len(run.ranks)} in full)"
    line = name_text(run.name, style="bold")
    device = name_text(account.device_name or "device unknown", width=40)
    steps = "1 step" if account.num_steps == 1 else f"{account.num_steps} steps"
    line.append(f"  {ranks}, {steps}, {account.strategy.name}, ").append_text(device)
    out.print(line)
    if run.asked_by is not None:
        asked = name_text(f"window {run.window}, pulled by: {run.asked_by}", width=300)
        print_indented(out, asked, first="", indent="  ")


def _step_line(account: Account, out: Console) -> None:
    step, used = account.step, account.efficiency
    line = Text()
    if step:
        whole = "step" if account.num_steps else "whole window"
        line.append(f"{whole} {step.step_ns / NS_PER_MS:.2f} ms")
        if step.overhead_pct is not None:
            more = f", +{step.overhead_pct:.0f} %" if step.overhead_pct >= 0.5 else ""
            line.append(f" ({step.profiled_ns / NS_PER_MS:.2f} ms while profiled{more})")
        else:
            line.append(" while profiled")
    if used.mfu is not None:
        line.append(f"  MFU {100 * used.mfu:.1f} %")
    if used.tokens_per_s is not None:
        line.append(f"  {used.tokens_per_s:,.0f} tokens/s")
    if line:
        out.print(line)


def _findings(account: Account, diagnosis: Diagnosis, conclusion: Conclusion, out: Console) -> None:
    out.print()
    if diagnosis.worth:
        over = "" if account.num_steps else ", over the whole window"
        saving = diagnosis.worth
        out.print(Text(f"What to fix first{over}", style="bold"))
        for n, finding in enumerate(saving[:_MAX_FINDINGS], start=1):
            _finding(n, finding, out)
        # All ids of findings without a saving come last, so the first k of `combined` are those printed.
        if len(saving) > 1:
            ids, together = diagnosis.combined[min(len(saving), _MAX_FINDINGS) - 1]
            out.print(f"   the first {len(ids)} together save {together / NS_PER_MS:.1f} ms{over or ' per step'}")
        if len(saving) > _MAX_FINDINGS:
            out.print(f"   and {len(saving) - _MAX_FINDINGS} more with --json")
    else:
        clear = not diagnosis.not_examined and conclusion.verdict != UNCLEAR
        out.print(f"Nothing worth fixing was found{'' if clear else ' in what could be examined'}.")
        for said in diagnosis.not_judged:
            print_indented(out, name_text(said, width=400), first="   ", indent="   ")
    for needs, rules in by_need(diagnosis.not_examined).items():
        line = name_text(f"not examined: {', '.join(rules)} ({needs})", width=400)
        print_indented(out, line, first="   ", indent="     ")


def _finding(n: int, f: Finding, out: Console) -> None:
    line = name_text(f.title, width=100, style="bold")
    line.append(
        f"  saves {f.alone_ns / NS_PER_MS:.1f} ms ({f.saving_pct:.0f} %; "
        f"{f.low_ns / NS_PER_MS:.1f} to {f.high_ns / NS_PER_MS:.1f}){_on_top(f)}",
        style="not bold green",
    )
    print_indented(out, line, first=f"{n}. ", indent="   ")
    for text in (f"{f.id}: {f.cause}", *([f.mostly] if f.mostly else []), f.remedy.split(". ")[0]):
        print_indented(out, name_text(text, width=400), first="   ", indent="   ")


def _on_top(f: Finding) -> str:
    differs = abs(f.saving_ns - f.alone_ns) > _WORTH_TELLING * f.alone_ns
    return f", {f.saving_ns / NS_PER_MS:.1f} on top of those above" if differs else ""


def _warnings(account: Account, out: Console) -> None:
    lines = [w for w in account.warnings if not any(w in other and w != other for other in account.warnings)]
    shown = lines if len(lines) == _MAX_WARNINGS + 1 else lines[:_MAX_WARNINGS]
    for line in shown:
        print_indented(out, name_text(line, width=400), first="! ", indent="  ")
    if len(lines) > len(shown):
        out.print(f"! ... and {len(lines) - len(shown)} more warnings with --json")


def _next(diagnosis: Diagnosis, given: Sequence[str], out: Console, *, has_page: bool, has_lines: bool) -> None:
    lines = next_commands(diagnosis, given, has_page=has_page, has_lines=has_lines) if given else []
    width = max((len(command) for command, _ in lines), default=0)
    fits = max((9 + width + len(what) for _, what in lines), default=0) <= out.width
    if lines:
        out.print()
    for i, (command, what) in enumerate(lines):
        line = Text("next  " if i == 0 else "      ").append(command, style="cyan")
        if fits:
            line.append(f"{'':{width - len(command)}}   {what}", style="dim")
        out.print(line, soft_wrap=True)  # so that it can be copied whole
