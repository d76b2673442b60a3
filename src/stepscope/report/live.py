"""A running job as a web page that the browser reloads every two seconds: no script, only text and one picture.

The numbers are those of the screen. Names come from the job's files and are untrusted: all of them are escaped, and the
page's policy lets nothing run and nothing load.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape

from rich.console import Console, Group, RenderableType
from rich.text import Text

from stepscope.contract.step_line import BACKWARD, DATA_LOADING, FORWARD, GRADIENT_SYNC, OPTIMIZER
from stepscope.records import Row
from stepscope.report.terminal import name_text, plain_table
from stepscope.units import ms, printable, readable_bytes

# A running job as a screen for a terminal, and as one line for a pipe or a log file.

_FIRST = (DATA_LOADING, FORWARD, BACKWARD, GRADIENT_SYNC, OPTIMIZER)
_SHORT = {
    DATA_LOADING: "data",
    FORWARD: "forward",
    BACKWARD: "backward",
    GRADIENT_SYNC: "sync",
    OPTIMIZER: "optimizer",
}
_MAX_RANKS = 16
_MAX_REGIONS = 6
_MAX_LINE = 200
#: columns of the screen that every width has
_NEEDED = ("rank", "step", "ms", "late")
#: cells of the newest steps, and the fewest that show anything
_MAX_SPARK, _MIN_SPARK = 46, 24


def screen(name: str, picture: Row, out: Console, *, alarms: Sequence[str], stalls: Sequence[str]) -> RenderableType:
    """Return the whole screen: pace, ranks (late and silent ones first), alarms, hung ranks."""
    parts: list[RenderableType] = [
        name_text(name, style="bold").append(f"  {_ranks(len(picture.ranks))}, {_pace_text(picture)}")
    ]
    if picture.mfu is None and picture.mfu_reason:
        parts.append(Text(f"MFU: {picture.mfu_reason}", style="dim"))
    shown = _most_telling(picture.ranks)
    rows = [_cells(rank, _column_names(picture)) for rank in shown]
    columns = [name for name in (rows[0] if rows else ()) if any(row[name] not in ("", "?") for row in rows)]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) + 3 for name in columns}
    while sum(widths[name] for name in columns) > out.width - _MIN_SPARK and len(columns) > 4:
        columns.remove(next(name for name in reversed(columns) if name not in _NEEDED))
    room = min(_MAX_SPARK, out.width - sum(widths[name] for name in columns) - 1)
    table = plain_table(out, *columns)
    if room >= _MIN_SPARK:
        table.add_column("recent steps, ms", no_wrap=True)
    sparks = _sparks(shown, room - 12)
    for row, spark in zip(rows, sparks, strict=True):
        table.add_row(*(row[name] for name in columns), *([spark] if room >= _MIN_SPARK else []))
    parts.append(table)
    if len(picture.ranks) > _MAX_RANKS:
        parts.append(Text(f"and {len(picture.ranks) - _MAX_RANKS} more ranks"))
    parts += [Text(f"alarm: {printable(line, width=_MAX_LINE)}", style="bold red") for line in alarms]
    parts += [Text(printable(line, width=_MAX_LINE), style="yellow") for line in stalls]
    return Group(*parts)


def _cells(rank: Row, regions: Sequence[str]) -> dict[str, str]:
    """Return the cells of a rank by column; the last ones are left out first where a terminal is narrow."""
    return {
        "rank": f"{rank.rank} ({rank.ended})" if rank.ended else str(rank.rank),
        "step": "?" if rank.step is None else f"{rank.step:,}",
        "ms": _ms_text(rank.step_ns),
        "late": f"{ms(rank.late.late_ns):+.1f} ms" if rank.late is not None else "",
        "memory": _memory_text(rank),
        **{_SHORT.get(name, printable(name, width=16)): _ms_text(rank.regions_ns.get(name)) for name in regions},
    }


def _sparks(ranks: Sequence[Row], count: int) -> list[str]:
    """Return the newest steps of each rank as a line of bars, all on one scale, with the shortest and the longest."""
    times = [[ns for _, ns in rank.recent[-max(count, 1) :]] for rank in ranks]
    every = [ns for one in times for ns in one]
    if not every:
        return [""] * len(ranks)
    low, high = min(every), max(every)
    low = min(low, round(0.9 * high))  # a change of a few percent is drawn as one
    bars = [
        "".join("▁▂▃▄▅▆▇█"[round(7 * (ns - low) / (high - low))] if high > low else "▁" for ns in one) for one in times
    ]
    return [f"{bar} {ms(min(one)):.0f}–{ms(max(one)):.0f}" if one else "" for bar, one in zip(bars, times, strict=True)]  # noqa: RUF001


def plain_line(picture: Row) -> str:
    """Return the job at one moment as one line."""
    step = "step ?" if picture.step is None else f"step {picture.step}"
    regions = [
        f"{_SHORT.get(name, printable(name, width=40))} {ms(total_ns / len(picture.ranks)):.1f}"
        for name in _column_names(picture)
        if (total_ns := sum(rank.regions_ns.get(name, 0) for rank in picture.ranks))
    ]
    memory = max((rank.device_bytes or rank.host_bytes or 0 for rank in picture.ranks), default=0)
    late = [rank.late for rank in _most_telling(picture.ranks) if rank.late is not None and rank.late.is_late]
    parts = [
        step,
        _pace_text(picture),
        *([f"{', '.join(regions)} ms"] if regions else []),
        *([f"memory {readable_bytes(memory)}"] if memory else []),
        *(f"rank {one.rank} is {ms(one.late_ns):.1f} ms late per step" for one in late),
    ]
    return "; ".join(parts)


def _pace_text(picture: Row) -> str:
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


def _column_names(picture: Row) -> list[str]:
    longest: dict[str, int] = {}
    for rank in picture.ranks:
        for name, ns in rank.regions_ns.items():
            longest[name] = max(longest.get(name, 0), ns)
    others = sorted((n for n in longest if n not in _FIRST), key=lambda n: -longest[n])
    return [*(n for n in _FIRST if n in longest), *others][:_MAX_REGIONS]


def _most_telling(ranks: Sequence[Row]) -> list[Row]:

    def order(rank: Row) -> tuple[bool, float, int]:
        stands = rank.status is not None and rank.status.stall is not None
        return not stands, -(rank.late.late_ns if rank.late is not None and rank.late.is_late else 0), rank.rank

    return sorted(ranks, key=order)[:_MAX_RANKS]


def _memory_text(rank: Row) -> str:
    size_bytes = rank.device_bytes or rank.host_bytes
    return readable_bytes(size_bytes) if size_bytes else "?"


def _ms_text(ns: int | None) -> str:
    return "?" if ns is None else f"{ms(ns):.1f}"


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


_REFRESH_S = 2
_STYLE = """
:root { color-scheme: light dark; --page: light-dark(#f3f5f7, #0d1115); --panel: light-dark(#ffffff, #161b21);
  --line: light-dark(#dde2e7, #2e3740); --text: light-dark(#14181d, #e6eaee); --quiet: light-dark(#586470, #9aa6b1);
  --high: light-dark(#c02617, #ff7b6b); --medium: light-dark(#946200, #e0ac3c); }
body { font: 14px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1280px; padding: 20px 24px; color: var(--text);
  background: var(--page); font-variant-numeric: tabular-nums; }
h1 { font-size: 22px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 8px; }
p { margin: 4px 0 12px; }
.pace { font-size: 17px; font-weight: 600; }
.quiet { color: var(--quiet); font-size: 13px; }
.panel { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px;
  margin: 0 0 14px; overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; width: 100%; }
th, td { text-align: right; padding: 4px 14px 4px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--quiet); }
th:first-child, td:first-child { text-align: left; }
.alarm, .stall { border-left: 4px solid var(--high); font-weight: 600; }
.alarm, .late { color: var(--high); font-weight: 600; }
.stall { color: var(--medium); border-left-color: var(--medium); }
.chart { width: 100%; height: auto; font-size: 11px; fill: currentColor; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; list-style: none; margin: 6px 0; padding: 0; font-size: 13px; }
pre { white-space: pre-wrap; font-size: 12.5px; color: var(--quiet); margin: 0; }
@media (max-width: 600px) { body { padding: 14px 12px; } }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def live_page(
    name: str,
    picture: Row,
    *,
    alarms: Sequence[str] = (),
    stalls: Sequence[str] = (),
    news: Sequence[str] = (),
    over: bool = False,
) -> str:
    """Return the page's text; a finished job is not queried again."""
    title = escape(printable(name))
    again = "" if over else f'<meta http-equiv="refresh" content="{_REFRESH_S}">'
    step = "?" if picture.step is None else f"{picture.step:,}"
    state = "has ended" if over else escape(_pace_text(picture))
    parts = [
        f'<h1>{title}</h1><p class="pace">step {step}; {state}</p>',
        *(f'<p class="panel alarm">alarm: {_line(line)}</p>' for line in alarms),
        *(f'<p class="panel stall">{_line(line)}</p>' for line in stalls),
        f'<section class="panel"><h2>Step time by rank</h2>{chart}</section>' if (chart := _chart(picture)) else "",
        f'<section class="panel" tabindex="0" role="region" aria-label="ranks">{_table(picture)}</section>',
        f'<p class="quiet">MFU: {_line(picture.mfu_reason)}</p>' if picture.mfu is None and picture.mfu_reason else "",
        f'<section class="panel"><h2>So far</h2><pre>{escape(_lines(news))}</pre></section>' if news else "",
        "" if over else f'<p class="quiet">Refreshed every {_REFRESH_S} s.</p>',
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">{again}'
    style = f"<title>{title} · stepscope</title><style>{_STYLE}</style>"
    return f'<!doctype html><html lang="en"><head>{head}{style}</head><body>{"".join(parts)}</body></html>\n'


_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c2619a", "#9a8c00", "#586470")


def _chart(picture: Row) -> str:
    """Return the newest steps of the ranks as lines: late ranks first, each in its colour."""
    ranks = [rank for rank in _most_telling(picture.ranks) if len(rank.recent) > 1][: len(_COLOURS)]
    if not ranks:
        return ""
    steps = [step for rank in ranks for step, _ in rank.recent]
    times = [ns for rank in ranks for _, ns in rank.recent]
    first, last, high = min(steps), max(steps), max(times)
    low = 0 if min(times) < 0.7 * high else 0.9 * min(times)  # a scale that shows differences

    def at(step: int, ns: int) -> str:
        return (
            f"{60 + 830 * (step - first) / max(last - first, 1):.1f},{150 - 135 * (ns - low) / max(high - low, 1):.1f}"
        )

    lines = "".join(
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(at(*p) for p in rank.recent)}"/>'
        for rank, colour in zip(ranks, _COLOURS, strict=False)
    )
    ticks = "".join(
        f'<line x1="60" x2="890" y1="{y}" y2="{y}" stroke="currentColor" opacity="0.2"/>'
        f'<text x="54" y="{y + 4}" text-anchor="end">{ms(ns):.1f}</text>'
        for y, ns in ((15, high), (82, (low + high) / 2), (150, low))
    )
    ends = f'<text x="60" y="168">step {first:,}</text><text x="890" y="168" text-anchor="end">step {last:,}</text>'
    legend = "".join(
        f'<li><svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" fill="{colour}"/></svg> '
        f"rank {rank.rank}</li>"
        for rank, colour in zip(ranks, _COLOURS, strict=False)
    )
    more = "" if len(ranks) == len(picture.ranks) else f"<li>{len(picture.ranks) - len(ranks)} more ranks</li>"
    label = f"Step time of {len(ranks)} ranks, steps {first} to {last}: {ms(min(times)):.1f} to {ms(high):.1f} ms"
    return (
        f'<svg viewBox="0 0 900 176" role="img" aria-label="{label}" class="chart">{ticks}{lines}{ends}</svg>'
        f'<ul class="legend">{legend}{more}</ul><p class="quiet">ms per step; the newest steps.</p>'
    )


def _table(picture: Row) -> str:
    names = _column_names(picture)
    has_memory = any(rank.device_bytes or rank.host_bytes for rank in picture.ranks)
    heads = ["rank", "late", "step", "ms", *(f"{_SHORT.get(name, name)} ms" for name in names)]
    if has_memory:
        heads.append("memory")
    rows = "".join(_row(rank, names, has_memory=has_memory) for rank in _most_telling(picture.ranks))
    hidden = len(picture.ranks) - len(_most_telling(picture.ranks))
    more = f"<p>and {hidden} more ranks</p>" if hidden else ""
    cells = "".join(f'<th scope="col">{_line(head)}</th>' for head in heads)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>{more}"


def _row(rank: Row, names: Sequence[str], *, has_memory: bool) -> str:
    late = f"{ms(rank.late.late_ns):+.1f} ms" if rank.late is not None else ""
    marked = ' class="late"' if rank.late is not None and rank.late.is_late else ""
    who = f"{rank.rank} ({rank.ended})" if rank.ended else str(rank.rank)
    step = "?" if rank.step is None else f"{rank.step:,}"
    times = [_ms_text(rank.regions_ns.get(name)) for name in names]
    cells = [step, _ms_text(rank.step_ns), *times, *([_memory_text(rank)] if has_memory else [])]
    first = f"<td>{_line(who)}</td><td{marked}>{late}</td>"
    return f"<tr>{first}{''.join(f'<td>{_line(cell)}</td>' for cell in cells)}</tr>"


def _line(text: str) -> str:
    return escape(printable(text))


def _lines(news: Sequence[str]) -> str:
    return "\n".join(printable(line) for line in news[-40:])
