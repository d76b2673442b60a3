"""Caches of commands are written beside the analysis, and are there when anybody asks for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trace.test_reading_faults import SAMPLE

from stepscope import later_writes
from stepscope.cli.main import main
from stepscope.trace import cache
from stepscope.trace.cache import read_cached


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    later_writes.wait_for_all()


def test_what_goes_wrong_is_raised_where_it_is_waited_for(tmp_path: Path) -> None:
    def write() -> None:
        raise ValueError("no")

    later_writes.write_later(tmp_path / "a", write)
    with pytest.raises(ValueError, match="no"):
        later_writes.wait_for(tmp_path / "a")


def test_next_reader_in_a_process_finds_the_cache_that_was_to_be_written(tmp_path: Path) -> None:
    first = read_cached(SAMPLE, cache_folder=tmp_path, min_raw_bytes=0, write_later=later_writes.write_later)
    assert not first.from_cache and not list(tmp_path.iterdir())
    assert read_cached(SAMPLE, cache_folder=tmp_path, min_raw_bytes=0).from_cache


def test_cache_is_there_when_a_command_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cache, "MIN_RAW_BYTES", 0)
    assert main(["report", str(SAMPLE), "--cache-folder", str(tmp_path)]) == 0
    assert list(tmp_path.glob("*.columns"))
    assert not later_writes._asked and not later_writes._begun
    assert capsys.readouterr().out
