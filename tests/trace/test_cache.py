"""The cache of a trace and of compiled code gives the same, or none at all."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import wasmtime
from tests.run.traces import event
from tests.trace.test_reading_faults import SAMPLE
from tests.trace.test_streams import assert_equal

from stepscope.cache_files import cache_file
from stepscope.contract.run_folder import CACHE_FOLDER
from stepscope.trace import cache
from stepscope.trace.cache import read_cached
from stepscope.trace.scanner import machine_code_file, module_of
from stepscope.units import digest_of


@pytest.fixture
def trace_file(tmp_path: Path) -> Iterator[Path]:
    (path := tmp_path / "rank0.json.gz").write_bytes(SAMPLE.read_bytes())
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


def test_changed_trace_is_read_again(trace_file: Path) -> None:
    read_cached(trace_file)
    status = trace_file.stat()
    os.utime(trace_file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert not read_cached(trace_file).from_cache
    assert read_cached(trace_file).from_cache


def test_edit_of_the_same_size_with_its_times_restored_is_noticed(tmp_path: Path, trace_file: Path) -> None:
    path = tmp_path / "rank1.json"
    text = json.dumps({"traceEvents": [event("kernel", f"k{i:05}", 10 * i, 5) for i in range(2000)]})
    path.write_text(text)
    before = path.stat()
    assert read_cached(path).quality.malformed == 0
    path.write_text(text.replace("k01000", "K01000"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    trace = read_cached(path)
    assert not trace.from_cache
    assert "K01000" in trace.strings


def test_content_is_part_of_the_key(tmp_path: Path) -> None:
    """Also where a file system restores both of the inode's times."""
    (path := tmp_path / "trace.json").write_bytes(b"a" * 3_000_000)
    first = cache._key(path)
    for at in (0, 1000, 2_999_999):
        path.write_bytes(b"a" * at + b"b" + b"a" * (2_999_999 - at))
        second = cache._key(path)
        assert first is not None and second is not None
        assert first["content"] != second["content"]


ANSWER = wasmtime.wat2wasm('(module (func (export "answer") (result i32) i32.const 42))')
OTHER = wasmtime.wat2wasm('(module (func (export "answer") (result i32) i32.const 7))')


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the code is kept, in a folder of the test's own."""
    monkeypatch.setattr("sys.pycache_prefix", str(tmp_path))
    return machine_code_file()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the modules that were compiled, as they are."""
    seen: list[bytes] = []

    class Counting(wasmtime.Module):
        def __init__(self, engine: wasmtime.Engine, code: bytes) -> None:
            seen.append(code)
            super().__init__(engine, code)

    monkeypatch.setattr(wasmtime, "Module", Counting)
    return seen


def _answer(code: bytes) -> int:
    engine = wasmtime.Engine()
    module = module_of(engine, code)
    store = wasmtime.Store(engine)
    return int(wasmtime.Instance(store, module, []).exports(store)["answer"](store))


def test_what_was_compiled_once_is_loaded(place: Path, compiled: list[bytes]) -> None:
    assert [_answer(ANSWER), _answer(ANSWER)] == [42, 42]
    assert compiled == [ANSWER]
    assert place.is_file() and [f.name for f in place.parent.iterdir()] == [place.name]


@pytest.mark.parametrize("at", [0, 31, 32, 5_000, -1])
def test_a_damaged_file_is_compiled_again_and_replaced(place: Path, compiled: list[bytes], at: int) -> None:
    _answer(ANSWER)
    whole = place.read_bytes()
    damaged = bytearray(whole)
    damaged[at] ^= 1
    place.write_bytes(damaged)
    assert _answer(ANSWER) == 42
    assert len(compiled) == 2 and place.read_bytes() == whole


def _file_of_another(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(place, 12345, 12345)


@pytest.mark.parametrize("change", [lambda p: p.chmod(0o666), lambda p: p.parent.chmod(0o777), _file_of_another])
def test_code_that_another_user_may_have_replaced_is_not_loaded(place, compiled, change):
    """The digest has no key: anyone can compute it for other code."""
    _answer(OTHER)
    digest, other = digest_of(ANSWER), place.read_bytes()[32:]
    place.write_bytes(digest_of(digest.encode() + other, 32).encode() + other)
    assert _answer(ANSWER) == 7, "the code of the user is taken for what it says it is"
    change(place)
    assert _answer(ANSWER) == 42
