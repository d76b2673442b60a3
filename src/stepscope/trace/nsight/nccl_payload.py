"""What does NCCL write behind its NVTX ranges? Communicator, bytes, peer, ranks: the payload of each call.

An event's payload is 32 bytes of header, then the fields at the offsets that the export's tables give:

    domain u32, 4 bytes, schema u32, 4 bytes, payload bytes u64, all bytes u64 | fields

`NVTX_PAYLOAD_SCHEMA_ENTRIES` names the fields (`NCCL communicator ID`, `Message size [bytes]`, `Peer rank`, `No. of
ranks`, `Rank`). They are there only where the export was made with `--include-blobs=true`.
"""

import struct
from collections.abc import Iterable

from stepscope.dataclass import dataclass
from stepscope.trace.nsight.database import Database, integers

_HEADER = struct.Struct("<IIIIQQ")
_FIELDS = {
    "NCCL communicator ID": ("communicator", "Q"),
    "Message size [bytes]": ("size_bytes", "Q"),
    "Peer rank": ("peer", "i"),
    "No. of ranks": ("num_ranks", "i"),
    "Rank": ("rank", "i"),
    "Root": ("root", "i"),
}
_MAX_SCHEMAS = 10_000
_MAX_RANKS = 1 << 20
_MAX_SIZE = 1 << 48


@dataclass(frozen=True)
class NcclCall:
    """The fields of one call; None where the payload lacks them or they cannot be."""

    communicator: int | None = None
    size_bytes: int | None = None
    peer: int | None = None
    num_ranks: int | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Schemas:
    """Where the fields lie, by domain and schema."""

    fields: dict[tuple[int, int], tuple[tuple[str, str, int], ...]]

    def call(self, data: object) -> NcclCall | None:
        """Return the fields of a payload, None where it is none of NCCL's."""
        raw = _bytes(data)
        if raw is None or len(raw) < _HEADER.size:
            return None
        domain, _, schema, _, size, _ = _HEADER.unpack_from(raw)
        fields = self.fields.get((domain, schema))
        if fields is None or size > len(raw) - _HEADER.size:
            return None
        found: dict[str, int] = {}
        for name, code, offset in fields:
            at = _HEADER.size + offset
            if offset >= 0 and at + struct.calcsize(code) <= len(raw):
                found[name] = struct.unpack_from(f"<{code}", raw, at)[0]
        return NcclCall(
            communicator=found.get("communicator"),
            size_bytes=_within(found.get("size_bytes"), _MAX_SIZE),
            peer=_within(found.get("peer"), _MAX_RANKS),
            num_ranks=_within(found.get("num_ranks"), _MAX_RANKS),
            rank=_within(found.get("rank"), _MAX_RANKS),
        )


def payload_schemas(db: Database) -> Schemas:
    """Return where NCCL's fields lie in the payloads of this export."""
    found: dict[tuple[int, int], dict[str, tuple[str, int]]] = {}
    columns = ("domainId", "schemaId", "name", "offset")
    for chunk in db.chunks("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns):
        domain, domain_known = integers(chunk["domainId"])
        schema, schema_known = integers(chunk["schemaId"])
        offset, _ = integers(chunk["offset"])  # absent for the field at 0
        for i, raw in enumerate(chunk["name"]):
            known = _FIELDS.get(db.text(raw) or "")
            key = int(domain[i]), int(schema[i])
            if known and domain_known[i] and schema_known[i] and (key in found or len(found) < _MAX_SCHEMAS):
                found.setdefault(key, {})[known[0]] = (known[1], int(offset[i]))
    fields = {key: tuple((name, *where) for name, where in entry.items()) for key, entry in found.items()}
    return Schemas({key: entry for key, entry in fields.items() if any(f[0] == "communicator" for f in entry)})


def world_of(calls: Iterable[NcclCall]) -> tuple[int, int] | None:
    """Return rank and number of ranks by a process's communicators: those of the largest, None where none says both."""
    known = [(c.num_ranks, c.rank) for c in calls if c.num_ranks and c.rank is not None and c.rank < c.num_ranks]
    if not known:
        return None
    largest = max(size for size, _ in known)
    ranks = {rank for size, rank in known if size == largest}
    return (ranks.pop(), largest) if len(ranks) == 1 else None


def _bytes(data: object) -> bytes | None:
    """Return a payload: a blob as it is, or its hexadecimal text, as exporters have written both."""
    if not isinstance(data, bytes):
        return None
    text = data[2:] if data[:2] in (b"0x", b"0X") else data
    if len(text) >= 2 * _HEADER.size and len(text) % 2 == 0:
        try:
            return bytes.fromhex(text.decode("ascii"))
        except (UnicodeDecodeError, ValueError):
            pass
    return data


def _within(value: int | None, most: int) -> int | None:
    return value if value is not None and 0 <= value <= most else None
