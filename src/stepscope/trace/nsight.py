"""One Nsight Systems export to one table per process that used a device: the same tables that Kineto traces give."""

import re
import sqlite3
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.contract.operations import op_name
from stepscope.errors import TraceError
from stepscope.intervals import Intervals, covered_ns
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.trace.read import BYTES_PER_TEXT, Budget, OverBudget, Share
from stepscope.trace.sqlite_file import Bools, Database, integers
from stepscope.trace.streams import Stream
from stepscope.trace.table import (
    ARGS,
    DENSE,
    GRAPH_NAME,
    OPERATOR,
    PAGE_MOVE,
    Int64s,
    Quality,
    SparseColumn,
    Trace,
    drop_implausible,
)
from stepscope.units import NS_PER_MS, printable

# The columns of the event table as chunks of rows fill them, process by process.
#
#     kernels of processes 7 and 9, runtime calls of both, ...    ->    one table of process 7, one of process 9
#
# All share one table of strings. Values are stored in the type of their column from the first, in blocks that are
# filled in place; what is the same for every row of a database (`ph`, `offset`) is stored once.

# columns of one value: all events have a duration, and are rows of a database rather than places in a text
_SAME_FOR_ALL = {"ph": ord("X"), "offset": -1}
_BYTES_PER_EVENT = sum(np.dtype(column.dtype).itemsize for column in DENSE if column.name not in _SAME_FOR_ALL)
# values at most; a large block is returned to the system once it is joined, many small ones between others are not
_BLOCK = 1 << 17


class Texts:
    """One table of distinct strings."""

    def __init__(self, share: Share) -> None:
        self._ids: dict[str, int] = {}
        self.strings: list[str] = []
        self._share = share

    def id(self, text: str) -> int:
        found = self._ids.get(text)
        if found is None:
            self._share.take(BYTES_PER_TEXT + len(text))
            found = self._ids[text] = len(self.strings)
            self.strings.append(text)
        return found


@dataclass(eq=False, repr=False)
class Rows(ArrayRecord):
    """Rows of one kind out of one chunk; arguments are `(values, which rows have one)`."""

    process: Int64s
    cat: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    pid: Int64s
    tid: Int64s
    start_ns: Int64s
    end_ns: Int64s
    #: whether both times are numbers
    timed: Bools
    args: dict[str, tuple[Int64s, Bools]] = field(default_factory=dict)


class Growing:
    """Values of one column while they come: blocks of its type, joined into one array at the end."""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._blocks: list[npt.NDArray[Any]] = []
        # of the last block
        self._used = 0
        self.length = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        at = 0
        while at < len(values):
            if not self._blocks or self._used == len(self._blocks[-1]):
                size = min(max(self.length, len(values) - at), _BLOCK)
                self._blocks.append(np.empty(size, self._dtype))
                self._used = 0
            number = min(len(values) - at, len(self._blocks[-1]) - self._used)
            self._blocks[-1][self._used : self._used + number] = values[at : at + number]
            at, self._used, self.length = at + number, self._used + number, self.length + number

    def joined(self) -> npt.NDArray[Any]:
        """Return all values and forget them here, block by block."""
        out = np.empty(self.length, self._dtype)
        at = 0
        blocks, self._blocks = self._blocks[::-1], []
        while blocks:
            block = blocks.pop()
            number = min(len(block), self.length - at)
            out[at : at + number] = block[:number]
            at += number
        self.length = 0
        return out


class _Process:
    def __init__(self) -> None:
        self.dense = {c.name: Growing(c.dtype) for c in DENSE if c.name not in _SAME_FOR_ALL}
        # rows and values
        self.args: dict[str, tuple[Growing, Growing]] = {}
        self.length = 0
        self.counts: Counter[str] = Counter()


class Events:
    """The tables of all processes while they grow."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._processes: defaultdict[int, _Process] = defaultdict(_Process)

    def add(self, rows: Rows) -> None:
        """Add rows to the tables of their processes; rows without sound times are counted and left out."""
        backwards = rows.timed & (rows.end_ns < rows.start_ns)
        with np.errstate(over="ignore"):
            lasting = rows.end_ns - rows.start_ns
        backwards |= rows.timed & ~backwards & (lasting < 0)  # a difference beyond 64 bits
        for process in np.unique(rows.process).tolist():
            mine = rows.process == process
            of = self._processes[process]
            of.counts["bad_time"] += int((mine & ~rows.timed).sum())
            of.counts["negative_duration"] += int((mine & backwards).sum())
            keep = np.flatnonzero(mine & rows.timed & ~backwards)
            if len(keep):
                self._append(of, rows, keep, lasting)

    def _append(self, of: _Process, rows: Rows, keep: npt.NDArray[np.intp], lasting: Int64s) -> None:
        self._share.take(len(keep) * _BYTES_PER_EVENT)
        times = {"ts_ns": rows.start_ns, "dur_ns": lasting}
        for name, column in of.dense.items():
            column.add(times[name][keep] if name in times else getattr(rows, name)[keep])
        for name, (values, known) in rows.args.items():
            where = np.flatnonzero(known[keep])
            if len(where):
                self._share.take(len(where) * 12)
                numbers, found = of.args.setdefault(name, (Growing("int32"), Growing("int64")))
                numbers.add(where + of.length)
                found.add(values[keep][where])
        of.length += len(keep)

    def processes(self) -> list[int]:
        return [key for key, of in self._processes.items() if of.length]

    def take(self, process: int) -> tuple[dict[str, npt.NDArray[Any]], dict[str, SparseColumn], Counter[str]]:
        """Return the columns of one process, and how many of its rows were left out by the field of `Quality`."""
        of = self._processes.pop(process)
        dense: dict[str, npt.NDArray[Any]] = {}
        for column in DENSE:
            if column.name in _SAME_FOR_ALL:
                dense[column.name] = np.broadcast_to(np.array(_SAME_FOR_ALL[column.name], column.dtype), of.length)
            else:
                dense[column.name] = of.dense.pop(column.name).joined()
        args: dict[str, SparseColumn] = {}
        for arg in ARGS:
            if arg.name in of.args:
                numbers, values = of.args.pop(arg.name)
                rows = numbers.joined()
                alike = next((one.rows for one in args.values() if np.array_equal(one.rows, rows)), rows)
                args[arg.name] = SparseColumn(alike, values.joined())
        return dense, args, of.counts


# Names of PyTorch's NVTX ranges (`torch.autograd.profiler.emit_nvtx`).
#
#     aten::linear, op_id = 317149, sizes = [[16, 512, 4096], [4096, 4096]]
#     MulBackward0, seq = 1201, op_id = 88
#     FSDP::pre_forward (encoder.block.0), op_id = 12
#     step 7                                                  a range of the user's own
#
# Numbers in names make each of millions of texts another one; without them there are a few hundred.

_SEQUENCE, _OP_ID, _SIZES, _INPUTS = ", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = "


def without_numbers(text: str) -> tuple[str, int | None]:
    """Return a range's name without the numbers that are its own, and its sequence number, None where it has none.

    >>> without_numbers("aten::mm, seq = 4, op_id = 12, sizes = [[2, 3], [3, 4]]")
    ('aten::mm, sizes = [[2, 3], [3, 4]]', 4)
    """
    text, sequence = _without(text, _SEQUENCE)
    text, _ = _without(text, _OP_ID)
    inputs = text.find(_INPUTS)
    number = sequence.strip()
    return text if inputs < 0 else text[:inputs], int(number) if 0 < len(number) <= 18 else None


def _without(text: str, what: str) -> tuple[str, str]:
    at = text.find(what)
    if at < 0:
        return text, ""
    first = at + len(what)
    end = text.find(",", first)
    digits = text[first:] if end < 0 else text[first:end]
    if not (digits.isascii() and digits.isdigit()):
        return text, ""
    return text[:at] + (text[end:] if end >= 0 else ""), digits


# Payloads of NCCL's NVTX ranges: communicator, bytes, peer, ranks.
#
# An event's payload is 32 bytes of header, then the fields at the offsets that the export's tables give:
#
#     domain u32, 4 bytes, schema u32, 4 bytes, payload bytes u64, all bytes u64 | fields
#
# `NVTX_PAYLOAD_SCHEMA_ENTRIES` names the fields (`NCCL communicator ID`, `Message size [bytes]`, `Peer rank`, `No. of
# ranks`, `Rank`). They are there only where the export was made with `--include-blobs=true`.

_HEADER = struct.Struct("<IIIIQQ")
_FIELDS = {
    "NCCL communicator ID": ("communicator", "Q"),
    "Message size [bytes]": ("size_bytes", "Q"),
    "Peer rank": ("peer", "i"),
    "No. of ranks": ("num_ranks", "i"),
    "Rank": ("rank", "i"),
}
_MAX_RANKS = 1 << 20


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
    """Offsets of the fields, by domain and schema."""

    fields: dict[tuple[int, int], tuple[tuple[str, str, int], ...]]

    def call(self, data: object) -> NcclCall | None:
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
        most = {"communicator": 1 << 64, "size_bytes": 1 << 48}
        return NcclCall(**{name: n for name, n in found.items() if 0 <= n <= most.get(name, _MAX_RANKS)})


def payload_schemas(db: Database) -> Schemas:
    """Return the offsets of NCCL's fields in the payloads of this export."""
    found: dict[tuple[int, int], dict[str, tuple[str, int]]] = {}
    columns = ("domainId", "schemaId", "name", "offset")
    for chunk in db.chunks("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns):
        domain, domain_known = integers(chunk["domainId"])
        schema, schema_known = integers(chunk["schemaId"])
        offset, _ = integers(chunk["offset"])  # absent for the field at 0
        for i, raw in enumerate(chunk["name"]):
            known = _FIELDS.get(db.text(raw) or "")
            key = int(domain[i]), int(schema[i])
            if known and domain_known[i] and schema_known[i] and (key in found or len(found) < 10_000):
                found.setdefault(key, {})[known[0]] = (known[1], int(offset[i]))
    fields = {key: tuple((name, *where) for name, where in entry.items()) for key, entry in found.items()}
    return Schemas({key: entry for key, entry in fields.items() if any(f[0] == "communicator" for f in entry)})


def world_of(calls: Iterable[NcclCall]) -> tuple[int, int] | None:
    """Return rank and number of ranks by a process's largest communicator with both; None without one."""
    known = [(c.num_ranks, c.rank) for c in calls if c.num_ranks and c.rank is not None and c.rank < c.num_ranks]
    if not known:
        return None
    largest = max(size for size, _ in known)
    ranks = {rank for size, rank in known if size == largest}
    return (ranks.pop(), largest) if len(ranks) == 1 else None


def _bytes(data: object) -> bytes | None:
    if not isinstance(data, bytes):
        return None
    text = data[2:] if data[:2] in (b"0x", b"0X") else data
    if len(text) >= 2 * _HEADER.size and len(text) % 2 == 0:
        try:
            return bytes.fromhex(text.decode("ascii"))
        except (UnicodeDecodeError, ValueError):
            pass
    return data


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
_SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
DEVICE_TABLES = (KERNELS, GRAPHS, COPIES, SETS, _SYNCS)

# a serialised id holds machine, process and thread; below this bit is the thread
PID_SHIFT = 24
_WHERE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_KERNEL_COLUMNS = (
    *_WHERE, "demangledName", "shortName", "mangledName", "registersPerThread", "gridX", "gridY", "gridZ", "blockX",
    "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory", "graphNodeId",
)  # fmt: skip
_COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
}  # fmt: skip
# moves of pages of unified memory: not caused by a call of the program
_PAGE_MOVES = {11: "HtoD", 12: "DtoH", 13: "DtoD"}
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
_SYNC_TYPES = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}


def device_rows(db: Database, table: str, texts: Texts, *, only_process: int | None) -> Iterator[Rows]:
    """Yield the rows of one of DEVICE_TABLES; `only_process` is the process of rows without one."""
    more = {
        KERNELS: _KERNEL_COLUMNS[len(_WHERE) :],
        GRAPHS: ("graphId",),
        COPIES: ("bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"),
        SETS: ("bytes", "memKind", "graphNodeId"),
        _SYNCS: ("syncType", "eventId"),
    }[table]
    for chunk in db.chunks(table, (*_WHERE, *more)):
        rows = _placed(chunk, only_process)
        if table == KERNELS:
            _add_kernels(rows, chunk, db, texts)
        elif table == GRAPHS:
            graph, _ = integers(chunk["graphId"], missing=-1)
            _add_names(rows, texts, "kernel", [f"{GRAPH_NAME}{g}" for g in graph.tolist()])
        elif table == COPIES:
            _add_copies(rows, chunk, texts)
        elif table == SETS:
            kind, _ = integers(chunk["memKind"], missing=-1)
            _add_names(
                rows, texts, "gpu_memset", [f"Memset ({_MEMORY_KINDS.get(k, 'Unknown')})" for k in kind.tolist()]
            )
            rows.args["bytes"] = integers(chunk["bytes"])
        else:
            kind, _ = integers(chunk["syncType"])
            _add_names(rows, texts, "cuda_sync", [_SYNC_TYPES.get(k, "Unknown Sync") for k in kind.tolist()])
            rows.args["wait_event_id"] = integers(chunk["eventId"])
        if "graphNodeId" in chunk:
            node, known = integers(chunk["graphNodeId"])
            rows.args["graph_node"] = node, known & (node != 0)
        yield rows


def _text_ids(db: Database, texts: Texts, ids: Sequence[Any], *, otherwise: Int64s | None = None) -> Int64s:
    values, known = integers(ids)
    out = np.full(len(values), -1, np.int64) if otherwise is None else otherwise
    unique, back = np.unique(values[known], return_inverse=True)
    found = db.texts(unique.tolist())
    numbers = np.array(
        [
            texts.id(found[i].replace("<unnamed>", "(anonymous namespace)")) if i in found else -1
            for i in unique.tolist()
        ],
        np.int64,
    )
    named = numbers[back] if len(unique) else np.empty(0, np.int64)
    out[np.flatnonzero(known)[named >= 0]] = named[named >= 0]
    return out


def _placed(chunk: dict[str, Sequence[Any]], only_process: int | None) -> Rows:
    start, has_start = integers(chunk["start"])
    end, has_end = integers(chunk["end"])
    device, has_device = integers(chunk["deviceId"], missing=-1)
    stream, has_stream = integers(chunk["streamId"], missing=-1)
    owner, has_owner = integers(chunk["globalPid"], missing=-1)
    nobody = -1 if only_process is None else only_process
    blank = np.full(len(start), -1, np.int32)
    return Rows(
        process=np.where(has_owner, owner >> PID_SHIFT, nobody),
        cat=blank,
        name=blank.copy(),
        pid=device,
        tid=stream,
        start_ns=start,
        end_ns=end,
        timed=has_start & has_end,
        args={
            "device": (device, has_device),
            "stream": (stream, has_stream),
            "context": integers(chunk["contextId"]),
            "correlation": integers(chunk["correlationId"]),
        },
    )


def _add_names(rows: Rows, texts: Texts, category: str, names: list[str]) -> None:
    rows.cat = np.full(len(names), texts.id(category), np.int32)
    rows.name = np.array([texts.id(name) for name in names], np.int32)


def _add_kernels(rows: Rows, chunk: dict[str, Sequence[Any]], db: Database, texts: Texts) -> None:
    number = len(rows.process)
    rows.cat = np.full(number, texts.id("kernel"), np.int32)
    name = np.full(number, texts.id("unknown kernel"), np.int64)
    for column in ("mangledName", "shortName", "demangledName"):  # the last that is there is the best
        name = _text_ids(db, texts, chunk[column], otherwise=name)
    rows.name = name.astype(np.int32)
    rows.args["registers"] = integers(chunk["registersPerThread"])
    static, has_static = integers(chunk["staticSharedMemory"])
    dynamic, has_dynamic = integers(chunk["dynamicSharedMemory"])
    with np.errstate(over="ignore"):
        rows.args["shared_bytes"] = static + dynamic, has_static & has_dynamic
    for what in ("grid", "block"):
        rows.args[what] = _sizes(*(integers(chunk[f"{what}{axis}"]) for axis in "XYZ"), texts=texts)


def _sizes(*axes: tuple[Int64s, Bools], texts: Texts) -> tuple[Int64s, Bools]:
    sizes = np.stack([values for values, _ in axes], axis=1)
    unique, back = np.unique(sizes, axis=0, return_inverse=True)
    ids = np.array([texts.id(str(row)) for row in unique.tolist()], np.int64)
    return ids[back.reshape(-1)], np.logical_and.reduce([known for _, known in axes])


def _add_copies(rows: Rows, chunk: dict[str, Sequence[Any]], texts: Texts) -> None:
    kind, source, target = (integers(chunk[c], missing=-1)[0].tolist() for c in ("copyKind", "srcKind", "dstKind"))
    other = "Unknown"
    names = [
        f"{PAGE_MOVE}{_PAGE_MOVES[k]}"
        if k in _PAGE_MOVES
        else f"Memcpy {_COPY_KINDS.get(k, other)} ({_MEMORY_KINDS.get(s, other)} -> {_MEMORY_KINDS.get(t, other)})"
        for k, s, t in zip(kind, source, target, strict=True)
    ]
    _add_names(rows, texts, "gpu_memcpy", names)
    rows.args["bytes"] = integers(chunk["bytes"])


# What the host did: runtime calls, NVTX ranges and the profiler's own time, as rows named the way Kineto names them.
#
# CUPTI_ACTIVITY_KIND_RUNTIME    cuda_runtime, cuda_driver    cudaLaunchKernel (without the version `_v7000`)
# NVTX_EVENTS                    cpu_op                       operators that PyTorch marked, by their names
#                                user_annotation              every other range
#                                cpu_op record_param_comms    NCCL's calls, with group, bytes and peer
# CUPTI_ACTIVITY_KIND_OVERHEAD, PROFILER_OVERHEAD             overhead

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES = "NVTX_EVENTS"
OVERHEADS = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")

_THREAD = (1 << PID_SHIFT) - 1
_VERSION = re.compile(r"(?:_v\d{3,6})?(?:_pts?z|_ptds)?$")
_DRIVER = re.compile(r"^cu[A-Z]")
# push/pop and start/end, of programs and of imported files
_RANGE_TYPES = (59, 60, 70, 71)
_COMMUNICATES = re.compile(
    r"^nccl(?:AllReduce|AllGather|ReduceScatter|AlltoAll|Broadcast|Bcast|Reduce|Gather|Scatter|Send|Recv)\w*$",
    re.IGNORECASE,
)
# whether NCCL's count is of one rank's part: of what is received, of what is sent
_NCCL_SIZE = {"all_gather": (1, 0), "reduce_scatter": (0, 1), "all_to_all": (0, 0)}
# first text of NCCL's ranges, and the first that is none any more
_NCCL_TEXTS = "nccl", "nccm"


@dataclass
class Communicators:
    """What the calls that make communicators say, by process; and ranges that were still open."""

    made: dict[int, list[NcclCall]] = field(default_factory=dict)
    open_ranges: int = 0
    with_payload: int = 0
    without_payload: int = 0

    def size(self, process: int, communicator: int | None) -> int | None:
        known = (c.num_ranks for c in self.made.get(process, ()) if c.communicator == communicator and c.num_ranks)
        return next(known, None)


def call_rows(db: Database, texts: Texts) -> Iterator[Rows]:
    """Yield the calls into CUDA's runtime and driver."""
    names: dict[int, tuple[int, int]] = {}
    for chunk in db.chunks(CALLS, ("start", "end", "globalTid", "correlationId", "nameId")):
        rows = _on_threads(chunk)
        raw = _text_ids(db, texts, chunk["nameId"], otherwise=np.full(len(rows.process), texts.id("?"), np.int64))
        unique, back = np.unique(raw, return_inverse=True)
        for i in unique.tolist():
            if i not in names:
                name = _VERSION.sub("", texts.strings[i], count=1)
                names[i] = texts.id(name), texts.id("cuda_driver" if _DRIVER.match(name) else "cuda_runtime")
        both = np.array([names[i] for i in unique.tolist()], np.int32).reshape(-1, 2)
        rows.name, rows.cat = both[back, 0], both[back, 1]
        rows.args["correlation"] = integers(chunk["correlationId"])
        yield rows


def overhead_rows(db: Database, table: str, texts: Texts) -> Iterator[Rows]:
    """Yield the profiler's own time."""
    for chunk in db.chunks(table, ("start", "end", "globalTid", "nameId")):
        rows = _on_threads(chunk)
        rows.cat = np.full(len(rows.process), texts.id("overhead"), np.int32)
        unnamed = np.full(len(rows.process), texts.id("Nsight Systems"), np.int64)
        rows.name = _text_ids(db, texts, chunk["nameId"], otherwise=unnamed).astype(np.int32)
        yield rows


def range_rows(db: Database, texts: Texts, schemas: Schemas, communicators: Communicators) -> Iterator[Rows]:
    """Yield NVTX ranges; what NCCL's calls say of communicators is noted on the way."""
    yield from _range_rows(db, texts, schemas, communicators)


def nccl_range_rows(db: Database, texts: Texts, schemas: Schemas, communicators: Communicators) -> Iterator[Rows]:
    """Yield the NVTX ranges of NCCL's calls alone; all ranges are walked, the others' texts are not read."""
    found = db.ids_between(*_NCCL_TEXTS, 500)
    conditions: dict[str, tuple[str, Sequence[Any]]] = {
        "text": ('"text" >= ? AND "text" < ?', list(_NCCL_TEXTS)),
        "textId": (f'"textId" IN ({", ".join("?" * len(found))})', found),
    }
    there = [one for column, one in conditions.items() if column in db.columns(RANGES)]
    values = [value for _, of in there for value in of]
    where = " OR ".join(condition for condition, _ in there)
    yield from _range_rows(db, texts, schemas, communicators, where=where, values=values)


def _range_rows(
    db: Database,
    texts: Texts,
    schemas: Schemas,
    communicators: Communicators,
    **condition: Any,
) -> Iterator[Rows]:
    columns = ("start", "end", "eventType", "text", "textId", "globalTid", *(("binaryData",) if schemas.fields else ()))
    for chunk in db.chunks(RANGES, columns, **condition):
        kind, _ = integers(chunk["eventType"])
        ranges = np.flatnonzero(np.isin(kind, _RANGE_TYPES)).tolist()
        ended = [i for i in ranges if chunk["end"][i] is not None]
        communicators.open_ranges += len(ranges) - len(ended)
        if ended:
            kept = {name: [values[i] for i in ended] for name, values in chunk.items()}
            yield _ranges(kept, db, texts, schemas, communicators)


def _ranges(
    chunk: dict[str, list[Any]], db: Database, texts: Texts, schemas: Schemas, communicators: Communicators
) -> Rows:
    rows = _on_threads(chunk)
    registered = db.texts(
        [i for i, text in zip(chunk["textId"], chunk["text"], strict=True) if text is None], keep=False
    )
    number = len(rows.process)
    operator, annotation, unnamed = texts.id("cpu_op"), texts.id("user_annotation"), texts.id("?")
    categories, names, sequence, dims = [annotation] * number, [unnamed] * number, [-1] * number, [-1] * number
    known: dict[str, tuple[int, int, int]] = {}
    payloads = chunk.get("binaryData") or [None] * number
    comm = _CommColumns(number)
    for i, (raw, text_id) in enumerate(zip(chunk["text"], chunk["textId"], strict=True)):
        text = db.text(raw) if raw is not None else registered.get(text_id)
        if text is None:
            continue
        if text.startswith("nccl"):
            call = schemas.call(payloads[i])
            if call is not None and call.num_ranks:
                made = communicators.made.setdefault(int(rows.process[i]), [])
                made += [call][: 100_000 - len(made)]
            if _COMMUNICATES.match(text):
                communicators.with_payload += call is not None
                communicators.without_payload += call is None
                categories[i], names[i] = operator, texts.id("record_param_comms")
                ranks = communicators.size(int(rows.process[i]), call.communicator) if call else None
                comm.set(i, text, call, ranks, texts)
                continue
        plain, of_sequence = without_numbers(text)
        found = known.get(plain)
        if found is None:
            name, _, sizes = plain.partition(_SIZES)
            category = operator if OPERATOR.match(name) else annotation
            found = known[plain] = category, texts.id(name), texts.id(sizes) if sizes else -1
        categories[i], names[i], dims[i] = found
        if of_sequence is not None:
            sequence[i] = of_sequence
    rows.cat, rows.name = np.array(categories, np.int32), np.array(names, np.int32)
    sequences, shapes = np.array(sequence, np.int64), np.array(dims, np.int64)
    rows.args["sequence"] = sequences, sequences >= 0
    rows.args["input_dims"] = shapes, shapes >= 0
    rows.args.update(comm.args())
    return rows


class _CommColumns:
    def __init__(self, number: int) -> None:
        self._number = number
        self._values: dict[str, dict[int, int]] = {}

    def set(self, i: int, name: str, call: NcclCall | None, ranks: int | None, texts: Texts) -> None:
        op = op_name(name)
        self._put("collective", i, texts.id(name))
        if call is None:
            return
        if call.communicator is not None:
            self._put("group_name", i, texts.id(f"{call.communicator:#x}"))
        self._put("group_size", i, ranks)
        if call.size_bytes is not None:
            self._put("dtype", i, texts.id("Byte"))
            received, sent = _NCCL_SIZE.get(op, (0, 0))
            whole = call.size_bytes * ranks if ranks else None
            self._put("in_elems", i, whole if sent else call.size_bytes)
            self._put("out_elems", i, whole if received else call.size_bytes)
        if op in ("send", "recv"):
            self._put("dst_rank" if op == "send" else "src_rank", i, call.peer)

    def args(self) -> dict[str, tuple[Int64s, Bools]]:
        out = {}
        for name, of in self._values.items():
            values, known = np.zeros(self._number, np.int64), np.zeros(self._number, bool)
            values[list(of)], known[list(of)] = list(of.values()), True
            out[name] = values, known
        return out

    def _put(self, name: str, i: int, value: int | None) -> None:
        if value is not None:
            self._values.setdefault(name, {})[i] = value


def _on_threads(chunk: dict[str, Sequence[Any]] | dict[str, list[Any]]) -> Rows:
    start, has_start = integers(chunk["start"])
    end, has_end = integers(chunk["end"])
    thread, has_thread = integers(chunk["globalTid"], missing=-1)
    process = thread >> PID_SHIFT
    blank = np.full(len(start), -1, np.int32)
    return Rows(
        process=process,
        cat=blank,
        name=blank.copy(),
        pid=np.where(has_thread, process & _THREAD, -1),
        tid=np.where(has_thread, thread & _THREAD, -1),
        start_ns=start,
        end_ns=end,
        timed=has_start & has_end & has_thread,
    )


# Clock, machine, devices and ranks of an export.
#
# wall clock    TARGET_INFO_SESSION_START_TIME.utcEpochNs is time 0; where the times of events count from when the
#               machine started instead, that table's systemClockNs is the capture's start
# rank          by NCCL's communicators where their payloads are there; by RANK and WORLD_SIZE in the environment
#               of the command, where the export is of one rank's command; else by the file's name or the order

_MAX_EPOCH_NS = 1 << 62
# columns of the tables that list devices and what Kineto's `deviceProperties` call them; a later one overwrites an
# earlier. Old exports have the second table.
_DEVICE_TABLES = {
    "TARGET_INFO_GPU": (
        ("id", "id"),
        ("cuDevice", "id"),
        ("totalMemory", "totalGlobalMem"),
        ("smCount", "numSms"),
        ("computeMajor", "computeMajor"),
        ("computeMinor", "computeMinor"),
    ),
    "TARGET_INFO_CUDA_GPU": (
        ("deviceId", "id"),
        ("numMultiprocessors", "numSms"),
        ("computeCapabilityMajor", "computeMajor"),
        ("computeCapabilityMinor", "computeMinor"),
    ),
}


def _session_of(db: Database) -> Row:
    """Return what holds for all processes of an export."""
    base_ns, notes = _wall_clock(db)
    header: dict[str, Any] = {"nsight": _versions(db)}
    devices = _devices(db)
    if devices:
        header["deviceProperties"] = devices
    hosts = (db.text(value) for name, value in _names_and_values(db, "TARGET_INFO_SYSTEM_ENV") if name == "Hostname")
    host = next(hosts, None)
    if host:
        header["host_name"] = host[:256]
    return Row(
        # to be added to all times
        base_ns=base_ns,
        notes=notes,
        header=header,
        # rank and world size of the command that was recorded
        environment_rank=_environment_rank(db),
    )


def _rank_header(
    session: Row, process: int, made: dict[int, list[NcclCall]], *, is_only: bool
) -> tuple[dict[str, Any], str | None]:
    by_nccl = world_of(made.get(process, ()))
    said = session.environment_rank if is_only else None
    rank, world = by_nccl or said or (None, None)
    header = dict(session.header)
    if rank is None:
        return header, None
    header["distributedInfo"] = {"rank": rank, "backend": "nccl", "pg_config": _groups(made)} | (
        {"world_size": world} if world else {}
    )
    if by_nccl and said and said[0] != by_nccl[0]:
        return header, f"NCCL reports rank {by_nccl[0]}, the command's RANK {said[0]}; NCCL's is used"
    return header, None


def _groups(made: dict[int, list[NcclCall]]) -> list[dict[str, Any]]:
    world = {process: world_of(calls) for process, calls in made.items()}
    members: dict[int, dict[int, int | None]] = {}
    sizes: dict[int, int] = {}
    for process, calls in made.items():
        own = world[process]
        for call in calls:
            if call.communicator is None or not call.num_ranks or call.rank is None:
                continue
            sizes[call.communicator] = call.num_ranks
            members.setdefault(call.communicator, {})[call.rank] = own[0] if own else None
    groups = []
    for communicator, size in sizes.items():
        of = members[communicator]
        entry: dict[str, Any] = {"pg_name": f"{communicator:#x}", "pg_desc": "", "pg_size": size}
        if len(of) == size and None not in of.values():
            entry["ranks"] = [of[rank] for rank in sorted(of)]
        elif any(own and own[1] == size for own in world.values()):
            entry["ranks"] = list(range(size))
        groups.append(entry)
    return groups


def _wall_clock(db: Database) -> tuple[int, tuple[str, ...]]:
    started = _first(db, "TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs"))
    details = _first(db, "ANALYSIS_DETAILS", ("startTime",))
    epoch, system_clock = started.get("utcEpochNs"), started.get("systemClockNs")
    if epoch is None or not 0 <= epoch < _MAX_EPOCH_NS:
        return 0, ("the export has no wall clock: its times count from the start of the capture",)
    if system_clock and system_clock == details.get("startTime") and 0 < system_clock < _MAX_EPOCH_NS:
        return epoch - system_clock, ()
    return epoch, ()


def _first(db: Database, table: str, columns: Sequence[str]) -> dict[str, int]:
    for chunk in db.chunks(table, columns):
        return {name: chunk[name][0] for name in columns if type(chunk[name][0]) is int}
    return {}


def _versions(db: Database) -> dict[str, str]:
    wanted = {"EXPORT_SCHEMA_VERSION": "schema", "EXPORT_PRODUCT_VERSION": "version"}
    listed = _names_and_values(db, "META_DATA_EXPORT")
    return {wanted[name]: (db.text(value) or "")[:64] for name, value in listed if name in wanted}


def _devices(db: Database) -> list[dict[str, Any]]:
    table = next((table for table in _DEVICE_TABLES if db.num_rows(table)), None)
    if table is None:
        return []
    fields = _DEVICE_TABLES[table]
    devices: dict[str, dict[str, Any]] = {}  # some tables list them once for each process
    for chunk in db.chunks(table, ("name", *(name for name, _ in fields))):
        numbers = {name: integers(chunk[name]) for name, _ in fields}
        for i, raw in enumerate(chunk["name"]):
            known = {as_: int(numbers[name][0][i]) for name, as_ in fields if numbers[name][1][i]}
            device = {"name": db.text(raw) or "", **known}
            devices.setdefault(str(device), device)
    return list(devices.values())[:1024]


def _names_and_values(db: Database, table: str) -> Iterator[tuple[str, Any]]:
    for chunk in db.chunks(table, ("name", "value")):
        for raw, value in zip(chunk["name"], chunk["value"], strict=True):
            yield db.text(raw) or "", value


def _environment_rank(db: Database) -> tuple[int, int | None] | None:
    found: dict[str, int] = {}
    for kind, value in _names_and_values(db, "META_DATA_CAPTURE"):
        if kind.endswith(":ENVIRONMENT_VARIABLE"):
            name, _, said = (db.text(value) or "").partition("=")
            number = said.strip('"')
            if name in ("RANK", "WORLD_SIZE") and number.isdecimal() and len(number) < 8:
                found[name] = int(number)
    rank, world = found.get("RANK"), found.get("WORLD_SIZE")
    if rank is None or rank >= (world or 1 << 20):
        return None
    return rank, world if world else None


_TABLES = (CALLS, RANGES, *OVERHEADS, *DEVICE_TABLES)
# tables of every export, with or without events
_ABOUT = ("TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "EXPORT_META_DATA")
_OF_HOST = {CALLS: "CUDA calls", RANGES: "NVTX ranges", "OSRT_API": "calls of the operating system"}
# Nsight Systems' own messages: CUDA was requested, its tracing began, device events are missing or may be
_REQUESTED = "No CUDA events collected"
_BEGUN = "CUDA injection initialized successfully"
_MISSING = re.compile(
    r"CUPTI_ERROR|events? (?:were )?dropped|events (?:might|may) be missing|is not supported by this build"
    r"|CUDA profiling might (?:have not|not have) been started"
)
_TOO_OLD = re.compile(r"CUPTI_ERROR|is not supported by")
_SENTENCE_END = re.compile(r"(?<=\.)\s+(?=[A-Z])")
# CUDA's answer to a query about work that still runs
_NOT_READY = 600
_LAUNCH = re.compile(r"^cu(?:da)?(?:Graph)?Launch(?!HostFunc)")
_FAILURE = re.compile(r"error|fail|exception|terminate|abort|fault\b|what\(\):|not found|cannot", re.IGNORECASE)
_NO_FAILURE = re.compile(r"\b(?:0|no) (?:errors?|failures?)\b|\bwarning\b", re.IGNORECASE)
# lines at the end of the program's error output that can be why it ended, and characters of one that are shown
_LAST_LINES = 10
_SHOWN = 160
# NVTX ranges in a message
_RANGES_SHOWN = 4
_END_OF_TIME = np.iinfo(np.int64).max


def read_nsys(
    path: str | Path,
    *,
    progress: Callable[[int], None] | None = None,
    budget: Budget | None = None,
    named: str | Path | None = None,
) -> tuple[Trace, ...]:
    """Return the tables of an export, by device and process; `progress` is called with the approximate bytes read.

    `named` is the user's file, where the export was made from it.
    Raises `TraceError` where it is no export, is damaged, or holds no device work.
    """
    size = Stream(Path(path)).size
    share = (budget or Budget(size)).share()
    with _opened_export(path) as db:
        try:
            return _read(db, size, share, progress, str(named or path))
        except OverBudget:
            share.give_back()
            raise


@contextmanager
def _opened_export(path: str | Path) -> Iterator[Database]:
    with opened_database(path) as db:
        if not any(db.has(table) for table in (*_TABLES, *_ABOUT)) or not db.has("StringIds"):
            raise TraceError(f"{path}: is an sqlite file, but no export of Nsight Systems: it has none of its tables")
        yield db


@contextmanager
def opened_database(path: str | Path) -> Iterator[Database]:
    """Open a database; all that can be wrong with it is a `TraceError`."""
    try:
        with Database(Path(path)) as db:
            yield db
    except OverBudget as error:
        raise TraceError(f"{path}: {error}") from error
    except (sqlite3.Error, OverflowError) as error:
        raise TraceError(f"{path}: cannot be read as an sqlite file ({error}); export it again") from error
    except MemoryError as error:
        raise TraceError(f"{path}: not enough memory; export a shorter time with nsys export --times") from error


def _read(
    db: Database, size: int, share: Share, progress: Callable[[int], None] | None, named: str
) -> tuple[Trace, ...]:
    texts, events, communicators = Texts(share), Events(share), Communicators()
    total = max(sum(db.num_rows(table) for table in _TABLES), 1)
    read = 0
    for rows in _all_rows(db, texts, events, communicators):
        events.add(rows)
        read += len(rows.process)
        if progress:
            progress(size * min(read, total) // total)
    session = _session_of(db)
    traces = _traces(db, named, size, texts, events, communicators, session)
    if not traces:
        raise TraceError(f"{db.path}: {_why_no_device(db)}")
    return traces


def _why_no_device(db: Database) -> str:
    """Return what an export without device work holds, why it has none, and what to do."""
    counts = {what: db.num_rows(table) for table, what in _OF_HOST.items()}
    held = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    found = f"the export has no device activity: it holds {held or 'no events'}{_range_times(db)}"
    calls, (launches, errors) = counts["CUDA calls"], _call_results(db)
    captured = [value for name, value in _names_and_values(db, "META_DATA_CAPTURE") if name.endswith("CUDA_TRACE")]
    said = _diagnostics(db)
    begun = any(_BEGUN in text for text in said)
    traced = calls or begun or any(db.text(value) == "true" for value in captured)
    quoted = [sentence for text in said for sentence in _SENTENCE_END.split(text) if _MISSING.search(sentence)]
    if not traced:
        quoted += [text for text in said if _REQUESTED in text]
        if not quoted:
            return f"{found}, and nothing shows that CUDA was traced; record with nsys profile --trace=cuda,nvtx"
    reported = " and ".join(f'"{printable(text.strip(), width=_SHOWN)}"' for text in list(dict.fromkeys(quoted))[:3])
    reported = f"; Nsight Systems reports {reported}" if reported else ""
    if launches:
        why = f". {launches:,} kernel launch{'es are' if launches > 1 else ' is'} recorded: the device events were lost"
    elif any(map(_LAUNCH.match, errors)):
        why = ". No kernel launch succeeded"
    elif calls:
        why = ". CUDA was traced, but no kernel launch is recorded: the program ended before one, or events were lost"
    elif traced:
        began = "CUDA was traced" if begun else "CUDA tracing was requested"
        why = f". {began}, but no call is recorded: the program made none, ended early, or events were lost"
    else:
        why = ""
    why += "".join(f"; {printable(name, width=60)} returned CUDA error {code}" for name, code in [*errors.items()][:1])
    failure = _last_error(db)
    ended = f"; the program's error output has: {failure}" if failure else ""
    if errors:
        advice = "fix the program's error, then record again"
    elif any(map(_TOO_OLD.search, quoted)):
        advice = "update Nsight Systems or the driver, then record again"
    elif launches:
        advice = "record again with a current nsys, and let the program exit normally"
    else:
        advice = "check that the program runs without nsys and uses the GPU, then record again"
    listed = "" if any(map(db.num_rows, _DEVICE_TABLES)) else ", and lists no GPU"
    return f"{found}{listed}{why}{reported}{ended}; {advice}"


def _call_results(db: Database) -> tuple[int, dict[str, int]]:
    """Return the number of kernel launches that succeeded, and the CUDA error of each call that failed, by its name."""
    launches, errors = 0, dict[str, int]()
    names: dict[int, str] = {}
    for chunk in db.chunks(CALLS, ("nameId", "returnValue")):
        names |= db.texts(chunk["nameId"])
        for name_id, error in zip(chunk["nameId"], chunk["returnValue"], strict=True):
            name = _VERSION.sub("", names.get(name_id, ""), count=1)
            if type(error) is int and error not in (0, _NOT_READY):
                errors.setdefault(name, error)
            elif _LAUNCH.match(name):
                launches += 1
    return launches, errors


def _diagnostics(db: Database) -> list[str]:
    """Return Nsight Systems' messages about CUDA; old exports have no table of them, only their texts."""
    table, column = ("DIAGNOSTIC_EVENT", "text") if db.has("DIAGNOSTIC_EVENT") else ("StringIds", "value")
    said = (db.text(raw) or "" for chunk in db.chunks(table, (column,)) for raw in chunk[column])
    return [text for text in said if _REQUESTED in text or _BEGUN in text or _MISSING.search(text)]


def _range_times(db: Database) -> str:
    """Return the host's time in the NVTX ranges that hold most of it, as the end of a clause."""
    texts, took, count = Texts(Budget(1 << 30).share()), Counter[int](), Counter[int]()
    first, last = _END_OF_TIME, 0
    for rows in range_rows(db, texts, payload_schemas(db), Communicators()):
        sound = np.flatnonzero(rows.timed & (rows.end_ns >= rows.start_ns))
        start, end = rows.start_ns[sound], rows.end_ns[sound]
        first, last = min(first, int(start.min(initial=_END_OF_TIME))), max(last, int(end.max(initial=0)))
        for name, ns in zip(rows.name[sound].tolist(), (end - start).tolist(), strict=True):
            took[name] += ns
            count[name] += 1
    largest = [
        f"{printable(texts.strings[name], width=40)} {count[name]:,} times {ns / count[name] / NS_PER_MS:.3g} ms "
        f"({100 * ns / max(last - first, 1):.0f} %)"
        for name, ns in took.most_common(_RANGES_SHOWN)
    ]
    return f" (host time: {', '.join(largest)}; what the device did meanwhile is unknown)" if largest else ""


def _last_error(db: Database) -> str | None:
    """Return the line that reports a failure at the end of the recorded program's error output."""
    for chunk in db.chunks("ProcessStreams", ("filenameId", "contentId")):
        for file, content in zip(chunk["filenameId"], chunk["contentId"], strict=True):
            texts = db.texts([file, content])
            if texts.get(file, "").endswith("stderr.log"):
                lines = [line for line in texts.get(content, "").split("\n") if line.strip()]
                for line in reversed(lines[-_LAST_LINES:]):
                    if _FAILURE.search(line) and not _NO_FAILURE.search(line):
                        return printable(line.strip(), width=_SHOWN)
    return None


def _all_rows(db: Database, texts: Texts, events: Events, communicators: Communicators) -> Iterator[Rows]:
    yield from call_rows(db, texts)
    yield from range_rows(db, texts, payload_schemas(db), communicators)
    for table in OVERHEADS:
        yield from overhead_rows(db, table, texts)
    hosts = events.processes()
    for table in DEVICE_TABLES:
        yield from device_rows(db, table, texts, only_process=hosts[0] if len(hosts) == 1 else None)


def _traces(
    db: Database, named: str, size: int, texts: Texts, events: Events, communicators: Communicators, session: Row
) -> tuple[Trace, ...]:
    on_device = np.array([texts.id(category) for category in ("kernel", "gpu_memcpy", "gpu_memset")])
    found = []
    notes = (*session.notes, *_notes(db, communicators))
    bad_text, shortened = len(db.replaced), len(db.shortened)
    for process in events.processes():
        columns, args, counts = events.take(process)
        used = np.isin(columns["cat"], on_device)
        if not used.any():
            continue
        devices, often = np.unique(columns["pid"][used], return_counts=True)
        found.append((int(devices[often.argmax()]), process, columns, args, counts))
    traces = []
    for _, process, columns, args, counts in sorted(found, key=lambda one: one[:2]):
        header, conflict = _rank_header(session, process, communicators.made, is_only=len(found) == 1)
        table = drop_implausible(columns, args, base_ns=session.base_ns)
        quality = Quality(
            bad_text=bad_text,
            shortened=shortened,
            far_times=table.far_times,
            bad_args=table.bad_args,
            notes=(*notes, *table.notes, *((conflict,) if conflict else ())),
            bad_time=counts["bad_time"],
            negative_duration=counts["negative_duration"],
        )
        sparse = (array for arg in table.args.values() for array in (arg.rows, arg.values))
        for array in (*table.columns.values(), *sparse):
            array.flags.writeable = False
        header["nsight"] = {**header["nsight"], "process": process & 0xFFFFFF}
        traces.append(Trace(named, size // len(found), header, texts.strings, table.columns, table.args, quality))
    return tuple(trace for trace in traces if trace.num_events)


def _notes(db: Database, communicators: Communicators) -> list[str]:
    notes = []
    graphs = db.num_rows(GRAPHS)
    if graphs:
        notes.append(
            f"{graphs:,} launches of CUDA graphs were recorded as a whole; which kernels ran in them is unknown: "
            "record with nsys profile --cuda-graph-trace=node"
        )
    if communicators.open_ranges:
        notes.append(f"{communicators.open_ranges:,} NVTX ranges had not ended when the capture did; left out")
    if communicators.without_payload and not communicators.with_payload:
        notes.append(
            "NCCL's calls are there without their sizes and communicators: nsys export --include-blobs=true keeps them"
        )
    return notes


# Overview of an export in constant memory: device tables chunk by chunk, of the host only processes and ranks.

_ON_DEVICE = (KERNELS, GRAPHS, COPIES, SETS)
_OVERVIEW_TABLES = (CALLS, *OVERHEADS, RANGES, *_ON_DEVICE)


class Overview(NamedTuple):
    """The content of an export."""

    #: launches of CUDA graphs that were recorded as a whole count as one each
    num_kernels: int
    #: of each process that used a device, as in its `Trace`
    headers: tuple[dict[str, Any], ...]


def overview(path: str | Path, *, progress: Callable[[int], None] | None = None) -> Overview:
    """Return the contents of an export; `progress` is called with about the bytes read. Raises like `read_nsys`."""
    size = Stream(Path(path)).size
    with _opened_export(path) as db:
        total, read = max(sum(db.num_rows(table) for table in _OVERVIEW_TABLES), 1), 0

        def add(rows: int) -> None:
            nonlocal read
            read += rows
            if progress:
                progress(size * min(read, total) // total)

        hosts: set[int] = set()
        for table in (CALLS, *OVERHEADS):
            for chunk in db.chunks(table, ("globalTid",)):
                thread, known = integers(chunk["globalTid"])
                hosts.update(np.unique(thread[known] >> PID_SHIFT).tolist())
                add(len(thread))
        communicators, texts = Communicators(), Texts(Budget(size).share())
        for _ in nccl_range_rows(db, texts, payload_schemas(db), communicators):
            pass
        add(db.num_rows(RANGES))
        only_process = hosts.pop() if len(hosts) == 1 else None
        kernels, used = 0, set[int]()
        for table in _ON_DEVICE:
            for rows in device_rows(db, table, texts, only_process=only_process):
                sound = rows.timed & (rows.end_ns >= rows.start_ns)
                used.update(np.unique(rows.process[sound]).tolist())
                kernels += int(sound.sum()) if table in (KERNELS, GRAPHS) else 0
                add(len(rows.process))
        if not used:
            raise TraceError(f"{db.path}: {_why_no_device(db)}")
        session = _session_of(db)
    made = communicators.made
    headers = [_rank_header(session, process, made, is_only=len(used) == 1)[0] for process in sorted(used)]
    return Overview(kernels, tuple(headers))


# Host activity other than CUDA calls, read only if a report needs it: most exports have far more of it than of CUDA.


class HostActivity(NamedTuple):
    """What one thread did in some spans of time."""

    #: in calls of the operating system's libraries
    call_ns: dict[str, int]
    #: CPU samples by the innermost function
    samples: dict[str, int]


def host_activity(trace: Trace, thread: int, within: Intervals) -> HostActivity:
    """Return what a thread of an export's table did in some spans; raises `TraceError` where the file is no export."""
    calls, samples = Counter[int](), Counter[int]()
    mine = f'("globalTid" & {(1 << 2 * PID_SHIFT) - 1}) = ?'
    owner = ((trace.header["nsight"]["process"] << PID_SHIFT) + thread,)
    with _opened_export(trace.path) as db:
        base_ns, _ = _wall_clock(db)
        for chunk in db.chunks("OSRT_API", ("start", "end", "nameId"), where=mine, values=owner):
            start, end = (integers(chunk[name])[0] + base_ns for name in ("start", "end"))
            spent = covered_ns(within, start, np.maximum(start, end))
            for i in np.flatnonzero(spent).tolist():
                calls[chunk["nameId"][i]] += int(spent[i])
        taken = set[int]()
        for chunk in db.chunks("COMPOSITE_EVENTS", ("id", "start"), where=mine, values=owner):
            moment = integers(chunk["start"])[0] + base_ns
            taken.update(chunk["id"][i] for i in np.flatnonzero(covered_ns(within, moment, moment + 1)).tolist())
        if taken:
            for chunk in db.chunks("SAMPLING_CALLCHAINS", ("id", "symbol"), where='"stackDepth" = 0'):
                samples.update(s for i, s in zip(chunk["id"], chunk["symbol"], strict=True) if i in taken)
        names = db.texts([*calls, *samples])
    return HostActivity(*({names.get(i, "?"): n for i, n in found.most_common()} for found in (calls, samples)))
