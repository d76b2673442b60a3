"""Ranks that Nsight Systems recorded have no trace that TensorBoard's plugin could show; the command says so."""

import gzip
from pathlib import Path

import pytest

from stepscope.cli.main import main

EXPORT = Path(__file__).parents[2] / "data" / "nsys-small" / "export.sqlite.gz"


def test_export_is_named_as_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.sqlite"
    path.write_bytes(gzip.decompress(EXPORT.read_bytes()))
    assert main(["export", str(path), "--tensorboard", str(tmp_path / "out")]) == 0
    assert "rank 1 is not in the folder: it is an export of Nsight Systems" in capsys.readouterr().err
