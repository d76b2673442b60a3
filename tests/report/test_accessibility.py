"""Every kind of page against the rules of WCAG level A and AA, in light and dark, by axe-core where npm brought it.

`tools/js/check.sh` installs it, which `make test` runs before the tests.
"""

from pathlib import Path

import pytest
from tests.report.browser import Browser, why_no_browser
from tests.report.pages import live_text

AXE = Path(__file__).parents[2] / "tools" / "js" / "node_modules" / "axe-core" / "axe.min.js"
RULES = {
    "light": '{runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}',
    "dark": '{runOnly: {type: "rule", values: ["color-contrast"]}}',
}
"""in the dark only the colours differ"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(why_no_browser() is not None, reason=str(why_no_browser())),
    pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed; tools/js/check.sh installs it"),
]


def violations(browser: Browser, scheme: str) -> list[str]:
    browser.prefer(scheme)
    browser.run(AXE.read_text())
    found = browser.run(f"return axe.run(document, {RULES[scheme]}).then((r) => r.violations)")
    return [f"{v['id']}: {n['target']} {n['failureSummary'][:300]}" for v in found for n in v["nodes"]]


def test_no_page_breaks_a_rule(browser: Browser, pages: dict[str, Path]) -> None:
    browser.console()
    found: dict[str, list[str]] = {}
    for name, path in pages.items():
        browser.prefer("light")
        browser.open(path)
        browser.unfold()
        for tab in browser.tabs() or [""]:
            if tab:
                browser.show(tab.removeprefix("tab-"))
            found |= {f"{name} {tab} {scheme}": violations(browser, scheme) for scheme in RULES}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert browser.console() == []


def test_live_page_breaks_no_rule(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "live.html").write_text(live_text(tmp_path))
    browser.console()
    browser.go((tmp_path / "live.html").as_uri())
    # two ranks, and four lines of the grid
    assert browser.run("return document.querySelectorAll('polyline').length") == 2 + 4
    assert [violations(browser, scheme) for scheme in RULES] == [[], []]
    assert browser.console() == []
