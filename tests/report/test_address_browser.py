"""What the reader has chosen is in the address: a copied link shows it, going back undoes it, no link breaks a page."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.report.browser import Browser, why_no_browser
from tests.report.constructed import constructed

from stepscope.report.html.page import page_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(why_no_browser() is not None, reason=str(why_no_browser())),
]

CANVAS = "document.querySelector('#timeline canvas')"
SAID = "document.querySelector('#timeline .said').textContent"
# Everything that a link is to show, as the page shows it.
SHOWN = f"""
const value = (where) => document.querySelector(where)?.value;
const checks = (where) => [...document.querySelectorAll(where)].map((box) => box.checked ?? box.open);
return {{
  step: value('#step-picker'), said: {SAID}, ms: Number({CANVAS}.dataset.shownMs).toFixed(4), find: value('#find'),
  found: document.querySelector('#found').textContent, fixes: checks('#what-if input'), open: checks('.finding'),
  colour: value('#heatmap label:nth-of-type(1) select'), order: value('#heatmap label:nth-of-type(2) select'),
  cell: document.querySelector('#heatmap .said').textContent, over: value('#code label:nth-of-type(1) select'),
  by: value('#code label:nth-of-type(2) select'), kernels: document.querySelector('#kernels tbody').textContent,
}}
"""
HOSTILE = (
    "rank=99&step=abc&from=9&to=1&slice=-1&fixes=x.y&open=99999999999999&colour=__proto__&order=&cell=1&over=constructor",
    "rank=1e999&step=NaN&from=-Infinity&to=Infinity&slice=1.5&fixes=7.8.9&cell=0.99&kinds=toString&kernels=-99+",
    "at=%3Cimg%20src=x%20onerror=window.ran=1%3E&find=%3Cimg%20src=x%20onerror=window.ran=1%3E",
    "%&=%E0%A4%A&==&&rank=%00&at=__proto__",
    "rank=" + "9" * 20_000,
    "<script>window.ran=1</script>",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page_of(constructed(ranks=8, steps=20, slices_per_rank=90)))
    return path


def follow(browser: Browser, page: Path, state: str = "") -> None:
    """Open a link to the page, anew."""
    browser.go("about:blank")
    browser.console()
    browser.go(page.resolve().as_uri() + (f"#{state}" if state else ""))
    browser.waited("document.documentElement.dataset.readyMs")


def pick(browser: Browser, where: str, value: str) -> None:
    browser.run(
        f"const s = document.querySelector({where!r}); s.value = {value!r}; s.dispatchEvent(new Event('change'))"
    )


def choose_everything(browser: Browser) -> None:
    """Choose something in every section that keeps it."""
    pick(browser, "#step-picker", "102")
    browser.run("document.dispatchEvent(new CustomEvent('show-rank', {detail: 5}))")
    browser.run("const f = document.querySelector('#find'); f.value = 'nccl'; f.dispatchEvent(new Event('input'))")
    browser.zoom(), browser.zoom()
    for key in ("d", ".", "."):
        browser.run(f"{CANVAS}.dispatchEvent(new KeyboardEvent('keydown', {{key: {key!r}}}))")
    browser.run("for (const i of [0, 2]) document.querySelectorAll('#what-if input')[i].click()")
    browser.run("document.querySelectorAll('.finding summary')[1].click()")
    for where, value in (("heatmap label:nth-of-type(1)", "wait"), ("heatmap label:nth-of-type(2)", "value"),
                         ("code label:nth-of-type(1)", "modules"), ("code label:nth-of-type(2)", "comm")):  # fmt: skip
        pick(browser, f"#{where} select", value)
    browser.run(
        "document.querySelector('#heatmap canvas').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}))"
    )
    browser.run("document.querySelector('#kernels th button').click()")
    browser.run("document.querySelector('#kernels').scrollIntoView({behavior: 'instant'})")
    browser.waited("location.hash.includes('at=kernels') && location.hash.includes('cell=')")


def test_a_copied_link_shows_what_i_see(browser: Browser, page: Path) -> None:
    follow(browser, page)
    usual = browser.run(SHOWN)
    choose_everything(browser)
    seen, state = browser.run(SHOWN), browser.run("return location.hash.slice(1)")
    assert all(seen[what] != usual[what] for what in usual), (seen, usual)
    follow(browser, page, state)
    assert browser.run(SHOWN) == seen
    assert browser.waited("Math.abs(document.querySelector('#kernels').getBoundingClientRect().top) < 200")
    assert browser.console() == []


@pytest.mark.parametrize("state", HOSTILE)
def test_a_malformed_link_shows_the_page_as_it_is(browser: Browser, page: Path, state: str) -> None:
    follow(browser, page)
    usual = browser.run(SHOWN)
    follow(browser, page, state)
    shown = browser.run(SHOWN)
    if "find=" in state:
        assert shown["found"].startswith("0 slices")
        shown = {**shown, "find": usual["find"], "found": usual["found"]}
    assert shown == usual
    assert browser.run("return window.ran === undefined && document.querySelectorAll('main img').length === 0")
    assert browser.console() == []
