"""One trace file as columns: what every reader returns and everything after it works on."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, fields
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.records import ArrayRecord, dataclass, once_per_record
from stepscope.stats.robust import among

# Every column of the event table: dtype, unit and meaning. The docs page is generated from this file.
#
# The event table has one row per element of `traceEvents` that could be read, in file order. `DENSE` columns have
# a value in every row. `ARGS` are sparse: two arrays `(row, value)` per key, rows ascending, because each kind of
# event carries other arguments. Anything else in an event is read on demand through its byte offset.

# In `ts_ns` and `dur_ns`: the event has no such field (metadata, flows, instants).
NONE_NS = -(2**63)

# `pid` and `tid` may be strings (`"Spans"`): then the value is `STRING_ID_BASE + string id`.
STRING_ID_BASE = -(2**62)

# In `cat` and `name`: the event has no such field.
NO_STRING = -1


class ArgKind(Enum):
    """How an argument's value is stored in its column of integers."""

    #: The integer itself; also from a string that holds one (`"7"`).
    INT = 0
    #: A string id. Strings by their content, anything else by its JSON text (`[[16384, 2048], []]`).
    TEXT = 1
    #: The bits of a float64.
    FLOAT = 2


@dataclass(frozen=True)
class DenseColumn:
    """One column of the event table."""

    name: str
    dtype: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class ArgColumn:
    """One sparse column: an argument under the given keys of an event's `args`."""

    name: str
    keys: tuple[str, ...]
    kind: ArgKind
    unit: str
    meaning: str
    low: int = -(2**63)
    #: what a value can be; one outside is left out and counted. Ids may be anything: no array is indexed by them
    high: int = 2**63 - 1


# bytes or elements: no device, and no machine, holds as much
_MAX_SIZE = 1 << 48
_MAX_RANK = 1 << 30
_MAX_DEVICE = 1 << 16

DENSE = (
    DenseColumn("ph", "uint8", "ASCII", "phase: X complete, i instant, s/t/f flow, M metadata, C counter"),
    DenseColumn("cat", "int32", "string id", "category as written in the file; -1 where there is none"),
    DenseColumn("name", "int32", "string id", "event name; -1 where there is none"),
    DenseColumn("pid", "int64", "id", "process, or device for device work; strings as STRING_ID_BASE + string id"),
    DenseColumn("tid", "int64", "id", "thread, or stream for device work; strings as STRING_ID_BASE + string id"),
    DenseColumn("ts_ns", "int64", "ns", "start on the rank's clock since 1970: baseTimeNanoseconds + ts, exact"),
    DenseColumn("dur_ns", "int64", "ns", "duration, exact; NONE_NS where the event has none"),
    DenseColumn(
        "offset",
        "int64",
        "bytes",
        "offset of its brace in the uncompressed file; in 32 bits where all fit",
    ),
)

_INT, _TEXT, _FLOAT = ArgKind.INT, ArgKind.TEXT, ArgKind.FLOAT

ARGS = (
    ArgColumn(
        "correlation",
        ("correlation", "corr_id"),
        _INT,
        "id",
        "joins a device event to the runtime call that launched it",
    ),
    ArgColumn(
        "external_id",
        ("External id", "external id"),
        _INT,
        "id",
        "joins a runtime call or device event to its host operator",
    ),
    ArgColumn("stream", ("stream", "stream id"), _INT, "id", "device stream"),
    ArgColumn("device", ("device", "device id"), _INT, "id", "device ordinal", low=-1, high=_MAX_DEVICE),
    ArgColumn("context", ("context", "context id"), _INT, "id", "device context"),
    ArgColumn("bytes", ("bytes", "size", "copy_bytes"), _INT, "bytes", "size of a copy or set", low=-1, high=_MAX_SIZE),
    ArgColumn("cbid", ("cbid", "cid"), _INT, "id", "runtime or driver function number"),
    ArgColumn("ev_idx", ("Ev Idx", "Profiler Event Index"), _INT, "index", "host event's number in the profiler"),
    ArgColumn("python_id", ("Python id",), _INT, "id", "python frame"),
    ArgColumn("python_parent_id", ("Python parent id",), _INT, "id", "caller's python frame"),
    ArgColumn("python_module_id", ("Python module id",), _INT, "id", "nn.Module instance"),
    ArgColumn("sequence", ("Sequence number",), _INT, "number", "autograd sequence number: joins backward to forward"),
    ArgColumn("fwd_thread", ("Fwd thread id",), _INT, "id", "thread of the forward operator"),
    ArgColumn("collective", ("Collective name",), _TEXT, "string id", "collective of a record_param_comms"),
    ArgColumn(
        "in_elems",
        ("In msg nelems", "In msg size"),
        _INT,
        "elements",
        "elements sent by this rank",
        low=-1,
        high=_MAX_SIZE,
    ),
    ArgColumn(
        "out_elems",
        ("Out msg nelems", "Out msg size"),
        _INT,
        "elements",
        "elements received by this rank",
        low=-1,
        high=_MAX_SIZE,
    ),
    ArgColumn("in_split", ("In split size",), _TEXT, "string id", "elements per peer sent (all-to-all)"),
    ArgColumn("out_split", ("Out split size",), _TEXT, "string id", "elements per peer received (all-to-all)"),
    ArgColumn("dtype", ("dtype",), _TEXT, "string id", "element type of the collective"),
    ArgColumn("group_size", ("Group size",), _INT, "ranks", "ranks in the process group", low=-1, high=1 << 20),
    ArgColumn("group_name", ("Process Group Name",), _TEXT, "string id", "process group"),
    ArgColumn(
        "group_desc", ("Process Group Description",), _TEXT, "string id", "what the group is for (default_pg, mesh_dp)"
    ),
    ArgColumn(
        "group_ranks",
        ("Process Group Ranks",),
        _TEXT,
        "string id",
        "ranks of the group; long lists are shortened by the profiler",
    ),
    ArgColumn(
        "group_start", ("Global rank start",), _INT, "rank", "first rank of a regular group", low=-1, high=_MAX_RANK
    ),
    ArgColumn(
        "group_stride",
        ("Global rank stride",),
        _INT,
        "ranks",
        "distance between the ranks of a regular group",
        low=-1,
        high=_MAX_RANK,
    ),
    ArgColumn("src_rank", ("Src Rank",), _INT, "rank", "sender of a point-to-point operation", low=-1, high=_MAX_RANK),
    ArgColumn(
        "dst_rank", ("Dst Rank",), _INT, "rank", "receiver of a point-to-point operation", low=-1, high=_MAX_RANK
    ),
    ArgColumn("comm_seq", ("Seq", "seq"), _INT, "number", "collective's number in its group, where recorded"),
    ArgColumn(
        "is_async",
        ("Is asynchronized op",),
        _TEXT,
        "string id",
        "whether the collective was asynchronous, where recorded",
    ),
    ArgColumn("input_dims", ("Input Dims", "Input dims"), _TEXT, "string id", "shapes of the operator's inputs"),
    ArgColumn("input_types", ("Input type",), _TEXT, "string id", "element types of the operator's inputs"),
    ArgColumn("input_strides", ("Input Strides",), _TEXT, "string id", "strides of the operator's inputs"),
    ArgColumn(
        "concrete", ("Concrete Inputs",), _TEXT, "string id", "values of the operator's inputs that are no tensors"
    ),
    ArgColumn("grid", ("grid",), _TEXT, "string id", "kernel grid"),
    ArgColumn("block", ("block",), _TEXT, "string id", "kernel block"),
    ArgColumn(
        "registers",
        ("registers per thread", "registers_per_thread"),
        _INT,
        "registers",
        "registers per thread",
        low=-1,
        high=1 << 20,
    ),
    ArgColumn(
        "shared_bytes",
        ("shared memory", "shared_mem_dynamic"),
        _INT,
        "bytes",
        "shared memory per block",
        low=-1,
        high=_MAX_SIZE,
    ),
    ArgColumn("occupancy_pct", ("est. achieved occupancy %",), _FLOAT, "%", "estimated occupancy", low=0, high=100),
    ArgColumn("graph_node", ("graph node id",), _INT, "id", "CUDA graph node, where recorded"),
    ArgColumn("wait_stream", ("wait_on_stream",), _INT, "id", "stream that a stream-wait waits for"),
    ArgColumn(
        "wait_event_correlation",
        ("wait_on_cuda_event_record_corr_id",),
        _INT,
        "id",
        "event record that a stream-wait waits for",
    ),
    ArgColumn("wait_event_id", ("wait_on_cuda_event_id",), _INT, "id", "event that a stream-wait waits for"),
    ArgColumn("kernel", ("kernel",), _TEXT, "string id", "kernel named by a HIP launch"),
    ArgColumn("copy_kind", ("kind",), _TEXT, "string id", "kind of a HIP copy"),
    ArgColumn(
        "total_allocated",
        ("Total Allocated",),
        _INT,
        "bytes",
        "device memory allocated after a memory event",
        low=-1,
        high=_MAX_SIZE,
    ),
    ArgColumn(
        "total_reserved",
        ("Total Reserved",),
        _INT,
        "bytes",
        "device memory reserved after a memory event",
        low=-1,
        high=_MAX_SIZE,
    ),
    ArgColumn(
        "alloc_bytes",
        ("Bytes",),
        _INT,
        "bytes",
        "size of a memory event; negative when freed",
        low=-_MAX_SIZE,
        high=_MAX_SIZE,
    ),
    ArgColumn("alloc_addr", ("Addr",), _INT, "address", "address of a memory event"),
    ArgColumn(
        "alloc_device", ("Device Id",), _INT, "id", "device of a memory event; -1 host", low=-1, high=_MAX_DEVICE
    ),
    ArgColumn("alloc_device_type", ("Device Type",), _INT, "id", "0 host, 1 CUDA or HIP", low=-1, high=255),
    ArgColumn("label", ("name", "labels"), _TEXT, "string id", "process and thread names of metadata events"),
    ArgColumn("sort_index", ("sort_index",), _INT, "number", "display order of metadata events"),
)


Int64s = npt.NDArray[np.int64]
# column rows per requested row at which a dense copy pays
_DENSE_FROM = 32


@dataclass(frozen=True, eq=False, repr=False)
class SparseColumn(ArrayRecord):
    """One argument: `values[i]` belongs to event row `rows[i]`; rows ascend."""

    rows: npt.NDArray[np.integer[Any]]
    #: of a text its number; of a decimal number its bits as int64; all others in 32 bits where they fit
    values: npt.NDArray[np.integer[Any]]

    def dense(self, num_rows: int, *, missing: int) -> Int64s:
        """Return one value per event row, `missing` where the event has none."""
        out = np.full(num_rows, missing, np.int64)
        out[self.rows.astype(np.intp)] = self.values  # an index of 32 bits takes four times as long
        return out

    def at(self, rows: npt.NDArray[Any], *, missing: int) -> Int64s:
        """Return the values at the given event rows, `missing` where the event has none."""
        if not len(self.rows):
            return np.full(len(rows), missing, np.int64)
        end = int(self.rows[-1]) + 1
        if _DENSE_FROM * len(rows) >= end and int(rows.min()) >= 0:  # looked up in less time than it is searched
            there = self.rows.astype(np.intp)
            if self.values.itemsize == 4 and abs(missing) < 1 << 31:
                table = np.full(end + 1, missing, self.values.dtype)  # in the last place: no such row
                table[there] = self.values
                return table.take(np.minimum(rows, end)).astype(np.int64)
            table = np.zeros(end + 1, np.int32)  # half as large as one of values, 0 for a row that has none
            table[there] = np.arange(1, len(there) + 1, dtype=np.int32)
            place = table.take(np.minimum(rows, end))
            return np.where(place > 0, self.values.take(place - 1), np.int64(missing))
        wanted = rows.astype(self.rows.dtype, copy=False)  # else all of the column's rows are made as wide as these
        i = np.minimum(np.searchsorted(self.rows, wanted), len(self.rows) - 1)
        return np.where(self.rows[i] == wanted, self.values[i], np.int64(missing))


@dataclass(frozen=True)
class Quality:
    """What reading had to drop, fix or shorten. Every non-zero count becomes a warning."""

    truncated: bool = False
    #: events that were no JSON and are lost
    malformed: int = 0
    #: events dropped for a ts or dur that is no finite number, out of range or missing where needed
    bad_time: int = 0
    negative_duration: int = 0
    #: events whose time cannot belong to the window that the others span, left out
    far_times: int = 0
    #: events that were read although their JSON was bad (bare quotes, control characters)
    repaired: int = 0
    #: distinct strings with invalid UTF-8, lone surrogates or bad escapes, replaced
    bad_text: int = 0
    #: distinct strings longer than the limit, shortened
    shortened: int = 0
    #: argument values of the wrong type or out of range, left out; `notes` names those out of range
    bad_args: int = 0
    first_bad_offset: int | None = None
    #: anything else worth telling: byte-order mark, trailing garbage
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Trace(ArrayRecord):
    """One trace file: columns of `schema.DENSE`, sparse columns of `schema.ARGS`, strings and header.

    `header` holds the other top-level fields (`distributedInfo`, `deviceProperties`, ...).
    """

    path: str
    raw_bytes: int
    header: dict[str, Any]
    strings: list[str]
    columns: dict[str, npt.NDArray[Any]]
    args: dict[str, SparseColumn]
    quality: Quality = field(default_factory=Quality)
    from_cache: bool = False

    @property
    def num_events(self) -> int:
        return len(self.columns["ts_ns"])

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        return self.columns[column]

    def arg(self, name: str) -> SparseColumn:
        """Return a sparse column; an empty one where no event has it."""
        return self.args.get(name) or SparseColumn(np.empty(0, np.int64), np.empty(0, np.int64))

    def text(self, string_id: int) -> str | None:
        """Return the string of an id in `cat`, `name` or a TEXT argument; None for `NO_STRING`."""
        return None if string_id == NO_STRING else self.strings[string_id]

    def id_text(self, value: int) -> str:
        """Return a `pid` or `tid` as people read it, whether it was a number or a string."""
        return self.strings[value - STRING_ID_BASE] if value < STRING_ID_BASE // 2 else str(value)


def joined(parts: Sequence[Trace]) -> Trace:
    """Return the events of all parts as one trace, part after part."""
    strings: dict[str, int] = {}
    ids = [np.array([strings.setdefault(s, len(strings)) for s in p.strings], np.int64) for p in parts]
    qualities = [p.quality for p in parts]
    counts = {f.name: sum(getattr(q, f.name) for q in qualities) for f in fields(Quality) if f.type is int}
    return Trace(
        path=parts[0].path,
        raw_bytes=sum(p.raw_bytes for p in parts),
        header={key: value for p in reversed(parts) for key, value in p.header.items()},
        strings=list(strings),
        columns={c.name: _column(c.name, c.dtype, parts, ids) for c in DENSE},
        args={a.name: _sparse(a.name, a.kind, parts, ids) for a in ARGS if any(a.name in p.args for p in parts)},
        quality=Quality(
            truncated=any(q.truncated for q in qualities),
            first_bad_offset=qualities[0].first_bad_offset,
            notes=tuple(note for q in qualities for note in q.notes),
            **counts,
        ),
    )


def _column(name: str, dtype: str, parts: Sequence[Trace], ids: Sequence[Int64s]) -> npt.NDArray[Any]:
    columns = [p[name] for p in parts]
    if name in ("cat", "name"):
        columns = [np.append(new, NO_STRING)[column] for column, new in zip(columns, ids, strict=True)]
    elif name in ("pid", "tid"):
        columns = [column.copy() for column in columns]
        for column, new in zip(columns, ids, strict=True):
            text = column < STRING_ID_BASE // 2
            column[text] = STRING_ID_BASE + new[column[text] - STRING_ID_BASE]
    elif name == "offset":
        columns[1:] = [np.full_like(column, -1) for column in columns[1:]]
        return np.concatenate(columns)
    return np.concatenate(columns).astype(dtype)


def _sparse(name: str, kind: ArgKind, parts: Sequence[Trace], ids: Sequence[Int64s]) -> SparseColumn:
    rows, values, first = [], [], 0
    for part, new in zip(parts, ids, strict=True):
        column = part.arg(name)
        rows.append(column.rows + first)
        values.append(new[column.values] if kind is ArgKind.TEXT else column.values)
        first += part.num_events
    joined = np.concatenate(values)
    return SparseColumn(np.concatenate(rows), joined.astype(np.int32) if kind is ArgKind.TEXT else joined)


# The kind of each event, decided once per distinct category and name.
#
# Categories changed over the years (`Kernel`, `Memcpy`, `Runtime` until 2021; `hip_runtime`, `xpu_driver` on other
# chips) and communication kernels come from many libraries, not only from NCCL. Until torch 1.12 ranges had the
# category of operators: their names tell them. Some vendors file all that their device does under one category, or
# none.

# Device work without a category: tools other than Kineto file events by process and thread alone.
#
# Ascend (torch_npu)     process `Ascend Hardware`, threads `Stream 12`
# TPU and JAX (xprof)    process `/device:TPU:0`, thread `XLA Ops`; threads such as `XLA Modules` and `Steps` hold
#                        ranges around the same operations and are not counted again
# AMD (rocprof)          processes `GPU0`, `COPY`, `CPU HIP API`, `CPU HSA API`, all of their threads

# labels of processes that name a device
DEVICE_PROCESS = re.compile(r"^/device:(TPU|GPU|NPU):\d+|^Ascend Hardware\b", re.IGNORECASE)
_WORK_THREAD = re.compile(r"^(XLA Ops|Stream\b)", re.IGNORECASE)


def labels(trace: Trace, name: str) -> dict[tuple[int, int], str]:
    """Return what metadata events of one name (`process_name`, `thread_name`) call each process and thread."""
    wanted = [i for i, text in enumerate(trace.strings) if text == name]
    rows = np.flatnonzero((trace["ph"] == ord("M")) & np.isin(trace["name"], wanted))
    said = trace.arg("label").at(rows, missing=NO_STRING)
    keys = zip(trace["pid"][rows].tolist(), trace["tid"][rows].tolist(), said.tolist(), strict=True)
    return {(pid, tid): trace.strings[i] for pid, tid, i in keys if i != NO_STRING}


# names of readers: of a graph recorded as a whole, before its number; of a move of unified memory's pages, before
# `HtoD`, `DtoH` or `DtoD`
GRAPH_NAME = "CUDA graph "
PAGE_MOVE = "Memcpy Unified "


class EventKind(IntEnum):
    """What an event is."""

    OTHER = 0
    #: device kernel that is not communication
    KERNEL = 1
    #: device kernel that only communicates
    COMM_KERNEL = 2
    #: device memory copy
    COPY = 3
    #: device memory set
    SET = 4
    #: host call into the device's runtime or driver: launches, copies, synchronisation
    RUNTIME = 5
    #: operator on the host (aten::mm, autograd nodes, record_param_comms)
    HOST_OP = 6
    #: user's or framework's range on the host (ProfilerStep#, record_function)
    ANNOTATION = 7
    #: the device's share of a host range
    DEVICE_ANNOTATION = 8
    #: python frame
    PYTHON = 9
    #: allocation or free
    MEMORY = 10
    FLOW = 11
    #: names of processes and threads
    META = 12
    #: the profiler's own time
    OVERHEAD = 13
    #: synchronisation as the device saw it (stream waits, event records)
    DEVICE_SYNC = 14


Kinds = npt.NDArray[np.uint8]

_CATEGORIES = {
    "kernel": EventKind.KERNEL,
    "gpu_memcpy": EventKind.COPY,
    "memcpy": EventKind.COPY,
    "gpu_memset": EventKind.SET,
    "memset": EventKind.SET,
    "cuda_runtime": EventKind.RUNTIME,
    "cuda_driver": EventKind.RUNTIME,
    "runtime": EventKind.RUNTIME,
    "driver": EventKind.RUNTIME,
    "hip_runtime": EventKind.RUNTIME,
    "xpu_runtime": EventKind.RUNTIME,
    "xpu_driver": EventKind.RUNTIME,
    "xpu_sync": EventKind.DEVICE_SYNC,
    "mtia_runtime": EventKind.RUNTIME,
    "mtia_ccp_events": EventKind.KERNEL,
    "mtia_workloadd": EventKind.KERNEL,
    "hpu_op": EventKind.KERNEL,
    "collective_comm": EventKind.COMM_KERNEL,
    "privateuse1_runtime": EventKind.RUNTIME,
    "privateuse1_driver": EventKind.RUNTIME,
    "cpu_op": EventKind.HOST_OP,
    "operator": EventKind.HOST_OP,
    "user_annotation": EventKind.ANNOTATION,
    "gpu_user_annotation": EventKind.DEVICE_ANNOTATION,
    "python_function": EventKind.PYTHON,
    "cpu_instant_event": EventKind.MEMORY,
    "ac2g": EventKind.FLOW,
    "async_cpu_to_gpu": EventKind.FLOW,
    "async_gpu": EventKind.FLOW,
    "fwdbwd": EventKind.FLOW,
    "overhead": EventKind.OVERHEAD,
    "cuda_sync": EventKind.DEVICE_SYNC,
    "cuda_event": EventKind.DEVICE_SYNC,
    # rocprofv3's, and stages of a GPU in Perfetto traces
    "kernel_dispatch": EventKind.KERNEL,
    "memory_copy": EventKind.COPY,
    "hip_api": EventKind.RUNTIME,
    "hsa_api": EventKind.RUNTIME,
    "marker_api": EventKind.ANNOTATION,
    "rccl_api": EventKind.ANNOTATION,
    "annotation": EventKind.DEVICE_ANNOTATION,
}

# of rows without a category, by the name of their process
_PROCESS_KINDS = {
    re.compile(r"^GPU\d+$"): EventKind.KERNEL,
    re.compile(r"^COPY$"): EventKind.COPY,
    re.compile(r"^CPU H(IP|SA) API$"): EventKind.RUNTIME,
}

# Kernels that only move data between devices. Fused ones (a matmul with its all-reduce) are compute.
COMMUNICATION = re.compile(
    r"nccl|rccl|oneccl|msccl|nvshmem|\bhcom_|hccl"
    r"|deep_?ep::|::ep::|\b(internode|intranode)(_ll)?::"  # DeepEP's expert-parallel dispatch and combine
    r"|multimem_|(one|two)_shot_all_?reduce|symm_mem::|cross_device_reduce|quick_all_?reduce|userbuffers_",
    re.IGNORECASE,
)
# of which every name has one that the pattern matches; to look for these takes a fraction of its time
_COMMUNICATES = (
    "ccl", "nvshmem", "hcom_", "ep::", "node", "multimem_", "_shot_all", "symm_mem::", "cross_device_reduce",
    "quick_all", "userbuffers_",
)  # fmt: skip

# What devices other than GPUs call moving data and waiting for each other.
_DMA = re.compile(r"^dma_request$|^MEMCPY_ASYNC$|^SDMA", re.IGNORECASE)
_DEVICE_SYNC = re.compile(r"^event_(wait|record)$|^EVENT_(WAIT|RECORD)$|^Notify[_ ](Wait|Record)$", re.IGNORECASE)
# ranges of PyTorch's own that once had the category of operators
_RANGE = re.compile(r"^ProfilerStep#\d+$|^Optimizer\.(step|zero_grad)#|^enumerate\(DataLoader\)#")

# Namespaces of operators are written small (aten, c10d, my_kernels), those of ranges are not (FSDP::forward).
OPERATOR = re.compile(
    r"^[a-z_][\w.]*::(?!\s)|^\w+Backward\w{0,6}$|^record_param_comms$|^detach_?$"
    # What PyTorch itself runs as functions without a namespace.
    r"|^(?:Torch-Compiled Region|TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher Runtime|CompiledFunction"
    r"|PythonSubclass|RegisterPostBackwardFunction|_FromTorchTensor|_ToTorchTensor|_NoopSaveInputs"
    r"|(?:Nested)?Redistribute)\b"
)
# calls of a device's runtime or driver, by their names
DEVICE_CALL = re.compile(r"^(?:cuda|hip|cu)[A-Z]\w*$")

# that are quicker looked for among all rows than in those of some kinds
_FEW_NAMES = 8


def of_kinds(kinds: Kinds, wanted: Iterable[EventKind]) -> npt.NDArray[np.bool_]:
    """Return which rows are of one of these kinds; a comparison for each takes a tenth of what `np.isin` does."""
    out = np.zeros(len(kinds), bool)
    for kind in wanted:
        out |= kinds == int(kind)  # a plain number: all kinds would be made 64 bits wide for one of an enumeration
    return out


@dataclass(frozen=True, eq=False, repr=False)
class _Classified(ArrayRecord):
    kinds: Kinds
    named: npt.NDArray[np.bool_]


def event_kinds(trace: Trace) -> Kinds:
    """Return the `EventKind` of every row."""
    return _classified(trace).kinds


def names_by_kind(trace: Trace) -> npt.NDArray[np.bool_]:
    """Return which strings name rows of each kind: a row per `EventKind`, a column per string."""
    return _classified(trace).named


@once_per_record
def _classified(trace: Trace) -> _Classified:
    ph = trace["ph"]
    kinds = by_string(trace, trace["cat"], lambda s: _CATEGORIES.get(s.lower(), EventKind.OTHER))
    filed = (ph == ord("X")) | of_kinds(kinds, (EventKind.MEMORY, EventKind.FLOW))
    kinds *= filed  # all else is OTHER, which is 0
    kinds[ph == ord("M")] = EventKind.META
    _file_uncategorised(trace, kinds)
    return _by_name(trace, kinds)


def _file_uncategorised(trace: Trace, kinds: Kinds) -> None:
    """Give the rows without a category the kind that their processes and threads are named for."""
    rows = np.flatnonzero((trace["cat"] == NO_STRING) & (trace["ph"] == ord("X")))
    if not len(rows):
        return
    pid, tid = trace["pid"][rows], trace["tid"][rows]
    processes = {process: text for (process, _), text in labels(trace, "process_name").items()}
    for process, text in processes.items():
        for pattern, kind in _PROCESS_KINDS.items():
            if pattern.search(text):
                kinds[rows[pid == process]] = kind
    for (process, thread), text in labels(trace, "thread_name").items():
        if DEVICE_PROCESS.search(processes.get(process, "")) and _WORK_THREAD.search(text):
            kinds[rows[(pid == process) & (tid == thread)]] = EventKind.KERNEL


def _by_name(trace: Trace, kinds: Kinds) -> _Classified:
    """Return the kinds with those that the categories leave open decided by the names, once for each distinct name.

    In tables with a row per `EventKind` and a column for no name and for each string.
    """
    width = len(trace.strings) + 1
    place = (kinds * np.int32(width) + trace["name"] - np.int32(NO_STRING)).astype(np.intp)
    there = np.zeros(len(EventKind) * width, bool)
    there[place] = True
    refined = np.repeat(np.arange(len(EventKind), dtype=np.uint8), width)
    table = refined.reshape(-1, width)[:, 1:]
    for kind, rule in _RULES.items():
        names = np.flatnonzero(there.reshape(-1, width)[kind, 1:])
        table[kind, names] = [rule(trace.strings[i]) for i in names.tolist()]
    known = np.flatnonzero(there)
    named = np.zeros((len(EventKind), width), bool)
    named[refined[known], known % width] = True
    kinds = refined.take(place)
    kinds.flags.writeable = False  # they are shared
    return _Classified(kinds, named[:, 1:])


def _device_kind(name: str) -> EventKind:
    small = name.lower()
    if (not name.isascii() or any(part in small for part in _COMMUNICATES)) and COMMUNICATION.search(name):
        return EventKind.COMM_KERNEL
    if _DEVICE_SYNC.match(name):
        return EventKind.DEVICE_SYNC
    return EventKind.COPY if _DMA.match(name) else EventKind.KERNEL


# what names decide in which category
_RULES: dict[EventKind, Callable[[str], EventKind]] = {
    EventKind.MEMORY: lambda name: EventKind.MEMORY if name == "[memory]" else EventKind.OTHER,
    EventKind.HOST_OP: lambda name: EventKind.ANNOTATION if _RANGE.match(name) else EventKind.HOST_OP,
    EventKind.KERNEL: _device_kind,
}


def by_string(trace: Trace, ids: npt.NDArray[np.integer], rule: Callable[[str], int]) -> Kinds:
    """Return `rule(text)` for each string id, called once per distinct id; 0 where there is no string."""
    return _of_strings(trace, ids, rule).take(ids)


def rows_named(trace: Trace, rows: npt.NDArray[np.intp], matches: Callable[[str], bool]) -> npt.NDArray[np.intp]:
    """Return those of `rows` whose name satisfies `matches`."""
    names = trace["name"][rows]
    table = _of_strings(trace, names, matches)
    return rows[np.flatnonzero(table.take(names))] if table.any() else rows[:0]


def coded_rows(
    trace: Trace, rule: Callable[[str], int], wanted: Sequence[EventKind]
) -> tuple[npt.NDArray[np.intp], Kinds]:
    """Return the rows of these kinds to whose name `rule` gives a number other than 0, and the numbers.

    The rule is called once for each name.
    """
    names, code_of = trace["name"], codes_of_names(trace, rule, wanted)
    coded = np.flatnonzero(code_of).astype(names.dtype)
    if not len(coded):
        return np.empty(0, np.intp), np.empty(0, np.uint8)
    there = of_kinds(event_kinds(trace), wanted)
    if len(coded) <= _FEW_NAMES:
        there &= among(names, coded)
    rows = np.flatnonzero(there)
    code = code_of.take(names[rows])
    if len(coded) > _FEW_NAMES:
        kept = np.flatnonzero(code)
        rows, code = rows[kept], code[kept]
    return rows, code


def codes_of_names(trace: Trace, rule: Callable[[str], int], wanted: Sequence[EventKind]) -> Kinds:
    """Return the number that `rule` gives to each string that names rows of these kinds; 0 for all others, and in one
    more place for no name.
    """
    known = np.flatnonzero(names_by_kind(trace)[list(wanted)].any(axis=0)).tolist()
    code_of = np.zeros(len(trace.strings) + 1, np.uint8)
    code_of[known] = [rule(trace.strings[i]) for i in known]
    return code_of


def _of_strings(trace: Trace, ids: npt.NDArray[np.integer], rule: Callable[[str], int]) -> Kinds:
    strings = trace.strings
    used = np.zeros(len(strings) + 1, bool)
    used[ids.astype(np.intp)] = True  # NO_STRING is -1: the extra last slot, which stays 0
    table = np.zeros(len(used), np.uint8)
    wanted = np.flatnonzero(used[:-1])
    table[wanted] = [rule(strings[i]) for i in wanted.tolist()]
    return table


# Plausibility checks: the one place where values of a file become columns that others compute with.
#
# Arguments have a range in the schema. Times have none that holds for every file, but all events of one file were
# written by one process within one window, so each file determines its range:
#
# - A window has no gap in its middle. While the job waits, a step's range, the blocking call and the kernel continue.
#   So the starts and ends of events are close together, or under two events at least.
# - A gap that at most one event spans, longer than a minute and longer than everything on its larger side, separates
#   the recording from what cannot belong to it: a start or a duration with a wrong digit, a clock of another unit.
# - Few events behind such a gap are in quarantine: left out and counted. Many are a clock that was set during the
#   recording; those stay, and a note gives the jump.
#
# Files are judged one by one: hours between the clocks of two ranks are no defect.

# ends and differences of times within these stay within 64 bits; the last time is in the year 2116
MIN_TIME_NS, MAX_TIME_NS, MAX_DURATION_NS = -(1 << 60), 1 << 62, 1 << 61
_MIN_GAP_NS = 60_000_000_000
# stray in a file of any size
_MAX_STRAY_EVENTS = 3
# one of this number of events is checked first, which is enough in nearly all files
_SAMPLE = 64
_TIMED, _METADATA = ord("X"), ord("M")

Columns = dict[str, npt.NDArray[Any]]
Bools = npt.NDArray[np.bool_]


class PlausibleColumns(NamedTuple):
    """The columns without what cannot be true, and how much that was."""

    columns: Columns
    args: dict[str, SparseColumn]
    far_times: int
    bad_args: int
    notes: tuple[str, ...]


def drop_implausible(columns: Columns, args: dict[str, SparseColumn], *, base_ns: int) -> PlausibleColumns:
    """Return the table with the file's base time added, without times and arguments that cannot be true."""
    before = len(columns["ph"])
    notes: tuple[str, ...] = ()
    if _is_one_short_window(columns, base_ns):
        _add_base(columns, base_ns)
    else:
        columns, args, notes = _without_far_times(columns, args, base_ns)
    args, bad_args, named = _in_range(args)
    return PlausibleColumns(columns, args, before - len(columns["ph"]), bad_args, (*notes, *named))


def _is_one_short_window(columns: Columns, base_ns: int) -> bool:
    ts, dur = columns["ts_ns"], columns["dur_ns"]
    if not len(ts):
        return False
    end = int(ts.max()) + max(int(dur.max()), 0)
    start = end - _MIN_GAP_NS
    if base_ns + start < MIN_TIME_NS or base_ns + end >= MAX_TIME_NS:
        return False
    return np.count_nonzero(ts < start) == np.count_nonzero(ts == NONE_NS)


def _add_base(columns: Columns, base_ns: int) -> None:
    if base_ns:
        untimed = np.flatnonzero(columns["ts_ns"] == NONE_NS)
        columns["ts_ns"] += base_ns
        columns["ts_ns"][untimed] = NONE_NS


def _without_far_times(
    columns: Columns, args: dict[str, SparseColumn], base_ns: int
) -> tuple[Columns, dict[str, SparseColumn], tuple[str, ...]]:
    within = _within_64_bits(columns, base_ns)
    timed = columns["ts_ns"] != NONE_NS
    fits = 2 * np.count_nonzero(within & timed) >= np.count_nonzero(timed)
    if not fits:  # the base time itself is what is wrong
        base_ns, within = 0, _within_64_bits(columns, 0)
    notes: tuple[str, ...] = () if fits else ("baseTimeNanoseconds does not fit the times; they are as in the file",)
    columns, args = only_rows(columns, args, within)
    _add_base(columns, base_ns)
    near, jump_ns = _near_the_rest(columns)
    columns, args = only_rows(columns, args, near)
    if jump_ns:
        notes += (f"times jump by {jump_ns / 1e9:,.0f} s within the trace: its clock was set",)
    return columns, args, notes


def _within_64_bits(columns: Columns, base_ns: int) -> Bools:
    ts, dur = columns["ts_ns"], columns["dur_ns"]
    timed = (ts >= MIN_TIME_NS - base_ns) & (ts < MAX_TIME_NS - base_ns) | (ts == NONE_NS)
    return timed & (dur < MAX_DURATION_NS)


def _near_the_rest(columns: Columns) -> tuple[Bools, int]:
    ts, dur, ph = columns["ts_ns"], columns["dur_ns"], columns["ph"]
    all_near = np.ones(len(ts), bool)
    timed = np.flatnonzero(ph == _TIMED)
    if not len(timed):
        return all_near, 0
    start = ts[timed]
    end = start + dur[timed]
    low, high, jump_ns = int(start.min()), int(end.max()), 0
    if _may_have_gap(start, end):
        stray, low, high, jump_ns = _stray(start, end)
        all_near[timed[stray]] = False
    far = _MIN_GAP_NS + high - low
    # What has no duration (memory, flows) is judged by the window that the others span.
    other = (ph != _TIMED) & (ph != _METADATA) & (ts != NONE_NS)
    all_near[other & ((ts < low - far) | (ts > high + far))] = False
    return all_near, jump_ns


def _may_have_gap(start: Int64s, end: Int64s) -> bool:
    """Return whether there can be a gap in which nothing begins or ends; without sorting, which takes much memory.

    A gap longer than two cells of the time axis leaves one of them empty.
    """
    low, high = int(start.min()), int(end.max())
    cells = 2 * (high - low) // _MIN_GAP_NS + 1
    if high - low <= _MIN_GAP_NS:
        return False
    if cells > 1 << 20:
        return True
    is_used = np.zeros(cells, bool)
    for moments in (start[::_SAMPLE], end[::_SAMPLE], start, end):
        is_used[(moments - low) // (_MIN_GAP_NS // 2)] = True
        if is_used.all():
            return False
    return True


def _stray(start: Int64s, end: Int64s) -> tuple[Bools, int, int, int]:
    """Return which intervals lie behind a gap with few others, the range of those that do not, and the longest gap
    behind which there are many.
    """
    moment = np.concatenate((start, end))
    event = np.concatenate((np.arange(len(start)), np.arange(len(end))))
    change = np.repeat([1, -1], len(start))
    order = np.lexsort((-change, moment))
    moment, event, open_after = moment[order], event[order], np.cumsum(change[order])
    gap = np.diff(moment)
    cuts = np.flatnonzero((gap > _MIN_GAP_NS) & (open_after[:-1] < 2))
    cluster = np.searchsorted(cuts, np.arange(len(moment)), side="left")
    members = np.bincount(cluster)
    main = int(members.argmax())
    first, last = np.searchsorted(cluster, main, side="left"), np.searchsorted(cluster, main, side="right") - 1
    low, high = int(moment[first]), int(moment[last])
    few = members <= max(2 * _MAX_STRAY_EVENTS, 0.02 * len(moment))
    few &= bool(not few[main] and 2 * members[main] > len(moment))  # a handful of events determines no window
    begins, ends = moment[np.append(0, cuts + 1)], moment[np.append(cuts, len(moment) - 1)]
    away = np.maximum(begins - high, low - ends)
    far = away > max(_MIN_GAP_NS, high - low)
    # A clock that was set leaves whole stretches on either side, none of them few.
    jump_ns = int(away[far & ~few].max(initial=0))
    stray = np.zeros(len(start), bool)
    stray[event[(few & far)[cluster]]] = True
    kept = ~stray
    return stray, int(start[kept].min()), int(end[kept].max()), jump_ns


def only_rows(columns: Columns, args: dict[str, SparseColumn], keep: Bools) -> tuple[Columns, dict[str, SparseColumn]]:
    """Return the table without the rows that are not to be kept."""
    if keep.all():
        return columns, args
    number = np.cumsum(keep) - 1
    kept = {name: column[keep] for name, column in columns.items()}
    sparse = {}
    for name, arg in args.items():
        there = keep[arg.rows]
        if there.any():
            sparse[name] = SparseColumn(number[arg.rows[there]].astype(arg.rows.dtype), arg.values[there])
    return kept, sparse


def _in_range(args: dict[str, SparseColumn]) -> tuple[dict[str, SparseColumn], int, list[str]]:
    out, bad, named = dict(args), 0, []
    for column in ARGS:
        arg = args.get(column.name)
        if arg is None or column.kind is ArgKind.TEXT or not len(arg.values):
            continue
        values = arg.values.view(np.float64) if column.kind is ArgKind.FLOAT else arg.values
        low, high = values.min(), values.max()
        if column.low <= low and high <= column.high:
            if column.kind is ArgKind.INT and low >= -(1 << 31) and high < 1 << 31:
                out[column.name] = SparseColumn(arg.rows, arg.values.astype(np.int32, copy=False))
            continue
        sound = (values >= column.low) & (values <= column.high)
        count = int((~sound).sum())
        bad += count
        named.append(f"{column.keys[0]}: {count:,} values outside {column.low:,} to {column.high:,}, taken as unknown")
        if sound.any():
            out[column.name] = SparseColumn(arg.rows[sound], arg.values[sound])
        else:
            del out[column.name]
    return out, bad, named
