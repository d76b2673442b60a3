"""What holds for every kind of page: it says one number in one way, fits a phone, and a link shows its tables."""

import json
import re
from pathlib import Path

import pytest
from tests.report.browser import Browser, why_no_browser

from stepscope.analysis import load

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(why_no_browser() is not None, reason=str(why_no_browser())),
]

DATA = Path(__file__).parents[1] / "data"
UNITS = {"s": 1e3, "ms": 1.0, "µs": 1e-3, "ns": 1e-6, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
UNITS |= {"%": 1.0, "\u00d7": 1.0, "GB/s": 1.0, "": 1.0}
MINUS = "\u2212"
_NUMBER = re.compile(rf"^[{MINUS}+-]?[\d,]+(?:\.\d+)?")
# Every named number on the page: where it stands, what it is called, how it is written.
COLLECT = """
for (const b of document.querySelectorAll('button.more')) if (!b.hidden) b.click();
const text = (node) => (node?.textContent ?? '').trim();
const found = [];
for (const card of document.querySelectorAll('.card')) {
  found.push(['cards', text(card.children[0]), text(card.querySelector('.value'))]);
}
document.querySelectorAll('section.panel table').forEach((table, i) => {
  const titles = [...table.querySelectorAll('thead th')].map(text);
  const where = table.closest('section').id + ' table ' + i;
  for (const row of table.querySelectorAll('tbody tr')) {
    const cells = [...row.children].map(text);
    const named = titles.findIndex((_, k) => cells[k] && Number.isNaN(Number(cells[k].replaceAll(',', ''))));
    const name = cells.filter((cell, k) => k <= Math.max(0, named)).join(' ');
    cells.forEach((cell, k) => { if (titles[k] && k !== named) found.push([where, name + ' / ' + titles[k], cell]); });
  }
});
for (const chart of document.querySelectorAll('svg[role=img]')) {
  found.push(['charts', 'label', chart.getAttribute('aria-label')]);
}
return found;
"""

Said = list[tuple[str, str, str]]


def value_of(text: str) -> tuple[float, float] | None:
    """Return a number as written, in the smallest form of its unit, and half of its last digit; None where it is none.

    >>> value_of("1.50 ms")
    (1.5, 0.005)
    """
    found = _NUMBER.match(text)
    unit = text[found.end() :].strip() if found else None
    if found is None or unit not in UNITS:
        return None
    digits = found.group().replace(",", "").replace(MINUS, "-").replace("+", "")
    places = len(digits.partition(".")[2])
    return float(digits) * UNITS[unit], 0.5 * 10**-places * UNITS[unit]


def differing(said: Said) -> dict[str, list[tuple[str, str]]]:
    """Return the names that stand for two different numbers, with where and how each is written.

    A name that one table has twice (an operation at two sizes) names no single thing, and is left out.
    """
    by_name: dict[str, list[tuple[str, str]]] = {}
    for where, name, text in said:
        if value_of(text) is not None:
            by_name.setdefault(name.lower(), []).append((where, text))
    single = {name: places for name, places in by_name.items() if len({where for where, _ in places}) == len(places)}
    return {name: places for name, places in single.items() if not equal([text for _, text in places])}


def equal(texts: list[str]) -> bool:
    """Return whether numbers are one, as far as they are written out."""
    values = [value_of(text) for text in texts]
    known = [v for v in values if v is not None]
    return all(abs(v - known[0][0]) <= half + known[0][1] + 1e-9 for v, half in known)


def test_every_number_that_stands_twice_is_equal(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    # its numbers hang together, those of a constructed one do not
    (tmp_path / "report.html").write_text(load(DATA / "gloo-linear").to_html())
    found = {}
    for name, path in {**pages, "report": tmp_path / "report.html"}.items():
        browser.open(path)
        browser.unfold()
        said = [(where, title, text) for where, title, text in browser.run(COLLECT)]
        assert said, name
        found[name] = differing(said)
    assert not any(found.values()), json.dumps({name: names for name, names in found.items() if names}, indent=1)


def test_every_page_fits_a_phone_and_says_nothing_on_the_console(browser: Browser, pages: dict[str, Path]) -> None:
    browser.console(), browser.requests()
    wide = {}
    for name, path in pages.items():
        browser.size(390, 800)
        browser.open(path)
        wide[name] = browser.run("return document.documentElement.scrollWidth")
    browser.size(1280, 1000)
    assert {name: width for name, width in wide.items() if width > 390} == {}
    assert browser.console() == []
    assert [url for url in browser.requests() if not url.startswith("file:")] == []
