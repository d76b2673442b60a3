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
from stepscope.units import printable

_WIDTH = 120
_MAX_TITLE = 44


def print_step(step: Step, out: Console) -> None:
    """Print one step: its question, its answer, and the numbers it rests on."""
    out.print(Text(f"{step.number}. {step.name}", style="bold").append(f"  {step.question}", style="bright_black"))
    print_indented(out, name_text(step.answer, width=600), first="   ", indent="   ")
    width = max((min(len(fact.what), _MAX_TITLE) for fact in step.facts), default=0)
    unknown = [fact.what for fact in step.facts if fact.value == "unknown"]
    for fact in step.facts:
        if fact.value != "unknown":
            print_indented(out, _fact(fact, width), indent="      ")
    if unknown:
        print_indented(out, Text(f"   unknown: {', '.join(unknown)}", style="bright_black"), indent="      ")
    for line in step.todo:
        print_indented(out, name_text(line, width=600), first="   → ", indent="      ")
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


def _fact(fact: Evidence, width: int) -> Text:
    value = str(fact.value)
    if isinstance(fact.value, float):
        value = f"{fact.value:.3g}" if abs(fact.value) < 1000 else f"{fact.value:,.0f}"
    line = name_text(f"   {printable(fact.what, width=_MAX_TITLE):<{width}}  {value} {fact.unit}".rstrip(), width=140)
    return line.append_text(name_text(f"  ({fact.where})", style="bright_black")) if fact.where else line
