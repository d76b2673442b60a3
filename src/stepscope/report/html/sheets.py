"""A `Sheet` as a self-contained HTML file, drawn by the scripts that the report's page uses too."""

from typing import Any

from stepscope.document.rows import plain
from stepscope.report.html.assemble import sheet_html
from stepscope.report.html.page_data import PageData, packed
from stepscope.report.sheet import Picture, Section, Sheet, unit_text
from stepscope.units import printable


def sheet_page(sheet: Sheet) -> str:
    """Return the page's text."""
    data = PageData(report=plain({**vars(sheet), "sections": [_section(one) for one in sheet.sections]}))
    return sheet_html(packed(data), title=sheet.title, in_words=_in_words(sheet))


def _section(section: Section) -> dict[str, Any]:
    chart, *more = map(_drawn, (section.chart, *section.more))
    return {**vars(section), "chart": chart, "more": [one for one in more if one is not None]}


def _drawn(picture: Picture) -> dict[str, Any] | None:
    found = picture() if callable(picture) else picture
    return None if found is None else found.as_json()


def _in_words(sheet: Sheet) -> str:
    said = [f"{card['title']}: {unit_text(card['value'], card['unit'])}." for card in sheet.cards]
    return " ".join(map(printable, [*said, *(f"{note}." for note in sheet.notes)]))
