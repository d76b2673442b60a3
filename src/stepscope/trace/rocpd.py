"""One rocpd database of rocprofiler-sdk (rocprofv3) to one table per process that used a device.

    rocpd_kernel_dispatch   kernels: grid, workgroup, stream    rocpd_region   calls of HIP and HSA, ranges of roctx
    rocpd_memory_copy       copies, with bytes                  rocpd_event    category and correlation of all
    rocpd_string, rocpd_info_kernel_symbol, .._agent, .._process, .._thread    what their ids stand for

Tables end in the id of the process that wrote them (`rocpd_region_0000ab12_...`); the views over all of them are not
read. Times are the boot clock's, in nanoseconds.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.errors import TraceError
from stepscope.trace.nsight import Events, Rows, Texts, opened_database
from stepscope.trace.read import Budget, Share
from stepscope.trace.sqlite_file import Database, integers
from stepscope.trace.streams import Stream
from stepscope.trace.table import Quality, Trace, drop_implausible

# rows by their ids
_ById = dict[int, tuple[Any, ...]]
_TABLE = re.compile(r"^rocpd_kernel_dispatch(_?\w{0,80})$")
_CALLS = re.compile(r"^(HIP|HSA|ROCDECODE|ROCJPEG)_", re.IGNORECASE)
_MESSAGE = re.compile(r'"message"\s*:\s*("(?:[^"\\]|\\.)*")')
_COPIES = {
    "MEMORY_COPY_HOST_TO_DEVICE": "Memcpy HtoD",
    "MEMORY_COPY_DEVICE_TO_HOST": "Memcpy DtoH",
    "MEMORY_COPY_DEVICE_TO_DEVICE": "Memcpy DtoD",
    "MEMORY_COPY_HOST_TO_HOST": "Memcpy HtoH",
}
_SYMBOL_BYTES = 250  # of a row that is held while others refer to it


def read_rocpd(
    path: str | Path, *, progress: Callable[[int], None] | None = None, budget: Budget | None = None
) -> tuple[Trace, ...]:
    """Return the tables of a database, by process. Raises `TraceError` where it is damaged or holds no device work."""
    size = Stream(Path(path)).size
    share = (budget or Budget(size)).share()
    with opened_database(path) as db:
        texts, events = Texts(share), Events(share)
        for suffix in _suffixes(db):
            for rows in _rows_of(db, suffix, texts, share):
                events.add(rows)
                if progress:
                    progress(size // 2)
        traces = tuple(_trace(db, process, size, texts, events) for process in sorted(events.processes()))
    used = tuple(trace for trace in traces if trace.num_events)
    if not used:
        raise TraceError(f"{path}: holds no kernel, copy or call; record with rocprofv3 --runtime-trace")
    return used


def _suffixes(db: Database) -> list[str]:
    return sorted(match.group(1) for name in db.tables() if (match := _TABLE.match(name)) and db.has(name))


def _rows_of(db: Database, suffix: str, texts: Texts, share: Share) -> Iterator[Rows]:
    def by_id(table: str, *columns: str) -> _ById:
        found: _ById = {}
        for chunk in db.chunks(f"rocpd_{table}{suffix}", ("id", *columns)):
            listed = zip(chunk["id"], zip(*(chunk[column] for column in columns), strict=True), strict=True)
            found.update((number, row) for number, row in listed if type(number) is int)
            share.take(_SYMBOL_BYTES * len(chunk["id"]))
        return found

    # rocprofv3 joins a call and its work by the number of the stack; the correlation is the user's own
    lookup = _Lookup(db, texts, by_id("event", "category_id", "stack_id", "extdata"), by_id("string", "string"))
    symbols = by_id("info_kernel_symbol", "display_name", "kernel_name")
    agents = by_id("info_agent", "type_index", "type")
    processes, threads = by_id("info_process", "pid"), by_id("info_thread", "tid")
    where = ("start", "end", "pid", "tid", "event_id")
    sizes = tuple(f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz")
    columns = (*where, "agent_id", "kernel_id", "queue_id", "stream_id", "group_segment_size", *sizes)
    for chunk in db.chunks(f"rocpd_kernel_dispatch{suffix}", columns):
        rows = lookup.rows(chunk, processes)
        shown = [db.text(next(filter(None, symbols.get(i, ())), None)) for i in chunk["kernel_id"]]
        lookup.name(rows, ["kernel"] * len(shown), [name or "unknown kernel" for name in shown])
        _on_device(rows, chunk["agent_id"], chunk, agents)
        grid, block = (np.stack([integers(chunk[f"{w}_size_{a}"])[0] for a in "xyz"], 1) for w in ("grid", "workgroup"))
        groups = grid // np.maximum(block, 1)  # HSA counts work items
        for what, of in (("grid", groups), ("block", block)):
            ids = np.array([texts.id(str(row)) for row in of.tolist()], np.int64)
            rows.args[what] = ids, np.ones(len(ids), bool)
        rows.args["shared_bytes"] = integers(chunk["group_segment_size"])
        yield rows
    columns = (*where, "name_id", "size", "dst_agent_id", "src_agent_id", "queue_id", "stream_id")
    for chunk in db.chunks(f"rocpd_memory_copy{suffix}", columns):
        rows = lookup.rows(chunk, processes)
        said = lookup.strings(chunk["name_id"])
        lookup.name(rows, ["gpu_memcpy"] * len(said), [_COPIES.get(name, name) for name in said])
        _on_device(rows, _device_of(chunk, agents), chunk, agents)
        rows.args["bytes"] = integers(chunk["size"])
        yield rows
    for chunk in db.chunks(f"rocpd_region{suffix}", (*where, "name_id")):
        rows = lookup.rows(chunk, processes)
        said = lookup.strings(chunk["name_id"])
        kinds = [lookup.category(event) for event in chunk["event_id"]]
        is_call = [_CALLS.match(kind) is not None for kind in kinds]
        named = [n if c else lookup.message(e) or n for n, c, e in zip(said, is_call, chunk["event_id"], strict=True)]
        lookup.name(rows, ["hip_runtime" if call else "user_annotation" for call in is_call], named)
        rows.tid = integers([threads.get(i, (i,))[0] for i in chunk["tid"]])[0]
        rows.pid = rows.process
        yield rows


class _Lookup:
    """What the ids of one writer's tables stand for."""

    def __init__(self, db: Database, texts: Texts, events: _ById, names: _ById) -> None:
        self._db, self._texts, self._events, self._names = db, texts, events, names

    def rows(self, chunk: dict[str, Sequence[Any]], processes: _ById) -> Rows:
        start, has_start = integers(chunk["start"])
        end, has_end = integers(chunk["end"])
        process, _ = integers([processes.get(i, (i,))[0] for i in chunk["pid"]])
        blank = np.full(len(start), -1, np.int32)
        stack, known = integers([self._events.get(i, (None, None))[1] for i in chunk["event_id"]])
        args = {"correlation": (stack, known & (stack > 0))}
        return Rows(process, blank, blank.copy(), process, process, start, end, has_start & has_end, args)

    def message(self, event: Any) -> str | None:
        """Return the text of a range of roctx; its name is that of the function."""
        found = _MESSAGE.search(self._db.text(self._events.get(event, (None, None, None))[2]) or "")
        try:
            return str(json.loads(found.group(1), strict=False)) if found else None
        except ValueError:
            return None

    def strings(self, ids: Sequence[Any]) -> list[str]:
        return [self._db.text(self._names.get(i, (None,))[0]) or "?" for i in ids]

    def category(self, event: Any) -> str:
        return self.strings([self._events.get(event, (None,))[0]])[0]

    def name(self, rows: Rows, categories: list[str], names: list[str]) -> None:
        rows.cat = np.array([self._texts.id(category) for category in categories], np.int32)
        rows.name = np.array([self._texts.id(name) for name in names], np.int32)


def _device_of(chunk: dict[str, Sequence[Any]], agents: _ById) -> list[Any]:
    """Return the agent of each copy: its target, or its source where the target is the host."""
    both = zip(chunk["dst_agent_id"], chunk["src_agent_id"], strict=True)
    return [source if agents.get(target, (0, b""))[1] == b"CPU" else target for target, source in both]


def _on_device(rows: Rows, agent: Sequence[Any], chunk: dict[str, Sequence[Any]], agents: _ById) -> None:
    rows.pid = integers([agents.get(i, (i,))[0] for i in agent])[0]
    stream, known = integers(chunk["stream_id"])
    queue, _ = integers(chunk["queue_id"])
    rows.tid = np.where(known, stream, queue)
    rows.args["device"] = rows.pid, np.ones(len(rows.pid), bool)
    rows.args["stream"] = rows.tid, np.ones(len(rows.tid), bool)


def _trace(db: Database, process: int, size: int, texts: Texts, events: Events) -> Trace:
    columns, args, counts = events.take(process)
    table = drop_implausible(columns, args, base_ns=0)
    quality = Quality(
        bad_text=len(db.replaced),
        shortened=len(db.shortened),
        far_times=table.far_times,
        bad_args=table.bad_args,
        notes=table.notes,
        bad_time=counts["bad_time"],
        negative_duration=counts["negative_duration"],
    )
    return Trace(str(db.path), size, {"rocpd": {"process": process}}, texts.strings, table.columns, table.args, quality)
