"""Protobuf's wire format: single fields as bytes, and many messages of one shape at once as columns.

A message is written as its fields, each a tag (number and kind) and a value. A column of values becomes a matrix with
one row per message and the bytes each row uses; matrices side by side, cut to those bytes, are the messages.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
_MAX_BYTES = 10
"""of a varint"""


def varint(value: int) -> bytes:
    """Return a number from 0 to 2^64 - 1, seven bits per byte, lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, kind: int) -> bytes:
    """Return what stands before a field."""
    return varint(number << 3 | kind)


def number(field: int, value: int) -> bytes:
    """Return a whole number as a field; negative ones as 64 bits."""
    return tag(field, _VARINT) + varint(value % 2**64)


def message(field: int, *parts: bytes) -> bytes:
    """Return a message, or any bytes, as a field."""
    body = b"".join(parts)
    return tag(field, _LENGTH) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    """Return a text as a field."""
    return message(field, value.encode(errors="replace"))


def fixed64(field: int, value: int) -> bytes:
    """Return a number of 8 bytes as a field."""
    return tag(field, _FIXED64) + value.to_bytes(8, "little")


@dataclass(frozen=True, eq=False, repr=False)
class Column(ArrayRecord):
    """One piece of many messages: row `i` has the first `length[i]` bytes of `data[i]`."""

    data: npt.NDArray[np.uint8]
    length: npt.NDArray[np.int64]


def varints(values: npt.NDArray[np.int64]) -> Column:
    """Return numbers of at least 0, one per message."""
    data = np.zeros((len(values), _MAX_BYTES), np.uint8)
    length = np.ones(len(values), np.int64)
    rest = values.astype(np.uint64)
    width = 0
    while width < _MAX_BYTES:
        more = rest > 0x7F
        data[:, width] = (rest & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7)
        width += 1
        if not more.any():
            break
        length += more
        rest >>= np.uint64(7)
    return Column(data[:, :width], length)


def constant(value: bytes, where: npt.NDArray[np.bool_]) -> Column:
    """Return the same bytes in the messages where they belong, nothing in the others."""
    data = np.broadcast_to(np.frombuffer(value, np.uint8), (len(where), len(value)))
    return Column(data, where * len(value))


def ragged(values: Sequence[bytes]) -> Column:
    """Return bytes that are of another length in every message."""
    length = np.array([len(v) for v in values], np.int64)
    data = np.zeros((len(values), int(length.max(initial=0))), np.uint8)
    for i in np.flatnonzero(length).tolist():
        data[i, : length[i]] = np.frombuffer(values[i], np.uint8)
    return Column(data, length)


def only(column: Column, where: npt.NDArray[np.bool_]) -> Column:
    """Return the column with nothing in the other messages."""
    return Column(column.data, column.length * where)


def lengths(columns: Sequence[Column]) -> npt.NDArray[np.int64]:
    """Return how many bytes each message has in these columns together."""
    return np.sum([c.length for c in columns], axis=0)


def joined(columns: Sequence[Column]) -> bytes:
    """Return all messages, one after the other."""
    used = [np.arange(c.data.shape[1]) < c.length[:, None] for c in columns]
    return np.concatenate([c.data for c in columns], axis=1)[np.concatenate(used, axis=1)].tobytes()
