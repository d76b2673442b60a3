"""Pages and code agree: the map of the house, dependencies, the Python API, the table of faults, the notebook."""

import ast
import doctest
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tools import write_outputs
from tools.licences import ALLOWED, packages
from tools.write_notebook import NOTEBOOK, OTHER_LIBRARY, executed, texts

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "stepscope"
HOUSE = (ROOT / "CONTRIBUTING.md").read_text().partition("## Structure")[2].partition("\n## ")[0]


def test_every_file_of_the_map_exists() -> None:
    rows = [line for line in HOUSE.splitlines() if line.startswith("|")]
    named = [name for row in rows for name in re.findall(r"`([\w./-]+/[\w./-]*)`", row)]
    assert len(named) > 15
    missing = [name for name in named if not (PACKAGE / name).exists() and not (ROOT / name).exists()]
    assert missing == []


def test_every_room_is_on_the_map() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {room for room in rooms if f"{room}/" not in HOUSE} == set()


pytest.importorskip("packaging")


def test_licences_of_all_that_comes_along_are_allowed() -> None:
    found = packages()
    assert {"numpy", "wasmtime"} <= {one.name for one in found}
    assert {one.name: one.licences for one in found if not one.allowed} == {}
    assert not any("GPL" in licence for licence in ALLOWED)


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for extra, needs in project["optional-dependencies"].items() if extra != "all" for one in needs]
    names = {re.split(r"[<>=!\[;]", text)[0] for text in (*project["dependencies"], *extras)}
    page = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text()
    missing = {name for name in names if not re.search(rf"\b{re.escape(name)}\b", page, re.IGNORECASE)}
    assert missing <= {"pytest-timeout", "pytest-xdist"}  # parts of pytest


@pytest.mark.job
@pytest.mark.parametrize("page", ["python-api.md", "lab/toolkit.md"])
def test_examples_of_the_python_api_hold(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    shutil.copytree(ROOT / "tests" / "data" / "gloo-ddp", tmp_path / "traces")
    for name in [n for n in os.environ if n.startswith(("STEPSCOPE", "TORCH_TRACE"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    failed, run = doctest.testfile(str(ROOT / "docs" / page), module_relative=False)
    assert run > 20
    assert failed == 0


FAULTS = tomllib.loads((ROOT / "tests" / "faults.toml").read_text())["fault"]


def test_every_row_names_tests_that_exist_or_says_why_not() -> None:
    named = [test for fault in FAULTS for test in fault.get("tests", ())]
    exist = {path: functions(path) for path in {test.partition("::")[0] for test in named}}
    assert [test for test in named if test.partition("::")[2] not in exist[test.partition("::")[0]]] == []
    assert [fault["id"] for fault in FAULTS if not fault.get("tests") and not fault.get("not_tested")] == []


def test_page_is_current() -> None:
    tool = ROOT / "tools" / "write_reliability.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def functions(path: str) -> set[str]:
    file = ROOT / path
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

REMEDY = "run tools/write_notebook.py"


@pytest.fixture(scope="module")
def stored() -> Any:
    found = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(found)
    return found


@pytest.mark.slow
def test_notebook_gives_in_a_kernel_what_it_shows(stored: Any, tmp_path: Path) -> None:
    for library in ("pandas", "polars", "pyarrow"):
        pytest.importorskip(library)
    fresh = executed(nbformat.read(NOTEBOOK, as_version=4), tmp_path)
    assert len(fresh.cells) == len(stored.cells) > 15
    for now, shown in zip(fresh.cells, stored.cells, strict=True):
        assert now.cell_type == "markdown" or now.execution_count, now.source
        if OTHER_LIBRARY not in now.metadata.get("tags", ()):
            assert texts(now) == texts(shown), REMEDY
            assert pages(now) == pages(shown), REMEDY


def test_every_cell_of_code_has_shown_something(stored: Any) -> None:
    for cell in stored.cells:
        if cell.cell_type == "code":
            assert cell.outputs, f"{cell.source}: {REMEDY}"
            assert all(output.output_type != "error" for output in cell.outputs)


def test_analysis_and_comparison_show_themselves_as_pages(stored: Any) -> None:
    found = [page for cell in stored.cells for page in pages(cell)]
    assert any("Rank 1 is late (host)" in page for page in found)
    assert any("no difference found" in page for page in found)


def pages(cell: Any) -> list[str]:
    found = [output.get("data", {}).get("text/html") for output in cell.get("outputs", ())]
    return [page for page in found if page is not None]


@pytest.mark.slow
@pytest.mark.parametrize("page", write_outputs.PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_outputs_are_what_the_commands_print(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == write_outputs.refreshed(text), "run tools/write_outputs.py"
