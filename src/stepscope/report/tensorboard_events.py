"""TensorBoard's event files: numbers over steps, written without TensorBoard.

A file is a row of records, each with its length and two checksums (CRC-32C, masked as TensorFlow does it); a record is
one `Event` message. Field numbers are those of `event.proto` and `summary.proto` in the TensorBoard project.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stepscope.report.protobuf import message, number, real32, real64, text

_POLYNOMIAL = 0x82F63B78
_WALL_TIME, _STEP, _VERSION, _SUMMARY = 1, 2, 3, 5


@dataclass(frozen=True)
class Scalar:
    """One number at one step."""

    tag: str
    step: int
    value: float
    wall_s: float
    """when, in seconds since 1970"""


def event_file(scalars: Iterable[Scalar]) -> Iterator[bytes]:
    """Yield an event file with these numbers."""
    listed = sorted(scalars, key=lambda s: (s.wall_s, s.step, s.tag))
    first_s = listed[0].wall_s if listed else 0.0
    yield _record(real64(_WALL_TIME, first_s) + text(_VERSION, "brain.Event:2"))
    for s in listed:
        value = message(1, text(1, s.tag), real32(2, s.value))
        yield _record(real64(_WALL_TIME, s.wall_s) + number(_STEP, s.step) + message(_SUMMARY, value))


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _crc_table()


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)
