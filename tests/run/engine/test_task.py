"""One file as a task: a few bytes come back, and the table lies where the next reader maps it."""

import json
import pickle
from pathlib import Path

import pytest
from tests.run.traces import event

from stepscope.errors import UsageError
from stepscope.run.dask import keep_columns, scheduler_address
from stepscope.trace.cache import read_cached


def trace(folder: Path) -> Path:
    path = folder / "rank0.json"
    path.write_text(
        '{"traceEvents": [' + ", ".join(json.dumps(event("cpu_op", "aten::mm", ts=n)) for n in range(50)) + "]}"
    )
    return path


def test_table_is_kept_and_the_answer_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trace(tmp_path)
    found = keep_columns(str(path), None, path.stat().st_size)
    assert found.problem is None and found.events == 50
    assert len(pickle.dumps(found)) < 1000
    monkeypatch.setattr("stepscope.trace.read.read", lambda *_, **__: pytest.fail("parsed again"))
    assert read_cached(path).num_events == 50


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("no trace")
    assert keep_columns(str(tmp_path / "bad.json"), None, 8).problem
    assert keep_columns(str(tmp_path / "none.json"), None, 0).problem


@pytest.mark.parametrize("engine", ["dask://h", "dask://h:0", "dask://h:99999", "tcp://h:1", "dask://a b:1", ""])
def test_wrong_addresses_are_one_sentence(engine: str) -> None:
    with pytest.raises(UsageError, match="--engine takes local or dask://HOST:PORT"):
        scheduler_address(engine)
