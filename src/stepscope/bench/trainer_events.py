"""Scalars for TensorBoard, written as its event files are. Standard library only, so that every job can.

file     record after record: length (8 bytes), checksum of it, data, checksum of that
data     protocol buffer `Event`: wall_time 1, step 2, file_version 3, summary 5 {value 1 {tag 1, simple_value 2}}
"""

import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

_VERSION = b"brain.Event:2"
_DOUBLE, _VARINT, _BYTES, _FLOAT = 1, 0, 2, 5  # wire types
_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8


class Events:
    """One event file; every call of `scalars` is on the disk before it returns."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file: IO[bytes] = self.path.open("ab")
        self._write(_double(1, time.time()) + _bytes(3, _VERSION))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one value of each tag for a step."""
        parts = (_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in values.items())
        self._write(_double(1, time.time()) + _key(2, _VARINT) + _varint(step) + _bytes(5, b"".join(parts)))

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))
        self._file.flush()


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def _double(field: int, value: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _key(field, _FLOAT) + struct.pack("<f", value)


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(content)) + content


def _table() -> Iterator[int]:
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        yield crc


_CRC = tuple(_table())


def _checksum(content: bytes) -> bytes:
    """Return the masked CRC-32C that record files carry."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)
