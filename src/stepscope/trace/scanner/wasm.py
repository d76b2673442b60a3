"""The scanner's WebAssembly module: loaded once per process, one instance with its own memory per scanner.

Its machine code is cached in a folder of its own where Python caches the bytecode of this package: compiling takes
40 ms, loading three. Loaded code runs as the current user, so it must come from that user or root, in a folder that no
one else can write to (`trusted_file`); it is never taken from beside a trace. The file begins with a digest of the
module and of all that follows, against damage; wasmtime refuses code of another version or processor. Anything else is
compiled again and replaced; where nothing can be written, nothing is cached.
"""

import atexit
import ctypes
from contextlib import suppress
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepscope.digest import digest_of
from stepscope.errors import InputError
from stepscope.trusted_file import open_trusted_file, write_trusted_file

if TYPE_CHECKING:
    import wasmtime  # at run time with the first instance: a cached run needs none

_WASM = Path(__file__).with_name("scanner.wasm")


def module_code() -> bytes:
    """Return the scanner's module as it was built."""
    return _WASM.read_bytes()


@cache
def version() -> str:
    """Return a digest of the scanner's code."""
    return digest_of(module_code(), 16)


# threads that come for the module at once wait for one of them
_compiling = Lock()


class MemoryLimitError(InputError):
    """A file needs more memory than an instance may have."""


def _module(*, frugal: bool) -> "tuple[wasmtime.Engine, wasmtime.Module]":
    with _compiling:
        return _compiled(frugal=frugal)


@cache
def _compiled(*, frugal: bool) -> "tuple[wasmtime.Engine, wasmtime.Module]":
    import wasmtime

    config = wasmtime.Config()
    config.parallel_compilation = False  # one small module: threads cost more than they save
    config.memory_may_move = frugal  # else it may be filled while code runs
    if frugal:
        config.memory_reservation = config.memory_guard_size = 0
        config.memory_reservation_for_growth = 1 << 24
    atexit.register(_compiled.cache_clear)  # before wasmtime, which frees them, is torn down
    engine, code = wasmtime.Engine(config), module_code()
    return engine, wasmtime.Module(engine, code) if frugal else module_of(engine, code)


_DIGEST_CHARACTERS = 32


def module_of(engine: "wasmtime.Engine", code: bytes) -> "wasmtime.Module":
    """Return the compiled module of some WebAssembly, from an earlier process where one left it."""
    import wasmtime

    place = machine_code_file()
    cached = _cached(place, code)
    if cached is not None:
        with suppress(wasmtime.WasmtimeError):  # of another wasmtime, or another processor
            return wasmtime.Module.deserialize(engine, cached)
    module = wasmtime.Module(engine, code)
    machine_code = bytes(module.serialize())
    write_trusted_file(place, [_digest(code, machine_code), machine_code], permissions=0o644)  # for all users
    return module


def machine_code_file() -> Path:
    """Return where the machine code is cached."""
    return Path(cache_from_source(__file__)).parent / "machine-code" / "scanner"


def _cached(place: Path, code: bytes) -> bytes | None:
    try:
        with open_trusted_file(place, max_bytes=8 << 20) as f:
            content = f.read()
    except OSError:
        return None
    machine_code = content[_DIGEST_CHARACTERS:]
    return machine_code if content[:_DIGEST_CHARACTERS] == _digest(code, machine_code) else None


def _digest(code: bytes, machine_code: bytes) -> bytes:
    return digest_of(digest_of(code).encode() + machine_code, _DIGEST_CHARACTERS).encode()


class Instance:
    """One instance of the module and a view of its memory."""

    def __init__(self) -> None:
        import wasmtime

        # the memory, when it grows
        self.may_move = False
        try:
            self._start(frugal=False)
        except wasmtime.WasmtimeError:  # address space is limited (ulimit -v): 4 GB of it are reserved per instance
            self._start(frugal=True)
            self.may_move = True
        self._memory: npt.NDArray[np.uint8] | None = None

    def _start(self, *, frugal: bool) -> None:
        import wasmtime

        engine, module = _module(frugal=frugal)
        self._store = wasmtime.Store(engine)
        self._exports = wasmtime.Instance(self._store, module, []).exports(self._store)

    def call(self, name: str, *args: int) -> int:
        """Return what an exported function returns; addresses come back unsigned."""
        self._memory = None  # a call may let the memory grow
        return int(self._exports[name](self._store, *args)) & 0xFFFFFFFF

    def run(self, name: str) -> None:
        """Call an exported function that returns nothing and lets the memory be as large as it is."""
        self._exports[name](self._store)

    def memory(self) -> npt.NDArray[np.uint8]:
        """Return a view of all memory, valid until the next call."""
        if self._memory is None:
            exported = self._exports["memory"]
            start = ctypes.addressof(exported.data_ptr(self._store).contents)
            raw: Any = (ctypes.c_uint8 * exported.data_len(self._store)).from_address(start)
            self._memory = np.frombuffer(raw, np.uint8)
        return self._memory

    def write(self, address: int, piece: bytes | bytearray | memoryview) -> None:
        self.memory()[address : address + len(piece)] = np.frombuffer(piece, np.uint8)

    def view(self, address: int, dtype: str, count: int) -> npt.NDArray[Any]:
        return np.ndarray((count,), dtype, self.memory(), address)
