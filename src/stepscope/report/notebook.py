"""An analysis or a comparison as a small piece of HTML for a notebook: verdict, budget as one bar, first findings.

No script and no style sheet: notebooks drop them, and names in a trace are untrusted, so all of them are escaped.
"""

from collections.abc import Iterable
from html import escape
from typing import Any

from stepscope.analyze.account import Account
from stepscope.diagnose.findings import Diagnosis
from stepscope.diagnose.verdict import conclude
from stepscope.report.pictures.drawing import PALETTE
from stepscope.report.pictures.step import PART_COLOUR
from stepscope.units import NS_PER_MS, printable

MAX_FINDINGS = 5


def summary_line(account: Account, diagnosis: Diagnosis) -> str:
    """Return the run in one line: name, size, verdict, step, the first finding."""
    words = [printable(account.run.name, width=40) + ":", _size(account) + ","]
    if account.step:
        words += [conclude(account, diagnosis).verdict + ",", f"step {account.step.step_ns / NS_PER_MS:.2f} ms,"]
    first = next(iter(diagnosis.worth), None)
    words.append(f"first: {first.id} ({first.alone_ns / NS_PER_MS:.1f} ms)" if first else "no findings")
    return " ".join(words)


def summary_page(account: Account, diagnosis: Diagnosis) -> str:
    """Return the run as a small page."""
    parts = [f"<b>{_safe(account.run.name)}</b> {_safe(_size(account))}"]
    if account.step:
        step_ms = account.step.step_ns / NS_PER_MS
        mfu = f", MFU {100 * account.efficiency.mfu:.1f} %" if account.efficiency.mfu is not None else ""
        parts.append(f"<b>{_safe(conclude(account, diagnosis).headline)}</b>; {account.whole} {step_ms:.2f} ms{mfu}")
        parts.append(_bar([(p.part, p.pct, p.ns_per_step / NS_PER_MS) for p in account.step.parts]))
    worth = diagnosis.worth[:MAX_FINDINGS]
    rows = [(f.title, f"{f.alone_ns / NS_PER_MS:.1f} ms", f"{f.saving_pct:.0f} %") for f in worth]
    parts.append(
        _table(("what to fix", f"saves per {account.whole}", f"of the {account.whole}"), rows)
        if rows
        else "No findings."
    )
    parts += [f'<span style="opacity:.75">! {_safe(line)}</span>' for line in account.warnings[:3]]
    return "".join(f'<div style="margin:4px 0">{part}</div>' for part in parts)


def comparison_page(document: dict[str, Any]) -> str:
    """Return a comparison (the document of `stepscope compare`) as a small page."""
    step = document["step_ms"]
    rows = [
        (row["part"], _number(row["a"]), _number(row["b"]), _number(row["change"], signed=True))
        for row in document["budget"]
    ]
    head = (
        f"<b>{_safe(document['a']['name'])}</b> and <b>{_safe(document['b']['name'])}</b>: {_safe(document['verdict'])}"
    )
    change = "" if step["change_pct"] is None else f" ({step['change_pct']:+.1f} %)"
    line = f"step {_number(step['a'])} to {_number(step['b'])} ms{change}"
    table = _table(("part", "A ms", "B ms", "change"), rows)
    return "".join(f'<div style="margin:4px 0">{part}</div>' for part in (head, line, table))


def _size(account: Account) -> str:
    ranks, steps = len(account.run.ranks), account.num_steps
    return f"{ranks} rank{'s' * (ranks != 1)}, {steps} step{'s' * (steps != 1)}"


def _bar(parts: Iterable[tuple[str, float, float]]) -> str:
    """Return the budget as one bar; each part says its name and time where the pointer rests."""
    cells = "".join(
        f'<span title="{_safe(name)}: {time_ms:.2f} ms, {pct:.1f} %" style="display:inline-block;height:14px;'
        f'width:{max(pct, 0):.2f}%;background:{_colour(name)}"></span>'
        for name, pct, time_ms in parts
    )
    return f'<div style="width:100%;max-width:640px;white-space:nowrap;font-size:0;overflow:hidden">{cells}</div>'


def _colour(part: str) -> str:
    return PALETTE.get(PART_COLOUR.get(part, part), PALETTE["unknown"])


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def row(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f'<{tag} style="text-align:left">{_safe(c)}</{tag}>' for c in cells) + "</tr>"

    return f"<table>{row(head, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


def _number(value: float | None, *, signed: bool = False) -> str:
    return "unknown" if value is None else f"{value:{'+' if signed else ''}.2f}"


def _safe(name: str) -> str:
    return escape(printable(name, width=200))
