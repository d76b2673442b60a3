"""The account on one screen of a terminal: verdict, step, what to fix first, where the time went, what to doubt."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from stepscope.analyze.account import Account
from stepscope.diagnose.conclusion.categories import UNCLEAR
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import Diagnosis
from stepscope.diagnose.scope.unexamined_faults import by_need
from stepscope.diagnose.verdict import Conclusion, conclude
from stepscope.report.next_commands import next_commands
from stepscope.report.text.budget import print_budget
from stepscope.report.text.code_lines import print_where
from stepscope.report.text.memory import print_memory
from stepscope.report.text.ranks import print_ranks
from stepscope.report.text.serving import print_serving
from stepscope.report.text.terminal import name_text, print_indented
from stepscope.units import NS_PER_MS

_MAX_FINDINGS = 5
_MAX_WARNINGS = 6
_WORTH_TELLING = 0.05


def print_summary(
    account: Account, diagnosis: Diagnosis, out: Console, *, given: Sequence[str] = (), has_page: bool = False
) -> None:
    """Print the report on one screen. `given` is how the run was named on the command line, for what to run next."""
    conclusion = conclude(account, diagnosis)
    _heading(account, out)
    _headline(conclusion, out)
    _step_line(account, out)
    print_serving(account.serving, out)
    _findings(account, diagnosis, conclusion, out)
    print_budget(account, out)
    print_where(account, out)
    print_ranks(account, out)
    print_memory(account, out)
    _warnings(account, out)
    _next(diagnosis, given, out, has_page=has_page, has_lines=_has_lines(account))


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
    """Print step time and MFU on one line."""
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


def _headline(conclusion: Conclusion, out: Console) -> None:
    """Print what bounds the run, and why."""
    line = Text(conclusion.verdict, style="bold").append(f": {conclusion.reason}", style="not bold")
    print_indented(out, line, first="", indent="  ")


def _findings(account: Account, diagnosis: Diagnosis, conclusion: Conclusion, out: Console) -> None:
    """Print what to fix first, and what nobody has looked for."""
    out.print()
    if diagnosis.worth:
        _worth(diagnosis, out, over="" if account.num_steps else ", over the whole window")
    else:
        clear = not diagnosis.not_examined and conclusion.verdict != UNCLEAR
        out.print(f"Nothing worth fixing was found{'' if clear else ' in what could be examined'}.")
        for said in diagnosis.not_judged:
            print_indented(out, name_text(said, width=400), first="   ", indent="   ")
    for needs, rules in by_need(diagnosis.not_examined).items():
        line = name_text(f"not examined: {', '.join(rules)} ({needs})", width=400)
        print_indented(out, line, first="   ", indent="     ")


def _has_lines(account: Account) -> bool:
    return any(owners is not None for owners in account.ownership)


def _worth(diagnosis: Diagnosis, out: Console, *, over: str) -> None:
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
    """Return what it adds to those above it, where that is not what it saves alone."""
    differs = abs(f.saving_ns - f.alone_ns) > _WORTH_TELLING * f.alone_ns
    return f", {f.saving_ns / NS_PER_MS:.1f} on top of those above" if differs else ""


def _warnings(account: Account, out: Console) -> None:
    """Print what to be careful about; what another line says in full is not said twice."""
    lines = [w for w in account.warnings if not any(w in other and w != other for other in account.warnings)]
    shown = lines if len(lines) == _MAX_WARNINGS + 1 else lines[:_MAX_WARNINGS]
    for line in shown:
        print_indented(out, name_text(line, width=400), first="! ", indent="  ")
    if len(lines) > len(shown):
        out.print(f"! ... and {len(lines) - len(shown)} more warnings with --json")


def _next(diagnosis: Diagnosis, given: Sequence[str], out: Console, *, has_page: bool, has_lines: bool) -> None:
    """Print what to run next, one command per line, with what each tells where that fits."""
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
