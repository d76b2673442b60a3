"""Source text is read from the run folder's own `source/` and from nowhere else."""

from pathlib import Path

import pytest

from stepscope.contract.owners import MAX_SOURCE_FILE_BYTES
from stepscope.contract.run_folder import SOURCE_FOLDER
from stepscope.run.source_text import SourceText


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kept = tmp_path / "run" / SOURCE_FOLDER / "data"
    kept.mkdir(parents=True)
    (kept.parent / "train.py").write_text("import torch\n\tx = 1\n")
    (kept / "augment.py").write_text("flip(x)\n")
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "secret.txt").write_text("secret\n")
    return tmp_path / "run"


@pytest.mark.parametrize(
    "name",
    ["../run.json", "../../secret.txt", "/etc/passwd", "data/../../run.json", "", ".", "data", "nul\0byte", "x" * 5000],
)
def test_a_name_that_leads_elsewhere_has_no_lines(folder: Path, name: str) -> None:
    assert SourceText(folder).lines(name) is None


def test_links_are_not_followed(folder: Path) -> None:
    (folder / SOURCE_FOLDER / "link.py").symlink_to(folder.parent / "secret.txt")
    (folder / SOURCE_FOLDER / "up").symlink_to(folder.parent)
    source = SourceText(folder)
    assert source.lines("link.py") is None and source.lines("up/secret.txt") is None


def test_what_is_too_large_or_no_text_has_no_lines(folder: Path) -> None:
    (folder / SOURCE_FOLDER / "large.py").write_bytes(b"#" * (MAX_SOURCE_FILE_BYTES + 1))
    (folder / SOURCE_FOLDER / "binary.py").write_bytes(b"\xff\xfe\x00")
    source = SourceText(folder)
    assert source.lines("large.py") is None and source.lines("binary.py") is None
