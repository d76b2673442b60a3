"""The step's parts, largest first, on a terminal each with a bar: they sum to the step."""

from rich.console import Console
from rich.text import Text

from stepscope.analyze.account import Account
from stepscope.analyze.step.parts import PARTS
from stepscope.report.text.terminal import speaks_unicode
from stepscope.units import NS_PER_MS

_MIN_SHARE = 0.005
_MAX_BAR = 40
_COLOURS = {
    "forward": "green", "backward": "green", "optimizer": "green", "other_compute": "green",
    "exposed_transfer": "red", "wait": "magenta", "pipeline_bubble": "magenta",
    "copy": "yellow", "data_loading": "yellow",
    "launch_gap": "cyan", "host_sync": "cyan", "allocator": "cyan", "host_stall": "cyan",
    "unknown": "bright_black",
}  # fmt: skip


def print_budget(account: Account, out: Console) -> None:
    """Print where the mean rank's step goes, without steps its window; parts below half a percent share a line."""
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
            most = max(1, min(_MAX_BAR, out.width - len(line) - 3))
            line.append("  ").append(_bar(part_ns / shown[0][1], most, out), style=_COLOURS.get(part, ""))
        out.print(line)
    if rest:
        together = sum(ns for _, ns in rest) / NS_PER_MS
        out.print(f"{together:.2f} ms in {', '.join(part for part, _ in rest)}", style="dim")


def _bar(share: float, most: int, out: Console) -> str:
    """Return a bar that fills `most` letters at a share of 1, to an eighth where the output can show it."""
    if not speaks_unicode(out):
        return "#" * max(1, round(share * most))
    whole, eighths = divmod(max(1, round(8 * share * most)), 8)
    return "█" * whole + ("" if eighths == 0 else "▏▎▍▌▋▊▉"[eighths - 1])
