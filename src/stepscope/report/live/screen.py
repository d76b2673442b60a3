"""A running job as a screen for a terminal, and as one line for a pipe or a log file."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from stepscope.analyze.live.picture import Picture, RankNow
from stepscope.contract.step_line import BACKWARD, DATA_LOADING, FORWARD, GRADIENT_SYNC, OPTIMIZER
from stepscope.report.text.terminal import name_text, plain_table
from stepscope.units import ms, printable, readable_bytes

_FIRST = (DATA_LOADING, FORWARD, BACKWARD, GRADIENT_SYNC, OPTIMIZER)
SHORT = {
    DATA_LOADING: "data",
    FORWARD: "forward",
    BACKWARD: "backward",
    GRADIENT_SYNC: "sync",
    OPTIMIZER: "optimizer",
}
_MAX_RANKS = 16
_MAX_REGIONS = 6
_MAX_LINE = 200


def screen(
    name: str, picture: Picture, out: Console, *, alarms: Sequence[str], stalls: Sequence[str]
) -> RenderableType:
    """Return the whole screen: pace, ranks (late and silent ones first), alarms, ranks that stand still."""
    parts: list[RenderableType] = [
        name_text(name, style="bold").append(f"  {_ranks(len(picture.ranks))}, {pace_text(picture)}")
    ]
    if picture.mfu is None and picture.mfu_reason:
        parts.append(Text(f"MFU: {picture.mfu_reason}", style="dim"))
    names = column_names(picture)
    table = plain_table(out, "rank", "step", "ms", *(SHORT.get(n, printable(n, width=16)) for n in names), "memory")
    table.add_column("late", justify="right", no_wrap=True)
    for rank in most_telling(picture.ranks):
        cells = [ms_text(rank.regions_ns.get(region)) for region in names]
        late = f"{ms(rank.late.late_ns):+.1f} ms" if rank.late is not None else ""
        state = f"{rank.rank} ({rank.ended})" if rank.ended else str(rank.rank)
        step = "?" if rank.step is None else f"{rank.step:,}"
        table.add_row(state, step, ms_text(rank.step_ns), *cells, memory_text(rank), late)
    parts.append(table)
    if len(picture.ranks) > _MAX_RANKS:
        parts.append(Text(f"and {len(picture.ranks) - _MAX_RANKS} more ranks"))
    parts += [Text(f"alarm: {printable(line, width=_MAX_LINE)}", style="bold red") for line in alarms]
    parts += [Text(printable(line, width=_MAX_LINE), style="yellow") for line in stalls]
    return Group(*parts)


def plain_line(picture: Picture) -> str:
    """Return the job at one moment as one line."""
    step = "step ?" if picture.step is None else f"step {picture.step}"
    regions = [
        f"{SHORT.get(name, printable(name, width=40))} {ms(total_ns / len(picture.ranks)):.1f}"
        for name in column_names(picture)
        if (total_ns := sum(rank.regions_ns.get(name, 0) for rank in picture.ranks))
    ]
    memory = max((rank.device_bytes or rank.host_bytes or 0 for rank in picture.ranks), default=0)
    parts = [
        step,
        pace_text(picture),
        *([f"{', '.join(regions)} ms"] if regions else []),
        *([f"memory {readable_bytes(memory)}"] if memory else []),
    ]
    return "; ".join(parts)


def pace_text(picture: Picture) -> str:
    """Return steps per second, the step's time and what follows from them, in words."""
    if picture.steps_per_s is None or picture.step_ns is None:
        return "no step yet"
    if picture.stands_still:
        return "standing still"
    parts = [f"{picture.steps_per_s:.2f} steps/s", f"{ms(picture.step_ns):.1f} ms per step"]
    if picture.tokens_per_s is not None:
        parts.append(f"{picture.tokens_per_s:,.0f} tokens/s")
    if picture.mfu is not None:
        parts.append(f"MFU {100 * picture.mfu:.1f} %")
    return ", ".join(parts)


def column_names(picture: Picture) -> list[str]:
    """Return the regions worth a column: those of a step in its order, then the longest others."""
    longest: dict[str, int] = {}
    for rank in picture.ranks:
        for name, ns in rank.regions_ns.items():
            longest[name] = max(longest.get(name, 0), ns)
    others = sorted((n for n in longest if n not in _FIRST), key=lambda n: -longest[n])
    return [*(n for n in _FIRST if n in longest), *others][:_MAX_REGIONS]


def most_telling(ranks: Sequence[RankNow]) -> list[RankNow]:
    """Return the ranks that are shown: those that stand still or are late first."""

    def order(rank: RankNow) -> tuple[bool, int, int]:
        stands = rank.status is not None and rank.status.stall is not None
        return not stands, -(rank.late.late_ns if rank.late is not None and rank.late.is_late() else 0), rank.rank

    return sorted(ranks, key=order)[:_MAX_RANKS]


def memory_text(rank: RankNow) -> str:
    """Return a rank's memory, the device's where it has one."""
    size_bytes = rank.device_bytes or rank.host_bytes
    return readable_bytes(size_bytes) if size_bytes else "?"


def ms_text(ns: int | None) -> str:
    """Return milliseconds for a cell."""
    return "?" if ns is None else f"{ms(ns):.1f}"


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"
