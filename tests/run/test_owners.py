"""A file of owners is read or refused as a whole; source text is read from the run's own `source/` and nowhere else."""

from pathlib import Path

import pytest
from tests.analyze.build import built_run
from tests.analyze.owners.planted import PlantedRank

from stepscope.contract.run_folder import MAX_SOURCE_FILE_BYTES, SOURCE_FOLDER, owners_file
from stepscope.run.side_files import Frame, SourceText


def a_rank() -> PlantedRank:
    r = PlantedRank()
    r.step(0, 0, 100)
    with r.line("train.py:3", "lib:torch/nn/modules/linear.py:125", module="up"), r.op("aten::mm", 10, 40):
        r.kernel("gemm", at=20, start=50, end=80)
    r.python_time(1, 9, "train.py:2")
    return r


def test_what_was_written_is_read(tmp_path: Path) -> None:
    r = a_rank()
    r.write_owners(tmp_path, (0, 100), source_files=["train.py"], buckets=[["up.weight"]], loader=[["data.py:7", 0.5]])
    run = built_run(tmp_path, [r])
    (owners,) = run.owners
    (thread,) = owners.threads
    outer, inner = (owners.frames[i] for i in owners.stacks[thread.stack[0]])
    assert outer == Frame("train.py", 3, "f", True, 3)
    assert (inner.file, inner.is_user) == ("torch/nn/modules/linear.py", False)
    assert thread.role == "training"
    assert [owners.names[i] for i in thread.name] == ["aten::mm"]
    assert owners.modules[thread.module[0]] == "up"
    assert (thread.gap_before.tolist(), thread.gap_ns.tolist()) == ([0], [8000])
    assert owners.buckets == (("up.weight",),)
    assert owners.loader == (("data.py:7", 0.5),)
    assert not [line for line in run.warnings if owners_file(0) in line]


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
