"""Every command that shows tables: one golden text each, and the same numbers as text of 80 columns and as a page.

WRITE_GOLDEN=1 .venv/bin/python -m pytest tests/report/test_commands.py       writes the texts again
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.owners.owned_folder import owned_folder
from tests.analyze.planted_job import plant_two_attempts
from tests.cli.test_hang import planted as plant_missing_rank
from tests.compare.history.folders import eight_runs
from tests.diagnose.late import late_run
from tests.report.browser import why_no_browser
from tests.report.test_html import unpacked

from stepscope.cli.main import main
from stepscope.report.sheet import WORDS, unit_text

DATA = Path(__file__).parents[1] / "data"
GOLDEN = DATA / "golden"
QUERY = "SELECT kind, count(*) AS events, sum(dur_ns) / 1e6 AS ms FROM device_work GROUP BY 1 ORDER BY 1"
COMMANDS = {
    "code": ["code", "owned"], "code-modules": ["code", "owned", "--modules"],
    "compare": ["compare", "late", "late-loading", "--fail-on", "step_ms>5%"], "hang": ["hang", "dumps"],
    "health": ["health", "late", "--guides", "--fail-on", "stragglers.count>0"],
    "history": ["history", "runs", "--by", "host"], "job": ["job", "job/run"],
    "memory": ["memory", str(DATA / "memory_snapshot" / "snapshot.pickle.gz"), "--what-if", "batch=2x"],
    "report-runs": ["report", "both"], "sql": ["sql", "owned", QUERY],
    "whatif": ["whatif", "late", "--set", "straggler=off"],
}  # fmt: skip
CACHED = ("code", "health", "history", "report", "sql", "whatif", "compare")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a sample for each command."""
    root = tmp_path_factory.mktemp("samples")
    owned_folder(root / "owned")
    late_run(root / "late")
    late_run(root / "late-loading", loading=True)
    (root / "both").mkdir()
    late_run(root / "both" / "one")
    late_run(root / "both" / "two", late_us=4000)
    plant_two_attempts(root / "job")
    (root / "dumps").mkdir()
    plant_missing_rank(root / "dumps")
    eight_runs(root / "runs", "slow")
    return root


@pytest.fixture
def there(samples: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(samples)
    monkeypatch.setenv("COLUMNS", "80")
    yield samples


def shown(name: str, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    words = [*COMMANDS[name], *(["--no-cache"] if COMMANDS[name][0] in CACHED else []), *more]
    assert main(words) in (0, 1)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_text_is_the_golden_one(name: str, there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, golden = shown(name, capsys), GOLDEN / f"{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_text_and_page_hold_the_same_numbers(name: str, there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = there / f"{name}.html"
    text = shown(name, capsys, "-v", "--html", str(page), "--force")
    assert max(map(len, text.splitlines())) <= 80
    sheet = sheet_in(page.read_text(encoding="utf-8"))
    held = Counter(cell for section in sheet["sections"] for cell in cells(section["table"]))
    held += Counter(unit_text(card["value"], card["unit"]) for card in sheet["cards"] if is_number(card["value"]))
    assert held, "a command without a number"
    for cell, count in held.items():
        assert len(re.findall(rf"(?<![\w.,+-]){re.escape(cell)}(?![\w.])", text)) >= count, cell
    titles = {
        column["title"] for section in sheet["sections"] for column in (section["table"] or {}).get("columns", ())
    }
    words = text.split()
    assert not [title for title in titles if not all(word in words for word in title.split())]


@pytest.mark.browser
@pytest.mark.skipif(why_no_browser() is not None, reason=why_no_browser() or "")
def test_browser_writes_the_numbers_of_the_text(browser, there, capsys):
    for name in COMMANDS:
        page = there / f"{name}.html"
        shown(name, capsys, "--html", str(page), "--force")
        browser.open(page)
        found = Counter(browser.run(CELLS))
        sheet = sheet_in(page.read_text(encoding="utf-8"))
        held = Counter(cell for section in sheet["sections"] for cell in cells(section["table"]))
        assert found == held, name


CELLS = """
for (const b of document.querySelectorAll('button.more')) if (!b.hidden) b.click();
return [...document.querySelectorAll('section td.number')].map((td) => td.textContent.replaceAll('\\u2212', '-'))
  .filter((text) => text && text !== '\\u2013');
"""


def sheet_in(page: str) -> dict[str, Any]:
    found = re.search(r'id="data"[^>]*>([^<]*)<', page)
    assert found
    report = unpacked(found[1].strip())[0]["report"]
    assert isinstance(report, dict)
    return report


def cells(table: dict[str, Any] | None) -> Iterator[str]:
    """Yield the numbers of a table as they are written."""
    for row in table["rows"] if table else ():
        for value, column in zip(row, table["columns"] if table else (), strict=True):
            if is_number(value) and column["unit"] not in WORDS:
                yield unit_text(value, column["unit"])


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
