"""Does an sqlite table claim more than its file can hold?

sqlite follows the page numbers in a file without counting. Interior pages that all name the same child, and rows that
share their bytes or their overflow pages, make terabytes from a few kilobytes. In a sound file each page has one
parent, and all rows together are smaller than the file. Both are checked before a table is read.

    page    kind (1 byte), -, -, number of cells (2), -, -, -, last child (4, interior only), offset of each cell (2)
    cell    child (4, interior only), bytes of the row (varint, not in interior pages of a table), ...
"""

import os
import sqlite3
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepscope.side_file import open_side_file
from stepscope.trace.nsight.magic import MAX_FILE_BYTES

_TABLE_LEAF, _INDEX_LEAF, _TABLE_INTERIOR, _INDEX_INTERIOR = 13, 10, 5, 2
_FILE_HEADER_BYTES = 100
_MIN_CELL_BYTES = 6  # with its offset; sqlite refuses pages with more cells
BATCH_PAGES = 256
_VARINT_BYTES = 5  # 35 bits; a row of sqlite has at most 32
_MULTIPLIED = "more rows than the file's bytes can hold"

_Int64s = npt.NDArray[np.int64]


class TablePages:
    """The pages and bytes of a file that its tables claimed so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._claimed = np.zeros(0, bool)
        self._row_bytes = 0

    def claim(self, root: int) -> None:
        """Claim what a table takes, by its root page; an `sqlite3.DatabaseError` if the file cannot hold that much."""
        with open_side_file(self._path, max_bytes=MAX_FILE_BYTES) as f:
            fd, size_bytes = f.fileno(), os.fstat(f.fileno()).st_size
            page_bytes = int.from_bytes(os.pread(fd, 2, 16), "big")
            page_bytes = 1 << 16 if page_bytes == 1 else max(page_bytes, 512)
            self._claimed.resize(size_bytes // page_bytes + 1, refcheck=False)
            level = np.array([root], np.int64)
            while len(level):
                self._claim_pages(level)
                children = []
                for at in range(0, len(level), BATCH_PAGES):
                    batch = level[at : at + BATCH_PAGES]
                    read = (os.pread(fd, page_bytes, (page - 1) * page_bytes) for page in batch.tolist())
                    pages = [page.ljust(page_bytes, b"\0") for page in read]  # the file may shrink meanwhile
                    children.append(self._children(_Batch(pages, page_bytes, has_first=1 in batch)))
                    if self._row_bytes > size_bytes:
                        raise sqlite3.DatabaseError(_MULTIPLIED)
                level = np.concatenate(children)

    def _claim_pages(self, pages: _Int64s) -> None:
        if pages.min() < 1 or pages.max() >= len(self._claimed):
            raise sqlite3.DatabaseError("a page outside the file")
        if self._claimed[pages].any() or len(np.unique(pages)) < len(pages):
            raise sqlite3.DatabaseError(_MULTIPLIED)
        self._claimed[pages] = True

    def _children(self, batch: "_Batch") -> _Int64s:
        """Return the children of some pages and count the bytes of their rows."""
        found = [np.empty(0, np.int64)]
        kind = batch.number(batch.head, 1)
        for one in (_TABLE_LEAF, _INDEX_LEAF, _TABLE_INTERIOR, _INDEX_INTERIOR):
            of = np.flatnonzero(kind == one)
            if not len(of):
                continue
            is_interior = one in (_TABLE_INTERIOR, _INDEX_INTERIOR)
            cells = batch.cells(of, header_bytes=12 if is_interior else 8)
            if is_interior:
                found += [batch.number(cells, 4), batch.number(batch.head[of] + 8, 4)]
            if one != _TABLE_INTERIOR:
                self._row_bytes += int(batch.varint(cells + 4 * is_interior).sum())
        return np.concatenate(found)


class _Batch:
    """Some pages in a row."""

    def __init__(self, pages: list[bytes], page_bytes: int, *, has_first: bool) -> None:
        self._page_bytes = page_bytes
        # Cells may reach beyond the end of their page, one without a byte left of it.
        self._data = np.frombuffer(b"".join([*pages, bytes(2 * page_bytes)]), np.uint8)
        self._start = np.arange(len(pages), dtype=np.int64) * page_bytes
        self.head = self._start + (_FILE_HEADER_BYTES if has_first else 0)  # the first page is a root, so alone

    def cells(self, pages: npt.NDArray[np.intp], *, header_bytes: int) -> _Int64s:
        """Return where the cells of some of the pages are."""
        count = self.number(self.head[pages] + 3, 2)
        if (count > self._page_bytes // _MIN_CELL_BYTES).any():
            raise sqlite3.DatabaseError(_MULTIPLIED)
        before = np.repeat(np.cumsum(count) - count, count)
        offset_at = np.repeat(self.head[pages] + header_bytes, count) + 2 * (np.arange(len(before)) - before)
        offset = self.number(offset_at, 2)
        if (offset >= self._page_bytes).any():
            raise sqlite3.DatabaseError("a row outside its page")
        return np.repeat(self._start[pages], count) + offset

    def number(self, at: _Int64s, num_bytes: int) -> _Int64s:
        """Return the big-endian numbers at some places."""
        found = np.zeros(len(at), np.int64)
        for i in range(num_bytes):
            found = found << 8 | self._data[at + i]
        return found

    def varint(self, at: _Int64s) -> _Int64s:
        """Return the numbers of 7 bits per byte at some places, longer ones than a row can have as 2**40."""
        found, unfinished = np.zeros(len(at), np.int64), np.arange(len(at))
        for i in range(_VARINT_BYTES):
            byte = self._data[at[unfinished] + i]
            found[unfinished] = found[unfinished] << 7 | byte & 0x7F
            unfinished = unfinished[byte >= 0x80]
        found[unfinished] = 1 << 40
        return found
