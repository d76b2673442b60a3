"""A `Sheet` as text: lines for a terminal or a pipe, and Markdown for a pull request.

No column of a table is left out. Columns are in the order of their importance: those that do not fit next to each other
follow below in the same row, under titles of their own, and long words are wrapped there.

    host              step   slower
      verdict                  jobs
    ────────────────────────────────
    node-1         12.5 ms   +3.0 %
      slow                       12
"""

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepscope.records import dataclass
from stepscope.report.sheet import WORDS, Section, Sheet, unit_text
from stepscope.units import ASCII_SIGNS, printable

# Rows of styled text for a terminal: wrapped, cut and painted. Standard library only.

# pieces of text, each with its style
Row = tuple[tuple[str, str], ...]

_ANSI = {"bold": "1", "dim": "2", "green": "32", "red": "31", "yellow": "33", "magenta": "35", "cyan": "36"}
_UNIT = re.compile(r"(\d) (ms|%|[kMGT]?B\b)")


def painted(rows: Iterable[Row], *, unicode: bool, colour: bool) -> str:
    """Return rows as text, with colours and letters that the terminal knows."""
    lines = ("".join(_painted(text, style, colour=colour) for text, style in _trimmed(row)) for row in rows)
    text = "".join(f"{line}\n" for line in lines)
    return text if unicode else text.translate(ASCII_SIGNS)


def _trimmed(row: Row) -> Row:
    """Return a row without blanks at its end."""
    while row and not row[-1][0].strip():
        row = row[:-1]
    return row and (*row[:-1], (row[-1][0].rstrip(), row[-1][1]))


def _painted(text: str, style: str, *, colour: bool) -> str:
    return f"\x1b[{_ANSI[style]}m{text}\x1b[0m" if colour and style and text else text


def text_width(text: str) -> int:
    """Return how wide a text is on a terminal."""
    return len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def cut(text: str, room: int) -> str:
    """Return a text that fits, with an ellipsis where it is cut."""
    while text and text_width(text) > room:
        text = text[: max(0, min(len(text) - 2, room - 1))].rstrip() + "…" if room > 1 else ""
    return text


def broken(text: str, room: int, most: int) -> list[str]:
    """Return a text in lines, the last of them cut; a number stays with its unit."""
    glued = _UNIT.sub("\\1\u00a0\\2", text)
    lines = [line.replace("\u00a0", " ") for line in textwrap.wrap(glued, room, break_on_hyphens=False)] or [""]
    return lines if len(lines) <= most else [*lines[: most - 1], cut(" ".join(lines[most - 1 :]), room)]


def wrapped(
    text: str, width: int, *, first: str | None = None, indent: str = "", style: str = "", most: int = 100
) -> list[Row]:
    """Return a paragraph in rows, `first` before the first one and `indent` before the others."""
    lines = broken(printable(text, width=2000), width - len(indent), most)
    return [((f"{indent if i or first is None else first}{line}", style),) for i, line in enumerate(lines)]


_MIN_WIDTH, _MAX_WIDTH = 40, 120
_MAX_NAME_LINES = 2
_MAX_LENGTH = 1000
_GAP, _INDENT = 2, 4
#: of names and other words in a table
_NARROW, _NAME = 16, 48
_UNKNOWN = "–"  # noqa: RUF001
_TONES = {"high": "red", "medium": "yellow", "low": "green"}
_VERDICTS = {
    **dict.fromkeys(("slower", "appeared", "new", "grew", "fail", "failed", "slow"), "red"),
    **dict.fromkeys(("faster", "vanished", "resolved", "mostly resolved", "pass", "passed"), "green"),
    "borderline": "yellow",
}


def sheet_text(
    sheet: Sheet, *, verbose: bool = False, width: int = 80, unicode: bool = True, colour: bool = False
) -> str:
    """Return a page as lines; all rows and all sections with `verbose`."""
    room = max(_MIN_WIDTH, min(width, _MAX_WIDTH) - (0 if unicode else 4))  # "..." is wider
    title, facts = printable(sheet.title), " · ".join(map(printable, sheet.facts))
    rows: list[Row] = [((title, "bold"), (f"  {facts}", "dim"))]
    if text_width(title) + text_width(facts) + 2 > room:
        rows = wrapped(title, room, first="", indent="  ", style="bold")
        rows += wrapped(facts, room, indent="  ", style="dim") if facts else []
    rows += _cards(sheet.cards, room)
    hidden = []
    for section in sheet.sections:
        has_rows = bool(section.table and section.table["rows"])
        if not (section.lines or has_rows):
            continue  # a picture
        if not (section.most or verbose):
            hidden.append(section.title)
            continue
        rows += [(), (((cut(printable(section.title), room)), "bold"),)]
        rows += _section(section, room, most=None if verbose else section.most)
    rows += [()] if sheet.notes else []
    for note in sheet.notes:
        rows += wrapped(printable(note, width=_MAX_LENGTH), room, first="! ", indent="  ", style="yellow")
    if hidden:
        rows += [(), *wrapped(f"-v shows {', '.join(hidden)}", room, indent="  ", first="", style="dim")]
    return painted(rows, unicode=unicode, colour=colour)


def _cards(cards: Sequence[Mapping[str, Any]], room: int) -> list[Row]:
    if not cards:
        return []
    titles = max(text_width(printable(one["title"], width=_NAME)) for one in cards)
    values = [_cell(one["value"], one["unit"]) for one in cards]
    short = max((text_width(value) for value in values if len(value) <= _NARROW), default=0)
    rows: list[Row] = []
    for one, value in zip(cards, values, strict=True):
        title, why = printable(one["title"], width=_NAME), printable(one["why"], width=_MAX_LENGTH)
        start = f"  {title}{' ' * (titles - text_width(title))}  {' ' * (short - text_width(value))}"
        for i, line in enumerate(broken(f"{value}  {why}", max(_NARROW, room - text_width(start)), 100)):
            head = value if i == 0 and line.startswith(value) else ""
            margin = " " * text_width(start) if i else start
            rows.append(((margin, ""), (head, _TONES.get(one["tone"], "bold")), (line[len(head) :], "")))
    return rows


def _section(section: Section, room: int, *, most: int | None) -> list[Row]:
    rows: list[Row] = []
    for line in section.lines:
        text = printable(line, width=_MAX_LENGTH)
        # an indented line is a command, to be copied in one piece
        rows += [((text, ""),)] if line.startswith("  ") else wrapped(text, room, first="", indent="  ")
    table = section.table
    if table and table["rows"]:
        total = len(table["rows"])
        rows += _table(table["columns"], table["rows"][:most], room)
        if most is not None and total > most:
            rows.append(((f"the first {most} of {total:,}; -v shows all", "dim"),))
    return rows


# A table: columns with their places, on one or more lines of each row.


@dataclass(frozen=True)
class _Place:
    """Where a column is: on which line of a row, from where, and how wide."""

    level: int
    start: int
    width: int
    is_words: bool


def _table(columns: Sequence[Mapping[str, Any]], rows: Sequence[Sequence[Any]], room: int) -> list[Row]:
    texts = [[_cell(value, column["unit"]) for value, column in zip(row, columns, strict=True)] for row in rows]
    titles = [printable(column["title"], width=_NAME) for column in columns]
    widths = [max(text_width(row[i]) for row in texts) for i in range(len(columns))]
    heads = [_broken_title(title, width) for title, width in zip(titles, widths, strict=True)]
    widths = [max(width, *map(text_width, head)) for width, head in zip(widths, heads, strict=True)]
    # closer together where that saves a line of each row
    places = min((_places(columns, widths, room, gap=gap) for gap in (_GAP, 1)), key=lambda found: found[-1].level)
    found: list[Row] = []
    for level in range(places[-1].level + 1):
        on_it = [i for i, place in enumerate(places) if place.level == level]
        found += _lines([places[i] for i in on_it], [heads[i] for i in on_it], ["dim"] * len(on_it), from_below=True)
    end = max(place.start + place.width for place in places)
    found.append((("─" * end, "dim"),))
    for row, values in zip(texts, rows, strict=True):
        for level in range(places[-1].level + 1):
            on_it = [i for i, place in enumerate(places) if place.level == level]
            if level and all(row[i] == "" for i in on_it):
                continue
            held = [_held(row[i], columns[i]["unit"], places[i], is_name=i == 0) for i in on_it]
            styles = [_style(columns[i]["unit"], values[i]) or ("dim" if level else "") for i in on_it]
            found += _lines([places[i] for i in on_it], held, styles)
    return found


def _held(text: str, unit: str, place: _Place, *, is_name: bool) -> list[str]:
    """Return a cell in lines: names of kernels and source lines are cut, other words wrapped, numbers whole."""
    if not place.is_words:
        return [text]
    if unit in ("kernel", "name"):
        return [cut(text, place.width)]
    return broken(text, place.width, _MAX_NAME_LINES if is_name else 100)


def _broken_title(title: str, width: int) -> list[str]:
    middle = [i for i, letter in enumerate(title) if letter == " "]
    if len(title) <= width or not middle:
        return [title]
    at = min(middle, key=lambda i: abs(i - len(title) / 2))
    return [title[:at], title[at + 1 :]]


def _places(columns: Sequence[Mapping[str, Any]], widths: Sequence[int], room: int, *, gap: int) -> list[_Place]:
    is_words = [column["unit"] in WORDS for column in columns]
    numbers = sum(width + gap for i, width in enumerate(widths) if i and not is_words[i])
    name = min(widths[0], max(room - numbers, _NAME if numbers > room else _NARROW), room) if is_words[0] else widths[0]
    places = [_Place(0, 0, name, is_words[0])]
    level, end = 0, name
    for column, width, words in list(zip(columns, widths, is_words, strict=True))[1:]:
        start, needed = end + gap, width
        rest = room - start
        if words and width > rest >= (_NAME if column["unit"] == "name" else _NAME // 2):
            needed = rest  # wrapped where it is
        elif width > rest:
            level, start = level + 1, _INDENT
            needed = min(width, room - _INDENT)
        places.append(_Place(level, start, needed, words))
        end = start + needed
    return places


def _lines(
    places: Sequence[_Place], held: Sequence[Sequence[str]], styles: Sequence[str], *, from_below: bool = False
) -> list[Row]:
    high = max(len(lines) for lines in held)
    rows = []
    for k in range(high):
        pieces: list[tuple[str, str]] = []
        end = 0
        for place, lines, style in zip(places, held, styles, strict=True):
            at = k - (high - len(lines)) if from_below else k
            text = lines[at] if 0 <= at < len(lines) else ""
            blank = " " * (place.width - text_width(text))
            pieces.append((" " * (place.start - end), ""))
            pieces += [(text, style), (blank, "")] if place.is_words else [(blank, ""), (text, style)]
            end = place.start + max(place.width, text_width(text))
        rows.append(tuple(pieces))
    return rows


def _cell(value: Any, unit: str) -> str:
    return _UNKNOWN if value is None else printable(unit_text(value, unit), width=_MAX_LENGTH)


def _style(unit: str, value: Any) -> str:
    if unit.startswith("signed_") and value:
        return _TONES["high" if value > 0 else "low"]
    return _VERDICTS.get(value, "") if unit == "verdict" else ""


# Markdown


def sheet_markdown(sheet: Sheet) -> str:
    """Return a page as Markdown, with all its rows."""
    lines = [f"### {_escaped(sheet.title)}", "", *([_escaped(", ".join(sheet.facts)), ""] if sheet.facts else [])]
    for one in sheet.cards:
        said = f"- {one['title']}: **{_cell(one['value'], one['unit'])}**"
        lines.append(_escaped(f"{said}, {one['why']}" if one["why"] else said))
    for section in sheet.sections:
        table = section.table if section.table and section.table["rows"] else None
        if section.lines or table:
            lines += ["", f"#### {_escaped(section.title)}", "", *map(_escaped, section.lines)]
        if table:
            columns = table["columns"]
            lines += [*([""] if section.lines else []), _markdown_row(column["title"] for column in columns)]
            lines.append(_markdown_row("---" if column["unit"] in WORDS else "---:" for column in columns))
            for row in table["rows"]:
                lines.append(_markdown_row(_cell(v, c["unit"]) for v, c in zip(row, columns, strict=True)))
    return "\n".join([*lines, "", *(f"<sub>{_escaped(note)}</sub>" for note in sheet.notes), ""])


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    return printable(text, width=_MAX_LENGTH).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
