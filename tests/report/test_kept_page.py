"""The page of an unchanged run is put together from what was kept; what was planted there never becomes a script."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import view
from stepscope.cli.main import main
from stepscope.report.view.server import LocalServer, Site, local_server
from stepscope.run.load import Run

Page = Callable[..., tuple[str, bool]]


@pytest.fixture
def page(large_folder: Path, tmp_path: Path, analysed: list[Run]) -> Page:
    """Return a function that gives the page of `stepscope report --html`, and whether the run was analysed for it."""

    def made(*options: str) -> tuple[str, bool]:
        analysed.clear()
        out = tmp_path / "page.html"
        assert main(["report", str(large_folder), "--html", str(out), "--force", *options]) == 0
        return out.read_text(), bool(analysed)

    return made


def test_second_page_is_the_first_to_the_byte(page, capsys):
    first, was_analysed = page()
    text = capsys.readouterr().out
    assert was_analysed
    assert page() == (first, False)
    assert capsys.readouterr().out == text
    assert page("--no-cache") == (first, True)


def test_calibration_beside_the_run_is_part_of_the_key(large_folder: Path, page: Page) -> None:
    page()
    traces = sorted(map(str, large_folder.glob("*.json*")))
    out = str(large_folder.parent / "of-files.html")
    words = ["report", *traces, "--html", out, "--force"]
    assert main(words) == 0 and main(words) == 0
    (large_folder / "calibration.json").write_text("{}")
    assert main(words) == 2  # it is read: nobody else would have noticed that it is none


@pytest.fixture
def viewed(large_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Site]:
    """Return a function that gives the pages that `stepscope view` serves."""
    sites: list[Site] = []

    def served(site: Site, **given: Any) -> LocalServer:
        sites.append(site)
        return local_server(site, **given)

    monkeypatch.setattr("stepscope.report.view.server.local_server", served)
    monkeypatch.setattr("stepscope.report.view.server.perfetto_folder", lambda: None)
    monkeypatch.setattr(view, "_wait_until_stopped", lambda: None)

    def run(*options: str) -> Site:
        assert main(["view", str(large_folder), "--no-browser", "--port", "0", *options]) == 0
        return sites[-1]

    return run


def test_view_of_an_unchanged_run_reads_it_for_tables_and_timeline_only(viewed, analysed):
    first = viewed()
    assert len(analysed) == 1
    again = viewed()
    assert len(analysed) == 1
    paths = ("", "report.html", "tables.json", "tables/steps.json", "tables/findings.csv", "timeline")
    for path in paths:
        found, expected = again(path, {}), first(path, {})
        assert found is not None and expected is not None and found.body == expected.body
    assert len(analysed) == 2
