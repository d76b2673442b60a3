"""What does a pickled file hold? A large one is read in a process of its own, with a limit on its memory and its time.

The process that asks never has the objects of a large pickle, only what a reader made of them: plain lists of numbers
and texts, as JSON. Where the limit is reached the other process ends, and this one says so in a sentence.
"""

import gzip
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.errors import InputError
from stepscope.side_file import RefusedFile, open_side_file, read_side_file, read_side_text
from stepscope.trace.pickles.plain_data import NotPlainData, plain_data
from stepscope.units import readable_bytes

MAX_PICKLE_BYTES = 1 << 30
"""after gzip is taken off"""
MIN_APART_BYTES = 16 << 20
_MEMORY_PER_BYTE = 32
"""a dict of three fields takes 232 bytes in memory and about 20 in a pickle"""
_MIN_MEMORY_BYTES = 1 << 30
_SECONDS_PER_MB = 5
_MIN_SECONDS = 60
_GZIP = b"\x1f\x8b"
Reader = Callable[[Any], Any]
"""plain data to something that JSON can hold"""


def read_pickled(path: Path, reader: Reader, *, what: str) -> Any:
    """Return what `reader`, a function of a module, makes of the plain data in a file; an `InputError` otherwise.

    `what` names the kind of file that was expected.
    """
    try:
        size_bytes = _size_of(path)
        if size_bytes >= MIN_APART_BYTES:
            return _read_apart(path, reader, size_bytes=size_bytes, what=what)
        return reader(plain_data(_content(path)))
    except NotPlainData as error:
        raise InputError(f"{path} is no {what} that can be read: {error}; give a {what}") from error
    except (RefusedFile, EOFError, zlib.error, gzip.BadGzipFile) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{path} is no {what} that can be read: {why}; give a {what}") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; check that it is there") from error


def is_gzip(path: Path) -> bool:
    """Return whether a file begins as gzip does."""
    with open_side_file(path, max_bytes=MAX_PICKLE_BYTES) as f:
        return f.read(2) == _GZIP


def _size_of(path: Path) -> int:
    """Return the bytes of the pickle, of a packed one as far as it takes to know that it is large."""
    if not is_gzip(path):
        return path.stat().st_size
    with open_side_file(path, max_bytes=MAX_PICKLE_BYTES) as packed, gzip.GzipFile(fileobj=packed) as f:
        size_bytes = 0
        while size_bytes <= MAX_PICKLE_BYTES and (piece := f.read(1 << 20)):
            size_bytes += len(piece)
    if size_bytes > MAX_PICKLE_BYTES:
        raise NotPlainData(f"more than {readable_bytes(MAX_PICKLE_BYTES)} once unpacked")
    return size_bytes


def _content(path: Path) -> bytes:
    if not is_gzip(path):
        return read_side_file(path, max_bytes=MAX_PICKLE_BYTES)
    with open_side_file(path, max_bytes=MAX_PICKLE_BYTES) as packed, gzip.GzipFile(fileobj=packed) as f:
        content = f.read(MAX_PICKLE_BYTES + 1)
    if len(content) > MAX_PICKLE_BYTES:
        raise NotPlainData(f"more than {readable_bytes(MAX_PICKLE_BYTES)} once unpacked")
    return content


def _read_apart(path: Path, reader: Reader, *, size_bytes: int, what: str) -> Any:
    limit_bytes = max(_MIN_MEMORY_BYTES, _MEMORY_PER_BYTE * size_bytes)
    seconds = _MIN_SECONDS + _SECONDS_PER_MB * (size_bytes >> 20)
    command = [sys.executable, "-m", "stepscope.trace.pickles.apart", f"{reader.__module__}:{reader.__name__}"]
    package = str(Path(__file__).parents[3])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([package, *sys.path])}
    try:
        done = subprocess.run(
            [*command, str(path.resolve()), str(limit_bytes)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            env=environ,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{path} was not read within {seconds} s; give a smaller {what}") from error
    if done.returncode != 0:
        raise NotPlainData(f"its reader ended with {done.returncode}")
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise NotPlainData(answer["refused"])
    return answer["made"]


def _main(reader: str, path: str, limit_bytes: str) -> int:
    """Write what a reader makes of a file, or why it makes nothing, as JSON to whoever started this process."""
    from importlib import import_module

    module, _, name = reader.partition(":")
    make = getattr(import_module(module), name)
    _limit_memory(int(limit_bytes))
    try:
        answer = {"made": make(plain_data(_content(Path(path))))}
    except MemoryError:
        answer = {"refused": f"it takes more than {readable_bytes(int(limit_bytes))} of memory"}
    except (NotPlainData, InputError) as error:
        answer = {"refused": str(error)}
    json.dump(answer, sys.stdout)
    return 0


def _limit_memory(limit_bytes: int) -> None:
    """Let this process have no more memory than that beyond what it has mapped, where the system can say so."""
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = limit_bytes + _mapped_bytes()
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _mapped_bytes() -> int:
    try:
        return int(read_side_text("/proc/self/statm").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return _MIN_MEMORY_BYTES


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
