"""Make the pictures of the README and the gallery from real runs; or one of every page at every width, to look at.

    python tools/make_pictures.py CORPUS                   docs/images
    python tools/make_pictures.py CORPUS --every FOLDER    every page at 390, 1400 and 2560 px, light, dark and printed
    python tools/make_pictures.py CORPUS --every FOLDER --only ddp compare

CORPUS is a folder with the runs that `tools/pictures/every_page.py` names; what is not there is taken from
`tests/data`. Needs chromium and chromedriver.
"""

import argparse
import io
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.report.browser import Browser
from tools.pictures.every_page import RUNS, analysed, page_makers, served_pages
from tools.pictures.small_png import small_png

from stepscope.analysis import Analysis
from stepscope.report.text.summary import print_summary

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTHS = (390, 1400, 2560)
SCHEMES = ("light", "dark")
PAPER = 760
"""how wide a page is on paper, in CSS pixels"""
GALLERY = (1180, 720)
README_WIDTH = 1180
TALLEST = 16_000
"""of one picture: a browser draws no more at once"""


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--every", type=Path, metavar="FOLDER", help="one picture of every page at every width there")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="with --every: these pages")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Browser(Path(folder, "profile")) as browser:
        if args.every:
            write_every(browser, args.corpus, Path(folder), args.every, args.only)
        else:
            write_docs(browser, args.corpus, Path(folder))


def write_docs(browser: Browser, corpus: Path, folder: Path) -> None:
    """Write the pictures that the docs show."""
    straggler = analysed(corpus, RUNS["ddp"])
    (IMAGES / "terminal.svg").write_text(terminal_svg(straggler))
    page = folder / "page.html"
    page.write_text(straggler.to_html())
    save(browser, IMAGES / "report.png", part_of(browser, page, "#waterfall", scheme="light"))
    save(browser, IMAGES / "timeline.png", part_of(browser, page, "#timeline", scheme="dark", first="#heatmap"))
    browser.prefer("light")
    makers = page_makers(corpus, folder)
    for name in (*RUNS, "compare"):
        page.write_text(makers[name]())
        browser.size(*GALLERY)
        browser.open(page)
        hide_scrollbars(browser)
        save(browser, IMAGES / "gallery" / f"{name}.png", browser.picture())


def save(browser: Browser, path: Path, png: bytes) -> None:
    """Write a small picture and say how large it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(small_png(browser, png))
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


def terminal_svg(analysis: Analysis) -> str:
    """Return the summary as a terminal of 100 columns shows it; no font is fetched from anywhere."""
    out = Console(record=True, width=100, force_terminal=True, highlight=False, file=io.StringIO())
    name = analysis.account.run.name
    print_summary(analysis.account, analysis.diagnosis, out, given=[name])
    svg = out.export_svg(title=f"stepscope report {name}")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def part_of(browser: Browser, page: Path, last: str, *, scheme: str, first: str = "body") -> bytes:
    """Return the page from one section to another as PNG."""
    browser.size(README_WIDTH, 1000)
    browser.prefer(scheme)
    browser.open(page)
    edge = "Math.round(document.querySelector('{}').getBoundingClientRect().{} + scrollY)"
    top, bottom = (browser.run(f"return {edge.format(*where)}") for where in ((first, "top"), (last, "bottom")))
    margin = 0 if first == "body" else 84  # below the list of sections
    browser.size(README_WIDTH, bottom - top + 16 + margin)
    hide_scrollbars(browser)
    browser.run(f"scrollTo({{top: {top - margin}, behavior: 'instant'}})")
    return browser.picture()


def hide_scrollbars(browser: Browser) -> None:
    """Take scrollbars out of the picture and wait until it is drawn."""
    browser.run(
        "document.documentElement.style.scrollbarWidth = 'none';"
        "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def write_every(browser: Browser, corpus: Path, folder: Path, into: Path, only: list[str] | None) -> None:
    """Write pictures of every page, as long as it is."""
    into.mkdir(parents=True, exist_ok=True)
    for name, make in page_makers(corpus, folder).items():
        if only and name not in only:
            continue
        page = folder / f"{name}.html"
        page.write_text(make())
        write_widths(browser, page.resolve().as_uri(), name, into)
        browser.media("print")
        picture_whole(browser, page.resolve().as_uri(), PAPER, into / f"{name}-print.png")
        browser.media("")
    with served_pages(corpus, folder) as urls:
        for name, url in urls.items():
            if not only or name in only:
                write_widths(browser, url, name, into)


def write_widths(browser: Browser, url: str, name: str, into: Path) -> None:
    """Write one page at every width, light and dark."""
    for scheme in SCHEMES:
        browser.prefer(scheme)
        for width in WIDTHS:
            picture_whole(browser, url, width, into / f"{name}-{width}-{scheme}.png")
    print(name, *browser.console())


def picture_whole(browser: Browser, url: str, width: int, path: Path) -> None:
    """Write a page of that width in its whole length."""
    browser.size(width, 1000)
    browser.go("about:blank")
    browser.go(url)
    other = "#grid td, #view-report:not([hidden]), meta[http-equiv=refresh]"
    drawn = f"document.documentElement.dataset.readyMs || document.querySelector('{other}')"
    browser.waited(f"document.readyState === 'complete' && ({drawn})")
    inside = "document.querySelector('#view-report:not([hidden])')"
    browser.waited(f"!{inside} || {inside}.contentDocument.documentElement.dataset.readyMs")
    height = browser.run("return document.documentElement.scrollHeight")
    browser.size(width, min(TALLEST, max(600, height)))
    hide_scrollbars(browser)
    path.write_bytes(browser.picture())


if __name__ == "__main__":
    main()
