"""Make the pictures of the README from a run: the summary on a terminal, the top of the report, its timeline.

    python tools/make_pictures.py RUN --unprofiled-step-ms X

Needs chromium and chromedriver.
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

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.findings import Diagnosis, diagnose
from stepscope.report.html import render_html
from stepscope.report.text.summary import print_summary
from stepscope.run.load import load

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH = 1180


def main() -> None:
    """Write the pictures into `docs/images`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--unprofiled-step-ms", type=float)
    args = parser.parse_args()
    account = account_of(load(args.run), unprofiled_ms=args.unprofiled_step_ms)
    diagnosis = diagnose(account)
    (IMAGES / "terminal.svg").write_text(terminal_svg(account, diagnosis))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = Path(folder, "report.html")
        page.write_text(render_html(account, diagnosis))
        with Browser(Path(folder, "profile")) as browser:
            (IMAGES / "report.png").write_bytes(pictured(browser, page, "#steps", scheme="light"))
            (IMAGES / "timeline.png").write_bytes(pictured(browser, page, "#timeline", scheme="dark", first="#heatmap"))


def terminal_svg(account: Account, diagnosis: Diagnosis) -> str:
    """Return the summary as a terminal of 100 columns shows it; no font is fetched from anywhere."""
    out = Console(record=True, width=100, force_terminal=True, highlight=False, file=io.StringIO())
    print_summary(account, diagnosis, out, given=[account.run.name])
    svg = out.export_svg(title=f"stepscope report {account.run.name}")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def pictured(browser: Browser, page: Path, last: str, *, scheme: str, first: str = "body") -> bytes:
    """Return the page from one section to another as PNG."""
    browser.size(WIDTH, 1000)
    browser.prefer(scheme)
    browser.open(page)
    edge = "Math.round(document.querySelector('{}').getBoundingClientRect().{} + scrollY)"
    top, bottom = (browser.run(f"return {edge.format(*where)}") for where in ((first, "top"), (last, "bottom")))
    margin = 0 if first == "body" else 60
    browser.size(WIDTH, bottom - top + 16 + margin)
    browser.run(f"document.documentElement.style.scrollbarWidth = 'none'; scrollTo(0, {top - margin})")
    return browser.picture()


if __name__ == "__main__":
    main()
