"""The page in a real browser: it draws, answers to mouse and keyboard, asks for nothing, and runs no name."""

import re
import time
from collections.abc import Iterator, Sequence
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
BACKGROUND = "return getComputedStyle(document.body).backgroundColor"
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


def test_canvases_hold_a_picture(opened: Browser) -> None:
    colours = opened.run(
        "return ['#heatmap', '#timeline'].map((id) => { const c = document.querySelector(id + ' canvas');"
        "return new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size })"
    )
    assert min(colours) > 10


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


def test_evidence_leads_to_the_rank_in_the_timeline(opened: Browser) -> None:
    opened.run("document.querySelector('#findings .chip').click()")
    assert opened.run("return document.querySelector('#timeline .said').textContent") == "rank 5 is marked"


def test_evidence_leads_to_the_worst_step_in_the_heatmap(opened: Browser) -> None:
    clicked(opened, "#findings .places .chip", "rank 5, step 1")
    assert opened.run("return document.querySelector('#heatmap .said').textContent").startswith("rank 5, step 1")
    assert opened.run("return document.querySelector('#heatmap select').value") == "own"
    assert opened.waited("scrollY > 0")  # scrolling takes a moment


def test_evidence_leads_to_kinds_of_slices_and_rows_of_tables(opened: Browser) -> None:
    opened.run("document.dispatchEvent(new CustomEvent('show-kinds', {detail: ['transfer']}))")
    assert opened.waited("document.querySelector('#found').textContent").startswith("240 slices")
    opened.run("document.dispatchEvent(new CustomEvent('show-rows', {detail: ['kernels', 'rotary']}))")
    assert opened.run("return document.querySelectorAll('#kernels tbody tr').length") == 1
    opened.run("document.dispatchEvent(new CustomEvent('show-rows', {detail: ['kernels', 'no such kernel']}))")
    assert opened.run("return document.querySelectorAll('#kernels tbody tr').length") == 9


def test_every_finding_leads_to_places_that_exist(opened: Browser) -> None:
    source = (Path(html.__file__).parent / "js" / "places.js").read_text()
    named = set(re.findall(r'"([a-z-]+)":', source))
    assert len(named) > 15
    assert named <= set(FINDING_IDS)
    sections = set(re.findall(r'\["(collectives|kernels|operators|idle)", ', source)) | {"strategy", "memory", "trust"}
    assert sections <= set(SECTIONS)


def test_metric_and_order_of_the_heatmap_can_be_chosen(opened: Browser) -> None:
    metric, order = "#heatmap label:nth-of-type(1) select", "#heatmap label:nth-of-type(2) select"
    options = opened.run(f"return [...document.querySelectorAll({metric!r} + ' option')].map((o) => o.value)")
    assert {"step", "own", "compute", "wait", "transfer", "input"} <= set(options)
    changed(opened, metric, "input")
    changed(opened, order, "host")
    assert reached(opened, "ArrowDown").startswith("rank 2, step 100: ")
    changed(opened, order, "value")
    # the rank that stalls on its input, of eight: 12 % 8
    assert reached(opened, "ArrowRight").startswith("rank 4, step 101: ")


def test_slices_are_read_out_by_key(opened: Browser) -> None:
    said = "return document.querySelector('#timeline .said').textContent"
    pressed(opened, ".", ".")
    second = opened.run(said)
    assert "rank 0" in second
    pressed(opened, ",")
    assert opened.run(said) != second
    pressed(opened, "ArrowDown")
    assert "rank 1" in opened.run(said)
    pressed(opened, "Escape")
    assert opened.run(said) == ""


def test_search_goes_from_match_to_match(opened: Browser) -> None:
    typed(opened, "#find", "nccl")
    seen = []
    for _ in range(3):
        opened.run("document.querySelector('#find').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))")
        seen.append(opened.run("return document.querySelector('#timeline .said').textContent"))
    assert len(set(seen)) == 3
    assert all("nccl" in line for line in seen)


def test_arrows_between_matched_collectives_are_drawn(opened: Browser) -> None:
    pixels = f"[...new Uint8Array({CANVAS}.getContext('2d').getImageData(0, 0, {CANVAS}.width, {CANVAS}.height).data)]"
    total = f"return {pixels}.reduce((sum, v) => sum + v, 0)"
    before = opened.run(total)
    opened.run(f"delete {CANVAS}.dataset.drawMs; document.querySelector('#timeline input[type=checkbox]').click()")
    opened.waited(f"{CANVAS}.dataset.drawMs")
    assert opened.run(total) != before


def test_cards_and_contents_lead_to_sections(opened: Browser) -> None:
    missing = (
        "return [...document.querySelectorAll('a.card[href], nav.contents a')]"
        ".filter((a) => !document.getElementById(a.hash.slice(1))).map((a) => a.hash)"
    )
    assert opened.run(missing) == []
    assert opened.run("return document.querySelectorAll('nav.contents a').length") == len(SECTIONS)


def test_everything_that_can_be_operated_has_a_name_and_takes_the_focus(opened: Browser) -> None:
    nameless = (
        "const named = (e) => e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length;"
        "return [...document.querySelectorAll('button, a[href], input, select, canvas, svg, [tabindex]')]"
        ".filter((e) => !named(e)).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert opened.run(nameless) == []
    assert opened.run("return [...document.querySelectorAll('canvas')].every((c) => c.tabIndex === 0)")
    assert opened.run("return document.querySelectorAll('[aria-live]').length") >= 2


@pytest.mark.parametrize("width", [360, 700])
def test_narrow_window_needs_no_sideways_scrolling(opened: Browser, width: int) -> None:
    opened.size(width, 900)
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert opened.run(wide) == 0
    opened.size(1280, 1000)


def test_arrow_keys_read_out_the_cells_of_the_heatmap(opened: Browser) -> None:
    assert reached(opened, "ArrowDown", "ArrowRight").startswith("rank 1, step 101: ")


def test_the_icicle_is_walked_and_zoomed_by_key(opened: Browser) -> None:
    assert focused(opened, "#code [role=treeitem]").startswith("whole step: host time 212 ms")
    assert focused(opened, keys=["ArrowDown"]).startswith("train.py:40  main: host time 210 ms (99.1 %)")
    assert focused(opened, keys=["ArrowDown", "ArrowRight"]).startswith("model.py:31  forward")
    said = focused(opened, keys=["ArrowLeft"])
    assert said.startswith("train.py:43  step: host time 120 ms") and "the step without it saves 90" in said
    share = "Math.round(100 * document.activeElement.offsetWidth / document.querySelector('#code .icicle').offsetWidth)"
    assert opened.run(f"return {share}") == round(100 * 120 / 212)
    focused(opened, keys=["Enter"])
    assert opened.waited(f"{share} === 100")
    focused(opened, keys=["Escape"])
    assert opened.run("return document.activeElement.textContent") == "whole step"


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


def test_a_click_zooms_into_a_module_and_out_again(opened: Browser) -> None:
    changed(opened, "#code label:nth-of-type(1) select", "modules")
    at = "[...document.querySelectorAll('#code .icicle [role=treeitem]')].find((e) => e.textContent === 'layers')"
    narrow = opened.run(f"return {at}.offsetWidth")
    opened.run(f"{at}.click()")
    assert opened.run(f"return {at}.offsetWidth") > narrow
    opened.run(f"{at}.click()")
    assert opened.run(f"return {at}.offsetWidth") == narrow


def test_lines_are_listed_with_what_they_save(opened: Browser) -> None:
    rows = opened.run(
        "return [...document.querySelectorAll('#code [aria-label=lines] tbody tr')].map((r) => r.innerText)"
    )
    assert rows[0].startswith("train.py:43") and "source not kept" in rows[0] and "90.0 ms" in rows[0]
    assert rows[1].startswith("model.py:31 to 33") and "x = x + self.up(x)" in rows[1]


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


def test_theme_is_kept_on_reload(opened: Browser, tmp_path: Path) -> None:
    light = opened.run(BACKGROUND)
    opened.run("document.querySelector('#theme').click()")
    dark = opened.run(BACKGROUND)
    for _ in range(10):  # the browser stores it when it gets to it
        opened.open(tmp_path / "page.html")
        if opened.run(BACKGROUND) == dark:
            break
        time.sleep(0.2)
    assert opened.run(BACKGROUND) == dark != light
    opened.run("localStorage.clear()")
    opened.open(tmp_path / "page.html")
    assert opened.run(BACKGROUND) == light


def test_ticks_are_round(opened: Browser) -> None:
    ticks = opened.run("return [...document.querySelectorAll('#steps svg .axis.end')].map((t) => t.textContent)")
    steps = [float(text.split()[0]) for text in ticks]
    assert steps[0] == 0 and 3 <= len(steps) <= 6
    assert str(steps[1]).replace(".", "").strip("0") in ("1", "2", "25", "5")


@pytest.mark.parametrize("width", [1400, 2560])
@pytest.mark.parametrize("has_flops", [True, False])
def test_letters_of_pictures_are_no_larger_than_the_text(
    browser: Browser, tmp_path: Path, width: int, has_flops: bool
) -> None:
    data = constructed(ranks=2, steps=6, slices_per_rank=20)
    path = tmp_path / "page.html"
    path.write_text(page_of(data if has_flops else replace(data, report={**data.report, "waterfall": []})))
    browser.size(width, 900)
    browser.open(path)
    letters = "const svg = document.querySelector('#steps svg');"
    scale = "svg.getBoundingClientRect().width / svg.viewBox.baseVal.width"
    px = browser.run(f"{letters} return parseFloat(getComputedStyle(svg.querySelector('.axis')).fontSize) * {scale}")
    browser.size(1280, 1000)
    assert 8 <= px <= 17


def test_wide_window_is_used(opened: Browser) -> None:
    opened.size(2560, 1000)
    assert opened.run("return document.querySelector('main').clientWidth") > 2000
    opened.size(1280, 1000)


def test_nothing_is_cut_off_on_paper(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(constructed(ranks=8, steps=20, slices_per_rank=90)))
    browser.size(760, 1000)
    browser.media("print")
    try:
        browser.open(path)
        wide = browser.run(
            "return [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
            ".map((e) => e.getAttribute('aria-label'))"
        )
        shown = browser.run("return getComputedStyle(document.querySelector('nav.contents')).display")
    finally:
        browser.media("")
        browser.size(1280, 1000)
    assert (wide, shown) == ([], "none")


def test_long_words_of_a_remedy_are_broken(browser: Browser, tmp_path: Path) -> None:
    data = constructed(ranks=2, steps=3, slices_per_rank=20)
    first, *others = data.report["findings"]
    report = {**data.report, "findings": [{**first, "remedy": "MixedPrecisionPolicy" * 8}, *others]}
    path = tmp_path / "page.html"
    path.write_text(page_of(replace(data, report=report)))
    browser.size(390, 900)
    browser.open(path)
    wide = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    browser.size(1280, 1000)
    assert wide == 0


def test_one_rank_has_neither_a_heatmap_nor_a_mean_over_ranks(browser: Browser, tmp_path: Path) -> None:
    data = constructed(ranks=1, steps=3, slices_per_rank=20)
    path = tmp_path / "page.html"
    path.write_text(page_of(replace(data, report={**data.report, "run": {**data.report["run"], "num_ranks": 1}})))
    browser.console()
    browser.open(path)
    assert browser.run("return document.querySelector('#heatmap') === null")
    for section in ("steps", "budget", "kernels"):
        assert "ean over ranks" not in browser.run(f"return document.querySelector('#{section}').textContent")
    assert browser.console() == []


def test_search_finds_kernels_by_their_family(browser: Browser, tmp_path: Path) -> None:
    data = constructed(ranks=2, steps=3, slices_per_rank=90)
    path = tmp_path / "page.html"
    assert data.slices is not None
    kernel = {**data.report["kernels"][0], "name": data.slices.names[0], "family": "zebra"}
    path.write_text(page_of(replace(data, report={**data.report, "kernels": [kernel]})))
    browser.open(path)
    typed(browser, "#find", "zebra")
    found = browser.waited("document.querySelector('#found').textContent")
    assert int(found.split()[0].replace(",", "")) > 0


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


def reached(browser: Browser, *keys: str) -> str:
    """Return what the heatmap reads out after these keys."""
    browser.run(
        f"for (const key of {list(keys)!r})"
        "document.querySelector('#heatmap canvas').dispatchEvent(new KeyboardEvent('keydown', {key}))"
    )
    return str(browser.run("return document.querySelector('#heatmap .said').textContent"))


def focused(browser: Browser, where: str = "", keys: Sequence[str] = ()) -> str:
    """Return what the icicle reads out once an element has the focus and keys were pressed there."""
    if where:
        browser.run(f"document.querySelector({where!r}).focus()")
    for key in keys:
        browser.run(
            f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{key: {key!r}, bubbles: true}}))"
        )
    return str(browser.run("return document.querySelector('#code .said').textContent"))


def clicked(browser: Browser, where: str, text: str) -> None:
    found = f"[...document.querySelectorAll({where!r})].find((e) => e.textContent.startsWith({text!r}))"
    assert browser.run(f"const button = {found}; if (button) button.click(); return Boolean(button)")


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
