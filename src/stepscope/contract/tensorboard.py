"""Records of TensorBoard's event files, with the standard library alone: both sides write them.

file     record after record: length (8 bytes), checksum of it, data, checksum of that (CRC-32C, masked)
data     protocol buffer `Event`: wall_time 1, step 2, file_version 3, summary 5 {value 1 {tag 1, simple_value 2}}

Field numbers are those of `event.proto` and `summary.proto` in the TensorBoard project.
"""

import struct
from collections.abc import Mapping

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # wire types


def version_record(wall_s: float) -> bytes:
    """Return the record that an event file begins with."""
    return _record(_double(1, wall_s) + _bytes(3, b"brain.Event:2"))


def scalars_record(step: int, values: Mapping[str, float], *, wall_s: float) -> bytes:
    """Return the record of one value per tag at a step; `wall_s` in seconds since 1970."""
    parts = (
        _bytes(1, _bytes(1, tag.encode(errors="replace")) + (_key(2, _FLOAT) + struct.pack("<f", v)))
        for tag, v in values.items()
    )
    return _record(_double(1, wall_s) + _key(2, _VARINT) + _varint(step % 2**64) + _bytes(5, b"".join(parts)))


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C that records carry."""
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + checksum(length) + event + checksum(event)


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


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(content)) + content


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _crc_table()
