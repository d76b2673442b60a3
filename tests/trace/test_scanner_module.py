"""The scanner's module: compiled once, however many threads come for it at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import wasmtime

from stepscope.trace.scanner import Scanner, wasm


def test_threads_that_come_at_once_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def compile_(engine: wasmtime.Engine, code: bytes) -> wasmtime.Module:
        made.append(threading.get_ident())
        return wasmtime.Module(engine, code)

    monkeypatch.setattr(wasm, "wasmtime", _With(Module=compile_))
    wasm._compiled.cache_clear()
    together = threading.Barrier(4, timeout=60)

    def scanner(_: int) -> Scanner:
        together.wait()
        return Scanner()

    with ThreadPoolExecutor(4) as pool:
        scanners = list(pool.map(scanner, range(4)))
    assert len(scanners) == 4 and len(made) == 1


class _With:
    """The module `wasmtime` with something in place of its own."""

    def __init__(self, **instead: object) -> None:
        self._instead = instead

    def __getattr__(self, name: str) -> object:
        return self._instead.get(name) or getattr(wasmtime, name)
