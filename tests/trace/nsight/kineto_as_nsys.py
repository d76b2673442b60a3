"""The same job as Nsight Systems would have exported it: an sqlite file from the Kineto traces of all its ranks.

Operators and ranges become NVTX ranges as PyTorch writes them, records of collectives become NCCL's calls with their
payloads, one process per rank. What Nsight Systems does not record (Python frames, memory, element types) is left out.
"""

import json
import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.contract.operations import element_bytes, op_name

MACHINE = 1 << 48
DOMAIN = 1
INIT, SIZED, PEER = 16777218, 16777220, 16777226
"""schemas of payloads: of a new communicator, of a collective, of a message"""
_FIELDS = {
    INIT: (("NCCL communicator ID", None), ("No. of ranks", 8), ("Rank", 12), ("CUDA device", 16)),
    SIZED: (("NCCL communicator ID", None), ("Message size [bytes]", 8)),
    PEER: (("NCCL communicator ID", None), ("Message size [bytes]", 8), ("Peer rank", 16)),
}
_CALLS = {
    "all_reduce": "ncclAllReduce", "all_gather": "ncclAllGather", "reduce_scatter": "ncclReduceScatter",
    "broadcast": "ncclBroadcast", "send": "ncclSend", "recv": "ncclRecv", "all_to_all": "ncclAlltoAll",
}  # fmt: skip
_COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
_MEMORY_KINDS = {"Pageable": 0, "Pinned": 1, "Device": 2}
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT, systemClockNs INTEGER);
CREATE TABLE ANALYSIS_DETAILS (globalVid INTEGER, duration INTEGER, startTime INTEGER, stopTime INTEGER);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER,
    cuDevice INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,
    mangledName INTEGER, registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER,
    blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER,
    dstKind INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, memKind INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER, returnValue INTEGER, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, textId INTEGER,
    globalTid INTEGER, domainId INTEGER, binaryData BLOB);
CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, name TEXT, offset INTEGER);
"""


def payload(schema: int, data: bytes) -> bytes:
    """Return a payload as Nsight Systems exports it."""
    return struct.pack("<IIIIQQ", DOMAIN, 0, schema, 0, len(data), 32 + len(data)) + data


class Export:
    """An export that grows: one process per rank."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self.db = sqlite3.connect(path)
        self.db.executescript(SCHEMA)
        self._strings: dict[str, int] = {}
        for schema, fields in _FIELDS.items():
            for i, (name, offset) in enumerate(fields):
                self.insert("NVTX_PAYLOAD_SCHEMA_ENTRIES", DOMAIN, schema, i, name, offset)
        self.insert("META_DATA_EXPORT", "EXPORT_SCHEMA_VERSION", "3.25.0")

    def insert(self, table: str, *values: Any) -> None:
        """Add one row."""
        self.db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)

    def text(self, value: str) -> int:
        """Return the id of a text."""
        if value not in self._strings:
            self._strings[value] = 1000 + len(self._strings)
            self.insert("StringIds", self._strings[value], value)
        return self._strings[value]

    def clock(self, epoch_ns: int) -> None:
        """Say when time 0 was."""
        self.insert("TARGET_INFO_SESSION_START_TIME", epoch_ns, "", "", None)
        self.insert("ANALYSIS_DETAILS", MACHINE, 0, 0, 0)

    def nvtx(self, start: int, end: int | None, text: str, thread: int, *, data: bytes | None = None) -> None:
        """Add one push/pop range; every second text is a registered one, as in real exports."""
        domain = DOMAIN if data is not None or text.startswith("nccl") else 0
        by_id = len(text) % 2 == 0
        shown = (None, self.text(text)) if by_id else (text, None)
        self.insert("NVTX_EVENTS", start, end, 59, *shown, thread, domain, data)

    def close(self) -> None:
        """Write everything."""
        self.db.commit()
        self.db.close()


def write_nsys(path: Path, documents: Sequence[dict[str, Any]], *, blobs: bool = True) -> Path:
    """Write the ranks' Kineto traces as one export; without `blobs` NCCL's payloads are left out."""
    export = Export(path)
    base_ns = documents[0].get("baseTimeNanoseconds", 0)
    export.clock(base_ns)
    for rank, document in enumerate(documents):
        assert document.get("baseTimeNanoseconds", 0) == base_ns
        _write_rank(export, document, rank, blobs=blobs)
    export.close()
    return path


def _write_rank(export: Export, document: dict[str, Any], rank: int, *, blobs: bool) -> None:
    process = 100 + rank
    for entry in document.get("deviceProperties", []):
        memory, sms = entry.get("totalGlobalMem"), entry.get("numSms")
        export.insert("TARGET_INFO_GPU", 0, entry["id"], entry["name"], memory, sms, entry["id"])
    info = document.get("distributedInfo", {})
    comms = {}
    for i, group in enumerate(info.get("pg_config", [])):
        comms[group["pg_name"]] = 0xA0000 + _stable(group["pg_name"])
        if blobs:
            place = group["ranks"].index(info["rank"])
            data = struct.pack("<Qiiii", comms[group["pg_name"]], len(group["ranks"]), place, 0, 0)
            export.nvtx(i, i + 1, "ncclCommInitRank", _thread(process, process), data=payload(INIT, data))
    events = [e for e in document["traceEvents"] if e.get("ph") == "X"]
    for i, event in enumerate(events):
        _write_event(export, event, process, comms, i, blobs=blobs)


def _write_event(
    export: Export, event: dict[str, Any], process: int, comms: dict[str, int], number: int, *, blobs: bool
) -> None:
    start = round(event["ts"] * 1000)
    end = start + round(event["dur"] * 1000)
    category, name, args = event["cat"], event["name"], event.get("args", {})
    owner = MACHINE | process << 24
    if category in ("kernel", "gpu_memcpy", "gpu_memset"):
        where = (start, end, args["device"], args.get("context"), args["stream"], args.get("correlation"), owner)
        if category == "kernel":
            grid, block = args.get("grid", [1, 1, 1]), args.get("block", [1, 1, 1])
            names = (export.text(name), export.text(name.split("(")[0]), None)
            registers, shared = args.get("registers per thread", 0), args.get("shared memory", 0)
            node = args.get("graph node id")
            export.insert("CUPTI_ACTIVITY_KIND_KERNEL", *where, *names, registers, *grid, *block, shared, 0, node)
        elif category == "gpu_memcpy":
            kind, _, kinds = name.removeprefix("Memcpy ").partition(" ")
            source, target = (_MEMORY_KINDS[k] for k in kinds.strip("()").split(" -> "))
            copied = args.get("bytes"), _COPY_KINDS[kind], source, target, None
            export.insert("CUPTI_ACTIVITY_KIND_MEMCPY", *where, *copied)
        else:
            export.insert("CUPTI_ACTIVITY_KIND_MEMSET", *where, args.get("bytes"), 2, None)
    elif category in ("cuda_runtime", "cuda_driver"):
        thread, called = _thread(process, event["tid"]), export.text(f"{name}_v7000")
        export.insert("CUPTI_ACTIVITY_KIND_RUNTIME", start, end, 0, thread, args.get("correlation"), called, 0, None)
    elif category in ("cpu_op", "user_annotation"):
        thread = _thread(process, event["tid"])
        if name == "record_param_comms":
            export.nvtx(start, end, *_nccl_call(args, comms, thread, blobs=blobs))
            if blobs:
                data = _payload(args, comms)
                rowid = export.db.execute("SELECT max(rowid) FROM NVTX_EVENTS").fetchone()[0]
                export.db.execute("UPDATE NVTX_EVENTS SET binaryData = ? WHERE rowid = ?", (data, rowid))
        else:
            export.nvtx(start, end, _torch_text(name, args, number), thread)


def _nccl_call(args: dict[str, Any], comms: dict[str, int], thread: int, *, blobs: bool) -> tuple[str, int]:
    return _CALLS[op_name(args["Collective name"])], thread


def _payload(args: dict[str, Any], comms: dict[str, int]) -> bytes:
    op = op_name(args["Collective name"])
    elements = args["Out msg nelems"] if op in ("reduce_scatter", "recv") else args["In msg nelems"]
    size = elements * (element_bytes(args["dtype"]) or 1)
    comm = comms[args["Process Group Name"]]
    if op in ("send", "recv"):
        peer = args["Dst Rank"] if op == "send" else args["Src Rank"]
        return payload(PEER, struct.pack("<QQii", comm, size, peer, 0))
    return payload(SIZED, struct.pack("<QQ", comm, size))


def _torch_text(name: str, args: dict[str, Any], number: int) -> str:
    sequence = f", seq = {args['Sequence number']}" if "Sequence number" in args else ""
    dims = args.get("Input Dims")
    sizes = f", sizes = {json.dumps(dims)}" if dims else ""
    return f"{name}{sequence}, op_id = {number + 1}{sizes}"


def _thread(process: int, thread: int) -> int:
    return MACHINE | process << 24 | (thread % (1 << 24))


def _stable(name: str) -> int:
    return int.from_bytes(name.encode()[:6], "little")
