"""One browser per process of pytest, and a page of every kind, made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.made_once import made_once
from tests.report.browser import Browser


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser(started: Browser) -> Browser:
    started.prefer("light")  # as the tests of another module may have left it
    return started


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the files with a page of every kind."""
    folder = made_once(tmp_path_factory, "pages", write_pages)
    return {path.name.partition(".")[0]: path for path in sorted(folder.glob("*.page.html"))}


def write_pages(folder: Path) -> None:
    from tests.report.pages import all_pages

    (folder / "runs").mkdir()
    for name, text in all_pages(folder / "runs").items():
        (folder / f"{name}.page.html").write_text(text)
