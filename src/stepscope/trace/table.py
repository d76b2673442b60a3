"""One trace file as columns: what every reader returns and everything after it works on."""

from collections.abc import Sequence
from dataclasses import field, fields
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord

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
    ArgColumn("device", ("device",), _INT, "id", "device ordinal", low=-1, high=_MAX_DEVICE),
    ArgColumn("context", ("context",), _INT, "id", "device context"),
    ArgColumn("bytes", ("bytes", "size"), _INT, "bytes", "size of a copy or set", low=-1, high=_MAX_SIZE),
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
    ArgColumn("registers", ("registers per thread",), _INT, "registers", "registers per thread", low=-1, high=1 << 20),
    ArgColumn("shared_bytes", ("shared memory",), _INT, "bytes", "shared memory per block", low=-1, high=_MAX_SIZE),
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
# rows of a column for each row asked for, at which a dense copy of it pays
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

    `header` holds the top-level fields beside `traceEvents` (`distributedInfo`, `deviceProperties`, ...).
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
