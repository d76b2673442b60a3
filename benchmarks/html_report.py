"""How large is the HTML report of a large run, and how long does a browser take to draw, zoom and pan it?

    python benchmarks/html_report.py                     64 ranks x 50 steps, and 1,024 ranks x 1,000 steps
    python benchmarks/html_report.py --write page.html   the first page, to look at

The runs are constructed (`tests/report/constructed.py`), with every section and picture. Times of the main thread are
its CPU time, which other jobs of the machine do not lengthen by their own; the time after opening is the wall's. Needs
chromium and chromedriver.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.report.browser import Browser
from tests.report.constructed import constructed

from stepscope.report.html.page import page_of


def main() -> None:
    """Print size, drawing and zooming of both runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="write the page of 64 ranks there and stop")
    args = parser.parse_args()
    if args.write:
        args.write.write_text(page_of(constructed(ranks=64, steps=50)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for ranks, steps in ((64, 50), (1024, 1000)):
            begin = time.process_time()
            text = page_of(constructed(ranks=ranks, steps=steps))
            made_s = time.process_time() - begin
            path = Path(folder, f"{ranks}.html")
            path.write_text(text)
            with Browser(Path(folder, f"profile{ranks}")) as browser:
                browser.count_main_thread()
                browser.open(path)
                cpu_ms = browser.main_thread_ms()
                drawn_ms = float(browser.run("return document.documentElement.dataset.readyMs"))
                first_ms = browser.run("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
                browser.run(
                    "document.querySelector('#timeline').scrollIntoView({behavior: 'instant'});"
                    "return new Promise((done) => requestAnimationFrame(() => setTimeout(done, 300)))"
                )
                moves = [moved(browser, key) for key in "w" * 8 + "d" * 8 + "s" * 8]
            print(
                f"{ranks} ranks x {steps} steps: {len(text) / 1e3:,.0f} kB, made in {made_s:.1f} s of CPU; drawn in "
                f"{cpu_ms:,.0f} ms of CPU, {drawn_ms:,.0f} ms after opening, the first of it after {first_ms:,.0f} ms; "
                f"zoom and pan {np.median([cpu for cpu, _ in moves]):.0f} ms of CPU (most {max(moves)[0]:.0f}), "
                f"{np.median([wall for _, wall in moves]):.0f} ms to draw"
            )


def moved(browser: Browser, key: str) -> tuple[float, float]:
    """Return the main thread's CPU time of one zoom or pan, and how long drawing took, in milliseconds."""
    canvas = "document.querySelector('#timeline canvas')"
    before = browser.main_thread_ms()
    press = f"{canvas}.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))"
    browser.run(f"delete {canvas}.dataset.drawMs; {press}")
    wall = float(browser.waited(f"{canvas}.dataset.drawMs"))
    return browser.main_thread_ms() - before, wall


if __name__ == "__main__":
    main()
