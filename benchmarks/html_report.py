"""How large is the HTML report of a large run, and how quickly does a browser draw and zoom it?

    python benchmarks/html_report.py                     64 ranks x 50 steps, and 1,024 ranks x 1,000 steps
    python benchmarks/html_report.py --write page.html   the first page, to look at

The runs are constructed (`tests/report/constructed.py`). Needs chromium and chromedriver.
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
                browser.open(path)
                drawn_ms = float(browser.run("return document.documentElement.dataset.readyMs"))
                zooms = [browser.zoom() for _ in range(8)]
            print(
                f"{ranks} ranks x {steps} steps: {len(text) / 1e3:,.0f} kB, made in {made_s:.1f} s, "
                f"drawn {drawn_ms:,.0f} ms after opening, zoom {np.median(zooms):.0f} ms (slowest {max(zooms):.0f})"
            )


if __name__ == "__main__":
    main()
