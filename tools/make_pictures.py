"""Make the pictures of the README and the gallery from real runs; or one of every page at every width, to look at.

    python tools/make_pictures.py CORPUS                   docs/images
    python tools/make_pictures.py CORPUS --every FOLDER    every page at 390, 1400 and 2560 px, light, dark and printed
    python tools/make_pictures.py CORPUS --every FOLDER --only ddp compare

CORPUS is a folder with the runs that `RUNS` and `COMPARED` name; what is not there is taken from
`tests/data`. Needs chromium and chromedriver.
"""

import argparse
import base64
import io
import json
import re
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.analyze.live.runs import claim, line
from tests.analyze.step_logs import write_log
from tests.report.browser import Browser
from tests.report.constructed import constructed_page
from tests.report.pages import all_pages, light_run, light_sheet

from stepscope.analysis import Analysis, load
from stepscope.cli.watch import LiveSite
from stepscope.report.html.sheets import sheet_page
from stepscope.report.pages.history import RunEntry, runs_sheet
from stepscope.report.summary import summary_text
from stepscope.report.view.server import Site, local_server
from stepscope.report.view.site import ViewSite
from stepscope.tables.catalog import LogTables, RunTables

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RUNS = {
    "ddp": "ddp_host_straggler_rank2",
    "fsdp2": "fsdp2_zero3",
    "pipeline": "pp4_1f1b_m4",
    "moe": "moe_ep_skewed",
    "single": "naive_attention",
    "serving": "foreign-amd/vllm.json.gz",
    "loader": "slow_dataloader_cpu",
    "precision": "fp32_no_tensor_cores",
    "launch": "launch_bound_tiny",
    "tensor": "tp4_mlp",
}
"""recordings by what they show, in the corpus or in `tests/data`"""
#: shown first on the pages: source lines and a planted fault
HERO = "tutorial/slow"
COMPARED = ("ddp_host_straggler_rank2", "ddp_healthy")
CPU_RUNS = {"gloo": "gloo-ddp", "mesh": "gloo-mesh"}
# The browser reads the picture: its commonest colours, those least like them, and for every pixel the nearest of all.
_FEWER_COLOURS = """
const image = new Image();
image.src = 'data:image/png;base64,' + arguments[0];
return image.decode().then(() => {
  const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const count = new Map();
  for (const p of pixels) count.set(p, (count.get(p) ?? 0) + 1);
  const parts = (p) => [p & 255, (p >> 8) & 255, (p >> 16) & 255];
  const byCount = [...count].sort((a, b) => b[1] - a[1]).map(([p]) => p);
  const kept = byCount.slice(0, 128);
  const others = byCount.slice(128, 4000).map((p) => ({ p, own: parts(p), off: Infinity }));
  const far = ([r, g, b], [x, y, z]) => (r - x) ** 2 + (g - y) ** 2 + (b - z) ** 2;
  const keep = (p) => others.forEach((o) => (o.off = Math.min(o.off, far(o.own, parts(p)))));
  kept.forEach(keep);
  // Then, one after the other, whatever is least like those: thin lines are rare and must keep their colours.
  while (kept.length < 256 && others.some((o) => o.off > 0)) {
    const next = others.reduce((a, b) => (b.off > a.off ? b : a));
    kept.push(next.p);
    keep(next.p);
  }
  const colours = kept.map(parts), place = new Map(kept.map((p, i) => [p, i]));
  const nearest = (p) => {
    const own = parts(p);
    let best = 0, least = Infinity;
    colours.forEach((colour, i) => {
      const off = far(own, colour);
      if (off < least) [best, least] = [i, off];
    });
    place.set(p, best);
    return best;
  };
  const out = new Uint8Array(pixels.length);
  for (let i = 0; i < pixels.length; i++) out[i] = place.get(pixels[i]) ?? nearest(pixels[i]);
  let text = '';
  for (let i = 0; i < out.length; i += 8192) text += String.fromCharCode(...out.subarray(i, i + 8192));
  return [image.width, image.height, colours.flat(), btoa(text)];
});
"""
WIDTHS = (390, 1400, 2560)
SCHEMES = ("light", "dark")
PAPER = 760
"""how wide a page is on paper, in CSS pixels"""
GALLERY_SIZE = (1400, 900)
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
    hero = analysed(corpus, HERO)
    (IMAGES / "terminal.svg").write_text(terminal_svg(hero, SVG_EXPORT_THEME))
    page = folder / "page.html"
    page.write_text(hero.to_html())
    save(browser, IMAGES / "report.png", part_of(browser, page, "#timeline", scheme="light"))
    browser.prefer("light")
    browser.size(*GALLERY_SIZE)
    makers = page_makers(corpus, folder)
    for name in (*RUNS, "compare"):
        if name in RUNS:
            svg = terminal_svg(analysed(corpus, RUNS[name]), DEFAULT_TERMINAL_THEME)
            (IMAGES / "gallery" / f"{name}-terminal.svg").write_text(svg)
        page.write_text(makers[name]())
        browser.open(page)
        hide_scrollbars(browser)
        save(browser, IMAGES / "gallery" / f"{name}.png", browser.picture())


def save(browser: Browser, path: Path, png: bytes) -> None:
    """Write a small picture and say how large it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(small_png(browser, png))
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


def terminal_svg(analysis: Analysis, theme: TerminalTheme) -> str:
    """Return the summary as a terminal of 80 columns shows it; no font is fetched from anywhere."""
    out = Console(record=True, width=80, force_terminal=True, highlight=False, file=io.StringIO())
    name = analysis.account.run.name
    out.print(Text.from_ansi(summary_text(analysis.document, command=[name], colour=True)))
    svg = out.export_svg(title=f"stepscope report {name}", theme=theme)
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def part_of(browser: Browser, page: Path, last: str, *, scheme: str, tab: str = "summary") -> bytes:
    """Return a tab of the page from the top to the end of a section as PNG."""
    browser.size(README_WIDTH, 1000)
    browser.prefer(scheme)
    browser.open(page)
    browser.show(tab)
    bottom = browser.run(
        f"return Math.round(document.querySelector('{last}').getBoundingClientRect().bottom + scrollY)"
    )
    browser.size(README_WIDTH, bottom + 16)
    hide_scrollbars(browser)
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


# Pages


def found(corpus: Path, run: str) -> Path:
    """Return where a recording is."""
    place = corpus / run
    return place if place.exists() else ROOT / "tests" / "data" / run


def analysed(corpus: Path, run: str) -> Analysis:
    """Return a recording with the step time that was measured without the profiler, where that was written down."""
    folder = found(corpus, run)
    truth = folder / "truth.json"
    known = json.loads(truth.read_text()).get("step_ms_unprofiled") if folder.is_dir() and truth.is_file() else None
    return load(folder, unprofiled_step_ms=known)


def page_makers(corpus: Path, folder: Path) -> dict[str, Callable[[], str]]:
    """Return what makes each page that is one file, by its name."""
    constructed_pages: dict[str, str] = {}

    def of_tests(name: str) -> str:
        if not constructed_pages:
            with redirect_stdout(io.StringIO()):  # the commands among them say what they found
                constructed_pages.update(all_pages(folder))
        return constructed_pages[name]

    names = ("bench", "scaling", "collectives", "calibration", "light")
    predicted = ("predict-flops", "predict-memory", "predict-strategy", "predict-collective")
    return {
        **{name: partial(_report, corpus, run) for name, run in {**RUNS, **CPU_RUNS}.items()},
        "large": lambda: constructed_page(ranks=64, steps=50),
        "owners": lambda: constructed_page(ranks=8, steps=20, slices_per_rank=90),
        "compare": lambda: analysed(corpus, COMPARED[0]).compare(analysed(corpus, COMPARED[1])).to_html(),
        "compare-owners": lambda: of_tests("compare"),
        "runs": lambda: sheet_page(runs_sheet("recordings", _entries(corpus))),
        **{name: partial(of_tests, name) for name in (*names, *predicted)},
    }


def _report(corpus: Path, run: str) -> str:
    return analysed(corpus, run).to_html()


def _entries(corpus: Path) -> list[RunEntry]:
    read = [RunEntry(run, None, analysed(corpus, run).document) for run in list(RUNS.values())[:5]]
    return [*read, RunEntry("broken", None, None, "no traces")]


@contextmanager
def served_pages(corpus: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Yield the addresses of the pages that are served, by their names."""
    one = analysed(corpus, RUNS["ddp"])
    light = light_run()
    sites: dict[str, tuple[Site, str]] = {
        "view": (ViewSite(one.account.run.name, one.to_html(), RunTables(one.account.run), bytes), ""),
        "view-light": (
            ViewSite(light.name, sheet_page(light_sheet()), LogTables(light.logs), None, names=LogTables.NAMES),
            "#tab=tables&table=step_log",
        ),
        "live": (LiveSite(str(_running_job(folder / "running-job"))), ""),
    }
    servers = {name: local_server(site) for name, (site, _) in sites.items()}
    for server in servers.values():
        server.start()
    try:
        found_at = {name: server.url + sites[name][1] for name, server in servers.items()}
        yield {**found_at, "view-tables": servers["view"].url + "#tab=tables&table=kernels&sort=-dur_ns"}
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()


def _running_job(folder: Path) -> Path:
    for rank in range(4):
        slow = 14.0 if rank == 2 else 10.0
        write_log(claim(folder, "a"), rank, [line(step, slow) for step in range(200)])
    return folder


# Small pictures


def small_png(browser: Browser, png: bytes) -> bytes:
    """Return a picture with at most 256 colours. The browser leaves its page for it."""
    browser.go("about:blank")
    width, height, colours, text = browser.run(_FEWER_COLOURS, base64.b64encode(png).decode())
    index = np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width)
    lines = np.hstack([np.zeros((height, 1), np.uint8), index]).tobytes()
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(colours)),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


if __name__ == "__main__":
    main()
