"""Kineto traces of a run folder: what PyTorch's profiler writes, under the name that the recorder gives them."""

import re
import shutil
import zlib
from pathlib import Path

from stepscope.contract.run_folder import atomic_write
from stepscope.run.imports.format import MAX_FILE_BYTES, BytesRead, Contents, FileHead, Format
from stepscope.run.sources import rank_in_header
from stepscope.side_file import open_side_file
from stepscope.trace.read import read

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[|^\s*\[\s*\{\s*"(?:ph|name|cat|pid|tid|ts)"\s*:')
_PACKED = (b"\x1f\x8b", b"\x28\xb5")
_CHUNK_BYTES = 1 << 20


def _is_kineto(head: FileHead) -> bool:
    return bool(_EVENTS.search(head.start))


def _look(path: Path, told: BytesRead) -> Contents:
    trace = read(path, progress=told)
    rank = rank_in_header(trace.header)
    return Contents(f"{trace.num_events:,} events", () if rank is None else (rank,))


def _store(source: Path, target: Path) -> None:
    """Copy a trace that is packed, pack one that is not."""
    with open_side_file(source, max_bytes=MAX_FILE_BYTES) as f, atomic_write(target) as out:
        start = f.read(2)
        f.seek(0)
        if start in _PACKED:
            shutil.copyfileobj(f, out, _CHUNK_BYTES)
            return
        pack = zlib.compressobj(level=3, wbits=31)
        while chunk := f.read(_CHUNK_BYTES):
            out.write(pack.compress(chunk))
        out.write(pack.flush())


KINETO = Format(
    id="kineto",
    title="Kineto trace",
    ending="pt.trace.json.gz",
    is_it=_is_kineto,
    look=_look,
    store=_store,
)
