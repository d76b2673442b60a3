"""Run the example notebook (`examples/notebook.ipynb`) in a Jupyter kernel and store its outputs.

    .venv/bin/python tools/write_notebook.py

A test runs the same and compares. Cells whose output another library formats are tagged `other-library`: they must
run, their text may change.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
TRACES = Path("tests", "data", "gloo-ddp")
OTHER_LIBRARY = "other-library"
_CELL_LIMIT_S = 600
_START_LIMIT_S = 300


def main() -> None:
    """Write the notebook."""
    with tempfile.TemporaryDirectory() as folder:
        done = executed(nbformat.read(NOTEBOOK, as_version=4), Path(folder))
    nbformat.write(done, NOTEBOOK)
    print(f"wrote {NOTEBOOK.relative_to(ROOT)}")


def executed(notebook: Any, folder: Path) -> Any:
    """Return the notebook with fresh outputs, run in a copy of what it reads so that nothing else is written to."""
    (folder / "examples").mkdir()
    shutil.copytree(ROOT / TRACES, folder / TRACES, ignore=shutil.ignore_patterns(".stepscope"))
    places = {name: str(folder / "jupyter") for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
    client = NotebookClient(
        notebook,
        timeout=_CELL_LIMIT_S,
        startup_timeout=_START_LIMIT_S,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder / "examples")}},
    )
    with patch.dict(os.environ, places):
        done = client.execute()
    done.metadata = {"kernelspec": done.metadata["kernelspec"], "language_info": {"name": "python"}}
    return done


def texts(cell: Any) -> list[str]:
    """Return what a cell printed and returned, as plain text."""
    found = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.get("outputs", ())]
    return ["".join(text) for text in found]


if __name__ == "__main__":
    main()
