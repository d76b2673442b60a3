"""The example notebook runs in a real Jupyter kernel, gives what it shows, and the page in the docs is made from it."""

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from tools.write_notebook import NOTEBOOK, OTHER_LIBRARY, PAGE, as_markdown, executed, texts  # noqa: E402

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
    assert any("Rank 1: every step waits for it" in page for page in found)
    assert any("no difference found" in page for page in found)


def test_page_in_the_docs_is_made_from_the_notebook(stored: Any) -> None:
    assert PAGE.read_text() == as_markdown(stored), REMEDY


def pages(cell: Any) -> list[str]:
    found = [output.get("data", {}).get("text/html") for output in cell.get("outputs", ())]
    return [page for page in found if page is not None]
