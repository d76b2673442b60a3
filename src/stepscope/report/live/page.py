"""A running job as a web page that the browser asks for again every two seconds: no script, nothing but text.

The numbers are those of the screen. Names come from the job's files and are untrusted: all of them are escaped, and the
page's policy lets nothing run and nothing load.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape

from stepscope.analyze.live.picture import Picture, RankNow
from stepscope.report.live.screen import SHORT, column_names, memory_text, most_telling, ms_text, pace_text
from stepscope.units import ms, printable

REFRESH_S = 2
_MAX_NEWS = 40
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .8rem; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
.alarm { color: #c5221f; font-weight: 600; }
.stall { color: #b06000; }
pre { white-space: pre-wrap; opacity: .8; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def live_page(
    name: str,
    picture: Picture,
    *,
    alarms: Sequence[str] = (),
    stalls: Sequence[str] = (),
    news: Sequence[str] = (),
    over: bool = False,
) -> str:
    """Return the page's text; the one of a job that is over is not asked for again."""
    title = escape(printable(name))
    again = "" if over else f'<meta http-equiv="refresh" content="{REFRESH_S}">'
    step = "?" if picture.step is None else f"{picture.step:,}"
    state = "has ended" if over else escape(pace_text(picture))
    parts = [
        f"<h1>{title}</h1><p>step {step}; {state}</p>",
        *(f'<p class="alarm">alarm: {_line(line)}</p>' for line in alarms),
        *(f'<p class="stall">{_line(line)}</p>' for line in stalls),
        _table(picture),
        f"<p>MFU: {_line(picture.mfu_reason)}</p>" if picture.mfu is None and picture.mfu_reason else "",
        f"<h2>So far</h2><pre>{escape(_lines(news))}</pre>" if news else "",
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">{again}'
    style = f"<title>{title} · stepscope</title><style>{_STYLE}</style>"
    return f'<!doctype html><html lang="en"><head>{head}{style}</head><body>{"".join(parts)}</body></html>\n'


def _table(picture: Picture) -> str:
    names = column_names(picture)
    heads = ["rank", "step", "ms", *(SHORT.get(name, name) for name in names), "memory", "late"]
    rows = "".join(_row(rank, names) for rank in most_telling(picture.ranks))
    hidden = len(picture.ranks) - len(most_telling(picture.ranks))
    more = f"<p>and {hidden} more ranks</p>" if hidden else ""
    cells = "".join(f'<th scope="col">{_line(head)}</th>' for head in heads)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>{more}"


def _row(rank: RankNow, names: Sequence[str]) -> str:
    late = f"{ms(rank.late.late_ns):+.1f} ms" if rank.late is not None else ""
    who = f"{rank.rank} ({rank.ended})" if rank.ended else str(rank.rank)
    step = "?" if rank.step is None else f"{rank.step:,}"
    times = [ms_text(rank.regions_ns.get(name)) for name in names]
    cells = [who, step, ms_text(rank.step_ns), *times, memory_text(rank), late]
    return "<tr>" + "".join(f"<td>{_line(cell)}</td>" for cell in cells) + "</tr>"


def _line(text: str) -> str:
    return escape(printable(text))


def _lines(news: Sequence[str]) -> str:
    return "\n".join(printable(line) for line in news[-_MAX_NEWS:])
