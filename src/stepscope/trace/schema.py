"""Every column of the event table: dtype, unit and meaning. The docs page is generated from this file.

The event table has one row per element of `traceEvents` that could be read, in file order. `DENSE` columns have
a value in every row. `ARGS` are sparse: two arrays `(row, value)` per key, rows ascending, because each kind of
event carries other arguments. Anything else in an event is read on demand through its byte offset.
"""

from enum import Enum

from stepscope.dataclass import dataclass

NONE_NS = -(2**63)
"""In `ts_ns` and `dur_ns`: the event has no such field (metadata, flows, instants)."""

STRING_ID_BASE = -(2**62)
"""`pid` and `tid` may be strings (`"Spans"`): then the value is `STRING_ID_BASE + string id`."""

NO_STRING = -1
"""In `cat` and `name`: the event has no such field."""


class ArgKind(Enum):
    """How an argument's value is stored in its column of integers."""

    INT = 0
    """The integer itself; also from a string that holds one (`"7"`)."""
    TEXT = 1
    """A string id. Strings by their content, anything else by its JSON text (`[[16384, 2048], []]`)."""
    FLOAT = 2
    """The bits of a float64."""


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
    high: int = 2**63 - 1
    """what a value can be; one outside is left out and counted. Ids may be anything: no array is indexed by them"""


MAX_SIZE = 1 << 48
"""bytes or elements: no device, and no machine, holds as much"""
MAX_RANK = 1 << 30
MAX_GROUP_SIZE = 1 << 20
MAX_DEVICE = 1 << 16

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
        "where its brace lies in the uncompressed file; in 32 bits where all fit",
    ),
)

_INT, _TEXT, _FLOAT = ArgKind.INT, ArgKind.TEXT, ArgKind.FLOAT

ARGS = (
    ArgColumn("correlation", ("correlation",), _INT, "id", "joins a device event to the runtime call that launched it"),
    ArgColumn(
        "external_id",
        ("External id", "external id"),
        _INT,
        "id",
        "joins a runtime call or device event to its host operator",
    ),
    ArgColumn("stream", ("stream",), _INT, "id", "device stream"),
    ArgColumn("device", ("device",), _INT, "id", "device ordinal", low=-1, high=MAX_DEVICE),
    ArgColumn("context", ("context",), _INT, "id", "device context"),
    ArgColumn("bytes", ("bytes", "size"), _INT, "bytes", "size of a copy or set", low=-1, high=MAX_SIZE),
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
        high=MAX_SIZE,
    ),
    ArgColumn(
        "out_elems",
        ("Out msg nelems", "Out msg size"),
        _INT,
        "elements",
        "elements received by this rank",
        low=-1,
        high=MAX_SIZE,
    ),
    ArgColumn("in_split", ("In split size",), _TEXT, "string id", "elements per peer sent (all-to-all)"),
    ArgColumn("out_split", ("Out split size",), _TEXT, "string id", "elements per peer received (all-to-all)"),
    ArgColumn("dtype", ("dtype",), _TEXT, "string id", "element type of the collective"),
    ArgColumn("group_size", ("Group size",), _INT, "ranks", "ranks in the process group", low=-1, high=MAX_GROUP_SIZE),
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
        "group_start", ("Global rank start",), _INT, "rank", "first rank of a regular group", low=-1, high=MAX_RANK
    ),
    ArgColumn(
        "group_stride",
        ("Global rank stride",),
        _INT,
        "ranks",
        "distance between the ranks of a regular group",
        low=-1,
        high=MAX_RANK,
    ),
    ArgColumn("src_rank", ("Src Rank",), _INT, "rank", "sender of a point-to-point operation", low=-1, high=MAX_RANK),
    ArgColumn("dst_rank", ("Dst Rank",), _INT, "rank", "receiver of a point-to-point operation", low=-1, high=MAX_RANK),
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
    ArgColumn("registers", ("registers per thread",), _INT, "registers", "registers per thread", low=-1, high=1 << 20),
    ArgColumn("shared_bytes", ("shared memory",), _INT, "bytes", "shared memory per block", low=-1, high=MAX_SIZE),
    ArgColumn("occupancy_pct", ("est. achieved occupancy %",), _FLOAT, "%", "estimated occupancy"),
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
        high=MAX_SIZE,
    ),
    ArgColumn(
        "total_reserved",
        ("Total Reserved",),
        _INT,
        "bytes",
        "device memory reserved after a memory event",
        low=-1,
        high=MAX_SIZE,
    ),
    ArgColumn(
        "alloc_bytes",
        ("Bytes",),
        _INT,
        "bytes",
        "size of a memory event; negative when freed",
        low=-MAX_SIZE,
        high=MAX_SIZE,
    ),
    ArgColumn("alloc_addr", ("Addr",), _INT, "address", "address of a memory event"),
    ArgColumn("alloc_device", ("Device Id",), _INT, "id", "device of a memory event; -1 host", low=-1, high=MAX_DEVICE),
    ArgColumn("alloc_device_type", ("Device Type",), _INT, "id", "0 host, 1 CUDA or HIP", low=-1, high=255),
    ArgColumn("label", ("name", "labels"), _TEXT, "string id", "process and thread names of metadata events"),
    ArgColumn("sort_index", ("sort_index",), _INT, "number", "display order of metadata events"),
)
