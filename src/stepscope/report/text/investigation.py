"""An investigation as text, step by step, and as the record that stays in the run folder."""

from collections.abc import Sequence
from io import StringIO
from typing import Any

from rich.console import Console
from rich.text import Text

from stepscope.diagnose.finding import Evidence
from stepscope.document.report import plain
from stepscope.investigate.investigation import Step
from stepscope.report.terminal import PlainConsole, name_text, print_indented

_WIDTH = 120


def print_step(step: Step, out: Console) -> None:
    """Print one step: its question, its answer, and the numbers it rests on."""
    out.print(Text(f"{step.number}. {step.name}", style="bold").append(f"  {step.question}", style="bright_black"))
    print_indented(out, name_text(step.answer, width=600), first="   ", indent="   ")
    for fact in step.facts:
        print_indented(out, _fact(fact), indent="      ")
    for line in step.todo:
        print_indented(out, name_text(line, width=600), first="   -> ", indent="      ")
    out.print()


def investigation_json(
    steps: Sequence[Step], *, run: str, fixed: str | None, finding: str | None, date: str
) -> dict[str, Any]:
    """Return one investigation as a JSON object."""
    return {"date": date, "run": run, "fixed": fixed, "finding": finding, "steps": plain(list(steps))}


def investigation_text(steps: Sequence[Step], *, run: str, fixed: str | None, date: str) -> str:
    """Return the investigation as plain text."""
    buffer = StringIO()
    out = PlainConsole(file=buffer, width=_WIDTH, soft_wrap=True, highlight=False, color_system=None)
    out.print(name_text(f"Investigation of {run}{f' against {fixed}' if fixed else ''}, {date}", width=300))
    out.print()
    for step in steps:
        print_step(step, out)
    return buffer.getvalue()


def _fact(fact: Evidence) -> Text:
    value = f"{fact.value:,g}" if isinstance(fact.value, float) else str(fact.value)
    line = name_text(f"   {fact.what:<44} {value} {fact.unit}".rstrip(), width=140)
    return line.append_text(name_text(f"  ({fact.where})", style="bright_black")) if fact.where else line
