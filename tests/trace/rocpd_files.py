"""A window of Kineto's JSON as a rocpd database of rocprofiler-sdk: tables and columns of its schema 3."""

import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

from tests.trace.perfetto_files import ns_of

GUID = "_00005b1c_9e1a_7d2f_8000_0123456789ab"
_TABLES = {
    "string": "guid TEXT, string TEXT",
    "info_process": "guid TEXT, pid INTEGER",
    "info_thread": "guid TEXT, pid INTEGER, tid INTEGER",
    "info_agent": "guid TEXT, type TEXT, absolute_index INTEGER, logical_index INTEGER, type_index INTEGER",
    "info_kernel_symbol": "guid TEXT, kernel_name TEXT, display_name TEXT",
    "event": "guid TEXT, category_id INTEGER, stack_id INTEGER, correlation_id INTEGER, extdata JSONB DEFAULT '{}'",
    "region": "guid TEXT, pid INTEGER, tid INTEGER, start BIGINT, end BIGINT, name_id INTEGER, event_id INTEGER",
    "kernel_dispatch": "guid TEXT, pid INTEGER, tid INTEGER, agent_id INTEGER, kernel_id INTEGER, queue_id INTEGER, "
    "stream_id INTEGER, start BIGINT, end BIGINT, group_segment_size INTEGER, workgroup_size_x INTEGER, "
    "workgroup_size_y INTEGER, workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER, "
    "grid_size_z INTEGER, event_id INTEGER",
    "memory_copy": "guid TEXT, pid INTEGER, tid INTEGER, start BIGINT, end BIGINT, name_id INTEGER, "
    "dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER, queue_id INTEGER, stream_id INTEGER, event_id INTEGER",
}
_FIRST_GPU = 4
_CALL, _KERNEL, _COPY, _RANGE = "HIP_RUNTIME_API_EXT", "KERNEL_DISPATCH", "MEMORY_COPY", "MARKER_CORE_RANGE_API"
_COPIES = {"HtoD": "HOST_TO_DEVICE", "DtoH": "DEVICE_TO_HOST", "DtoD": "DEVICE_TO_DEVICE"}
KINDS = ("kernel", "gpu_memcpy", "cuda_runtime", "user_annotation")


def rocpd(document: dict[str, Any], path: Path, *, pid: int = 77) -> None:
    """Write the kernels, copies, calls and ranges of a window."""
    db = sqlite3.connect(path)
    for name, columns in _TABLES.items():
        db.execute(f"CREATE TABLE rocpd_{name}{GUID} (id INTEGER PRIMARY KEY AUTOINCREMENT, {columns})")
        db.execute(f"CREATE VIEW rocpd_{name} AS SELECT * FROM rocpd_{name}{GUID}")
    ids: dict[tuple[str, str], int] = {}

    def add(table: str, **values: Any) -> int:
        marks = ", ".join("?" * len(values))
        done = db.execute(f"INSERT INTO rocpd_{table}{GUID} ({', '.join(values)}) VALUES ({marks})", [*values.values()])
        return int(done.lastrowid or 0)

    def number_of(table: str, text: str, **values: str) -> int:
        if (table, text) not in ids:
            ids[table, text] = add(table, **values)
        return ids[table, text]

    def string(text: str) -> int:
        return number_of("string", text, string=text)

    def symbol(text: str) -> int:
        return number_of("info_kernel_symbol", text, kernel_name=f"_Z{len(text)}", display_name=text)

    add("info_process", id=pid, pid=pid)
    add("info_agent", id=1, type="CPU", type_index=0)
    for device in range(8):
        add("info_agent", id=_FIRST_GPU + device, type="GPU", type_index=device)
    threads: dict[Any, int] = {}
    numbers = count(1)
    for event in document["traceEvents"]:
        kind = event.get("cat")
        if event["ph"] != "X" or kind not in KINDS:
            continue
        args = event.get("args") or {}
        start = document.get("baseTimeNanoseconds", 0) + ns_of(event, "ts")
        times = {"start": start, "end": start + ns_of(event, "dur"), "pid": pid}
        category = {"kernel": _KERNEL, "gpu_memcpy": _COPY, "cuda_runtime": _CALL}.get(kind, _RANGE)
        extra = f'{{"message": "{event["name"]}"}}' if kind == "user_annotation" else "{}"
        stack = args.get("correlation", 1_000_000 + next(numbers))
        of = {"event_id": add("event", category_id=string(category), stack_id=stack, correlation_id=0, extdata=extra)}
        if kind in ("kernel", "gpu_memcpy"):
            agent = _FIRST_GPU + int(event["pid"])
            where: dict[str, Any] = {"queue_id": 3, "stream_id": event["tid"]}
        if kind == "kernel":
            block = args.get("block", [1, 1, 1])
            size: dict[str, Any] = {f"workgroup_size_{a}": n for a, n in zip("xyz", block, strict=True)}
            grid = zip("xyz", args.get("grid", [1, 1, 1]), block, strict=True)
            size |= {f"grid_size_{a}": n * b for a, n, b in grid}
            add("kernel_dispatch", **times, **of, **where, **size, agent_id=agent, kernel_id=symbol(event["name"]))
        elif kind == "gpu_memcpy":
            way = event["name"].split()[1]
            ends = (1, agent) if way == "DtoH" else (agent, 1)
            copied = string(f"MEMORY_COPY_{_COPIES[way]}")
            target: dict[str, Any] = {"dst_agent_id": ends[0], "src_agent_id": ends[1], "size": args.get("bytes", 0)}
            add("memory_copy", **times, **of, **where, **target, name_id=copied)
        else:
            if event["tid"] not in threads:
                threads[event["tid"]] = add("info_thread", pid=pid, tid=event["tid"])
            name = event["name"].replace("cuda", "hip") if kind == "cuda_runtime" else "roctxThreadRangeA"
            add("region", **times, **of, tid=threads[event["tid"]], name_id=string(name))
    db.commit()
    db.close()
