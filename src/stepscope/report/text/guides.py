"""Guides on the terminal: every item with its number, its mark and, where it fails, what to do."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from stepscope.diagnose.checks import FAIL
from stepscope.diagnose.guides import Guide, Item

_STYLE = {"pass": "green", "fail": "bold red", "not measured": "bright_black"}


def print_guides(guides: Sequence[Guide], out: Console) -> None:
    """Print the guides that apply, or that none does."""
    if not guides:
        out.print("guides: none applies")
    for guide in guides:
        out.print()
        out.print(Text(guide.title, style="bold").append(f"  {guide.why}", style=""))
        for item in guide.items:
            out.print(_line(item))


def _line(item: Item) -> Text:
    check = item.check
    value = "" if check.value is None else f"{check.value:.4g} (good {check.good})"
    line = Text("  ").append(f"{check.status:<13}", style=_STYLE[check.status])
    line.append(f"{check.id:<24} {value:<24} ").append(check.reason, style="bright_black")
    return line.append(f"\n{'':<15}-> {item.remedy}") if check.status == FAIL else line
