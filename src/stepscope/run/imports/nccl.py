"""What NCCL writes, in a run folder: its debug log, of one rank or of all, and NCCL inspector's measurements."""

import gzip
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

from stepscope.contract.run_folder import atomic_write
from stepscope.errors import InputError
from stepscope.run.imports.format import BytesRead, Contents, FileHead, Format, nobody
from stepscope.side_file import MAX_LOG_BYTES, open_side_file, side_file_lines
from stepscope.trace.nccl.inspector import inspected, is_inspector
from stepscope.trace.nccl.lines import LINE
from stepscope.trace.nccl.log import nccl_logs

MAX_UNPACKED_BYTES = 1 << 30
_TELL_EVERY_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"


def _is_log(head: FileHead) -> bool:
    return b"NCCL " in head.start and LINE.search(head.start.decode(errors="replace")) is not None


def _look_log(path: Path, told: BytesRead) -> Contents:
    logs = nccl_logs(_lines(path, told))
    if not logs:
        raise InputError(f"{path}: is a log of NCCL in which no rank says its number; log with NCCL_DEBUG=INFO")
    version = next((log.version for log in logs if log.version), None)
    transports = sorted({name for log in logs for name in log.transports})
    what = f"NCCL {version or 'of unknown version'}, {', '.join(transports) or 'no connections'}"
    ranks = tuple(log.rank for log in logs)
    several = f", {len(logs)} ranks" if len(logs) > 1 else ""
    return Contents(what + several, ranks, whole_job=len(logs) > 1)


def _look_inspector(path: Path, told: BytesRead) -> Contents:
    found, damaged = inspected(_lines(path, told))
    if not found:
        raise InputError(f"{path}: none of its {damaged:,} lines is a measurement of NCCL inspector")
    ranks = tuple(sorted({one.rank for one in found}))
    count = sum(one.count for one in found)
    return Contents(f"{count:,} collectives measured", ranks, whole_job=len(ranks) > 1)


def _lines(path: Path, told: BytesRead = nobody) -> Iterator[bytes]:
    """Yield the lines of a file, unpacked where it is gzipped; `told` hears of every megabyte or so."""
    try:
        if not _is_packed(path):
            yield from _counted(side_file_lines(path), told)
            return
        left = MAX_UNPACKED_BYTES
        with open_side_file(path, max_bytes=MAX_LOG_BYTES) as packed, gzip.GzipFile(fileobj=packed) as f:
            while left > 0 and (line := f.readline(1 << 20)):
                left -= len(line)
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _counted(lines: Iterator[bytes], told: BytesRead) -> Iterator[bytes]:
    """Yield the lines, and tell how many bytes they were."""
    read = said = 0
    for line in lines:
        read += len(line)
        if read - said >= _TELL_EVERY_BYTES:
            told(read)
            said = read
        yield line
    told(read)


def _store(source: Path, target: Path) -> None:
    """Copy a log as it is, unpacked where it is gzipped: it is read line by line."""
    with atomic_write(target) as out:
        if _is_packed(source):
            for line in _lines(source):
                out.write(line)
        else:
            with open_side_file(source, max_bytes=MAX_LOG_BYTES) as f:
                shutil.copyfileobj(f, out, 1 << 20)


def _is_packed(path: Path) -> bool:
    with open_side_file(path, max_bytes=MAX_LOG_BYTES) as f:
        return f.read(2) == _GZIP


NCCL_LOG = Format(
    id="nccl-log",
    title="NCCL log",
    ending="nccl.log",
    is_it=_is_log,
    look=_look_log,
    store=_store,
    needs_rank=False,
)
NCCL_INSPECTOR = Format(
    id="nccl-inspector",
    title="NCCL inspector output",
    ending="nccl_inspector.jsonl",
    is_it=lambda head: is_inspector(head.start),
    look=_look_inspector,
    store=_store,
    needs_rank=False,
)
