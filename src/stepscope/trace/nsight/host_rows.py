"""What the host did: runtime calls, NVTX ranges and the profiler's own time, as rows named the way Kineto names them.

CUPTI_ACTIVITY_KIND_RUNTIME    cuda_runtime, cuda_driver    cudaLaunchKernel (without the version `_v7000`)
NVTX_EVENTS                    cpu_op                       operators that PyTorch marked, by their names
                               user_annotation              every other range
                               cpu_op record_param_comms    NCCL's calls, with group, bytes and peer
CUPTI_ACTIVITY_KIND_OVERHEAD, PROFILER_OVERHEAD             overhead
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from stepscope.contract.collectives import op_name
from stepscope.dataclass import dataclass
from stepscope.trace.nsight.database import Bools, Database, integers
from stepscope.trace.nsight.device_rows import PID_SHIFT, text_ids
from stepscope.trace.nsight.events import Rows, Texts
from stepscope.trace.nsight.nccl_payload import NcclCall, Schemas
from stepscope.trace.nsight.torch_ranges import torch_range, without_numbers
from stepscope.trace.table import Int64s

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES = "NVTX_EVENTS"
OVERHEADS = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")

_THREAD = (1 << PID_SHIFT) - 1
_VERSION = re.compile(r"(?:_v\d{3,6})?(?:_pts?z|_ptds)?$")
_DRIVER = re.compile(r"^cu[A-Z]")
_RANGE_TYPES = (59, 60, 70, 71)
"""push/pop and start/end, of programs and of imported files"""
_COMMUNICATES = re.compile(
    r"^nccl(?:AllReduce|AllGather|ReduceScatter|AlltoAll|Broadcast|Bcast|Reduce|Gather|Scatter|Send|Recv)\w*$",
    re.IGNORECASE,
)
_NCCL_SIZE = {"all_gather": (1, 0), "reduce_scatter": (0, 1), "all_to_all": (0, 0)}
"""whether NCCL's count is of one rank's part: of what is received, of what is sent"""
_BYTE = "Byte"
_MAX_COMMUNICATORS = 100_000
_NCCL_TEXTS = "nccl", "nccm"
"""first text of NCCL's ranges, and the first that is none any more"""
_MAX_NCCL_TEXTS = 500


@dataclass
class Communicators:
    """What the calls that make communicators say, by process; and ranges that were still open."""

    made: dict[int, list[NcclCall]] = field(default_factory=dict)
    open_ranges: int = 0
    with_payload: int = 0
    without_payload: int = 0

    def size(self, process: int, communicator: int | None) -> int | None:
        """Return how many ranks a communicator of a process has, None where nothing said so."""
        known = (c.num_ranks for c in self.made.get(process, ()) if c.communicator == communicator and c.num_ranks)
        return next(known, None)


def call_rows(db: Database, texts: Texts) -> Iterator[Rows]:
    """Yield the calls into CUDA's runtime and driver."""
    names: dict[int, tuple[int, int]] = {}
    for chunk in db.chunks(CALLS, ("start", "end", "globalTid", "correlationId", "nameId")):
        rows = _on_threads(chunk)
        raw = text_ids(db, texts, chunk["nameId"], otherwise=np.full(len(rows.process), texts.id("?"), np.int64))
        for i in np.unique(raw).tolist():
            if i not in names:
                names[i] = _call_name(texts, i)
        rows.name, rows.cat = _looked_up(raw, names)
        rows.args["correlation"] = integers(chunk["correlationId"])
        yield rows


def overhead_rows(db: Database, table: str, texts: Texts) -> Iterator[Rows]:
    """Yield the profiler's own time."""
    for chunk in db.chunks(table, ("start", "end", "globalTid", "nameId")):
        rows = _on_threads(chunk)
        rows.cat = np.full(len(rows.process), texts.id("overhead"), np.int32)
        unnamed = np.full(len(rows.process), texts.id("Nsight Systems"), np.int64)
        rows.name = text_ids(db, texts, chunk["nameId"], otherwise=unnamed).astype(np.int32)
        yield rows


def range_rows(db: Database, texts: Texts, schemas: Schemas, communicators: Communicators) -> Iterator[Rows]:
    """Yield NVTX ranges; what NCCL's calls say of communicators is noted on the way."""
    yield from _range_rows(db, texts, schemas, communicators, db.chunks(RANGES, _wanted(schemas)))


def nccl_range_rows(db: Database, texts: Texts, schemas: Schemas, communicators: Communicators) -> Iterator[Rows]:
    """Yield the NVTX ranges of NCCL's calls alone; all ranges are walked, the others' texts are not read."""
    found = db.ids_between(*_NCCL_TEXTS, _MAX_NCCL_TEXTS)
    conditions: dict[str, tuple[str, Sequence[Any]]] = {
        "text": ('"text" >= ? AND "text" < ?', list(_NCCL_TEXTS)),
        "textId": (f'"textId" IN ({", ".join("?" * len(found))})', found),
    }
    there = [one for column, one in conditions.items() if column in db.columns(RANGES)]
    values = [value for _, of in there for value in of]
    where = " OR ".join(condition for condition, _ in there)
    chunks = db.chunks(RANGES, _wanted(schemas), where=where, values=values)
    yield from _range_rows(db, texts, schemas, communicators, chunks)


def _wanted(schemas: Schemas) -> tuple[str, ...]:
    columns = ("start", "end", "eventType", "text", "textId", "globalTid")
    return (*columns, "binaryData") if schemas.fields else columns


def _range_rows(
    db: Database,
    texts: Texts,
    schemas: Schemas,
    communicators: Communicators,
    chunks: Iterator[dict[str, Sequence[Any]]],
) -> Iterator[Rows]:
    for chunk in chunks:
        kind, _ = integers(chunk["eventType"])
        at = np.flatnonzero(np.isin(kind, _RANGE_TYPES))
        if not len(at):
            continue
        kept = {name: [values[i] for i in at.tolist()] for name, values in chunk.items()}
        unfinished = [i for i, end in enumerate(kept["end"]) if end is None]
        communicators.open_ranges += len(unfinished)
        if unfinished:
            left = sorted(set(range(len(at))) - set(unfinished))
            kept = {name: [values[i] for i in left] for name, values in kept.items()}
        if kept["start"]:
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
                _note(communicators, int(rows.process[i]), call)
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
            named = torch_range(plain)
            dims_id = -1 if named.sizes is None else texts.id(named.sizes)
            found = operator if named.is_operator else annotation, texts.id(named.name), dims_id
            known[plain] = found
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
    """Arguments of NCCL's calls, as `record_param_comms` of Kineto has them."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._values: dict[str, dict[int, int]] = {}

    def set(self, i: int, name: str, call: NcclCall | None, ranks: int | None, texts: Texts) -> None:
        """Note one call."""
        op = op_name(name)
        self._put("collective", i, texts.id(name))
        if call is None:
            return
        if call.communicator is not None:
            self._put("group_name", i, texts.id(f"{call.communicator:#x}"))
        self._put("group_size", i, ranks)
        if call.size_bytes is not None:
            self._put("dtype", i, texts.id(_BYTE))
            received, sent = _NCCL_SIZE.get(op, (0, 0))
            whole = call.size_bytes * ranks if ranks else None
            self._put("in_elems", i, whole if sent else call.size_bytes)
            self._put("out_elems", i, whole if received else call.size_bytes)
        if op in ("send", "recv"):
            self._put("dst_rank" if op == "send" else "src_rank", i, call.peer)

    def args(self) -> dict[str, tuple[Int64s, Bools]]:
        """Return the columns that any call has."""
        out = {}
        for name, of in self._values.items():
            values, known = np.zeros(self._number, np.int64), np.zeros(self._number, bool)
            values[list(of)], known[list(of)] = list(of.values()), True
            out[name] = values, known
        return out

    def _put(self, name: str, i: int, value: int | None) -> None:
        if value is not None:
            self._values.setdefault(name, {})[i] = value


def _note(communicators: Communicators, process: int, call: NcclCall) -> None:
    made = communicators.made.setdefault(process, [])
    if len(made) < _MAX_COMMUNICATORS:
        made.append(call)


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


def _call_name(texts: Texts, number: int) -> tuple[int, int]:
    """Return name and category of a call."""
    name = _VERSION.sub("", texts.text(number), count=1)
    return texts.id(name), texts.id("cuda_driver" if _DRIVER.match(name) else "cuda_runtime")


def _looked_up(raw: Int64s, names: dict[int, tuple[int, int]]) -> tuple[Any, Any]:
    unique, back = np.unique(raw, return_inverse=True)
    both = np.array([names[i] for i in unique.tolist()], np.int32).reshape(-1, 2)
    return both[back, 0], both[back, 1]
