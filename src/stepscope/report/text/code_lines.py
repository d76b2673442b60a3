"""Where in the code the step goes: the first lines on one screen of the report, where owners were recorded."""

from rich.console import Console
from rich.text import Text

from stepscope.analyze.account import Account
from stepscope.document.code import CodeRow, code_view
from stepscope.report.text.terminal import name_text
from stepscope.units import NS_PER_MS

_MAX_LINES = 5
_MIN_PCT = 1.0
_MAX_WIDTH = 400
_MAX_PLACE = 30


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
    places = [name_text(row.owner, width=_MAX_PLACE).plain for row in rows]
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
    """Return what a line takes and what it saves: `309.1 ms, saves 285.2`."""
    took_ns = max(row.host_ns, row.device_ns + row.comm_ns)
    saves = "" if row.saving_ns is None else f", saves {row.saving_ns / NS_PER_MS:6.1f}"
    return f"{took_ns / NS_PER_MS:7.1f} ms{saves:>14}"
