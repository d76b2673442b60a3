"""The page of an unchanged run is put together from what was kept; what was planted there never becomes a script."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.simulate import SYNC, WAIT, collective, kernel, simulate

from stepscope.analyze import account
from stepscope.analyze.account import Account, account_of
from stepscope.cli import view
from stepscope.cli.main import main
from stepscope.document import cache as kept
from stepscope.report.view.server import LocalServer, Site, local_server
from stepscope.run.load import Run

STEP = [kernel(300), collective(500), kernel(200), WAIT, kernel(100), SYNC]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a run of two ranks that counts as large."""
    place = tmp_path / "run"
    place.mkdir()
    for trace in simulate(STEP, [kernel(2300), *STEP[1:]], steps=4).traces:
        trace.write(place)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kept, "MIN_RAW_BYTES", 1)
        yield place


@pytest.fixture
def analysed(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Return the runs that were analysed, which grow."""
    runs: list[Run] = []

    def counted(run: Run, **given: Any) -> Account:
        runs.append(run)
        return account_of(run, **given)

    monkeypatch.setattr(account, "account_of", counted)
    return runs


@pytest.fixture
def page(folder: Path, tmp_path: Path, analysed: list[Run]) -> Callable[..., tuple[str, bool]]:
    """Return a function that gives the page of `stepscope report --html`, and whether the run was analysed for it."""

    def made(*options: str) -> tuple[str, bool]:
        analysed.clear()
        out = tmp_path / "page.html"
        assert main(["report", str(folder), "--html", str(out), "--force", *options]) == 0
        return out.read_text(), bool(analysed)

    return made


def test_second_page_is_the_first_to_the_byte(page, capsys):
    first, was_analysed = page()
    text = capsys.readouterr().out
    assert was_analysed
    assert page() == (first, False)
    assert capsys.readouterr().out == text
    assert page("--no-cache") == (first, True)


def test_calibration_beside_the_run_is_part_of_the_key(folder: Path, page: Callable[..., tuple[str, bool]]) -> None:
    page()
    traces = sorted(map(str, folder.glob("*.json*")))
    out = str(folder.parent / "of-files.html")
    words = ["report", *traces, "--html", out, "--force"]
    assert main(words) == 0 and main(words) == 0
    (folder / "calibration.json").write_text("{}")
    assert main(words) == 2  # it is read: nobody else would have noticed that it is none


@pytest.fixture
def viewed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Site]:
    """Return a function that gives the pages that `stepscope view` serves."""
    sites: list[Site] = []

    def served(site: Site, **given: Any) -> LocalServer:
        sites.append(site)
        return local_server(site, **given)

    monkeypatch.setattr("stepscope.report.view.server.local_server", served)
    monkeypatch.setattr("stepscope.report.view.server.perfetto_folder", lambda: None)
    monkeypatch.setattr(view, "_wait_until_stopped", lambda: None)

    def run(*options: str) -> Site:
        assert main(["view", str(folder), "--no-browser", "--port", "0", *options]) == 0
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
