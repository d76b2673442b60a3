"""Bounded reading of untrusted files: run.json, logs, calibrations, configurations, results.

Anybody may have put the file there. Only a regular file is read (a pipe would wait for ever, a device never ends), only
up to a size that files of its kind never reach, and no number comes out of it that 64 bits or a float cannot hold:

    1e999, NaN, Infinity, -Infinity, integers beyond 64 bits  -> None, with the field's name in `ParsedJson.unusable`

Standard library only: the job side imports it.
"""

import errno
import io
import json
import math
import os
import re
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from stepscope.units import printable

# Of a file that is read as a whole. JSON takes up to 27 times its size in memory (`{"a":1}` in a list).
MAX_BYTES = 32 << 20
# Of a file that is read line by line.
MAX_LOG_BYTES = 1 << 30
# Of a file of which a piece is read.
_MAX_GROWN_BYTES = 1 << 40
MAX_LINE_BYTES = 1_000_000
# fields named one by one
_MAX_NAMED = 5
# of values inside values; Python's own bound differs by version and is met again when they are written
MAX_DEPTH = 100

# Texts in which a number may be out of range; all others are parsed without a look at each number.
_SUSPECT = re.compile(rb"\d{20}|9[2-9]\d{17}|[eE]\+?\d{3}|NaN|Infinity")
_INT64 = range(-(2**63), 2**63)
_TOO_DEEP = "values nested too deeply"


class RefusedFile(OSError):
    """A file that is not read for what it is: no regular file, or too large."""


class ParsedJson(NamedTuple):
    """A JSON text as values, and the names of the fields whose numbers could not be used."""

    value: Any
    unusable: tuple[str, ...]


@contextmanager
def open_side_file(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> Iterator[IO[bytes]]:
    """Open a regular file of at most `max_bytes` for reading; a `RefusedFile` for anything else, at once."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOCTTY", 0))
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, pipe or socket"
            raise RefusedFile(errno.EINVAL, f"{kind} instead of a regular file", str(path))
        if status.st_size > max_bytes:
            raise RefusedFile(errno.EFBIG, f"{status.st_size:,} bytes where at most {max_bytes:,} are read", str(path))
        f = os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise
    with f:
        yield f


def read_side_file(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file of at most `max_bytes`; an `OSError` for anything else."""
    with open_side_file(path, max_bytes=max_bytes) as f:
        data = f.read(max_bytes + 1)
    if len(data) > max_bytes:  # it grew meanwhile, or its size is unknown (/proc)
        raise RefusedFile(errno.EFBIG, f"more than {max_bytes:,} bytes", str(path))
    return data


def read_side_text(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a regular file; an `OSError` or `UnicodeDecodeError` for anything else."""
    return read_side_file(path, max_bytes=max_bytes).decode("utf-8")


def side_file_lines(path: str | os.PathLike[str], *, max_bytes: int = MAX_LOG_BYTES) -> Generator[bytes, None, None]:
    """Yield the lines of a regular file, one longer than MAX_LINE_BYTES as an empty line."""
    with open_side_file(path, max_bytes=max_bytes) as f:
        left = max_bytes
        while left > 0 and (line := f.readline(MAX_LINE_BYTES)):
            left -= len(line)
            if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
                yield line
                continue
            while (more := f.readline(MAX_LINE_BYTES)) and not more.endswith(b"\n"):
                left -= len(more)
            yield OVERLONG


def appended(path: str | os.PathLike[str], offset: int | None, *, max_bytes: int) -> tuple[bytes, int]:
    """Return what a growing file has from `offset` on, `max_bytes` of it at most, and where to go on.

    None begins near its end: with the first whole line of its last `max_bytes`.
    """
    with open_side_file(path, max_bytes=_MAX_GROWN_BYTES) as f:
        size_bytes = os.fstat(f.fileno()).st_size
        begin = max(0, size_bytes - max_bytes) if offset is None else min(offset, size_bytes)
        f.seek(begin)
        data = f.read(max_bytes)
    if offset is None and begin > 0:
        cut = data.find(b"\n") + 1
        return data[cut:], begin + len(data)
    return data, begin + len(data)


# replaces a line that is too long; not JSON, so it counts as damaged
OVERLONG = b"..."


def read_side_json(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> ParsedJson:
    """Return the JSON in a regular file; an `OSError` or `ValueError` for anything else."""
    return parsed_json(read_side_file(path, max_bytes=max_bytes))


def parsed_json(text: bytes | str) -> ParsedJson:
    """Return a JSON text as values that all fit 64 bits or a float; a `ValueError` where it is none.

    >>> parsed_json('{"steps": 7, "flops": 1e999, "ranks": {"0": [1' + 30 * "0" + "]}}")
    Parsed(value={'steps': 7, 'flops': None, 'ranks': {'0': [None]}}, unusable=('flops', 'ranks.0.0'))
    """
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    try:
        if not _SUSPECT.search(data):
            return ParsedJson(_flat_enough(json.loads(data), data), ())
        unusable: list[str] = []
        found = json.loads(data, parse_int=_int, parse_float=_float, parse_constant=lambda _: _UNUSABLE)
        return ParsedJson(_without_unusable(_flat_enough(found, data), "", unusable), tuple(unusable))
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error


def _flat_enough(value: Any, text: bytes) -> Any:
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return value
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [b for v in level if isinstance(v, dict | list) for b in (v.values() if isinstance(v, dict) else v)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def unusable_fields(parsed: ParsedJson, name: str) -> list[str]:
    """Return the warning that names the fields of a file that could not be used, none where all could."""
    fields = parsed.unusable
    if not fields:
        return []
    more = f" and {len(fields) - _MAX_NAMED:,} more" if len(fields) > _MAX_NAMED else ""
    return [f"{name}: {', '.join(fields[:_MAX_NAMED])}{more} out of range or no finite number; taken as unknown"]


def usable(value: Any) -> ParsedJson:
    """Return values of parsed JSON with None for each number that 64 bits or a float cannot hold."""
    unusable: list[str] = []
    return ParsedJson(_without_unusable(value, "", unusable), tuple(unusable))


class _UnusableNumber:
    """Marks a number while its field's name is still to be found."""


_UNUSABLE = _UnusableNumber()


def _int(text: str) -> int | _UnusableNumber:
    # The length first: Python refuses to convert thousands of digits.
    number = int(text) if len(text) <= 20 else None
    return number if number is not None and number in _INT64 else _UNUSABLE


def _float(text: str) -> float | _UnusableNumber:
    number = float(text)
    return number if math.isfinite(number) else _UNUSABLE


def _without_unusable(value: Any, path: str, unusable: list[str]) -> Any:
    if _is_unusable(value):
        unusable.append(path or "the value")
        return None
    if isinstance(value, dict):
        return {k: _without_unusable(v, f"{path}.{k}" if path else k, unusable) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_unusable(v, f"{path}.{i}" if path else str(i), unusable) for i, v in enumerate(value)]
    return value


def _is_unusable(value: object) -> bool:
    if isinstance(value, int):
        return value not in _INT64
    return value is _UNUSABLE if not isinstance(value, float) else not math.isfinite(value)


def is_number(value: object, *, low: float = -1e300, high: float = 1e300) -> bool:
    """Return whether a value from a file is a finite number in a range, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


# Checks of output paths, for both sides.
#
# An output is a regular file or new. A device, a pipe, a socket, a folder or a link is never written to and never
# replaced, whatever the user allows to be overwritten; and the way to it leads through no link that belongs to somebody
# else, which could lead anywhere by the time it is followed. Standard library only: the job side imports it.

_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
# permissions of recorded files: they hold command lines and source code
PRIVATE = 0o600
# the same as Linux's own limit
_MAX_LINKS = 40


class OutputRefusedError(OSError):
    """A place that must not be written to; `strerror` says why."""


def refuse_output(path: str | os.PathLike[str]) -> None:
    """Raise an `OutputRefusedError` unless `path` is a regular file or new, in a folder that may be trusted."""
    why_not = why_no_output(path)
    if why_not is not None:
        raise OutputRefusedError(errno.EINVAL, why_not, os.fspath(path))


def opened_to_grow(path: str | os.PathLike[str]) -> io.FileIO:
    """Return an empty file that is written to while others read it; an `OSError` where none may be written there.

    What takes the place of the file meanwhile is not followed, not waited for, and not written to.
    """
    refuse_output(path)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OutputRefusedError(errno.EINVAL, "it is no regular file", os.fspath(path))
    os.ftruncate(file, 0)
    return io.FileIO(file, "wb")


def open_private(path: str | os.PathLike[str], flags: int = os.O_TRUNC) -> int:
    """Return a file opened for writing; a new one can be read by its owner alone, whatever the umask."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, PRIVATE)


def why_no_output(path: str | os.PathLike[str]) -> str | None:
    """Return why no file may be written at `path`, None where one may; an OSError where that is unknown."""
    return why_no_file(path) or why_no_folder(Path(path).absolute().parent)


def why_no_file(path: str | os.PathLike[str]) -> str | None:
    """Return the kind of a file that is not regular, None for a regular file or none."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(mode):
        return None
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
    return f"it is {kind}, not a regular file"


def why_no_folder(path: str | os.PathLike[str]) -> str | None:
    """Return which link of another owner the way to a folder leads through, None where there is none.

    Links of the user and of root are followed as usual: a home on another disk, macOS's own /tmp.
    """
    trusted = {0, os.geteuid()} if hasattr(os, "geteuid") else None
    left = list(reversed(Path(path).absolute().parts))
    place, links = Path(left.pop()), 0
    while left and trusted is not None:
        name = left.pop()
        if name == "..":
            place = place.parent  # of a place without links, so this is where it leads
            continue
        try:
            found = os.lstat(place / name)
        except (FileNotFoundError, NotADirectoryError):
            return None  # what is not there yet is ours to make
        if not stat.S_ISLNK(found.st_mode):
            place = place / name
            continue
        links += 1
        if found.st_uid not in trusted:
            return f"{printable(str(place / name))} is a link that belongs to another user"
        if links > _MAX_LINKS:
            return f"{printable(str(path))} leads through too many links"
        target = Path(os.readlink(place / name))  # noqa: PTH115 - the link's text, not resolved
        place = Path(target.anchor) if target.is_absolute() else place
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return None
