"""The module's machine code, cached in a folder of its own where Python caches the bytecode of this package.

Compiling takes 40 ms, loading three. Loaded code runs as the current user, so it must come from that user or root, in
a folder that no one else can write to (`trusted_file`); it is never taken from beside a trace. The file begins with a
digest of the module and of all that follows, against damage; wasmtime refuses code of another version or processor.
Anything else is compiled again and replaced; where nothing can be written, nothing is cached.
"""

from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

import wasmtime

from stepscope.digest import digest_of
from stepscope.trusted_file import open_trusted_file, write_trusted_file

_PERMISSIONS = 0o644  # for all users of a package that root installed
_DIGEST_CHARACTERS = 32


def module_of(engine: wasmtime.Engine, code: bytes) -> wasmtime.Module:
    """Return the compiled module of some WebAssembly, from an earlier process where one left it."""
    place = machine_code_file()
    cached = _cached(place, code)
    if cached is not None:
        with suppress(wasmtime.WasmtimeError):  # of another wasmtime, or another processor
            return wasmtime.Module.deserialize(engine, cached)
    module = wasmtime.Module(engine, code)
    machine_code = bytes(module.serialize())
    write_trusted_file(place, [_digest(code, machine_code), machine_code], permissions=_PERMISSIONS)
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
