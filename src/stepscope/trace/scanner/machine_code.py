"""Is the module's machine code at hand from an earlier process? Kept where Python keeps the bytecode of this package.

To compile takes 40 ms, to load what was compiled three. Whoever can write to that folder can change the package
itself, so what lies there is trusted as the package is; it is never taken from beside a trace. The file begins with a
digest of the module and of all that follows; wasmtime refuses what another version of it, or another kind of
processor, compiled. What does not fit is compiled again and replaced; where nothing can be written, nothing is kept.
"""

from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

import wasmtime

from stepscope.contract.run_folder import atomic_write
from stepscope.digest import digest_of
from stepscope.side_file import read_side_file
from stepscope.trace.cache_place import try_to_write

_NAME = "scanner.machine-code"
_MAX_BYTES = 8 << 20
_DIGEST_CHARACTERS = 32


def module_of(engine: wasmtime.Engine, code: bytes) -> wasmtime.Module:
    """Return the compiled module of some WebAssembly, from an earlier process where one left it."""
    place = Path(cache_from_source(__file__)).with_name(_NAME)
    kept = _kept(place, code)
    if kept is not None:
        with suppress(wasmtime.WasmtimeError):  # of another wasmtime, or another processor
            return wasmtime.Module.deserialize(engine, kept)
    module = wasmtime.Module(engine, code)
    try_to_write(place, lambda: _keep(place, code, bytes(module.serialize())))
    return module


def _kept(place: Path, code: bytes) -> bytes | None:
    """Return the machine code that was kept of this module; None where there is none, or the file is damaged."""
    try:
        content = read_side_file(place, max_bytes=_MAX_BYTES)
    except OSError:
        return None
    machine_code = content[_DIGEST_CHARACTERS:]
    return machine_code if content[:_DIGEST_CHARACTERS] == _digest(code, machine_code) else None


def _keep(place: Path, code: bytes, machine_code: bytes) -> None:
    with atomic_write(place, synced=False) as f:  # what a crash leaves of it has another digest
        f.write(_digest(code, machine_code))
        f.write(machine_code)


def _digest(code: bytes, machine_code: bytes) -> bytes:
    return digest_of(digest_of(code).encode() + machine_code, _DIGEST_CHARACTERS).encode()
