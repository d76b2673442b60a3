"""The page in a real browser: it draws, answers to mouse and keyboard, asks for nothing, and runs no name."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import Browser, why_no_browser
from tests.report.constructed import constructed_page, constructed_timeline, report

from stepscope.analysis import load
from stepscope.diagnose.finding import FINDING_IDS
from stepscope.report import html
from stepscope.report.html.page import page_data, page_of

pytestmark = [pytest.mark.browser, pytest.mark.skipif(why_no_browser() is not None, reason=str(why_no_browser()))]

TABS = {
    "summary": {"findings", "more-findings", "what-if", "budget", "run-steps", "timeline"},
    "timeline": {"timeline", "steps", "critical-path", "idle"},
    "ranks": {"rank-times", "heatmap", "ranks", "collectives", "traffic", "bandwidth", "strategy", "devices"},
    "code": {"code"},
    "kernels": {"kernels", "operators", "kernel-pictures"},
    "memory": {"memory"},
    "trust": {"trust", "checks", "not-examined", "clocks"},
}
CANVAS = "document.querySelector('#timeline canvas')"
PINK = (
    f"(() => {{ const c = {CANVAS}, d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;"
    "for (let i = 0; i < d.length; i += 4) "
    "if (d[i] === 214 && d[i + 1] === 0 && d[i + 2] === 108) n++; return n })()"
)
# Whether an element is within the part that its scrolling region shows.
_VISIBLE = (
    "((node) => { const own = node.getBoundingClientRect(), box = node.closest('.scroll').getBoundingClientRect();"
    " return own.width > 0 && own.left >= box.left - 1 && own.right <= box.right + 1 })"
)
HOSTILE = (
    "</script><script>window.ran = 1</script>",
    "<img src=http://127.0.0.1:9/leak onerror='window.ran = 1'>",
    "<!--<script>",
    "\"'><svg onload=window.ran=1>",
    "javascript:window.ran=1",
    "\u2028\u2029\u202e\x00${window.ran = 1}",
)


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Browser:
    (path := tmp_path / "page.html").write_text(constructed_page(ranks=8, steps=20, slices_per_rank=90))
    browser.requests()
    browser.open(path)
    return browser


def test_every_tab_is_drawn_without_a_console_message(opened: Browser) -> None:
    assert opened.tabs() == [f"tab-{tab}" for tab in TABS]
    for tab, sections in TABS.items():
        opened.show(tab)
        visible = (
            "return [...document.querySelectorAll('main section[id]')].filter((s) => s.offsetParent).map((s) => s.id)"
        )
        assert sections <= set(opened.run(visible)), tab
        assert opened.run("return document.querySelector('[aria-selected=true]').id") == f"tab-{tab}"
    assert opened.console() == []
    assert [url for url in opened.requests() if not url.startswith("file:")] == []


def test_page_opens_with_the_sentence_three_cards_and_the_culprit(opened: Browser) -> None:
    sentence = text(opened, ".sentence").replace("\u00a0", " ")
    assert sentence == "Rank 5 holds up everyone. Fixing it: 261 → 238 ms per step (−9 %)"  # noqa: RUF001
    assert opened.run("return document.querySelectorAll('.card').length") == 3
    assert text(opened, "#timeline .said").startswith("Longest wait for rank ")
    assert "for rank 5" in text(opened, "#timeline .said")
    assert float(opened.waited(f"{CANVAS}.dataset.shownMs")) < 125  # half of the step
    assert opened.run(f"return {PINK}") > 100
    opened.run("document.querySelector('#findings a').click()")
    assert "How to fix it" in opened.waited("document.querySelector('#docs-straggler[open] .body')?.textContent")


@pytest.mark.parametrize("width", [1400, 390])
def test_the_late_rank_of_many_is_in_view_on_every_tab_that_names_it(browser, tmp_path, width):
    (tmp_path / "page.html").write_text(constructed_page(ranks=64, steps=20, slices_per_rank=90))
    browser.size(width, 1000)
    try:
        browser.open(tmp_path / "page.html")
        for tab in ("summary", "timeline", "summary"):
            browser.show(tab)
            assert browser.waited(f"{PINK} > 300"), tab  # the frame around rank 37 and what it did meanwhile
        browser.show("ranks")
        first = "document.querySelector('#ranks tbody tr')"
        assert browser.run(f"return {first}.cells[0].textContent") == "37 (late)"
        dot = browser.run(f"return {_VISIBLE}(document.querySelector('#rank-times svg circle[style*=high]'))")
        assert dot, "the dot of the late rank is outside of the part of the picture that is shown"
    finally:
        browser.size(1280, 1000)


def test_a_link_opens_the_tab_of_its_section(browser: Browser, opened: Browser) -> None:
    browser.run("location.hash = '#kernels'")
    browser.waited("document.querySelector('#kernels')?.offsetParent")
    browser.run(
        "document.querySelector('#tab-kernels')"
        ".dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}))"
    )
    assert browser.run("return document.querySelector('[aria-selected=true]').id") == "tab-memory"
    browser.run("history.back()")
    browser.waited("document.querySelector('[aria-selected=true]').id === 'tab-kernels'")


def test_search_counts_slices_and_marks_them(opened: Browser) -> None:
    pressed(opened, "Escape")
    opened.waited(f"{PINK} === 0")
    typed(opened, "#find", "nccl")
    assert opened.waited("document.querySelector('#found').textContent").startswith("240 slices")
    assert opened.waited(PINK) > 100


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


def test_every_finding_leads_to_places_that_exist() -> None:
    source = (Path(html.__file__).parent / "js" / "places.js").read_text()
    named = set(re.findall(r'"([a-z-]+)": (?:\{|COMM|LATE)', source))
    assert named == set(FINDING_IDS)
    sections = set(re.findall(r'rows: \["([a-z-]+)"', source)) | set(re.findall(r'section: "([a-z-]+)"', source))
    assert sections <= set().union(*TABS.values())


def test_another_step_can_be_picked_and_a_rank_marked(opened: Browser) -> None:
    assert text(opened, "#timeline h2").startswith("Step 100, 8 ranks")
    changed(opened, "#step-picker", "103")
    assert text(opened, "#timeline h2").startswith("Step 103, 8 ranks")
    opened.run("document.dispatchEvent(new CustomEvent('show-rank', {detail: 2}))")
    assert text(opened, "#timeline .said") == "rank 2 is marked"


def test_a_click_on_a_kernel_shows_its_launch(opened: Browser) -> None:
    opened.run(
        f"const c = {CANVAS}, b = c.getBoundingClientRect(); c.setPointerCapture = () => {{}};"
        "for (let x = b.left + 120; x < b.right && !document.querySelector('#timeline .detail table'); x += 3)"
        "for (const type of ['pointerdown', 'pointerup'])"
        "c.dispatchEvent(new PointerEvent(type, {clientX: x, clientY: b.top + 8, pointerId: 1}))"
    )
    detail = text(opened, "#timeline .detail")
    assert ("aten::mm" in detail and "model.py:31" in detail) or "aten::add" in detail
    assert "before it began" in detail and "this step, rank 0" in detail


def test_switches_replay_the_step(opened: Browser) -> None:
    said = "#what-if .switched"
    assert text(opened, said).startswith("261 ms → 238 ms per step, saves 23 ms (8.9 %)")
    for k, saving in ((1, "saves 30 ms"), (2, "saves 36 ms")):
        opened.run(f"document.querySelectorAll('#what-if .switch input')[{k}].click()")
        assert saving in text(opened, said)
    assert "261 ms → 225 ms" in text(opened, "#more-findings")


def test_pictures_have_tooltips_and_tables(opened: Browser) -> None:
    opened.show("ranks")
    opened.run(
        "const r = document.querySelector('#traffic svg rect'); const b = r.getBoundingClientRect();"
        "r.dispatchEvent(new MouseEvent('mousemove', {clientX: b.left + 2, clientY: b.top + 2, bubbles: true}))"
    )
    assert "waits for rank" in text(opened, ".tip")
    opened.unfold()
    for section in ("run-steps", "traffic", "kernel-pictures"):
        assert opened.run(f"return document.querySelectorAll('#{section} details table tbody tr').length") > 2


def test_the_icicle_is_over_lines_or_modules_and_by_other_times(opened: Browser) -> None:
    opened.show("code")
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


def test_a_page_without_findings_and_owners_says_what_is_missing(browser: Browser, tmp_path: Path) -> None:
    document = report(ranks=2, steps=3)
    document |= {"code": [], "modules": [], "findings": [], "findings_combined": [], "memory": None, "memory_steps": []}
    document["details"] |= {"code_trees": None, "what_if": None}
    document["run"]["failure"] = "out of memory"
    path = tmp_path / "page.html"
    timeline = constructed_timeline(ranks=2, steps=3, slices_per_rank=20)
    path.write_text(page_of(page_data(document, timeline)).html)
    browser.console()
    browser.open(path)
    assert text(browser, ".sentence") == "Nothing worth fixing was found (compute-bound)."
    assert text(browser, ".banner") == "The job failed: out of memory."
    assert "No rule judges a line" in text(browser, "#findings")
    for tab, hint in (("code", "were not recorded"), ("memory", "record with --memory")):
        browser.show(tab)
        assert hint in text(browser, f"#{tab}")
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
    assert path.write_text(constructed_page(ranks=1024, steps=1000)) < 5_000_000
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
    (path := tmp_path / "page.html").write_text(hostile_page())
    browser.requests(), browser.console()
    browser.open(path)
    browser.unfold()
    typed(browser, "#find", "<")
    assert browser.run("return window.ran === undefined")
    assert browser.run("return document.querySelectorAll('img, script').length") == 2
    assert HOSTILE[0] in browser.run("return document.querySelector('h1').textContent")
    assert browser.console() == []
    assert [url for url in browser.requests() if not url.startswith("file:")] == []


def hostile_page() -> str:
    """Return a page with hostile text in every field that holds text."""
    timeline = constructed_timeline(ranks=4, steps=3, slices_per_rank=30)
    assert timeline.slices is not None
    names = tuple(HOSTILE[i % len(HOSTILE)] for i in range(len(timeline.slices.names)))
    matched = replace(timeline.slices.matched, what=(HOSTILE[1],) * len(timeline.slices.matched.what))
    slices = replace(timeline.slices, names=names, matched=matched, notes=HOSTILE)
    document = spoiled(report(ranks=4, steps=3))
    return page_of(page_data(document, replace(timeline, slices=slices))).html


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


def text(browser: Browser, where: str) -> str:
    return str(browser.run(f"return document.querySelector({where!r}).textContent"))


def test_consecutive_steps_share_one_timeline(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(load(Path(__file__).parents[1] / "data" / "gloo-ddp").to_html())
    browser.open(tmp_path / "page.html")
    browser.show("timeline")
    assert browser.run("return [...document.querySelectorAll('#step-picker option')].at(-1).value") == "all"
    browser.run(
        "const p = document.querySelector('#step-picker'); p.value = 'all'; p.dispatchEvent(new Event('change'))"
    )
    assert browser.waited("document.querySelector('#timeline h2').textContent").startswith("Steps 2 to 5")
    assert browser.console() == []
