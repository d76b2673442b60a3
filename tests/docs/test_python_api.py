"""Every example of the Python API's page does what the page says."""

import doctest
import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.job
def test_examples_of_the_python_api_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    shutil.copytree(ROOT / "tests" / "data" / "gloo-ddp", tmp_path / "traces")
    for name in [n for n in os.environ if n.startswith(("STEPSCOPE", "TORCH_TRACE"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    failed, run = doctest.testfile(str(ROOT / "docs" / "python-api.md"), module_relative=False)
    assert run > 20
    assert failed == 0
