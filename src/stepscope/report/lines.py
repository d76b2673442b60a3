"""Rows of styled text for a terminal: wrapped, cut and painted. Standard library only."""

import re
import textwrap
import unicodedata
from collections.abc import Iterable

from stepscope.units import ASCII_SIGNS, printable

#: pieces of text, each with its style
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
