"""What the page's pictures do when they are touched: one page, opened once."""

from collections.abc import Iterator

import pytest
from tests.report.browser import Browser, why_no_browser
from tests.report.constructed import constructed

from stepscope.report.html.page import page_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(why_no_browser() is not None, reason=str(why_no_browser())),
]

CANVAS = "document.querySelector('#timeline canvas')"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(page_of(constructed(ranks=4, steps=8, slices_per_rank=90)))
    with Browser(folder / "profile") as browser:
        browser.open(folder / "page.html")
        yield browser
        assert [line for line in browser.console() if "willReadFrequently" not in line] == []  # the tests' own reading


def test_another_step_can_be_picked(page: Browser) -> None:
    assert text(page, "#timeline h2").startswith("Step 100, 4 ranks")
    options = page.run("return [...document.querySelectorAll('#step-picker option')].map((o) => o.value)")
    assert options == [str(n) for n in range(100, 108)]
    picked(page, "103")
    assert text(page, "#timeline h2").startswith("Step 103, 4 ranks")
    page.run("document.dispatchEvent(new CustomEvent('show-rank', {detail: 2}))")
    assert text(page, "#timeline .said") == "rank 2 is marked"
    picked(page, "100")


def test_a_click_on_a_kernel_says_who_launched_it(page: Browser) -> None:
    clicked_until(page, "#timeline .detail table", y=8)
    said = text(page, "#timeline .detail")
    assert ("aten::mm" in said and "layers.3.mlp" in said and "model.py:31" in said) or "aten::add" in said
    assert "before it began" in said and "stream" in said
    rows = page.run("return [...document.querySelectorAll('#timeline .detail tbody tr')].map((r) => r.innerText)")
    assert rows[0].startswith("this step, rank 0") and rows[1].startswith("this step, 4 ranks")
    page.run("document.querySelector('#timeline .detail .chip').click()")
    count = int(text(page, "#found").split()[0].replace(",", ""))
    assert count == int(rows[1].split("\t")[1].replace(",", ""))
    pressed(page, "Escape")


def test_switches_budget_the_step_again(page: Browser) -> None:
    said = "#what-if .switched"
    assert "nothing is switched on" in text(page, said)
    toggled(page, 0)
    assert text(page, said).startswith("261 ms → 238 ms per step, 23.3 ms (8.9 %) less") and "replayed" in text(
        page, said
    )
    toggled(page, 1)
    assert "30.3 ms" in text(page, said) and "replayed together" in text(page, said)
    toggled(page, 2)
    # the first three findings together: the number that stands below the findings
    assert "36.3 ms" in text(page, said)
    assert "All 3 together save 36.3 ms" in text(page, "#findings")
    widths = page.run("return [...document.querySelectorAll('#what-if .path .budget')].map((b) => b.style.width)")
    assert float(widths[1].rstrip("%")) < float(widths[0].rstrip("%")) == 100
    for k in range(3):
        toggled(page, k)
    assert "nothing is switched on" in text(page, said)


def test_pictures_say_what_the_pointer_is_over_and_have_tables(page: Browser) -> None:
    page.run(
        "const r = document.querySelector('#traffic svg rect'); const b = r.getBoundingClientRect();"
        "r.dispatchEvent(new MouseEvent('mousemove', {clientX: b.left + 2, clientY: b.top + 2, bubbles: true}))"
    )
    assert "waits for rank" in text(page, ".tip")
    page.run("document.querySelectorAll('.drawing details').forEach((d) => (d.open = true))")
    page.waited("document.querySelector('#kernel-pictures details table')")
    for section in ("run-steps", "traffic", "kernel-pictures"):
        assert page.run(f"return document.querySelectorAll('#{section} details table tbody tr').length") > 2
    assert "checkpoint" in text(page, "#run-steps") and "profiled" in text(page, "#run-steps")


def text(page: Browser, where: str) -> str:
    return str(page.run(f"return document.querySelector({where!r}).textContent"))


def picked(page: Browser, step: str) -> None:
    page.run(
        f"const box = document.querySelector('#step-picker'); box.value = {step!r};"
        "box.dispatchEvent(new Event('change'))"
    )


def pressed(page: Browser, *keys: str) -> None:
    for key in keys:
        page.run(f"{CANVAS}.dispatchEvent(new KeyboardEvent('keydown', {{key: {key!r}}}))")


def toggled(page: Browser, k: int) -> None:
    page.run(f"document.querySelectorAll('#what-if .switch input')[{k}].click()")


def clicked_until(page: Browser, wanted: str, *, y: int) -> None:
    page.run(
        f"const c = {CANVAS}, b = c.getBoundingClientRect(); c.setPointerCapture = () => {{}};"
        f"for (let x = b.left + 120; x < b.right && !document.querySelector({wanted!r}); x += 3)"
        "for (const type of ['pointerdown', 'pointerup'])"
        f"c.dispatchEvent(new PointerEvent(type, {{clientX: x, clientY: b.top + {y}, pointerId: 1}}))"
    )
    assert page.run(f"return document.querySelector({wanted!r}) !== null")
