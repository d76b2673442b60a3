"""Who did not arrive, on the terminal: the conclusions, then one line per group."""

from rich.console import Console
from rich.text import Text

from stepscope.analyze.hang import GroupState, Hang
from stepscope.document.hang import conclusions, place
from stepscope.report.terminal import print_indented
from stepscope.run.rank import rank_ranges
from stepscope.units import printable

_MAX_GROUPS = 40
_MAX_WIDTH = 1000


def print_hang(hang: Hang, out: Console) -> None:
    """Print what is wrong, and how far each group came."""
    of = f" of {hang.world_size}" if hang.world_size is not None else ""
    out.print(
        Text(
            f"flight recorder dumps of {len(hang.ranks)}{of} rank{'' if len(hang.ranks) == 1 and not of else 's'}",
            style="bold",
        )
    )
    for line in conclusions(hang):
        print_indented(out, Text(printable(line, width=_MAX_WIDTH)), first="- ", indent="  ")
    if hang.suspects:
        out.print(Text(f"check rank {rank_ranges(list(hang.suspects))}", style="bold"))
    out.print()
    stuck_first = sorted(hang.groups, key=lambda g: (g.waiting_at is None and g.mismatch is None, -len(g.ranks)))
    for state in stuck_first[:_MAX_GROUPS]:
        print_indented(out, Text(printable(_group_line(state), width=_MAX_WIDTH)), first="", indent="  ")
    if len(stuck_first) > _MAX_GROUPS:
        out.print(f"and {len(stuck_first) - _MAX_GROUPS} groups more, in --json")


def _group_line(state: GroupState) -> str:
    last = state.last_common
    common = "none in the dumps" if last is None else f"number {last.seq}, {last.named} at {place(last)}"
    by_number: dict[int, list[int]] = {}
    for rank, seq in sorted(state.last_by_rank.items()):
        by_number.setdefault(seq, []).append(rank)
    reached = ", ".join(f"rank {rank_ranges(ranks)} to {seq}" for seq, ranks in sorted(by_number.items()))
    return (
        f"group {state.desc} ({rank_ranges(list(state.ranks))}): {state.verdict}; last common collective: {common}; "
        f"issued: {reached or 'nothing'}"
    )
