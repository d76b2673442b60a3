"""Every dependency has its reason on a page, and a licence that an Apache-2.0 package may bring along."""

import re
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("packaging")
from tools.licences import ALLOWED, packages

ROOT = Path(__file__).parents[2]


def test_licences_of_all_that_comes_along_are_allowed() -> None:
    found = packages()
    assert {"numpy", "rich"} <= {one.name for one in found}
    assert {one.name: one.licences for one in found if not one.allowed} == {}
    assert not any("GPL" in licence for licence in ALLOWED)


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for extra, needs in project["optional-dependencies"].items() if extra != "all" for one in needs]
    names = {re.split(r"[<>=!\[;]", text)[0] for text in (*project["dependencies"], *extras)}
    page = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text()
    missing = {name for name in names if not re.search(rf"\b{re.escape(name)}\b", page, re.IGNORECASE)}
    assert missing <= {"pytest-timeout", "pytest-xdist"}  # parts of pytest
