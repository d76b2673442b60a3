"""What the device did: kernels, copies, sets, graphs and synchronisation, as rows named the way Kineto names them.

CUPTI_ACTIVITY_KIND_KERNEL            kernel       its function
CUPTI_ACTIVITY_KIND_GRAPH_TRACE       kernel       CUDA graph 3 (one row per launch: its kernels were not recorded)
CUPTI_ACTIVITY_KIND_MEMCPY            gpu_memcpy   Memcpy HtoD (Pageable -> Device)
CUPTI_ACTIVITY_KIND_MEMSET            gpu_memset   Memset (Device)
CUPTI_ACTIVITY_KIND_SYNCHRONIZATION   cuda_sync    Stream Wait Event
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stepscope.trace.nsight.database import Bools, Database, integers
from stepscope.trace.nsight.events import Rows, Texts
from stepscope.trace.table import Int64s

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
DEVICE_TABLES = (KERNELS, GRAPHS, COPIES, SETS, SYNCS)

PID_SHIFT = 24
"""a serialised id holds machine, process and thread; below this bit is the thread"""
_WHERE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_KERNEL_COLUMNS = (
    *_WHERE, "demangledName", "shortName", "mangledName", "registersPerThread", "gridX", "gridY", "gridZ", "blockX",
    "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory", "graphNodeId",
)  # fmt: skip
_COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
_SYNC_TYPES = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_UNKNOWN_KERNEL = "unknown kernel"


def device_rows(db: Database, table: str, texts: Texts, *, only_process: int | None) -> Iterator[Rows]:
    """Yield the rows of one of DEVICE_TABLES; `only_process` is whose they are where a row does not say."""
    more = {
        KERNELS: _KERNEL_COLUMNS[len(_WHERE) :],
        GRAPHS: ("graphId",),
        COPIES: ("bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"),
        SETS: ("bytes", "memKind", "graphNodeId"),
        SYNCS: ("syncType", "eventId"),
    }[table]
    for chunk in db.chunks(table, (*_WHERE, *more)):
        rows = _placed(chunk, only_process)
        if table == KERNELS:
            _add_kernels(rows, chunk, db, texts)
        elif table == GRAPHS:
            graph, _ = integers(chunk["graphId"], missing=-1)
            _add_names(rows, texts, "kernel", [f"CUDA graph {g}" for g in graph.tolist()])
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


def text_ids(db: Database, texts: Texts, ids: Sequence[Any], *, otherwise: Int64s | None = None) -> Int64s:
    """Return the numbers of the texts that a column's ids stand for, `otherwise` (-1) where there is none."""
    values, known = integers(ids)
    out = np.full(len(values), -1, np.int64) if otherwise is None else otherwise
    unique, back = np.unique(values[known], return_inverse=True)
    found = db.texts(unique.tolist())
    numbers = np.array([texts.id(_spelt(found[i])) if i in found else -1 for i in unique.tolist()], np.int64)
    named = numbers[back] if len(unique) else np.empty(0, np.int64)
    out[np.flatnonzero(known)[named >= 0]] = named[named >= 0]
    return out


def _spelt(name: str) -> str:
    """Return a kernel's name with the compiler's `<unnamed>` as Kineto spells it."""
    return name.replace("<unnamed>", "(anonymous namespace)") if "<unnamed>" in name else name


def _placed(chunk: dict[str, Sequence[Any]], only_process: int | None) -> Rows:
    """Return rows with times, device, stream and process; their names are still to come."""
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
    name = np.full(number, texts.id(_UNKNOWN_KERNEL), np.int64)
    for column in ("mangledName", "shortName", "demangledName"):  # the last that is there is the best
        name = text_ids(db, texts, chunk[column], otherwise=name)
    rows.name = name.astype(np.int32)
    rows.args["registers"] = integers(chunk["registersPerThread"])
    static, has_static = integers(chunk["staticSharedMemory"])
    dynamic, has_dynamic = integers(chunk["dynamicSharedMemory"])
    with np.errstate(over="ignore"):
        rows.args["shared_bytes"] = static + dynamic, has_static & has_dynamic
    for what in ("grid", "block"):
        rows.args[what] = _sizes(*(integers(chunk[f"{what}{axis}"]) for axis in "XYZ"), texts=texts)


def _sizes(*axes: tuple[Int64s, Bools], texts: Texts) -> tuple[Int64s, Bools]:
    """Return three sizes as one text, `[4, 1, 1]`."""
    sizes = np.stack([values for values, _ in axes], axis=1)
    unique, back = np.unique(sizes, axis=0, return_inverse=True)
    ids = np.array([texts.id(str(row)) for row in unique.tolist()], np.int64)
    return ids[back.reshape(-1)], np.logical_and.reduce([known for _, known in axes])


def _add_copies(rows: Rows, chunk: dict[str, Sequence[Any]], texts: Texts) -> None:
    kind, source, target = (integers(chunk[c], missing=-1)[0].tolist() for c in ("copyKind", "srcKind", "dstKind"))
    names = [
        f"Memcpy {_COPY_KINDS.get(k, 'Unknown')} ({_memory(s)} -> {_memory(t)})"
        for k, s, t in zip(kind, source, target, strict=True)
    ]
    _add_names(rows, texts, "gpu_memcpy", names)
    rows.args["bytes"] = integers(chunk["bytes"])


def _memory(kind: int) -> str:
    return _MEMORY_KINDS.get(kind, "Unknown")
