"""The cache gives the same table, or none at all."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trace.test_reading_faults import SAMPLE
from tests.trace.test_streams import assert_equal

from stepscope.run_folder import CACHE_FOLDER
from stepscope.trace import cache
from stepscope.trace.cache import cache_file, read_cached
from stepscope.trace.read import read


@pytest.fixture
def trace_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(SAMPLE.read_bytes())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache, "MIN_RAW_BYTES", 1000)
        yield path


def test_second_read_comes_from_the_cache_and_is_equal(trace_file: Path) -> None:
    first = read_cached(trace_file)
    second = read_cached(trace_file)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert_equal(second, first)
    assert (second.header, second.quality, second.raw_bytes) == (first.header, first.quality, first.raw_bytes)
    assert cache_file(trace_file).parent == trace_file.parent / CACHE_FOLDER
    assert len(list(cache_file(trace_file).parent.iterdir())) == 1


def test_tables_are_read_only_with_and_without_cache(trace_file: Path) -> None:
    for trace in (read_cached(trace_file), read_cached(trace_file)):
        with pytest.raises(ValueError, match="read-only"):
            trace["ts_ns"][0] = 0


def test_given_folder_is_used_and_tells_equal_names_apart(trace_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    other = tmp_path / "other" / trace_file.name
    other.parent.mkdir()
    other.write_bytes(SAMPLE.read_bytes())
    for path in (trace_file, other):
        read_cached(path, cache_folder=folder)
    assert len(list(folder.iterdir())) == 2
    assert read_cached(trace_file, cache_folder=folder).from_cache
    assert not (tmp_path / CACHE_FOLDER).exists()


def test_changed_trace_is_read_again(trace_file: Path) -> None:
    read_cached(trace_file)
    status = trace_file.stat()
    os.utime(trace_file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert not read_cached(trace_file).from_cache
    assert read_cached(trace_file).from_cache


def test_other_parser_or_schema_reads_again(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_cached(trace_file)
    monkeypatch.setattr(cache, "_parser_version", lambda: "another")
    assert not read_cached(trace_file).from_cache


def test_cut_or_damaged_cache_is_no_cache(trace_file: Path) -> None:
    read_cached(trace_file)
    path = cache_file(trace_file)
    sound = path.read_bytes()
    whole = read(trace_file)
    for share in range(16):
        cut = len(sound) * share // 16
        path.write_bytes(sound[:cut])
        assert cache._load(path, trace_file, cache._key(trace_file) or {}) is None
        flipped = bytearray(sound)
        flipped[cut] ^= 1
        path.write_bytes(flipped)
        again = read_cached(trace_file)
        assert_equal(again, whole)
    path.write_bytes(sound)
    assert read_cached(trace_file).from_cache


def test_cache_can_be_turned_off(trace_file: Path) -> None:
    read_cached(trace_file, enabled=False)
    assert not cache_file(trace_file).exists()
    read_cached(trace_file)
    assert not read_cached(trace_file, enabled=False).from_cache


def test_small_trace_leaves_no_cache(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(SAMPLE.read_bytes())
    read_cached(path)
    assert not cache_file(path).exists()


def test_folder_that_cannot_be_written_is_no_error(trace_file: Path) -> None:
    (trace_file.parent / CACHE_FOLDER).write_text("in the way")
    assert read_cached(trace_file).num_events == read(trace_file).num_events


def test_a_folder_nobody_may_write_to_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MIN_RAW_BYTES", 0)
    path = tmp_path / "kept" / "one.json"
    path.parent.mkdir()
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}]}'
    )
    path.parent.chmod(0o555)
    try:
        assert cache.read_cached(path).num_events == 1
        assert [p.name for p in path.parent.iterdir()] == ["one.json"]
    finally:
        path.parent.chmod(0o755)
