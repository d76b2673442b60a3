"""The page in a real browser: it draws, answers to mouse and keyboard, asks for nothing, and runs no name."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.browser import Browser, why_no_browser
from tests.report.constructed import constructed

from stepscope.diagnose.finding import FINDING_IDS
from stepscope.report import html
from stepscope.report.html.page import page_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(why_no_browser() is not None, reason=str(why_no_browser())),
]

SECTIONS = (
    "findings", "what-if", "budget", "run-steps", "waterfall", "steps", "code", "heatmap", "timeline", "ranks",
    "collectives", "traffic", "calibration", "memory", "devices", "strategy", "kernels", "kernel-pictures",
    "operators", "idle", "critical-path", "checks", "trust",
)  # fmt: skip
CANVAS = "document.querySelector('#timeline canvas')"
HOSTILE = (
    "</script><script>window.ran = 1</script>",
    "<img src=http://127.0.0.1:9/leak onerror='window.ran = 1'>",
    "<!--<script>",
    "\"'><svg onload=window.ran=1>",
    "javascript:window.ran=1",
    "\u2028\u2029\u202e\x00${window.ran = 1}",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Browser:
    path = tmp_path / "page.html"
    path.write_text(page_of(constructed(ranks=8, steps=20, slices_per_rank=90)))
    browser.requests()
    browser.open(path)
    return browser


def test_every_section_is_drawn_without_a_word_on_the_console(opened: Browser) -> None:
    there = opened.run("return [...document.querySelectorAll('main section[id]')].map((s) => s.id)")
    assert set(SECTIONS) <= set(there)
    assert opened.console() == []
    assert [url for url in opened.requests() if not url.startswith("file:")] == []


def test_what_was_recorded_beside_the_traces_is_shown(opened: Browser) -> None:
    text = opened.run("return document.querySelector('#devices').textContent")
    assert re.search(r"1,?410 of 1,?980 MHz", text), text
    assert "hw thermal slowdown 48" in text, text
    assert "P2P/CUMEM 14, NET/IB 2" in text
    assert re.search(r"311\.7|312", opened.run("return document.querySelector('#collectives').textContent"))
    assert opened.run("return document.querySelectorAll('#memory polyline').length") >= 1


def test_search_counts_slices_and_marks_them(opened: Browser) -> None:
    pink = (
        f"(() => {{ const c = {CANVAS}, d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;"
        "for (let i = 0; i < d.length; i += 4) "
        "if (d[i] === 214 && d[i + 1] === 0 && d[i + 2] === 108) n++; return n })()"
    )
    assert opened.run(f"return {pink}") == 0
    typed(opened, "#find", "nccl")
    assert opened.waited("document.querySelector('#found').textContent").startswith("240 slices")
    assert opened.waited(pink) > 100


def test_keys_zoom_and_pan(opened: Browser) -> None:
    opened.zoom()
    first = float(opened.waited(f"{CANVAS}.dataset.shownMs"))
    opened.zoom()
    assert float(opened.run(f"return {CANVAS}.dataset.shownMs")) < first


def test_click_on_a_collective_lists_its_arrivals(opened: Browser) -> None:
    opened.run(
        f"const c = {CANVAS}, b = c.getBoundingClientRect(); c.setPointerCapture = () => {{}};"
        "for (let x = b.left + 80; x < b.right && !document.querySelector('.arrivals table'); x += 4)"
        "for (const type of ['pointerdown', 'pointerup'])"
        "c.dispatchEvent(new PointerEvent(type, {clientX: x, clientY: b.top + 22, pointerId: 1}))"
    )
    assert opened.run("return document.querySelectorAll('.arrivals tbody tr').length") == 8
    assert "last to arrive: rank" in opened.run("return document.querySelector('#timeline .said').textContent")


def test_every_finding_leads_to_places_that_exist(opened: Browser) -> None:
    source = (Path(html.__file__).parent / "js" / "places.js").read_text()
    named = set(re.findall(r'"([a-z-]+)":', source))
    assert len(named) > 15
    assert named <= set(FINDING_IDS)
    sections = set(re.findall(r'\["(collectives|kernels|operators|idle)", ', source)) | {"strategy", "memory", "trust"}
    assert sections <= set(SECTIONS)


def test_everything_that_can_be_operated_has_a_name_and_takes_the_focus(opened: Browser) -> None:
    nameless = (
        "const named = (e) => e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length;"
        "return [...document.querySelectorAll('button, a[href], input, select, canvas, svg, [tabindex]')]"
        ".filter((e) => !named(e)).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert opened.run(nameless) == []
    assert opened.run("return [...document.querySelectorAll('canvas')].every((c) => c.tabIndex === 0)")
    assert opened.run("return document.querySelectorAll('[aria-live]').length") >= 2


def test_the_icicle_is_over_lines_or_modules_and_by_other_times(opened: Browser) -> None:
    widths = (
        "[...document.querySelectorAll('#code .icicle [role=treeitem]')].map((e) => [e.textContent, e.offsetWidth])"
    )
    by_host = dict(opened.run(f"return {widths}"))
    changed(opened, "#code label:nth-of-type(2) select", "device")
    by_device = dict(opened.run(f"return {widths}"))
    assert by_host["train.py:43  step"] > by_host["model.py:31  forward"]
    assert by_device["train.py:43  step"] < by_device["model.py:31  forward"]
    changed(opened, "#code label:nth-of-type(1) select", "modules")
    over = opened.run(f"return {widths}.map(([text]) => text)")
    assert over[1] == "layers" and over[2:] == list("76543210")  # those that take most come first


def test_a_page_without_owners_and_findings_has_no_code_section_and_says_what_nobody_judged(
    browser: Browser, tmp_path: Path
) -> None:
    data = constructed(ranks=2, steps=3, slices_per_rank=20)
    report = {**data.report, "code": [], "modules": [], "unowned": None, "findings": [], "findings_combined": []}
    path = tmp_path / "page.html"
    path.write_text(page_of(replace(data, report=report, code_trees=None)))
    browser.console()
    browser.open(path)
    assert browser.run("return document.querySelector('#code') === null")
    clear = browser.run("return document.querySelector('#findings').innerText")
    assert "Nothing that would save" in clear and "No rule judges a line" in clear
    assert browser.console() == []


def test_dark_and_light_follow_the_system_and_the_button(opened: Browser) -> None:
    back = "return getComputedStyle(document.body).backgroundColor"
    light = opened.run(back)
    opened.prefer("dark")
    dark = opened.run(back)
    opened.run("document.querySelector('#theme').click()")
    assert opened.run(back) == light != dark
    opened.run("document.querySelector('#theme').click()")
    assert opened.run(back) == dark
    assert opened.run("return document.querySelector('#theme').getAttribute('aria-pressed')") == "true"
    opened.prefer("light")
    assert opened.run(back) == dark
    opened.run("localStorage.clear()")


@pytest.mark.slow
def test_a_thousand_ranks_and_steps_are_drawn(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(constructed(ranks=1024, steps=1000)))
    browser.console()
    browser.open(path)
    assert browser.run("return document.querySelector('#timeline h2').textContent").startswith("Step 100, 128 ranks")
    assert browser.console() == []


def test_policy_stops_a_script_and_a_request_that_got_in(opened: Browser) -> None:
    opened.run(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s);"
        "const i = document.createElement('img'); i.src = 'http://127.0.0.1:9/leak'; document.body.append(i)"
    )
    assert opened.run("return window.ran === undefined")
    stopped = [line for line in opened.console() if "Content Security Policy" in line]
    assert ["script" in stopped[0], "127.0.0.1:9/leak" in stopped[1], len(stopped)] == [True, True, 2]


def test_hostile_names_are_shown_and_run_nothing(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(hostile_page()))
    browser.requests(), browser.console()
    browser.open(path)
    typed(browser, "#find", "<")
    assert browser.run("return window.ran === undefined")
    assert browser.run("return document.querySelectorAll('img, script').length") == 2
    assert HOSTILE[0] in browser.run("return document.querySelector('h1').textContent")
    assert browser.console() == []
    assert [url for url in browser.requests() if not url.startswith("file:")] == []


def hostile_page() -> Any:
    """Return a page with hostile text in every field that holds text."""
    data = constructed(ranks=4, steps=3, slices_per_rank=30)
    assert data.slices is not None
    names = tuple(HOSTILE[i % len(HOSTILE)] for i in range(len(data.slices.names)))
    matched = replace(data.slices.matched, what=(HOSTILE[1],) * len(data.slices.matched.what))
    slices = replace(data.slices, names=names, matched=matched, notes=HOSTILE, rank=np.sort(data.slices.rank))
    calibration, trees = spoiled(data.calibration), spoiled(data.code_trees)
    report = spoiled(data.report)
    return replace(data, report=report, slices=slices, trust=HOSTILE, calibration=calibration, code_trees=trees)


def spoiled(value: Any) -> Any:
    """Return a JSON value whose every text is hostile too."""
    if isinstance(value, dict):
        return {k: spoiled(v) for k, v in value.items()}
    if isinstance(value, list):
        return [spoiled(v) for v in value]
    return value + "".join(HOSTILE) if isinstance(value, str) else value


def changed(browser: Browser, where: str, value: str) -> None:
    browser.run(
        f"const box = document.querySelector({where!r}); box.value = {value!r}; box.dispatchEvent(new Event('change'))"
    )


def pressed(browser: Browser, *keys: str) -> None:
    for key in keys:
        browser.run(f"{CANVAS}.dispatchEvent(new KeyboardEvent('keydown', {{key: {key!r}}}))")


def typed(browser: Browser, where: str, text: str) -> None:
    browser.run(
        f"const box = document.querySelector({where!r}); box.value = {text!r}; box.dispatchEvent(new Event('input'))"
    )
