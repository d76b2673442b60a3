"""Machine code from an earlier process: loaded where it fits, compiled again where it does not, never a failure."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import wasmtime

from stepscope.digest import digest_of
from stepscope.trace.scanner.wasm import machine_code_file, module_of

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


def _writable_file(place: Path) -> None:
    place.chmod(0o666)


def _writable_folder(place: Path) -> None:
    place.parent.chmod(0o777)


def _file_of_another(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(place, 12345, 12345)


@pytest.mark.parametrize("change", [_writable_file, _writable_folder, _file_of_another])
def test_code_that_another_user_may_have_replaced_is_not_loaded(
    place: Path, compiled: list[bytes], change: Callable[[Path], None]
) -> None:
    """The digest has no key: anyone can compute it for other code."""
    _answer(OTHER)
    digest, other = digest_of(ANSWER), place.read_bytes()[32:]
    place.write_bytes(digest_of(digest.encode() + other, 32).encode() + other)
    assert _answer(ANSWER) == 7, "the code of the user is taken for what it says it is"
    change(place)
    assert _answer(ANSWER) == 42
