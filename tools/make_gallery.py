"""Make the pictures of the gallery from real runs: the top of each report's page, and one comparison.

    python tools/make_gallery.py CORPUS        a folder with the runs that `docs/gallery.md` names

Needs chromium and chromedriver. What is not in the corpus is taken from `tests/data`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.report.browser import Browser

from stepscope.analysis import load

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images" / "gallery"
WIDTH, HEIGHT = 980, 600
RUNS = {
    "ddp": "ddp_host_straggler_rank2",
    "fsdp2": "fsdp2_zero3",
    "pipeline": "pp4_1f1b_m4",
    "moe": "moe_ep_skewed",
    "single": "naive_attention",
    "serving": "foreign-amd/vllm.json.gz",
}
COMPARED = ("ddp_host_straggler_rank2", "ddp_healthy")


def main() -> None:
    """Write the pictures into `docs/images/gallery`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    corpus = parser.parse_args().corpus
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Browser(Path(folder, "profile")) as browser:
        for name, run in RUNS.items():
            save(browser, Path(folder, f"{name}.html"), load(found(corpus, run)).to_html(), name)
        a, b = (load(found(corpus, run)) for run in COMPARED)
        save(browser, Path(folder, "compare.html"), a.compare(b).to_html(), "compare")


def found(corpus: Path, run: str) -> Path:
    """Return where a run is."""
    place = corpus / run
    return place if place.exists() else ROOT / "tests" / "data" / run


def save(browser: Browser, page: Path, text: str, name: str) -> None:
    """Write one picture."""
    page.write_text(text)
    browser.size(WIDTH, HEIGHT)
    browser.open(page)
    browser.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    (IMAGES / f"{name}.png").write_bytes(browser.picture())


if __name__ == "__main__":
    main()
