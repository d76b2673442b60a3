"""What the type checker of the pages' scripts looks at is what the pages are made of."""

import json
from pathlib import Path

import pytest

from stepscope.report.html import assemble
from stepscope.report.view import site as shell

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "src" / "stepscope" / "report" / "html" / "js"


PAGES = {"report": assemble._REPORT, "sheet": assemble._SHEET, "view": shell.SCRIPTS}


@pytest.mark.parametrize(("project", "scripts"), PAGES.items())
def test_every_script_of_a_page_is_type_checked_in_its_order(project: str, scripts: tuple[str, ...]) -> None:
    folder = ROOT / "tools" / "js"
    files = json.loads((folder / f"{project}.json").read_text())["files"]
    checked = [(folder / name).resolve() for name in files if name.endswith(".js")]
    own = [Path(shell.__file__).with_name("view.js")] if project == "view" else []
    assert checked == [*(SCRIPTS / f"{name}.js" for name in scripts), *own]


def test_every_script_is_on_a_page() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.js")} == {name for scripts in PAGES.values() for name in scripts}
