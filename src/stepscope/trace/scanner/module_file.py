"""The file of the scanner's module, and which it is, without running it."""

from functools import cache
from pathlib import Path

from stepscope.digest import digest_of

_WASM = Path(__file__).with_name("scanner.wasm")


def module_code() -> bytes:
    """Return the scanner's module as it was built."""
    return _WASM.read_bytes()


@cache
def version() -> str:
    """Return a digest of the scanner's code."""
    return digest_of(module_code(), 16)
