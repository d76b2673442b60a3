"""A file of owners is read or refused as a whole; source text is read from the run's own `source/` and nowhere else."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import built_run
from tests.analyze.owners.planted import PlantedRank

from stepscope.contract.run_folder import MAX_SOURCE_FILE_BYTES, SOURCE_FOLDER, owners_file
from stepscope.run.load import load
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


def thread_with(**changed: Any) -> dict[str, Any]:
    document = a_rank().owners_document((0, 100))
    return {"threads": [{**document["threads"][0], **changed}]}


HOSTILE: dict[str, tuple[str, dict[str, Any]]] = {
    "another rank": ("rank", {"rank": 7}),
    "another schema": ("schema", {"schema": 2}),
    "lines of no kind": ("lines", {"lines": "guessed"}),
    "frames of another shape": ("frames", {"frames": [[0, 1]]}),
    "a frame in no file": ("frames", {"frames": [[99, 1, "f", 1], [0, 1, "f", 1]]}),
    "a stack of no frame": ("stacks", {"stacks": [[0, 99]]}),
    "a stack without end": ("stacks", {"stacks": [[0] * 100_000]}),
    "names that are no texts": ("names", {"names": [1]}),
    "a text of a megabyte": ("modules", {"modules": ["x" * 1_000_000]}),
    "threads that are no list": ("threads", {"threads": {}}),
    "a thread of no role": ("threads.role", thread_with(role="boss")),
    "a name that is none": ("threads.name", thread_with(name=[5])),
    "a name beyond 64 bits": ("threads.name", thread_with(name=[10**30])),
    "columns of other lengths": ("threads.depth", thread_with(depth=[0, 1])),
    "a depth below zero": ("threads.depth", thread_with(depth=[-1])),
    "a stack out of range": ("threads.stack", thread_with(stack=[2**40])),
    "a truth value": ("threads.module", thread_with(module=[True])),
    "a gap out of range": ("threads.0", thread_with(python=[[9, 0, 1]])),
    "a gap of no shape": ("threads.python", thread_with(python=[[1, 2]])),
    "a negative gap": ("threads.2", thread_with(python=[[0, 0, -5]])),
    "buckets of numbers": ("buckets", {"buckets": [[1]]}),
    "a share above one": ("loader", {"loader": [["data.py:7", 7]]}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_does_not_hold_together_is_refused(tmp_path: Path, what: str) -> None:
    field, change = HOSTILE[what]
    r = a_rank()
    r.write_owners(tmp_path, (0, 100), **change)
    run = built_run(tmp_path, [r])
    assert run.owners == ()
    (line,) = [line for line in run.warnings if owners_file(0) in line]
    assert field in line
    assert len(line) < 300


DAMAGED = {"empty": b"", "no gzip": b"no gzip", "no object": gzip.compress(b"[]"), "cut off": gzip.compress(b"{")[:12]}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_file_is_a_warning(tmp_path: Path, what: str) -> None:
    r = a_rank()
    (tmp_path / owners_file(0)).write_bytes(DAMAGED[what])
    run = built_run(tmp_path, [r])
    assert run.owners == ()
    assert len([line for line in run.warnings if owners_file(0) in line]) == 1


def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path) -> None:
    a_rank().write(tmp_path)
    (tmp_path / owners_file(0)).write_bytes(gzip.compress(b" " * (40 << 20)))
    run = load(tmp_path, cache=False)
    assert run.owners == ()
    assert any("unpacked" in line for line in run.warnings)


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
