"""The scanner's module: loaded once, however many threads come for it at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import wasmtime

from stepscope.trace.scanner import wasm
from stepscope.trace.scanner.scanner import Scanner


def test_threads_that_come_at_once_load_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def load(engine: wasmtime.Engine, code: bytes) -> wasmtime.Module:
        made.append(threading.get_ident())
        return wasmtime.Module(engine, code)

    monkeypatch.setattr(wasm, "module_of", load)
    wasm._compiled.cache_clear()
    together = threading.Barrier(4, timeout=60)

    def scanner(_: int) -> Scanner:
        together.wait()
        return Scanner()

    with ThreadPoolExecutor(4) as pool:
        scanners = list(pool.map(scanner, range(4)))
    assert len(scanners) == 4 and len(made) == 1
