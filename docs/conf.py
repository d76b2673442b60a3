"""Sphinx configuration of the documentation site: `make docs`."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from stepscope.version import __version__

project = "stepscope"
author = "the stepscope authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
root_doc = "README"
exclude_patterns = ["images"]
nitpicky = False

myst_heading_anchors = 4  # links to headings, as code hosts make them
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]  # pages begin with the heading that suits them

autodoc_mock_imports = ["torch"]  # the job side is described without being run
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

html_theme = "furo"
html_title = "stepscope"
html_copy_source = False
html_show_sourcelink = False


def _menu_from_lists(app: Any, name: str, source: list[str]) -> None:
    """Add a menu of the pages that a README lists, section by section: one list, on a code host and here."""
    if not name.endswith("README"):
        return
    folder = name.removesuffix("README")
    sections = re.split(r"^## +(.+)$", source[0], flags=re.MULTILINE)
    for title, text in zip(["", *sections[1::2]], sections[::2], strict=True):
        found = dict.fromkeys(re.findall(r"\]\(([\w/.-]+)\.md\)", text))
        pages = [page for page in found if not page.startswith("..") and f"{folder}{page}" != name]
        if pages:
            caption = f":caption: {title}\n" if title and not folder else ""
            source[0] += "\n\n```{toctree}\n:hidden:\n" + caption + "\n" + "\n".join(pages) + "\n```\n"


def setup(app: Any) -> None:
    """Connect the menu."""
    app.connect("source-read", _menu_from_lists)
