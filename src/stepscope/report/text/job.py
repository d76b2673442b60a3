"""The ledger of a job on one screen, from its JSON: parts, attempts, what would save time."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from stepscope.contract.names import JOB_PARTS, duration_text
from stepscope.document.sentence import joules_text
from stepscope.report.terminal import name_text, print_indented, speaks_unicode

_MAX_ATTEMPTS = 3
_MAX_SAVINGS = 3
_BAR = 30
Document = Mapping[str, Any]


def print_job(document: Document, out: Console) -> None:
    """Print the ledger."""
    attempts = document["attempts"]
    of = f"{len(attempts)} attempt{'s' * (len(attempts) > 1)}, {document['ranks']} rank{'s' * (document['ranks'] > 1)}"
    head = name_text(document["run"], width=40, style="bold")
    out.print(head.append(f": {duration_text(document['total_s'])}, {of}, goodput {document['goodput_pct']:.1f} %"))
    out.print()
    block = "█" if speaks_unicode(out) else "#"
    parts = [part for part in document["parts"] if part["pct"] >= 0.05]
    for part in sorted(parts, key=lambda one: (one["part"] != "productive", -one["s"])):
        bar = block * max(1, round(_BAR * part["pct"] / 100)) if part["pct"] >= 1 else ""
        name, time = JOB_PARTS[part["part"]], duration_text(part["s"])
        out.print(Text(f"{name:<25}{time:>9}{part['pct']:>7.1f} %  {bar}".rstrip()))
    if energy := document["energy"]:
        most = sorted(energy["parts"], key=lambda one: -one["j"])[:2]
        where = ", ".join(f"{one['pct']:.0f} % in {JOB_PARTS[one['part']]}" for one in most)
        print_indented(out, Text(f"energy {joules_text(energy['total_j'])}: {where}"), indent="  ")
    out.print()
    for number, one in enumerate(attempts[:_MAX_ATTEMPTS], 1):
        lost = "lost steps unknown" if one["steps_lost"] is None else f"{one['steps_lost']} lost"
        steps = f"{one['steps']} steps" + (f", {lost}" if one["steps_lost"] != 0 else "")
        print_indented(out, name_text(f"attempt {number} ({one['run']}): {steps}; {one['reason']}"), indent="  ")
    if len(attempts) > _MAX_ATTEMPTS:
        out.print(f"and {len(attempts) - _MAX_ATTEMPTS} more attempts; --json has all")
    if document["savings"]:
        out.print()
    for one in document["savings"][:_MAX_SAVINGS]:
        saved = f"{one['change']}: saves {one['pct']:.1f} %"
        print_indented(out, Text(saved), first="- ", indent="  ")
