"""One Chakra execution trace (`.et`) to a table: nodes with dependencies, most of them without the time when they ran.

    length, GlobalMetadata | length, Node | length, Node ...      field numbers of schema/protobuf/et_def.proto

Where the nodes have no start, they run as soon as their dependencies have ended and their thread or stream is free. So
gaps of the host are not in such a trace. Times are whole microseconds; nanoseconds where `stepscope export` wrote it.
"""

import heapq
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepscope.errors import TraceError
from stepscope.side_file import open_side_file
from stepscope.trace.nsight import Events, Rows, Texts
from stepscope.trace.read import Budget, Share
from stepscope.trace.table import DEVICE_CALL, Quality, Trace, drop_implausible
from stepscope.units import NS_PER_US

_MAX_BYTES = 1 << 30
_BYTES_PER_NODE = 600
_COLLECTIVE, _SEND, _RECEIVE = 7, 5, 6
_COMPUTE = 4
# of CollectiveCommType, in its order
COLLECTIVE_TYPES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter", "barrier",
)  # fmt: skip
_PART = re.compile(r"\(\d+\)$")
_RANK = re.compile(r"\.(\d{1,9})\.et$")
_MAX_NS = 1 << 61


class Node(NamedTuple):
    """One node: what it is, what it waits for, and when it ran."""

    id: int
    name: str
    kind: int
    waits: tuple[int, ...]
    #: None where it is not in the file
    start_ns: int | None
    dur_ns: int
    attrs: dict[str, Any]

    @property
    def on_host(self) -> bool:
        return bool(self.attrs.get("is_cpu_op", self.kind == _COMPUTE))

    @property
    def lane(self) -> int:
        found = self.attrs.get("tid" if self.on_host or "stream" not in self.attrs else "stream", 0)
        return found if isinstance(found, int) and abs(found) < 1 << 40 else 0


def read_chakra(
    path: str | Path, *, progress: Callable[[int], None] | None = None, budget: Budget | None = None
) -> tuple[Trace, ...]:
    """Return the table of an execution trace. Raises `TraceError` where it is none, or has no node that takes time."""
    try:
        with open_side_file(Path(path), max_bytes=_MAX_BYTES) as f:
            data = f.read()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    share = (budget or Budget(len(data))).share()
    nodes, cut = _nodes(data, share)
    if not nodes:
        raise TraceError(f"{path}: not a Chakra execution trace: it has no nodes")
    if progress:
        progress(len(data))
    starts = {node.id: node.start_ns for node in nodes.values() if node.start_ns is not None}
    scheduled = len(starts) < len(nodes) / 2
    if scheduled:
        starts = _schedule(nodes)
    notes = ["start times are not in the file: nodes run when what they wait for has ended"] if scheduled else []
    if len(starts) < len(nodes):
        notes.append(f"{len(nodes) - len(starts):,} nodes without a start, or that wait for each other, are left out")
    texts, events = Texts(share), Events(share)
    events.add(_rows(nodes, starts, texts))
    if not events.processes():
        raise TraceError(f"{path}: none of its {len(nodes):,} nodes takes time")
    columns, args, counts = events.take(0)
    table = drop_implausible(columns, args, base_ns=0)
    rank = _RANK.search(Path(path).name)
    quality = Quality(
        truncated=cut,
        far_times=table.far_times,
        bad_args=table.bad_args,
        bad_time=counts["bad_time"],
        notes=(*notes, *table.notes),
    )
    header = {"distributedInfo": {"rank": int(rank.group(1))}} if rank else {}
    return (Trace(str(path), len(data), header, texts.strings, table.columns, table.args, quality),)


# Protobuf: what of a message makes no sense ends it.


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif key & 7 == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                return
            yield key >> 3, data[at : at + size]
            at += size
        else:
            at += {1: 8, 5: 4}.get(key & 7, len(data))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return 0, len(data)


def _nodes(data: bytes, share: Share) -> tuple[dict[int, Node], bool]:
    """Return the nodes by their ids, and whether the file ends within one."""
    nodes: dict[int, Node] = {}
    size, at = _varint(data, 0)
    at += size  # of the metadata
    while at < len(data):
        size, at = _varint(data, at)
        if not size or at + size > len(data):
            return nodes, True
        share.take(_BYTES_PER_NODE + size)
        node = _node(data[at : at + size])
        nodes[node.id] = node
        at += size
    return nodes, at > len(data)


def _node(data: bytes) -> Node:
    numbers: dict[int, int] = {}
    waits: list[int] = []
    attrs: dict[str, Any] = {}
    name = b""
    for number, value in _fields(data):
        if number == 5:  # control dependencies name parents, which data dependencies may contradict
            waits += _packed(value) if isinstance(value, bytes) else [value]
        elif isinstance(value, int):
            numbers[number] = value
        elif number == 2:
            name = value
        elif number == 10:
            of = list(_fields(value))
            key = next((v for n, v in of if n == 1 and isinstance(v, bytes)), b"")
            found = next((v for n, v in of if n > 2), None)
            attrs[key.decode(errors="replace")] = found if isinstance(found, int) else _text(found)
    start_ns, dur_ns = attrs.get("start_ns"), attrs.get("duration_ns")
    if not isinstance(start_ns, int):
        start_ns = NS_PER_US * numbers[6] if numbers.get(6) else None
    if not isinstance(dur_ns, int):
        dur_ns = NS_PER_US * numbers.get(7, 0)
    own = numbers.get(1, 0)
    sound = start_ns is None or start_ns < _MAX_NS
    return Node(
        own,
        _text(name) or "?",
        numbers.get(3, 0),
        tuple(waits),
        start_ns if sound else None,
        min(dur_ns, _MAX_NS),
        attrs,
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")[:65_536]


def _packed(data: bytes) -> list[int]:
    at, out = 0, []
    while at < len(data):
        value, at = _varint(data, at)
        out.append(value)
    return out


def _schedule(nodes: dict[int, Node]) -> dict[int, int]:
    """Return when each node starts: what can run first, runs first; of those at once, the one with the lower id."""
    after: defaultdict[int, list[int]] = defaultdict(list)
    missing: dict[int, int] = {}
    for node in nodes.values():
        waits = {other for other in node.waits if other in nodes and other != node.id}
        missing[node.id] = len(waits)
        for other in waits:
            after[other].append(node.id)
    ready = [(0, number) for number, count in missing.items() if not count]
    heapq.heapify(ready)
    earliest: defaultdict[int, int] = defaultdict(int)
    free: defaultdict[tuple[bool, int], int] = defaultdict(int)
    starts: dict[int, int] = {}
    while ready:
        at, number = heapq.heappop(ready)
        node = nodes[number]
        lane = (node.on_host, node.lane)
        if free[lane] > at:
            heapq.heappush(ready, (free[lane], number))
            continue
        starts[number] = at
        free[lane] = end = min(at + node.dur_ns, _MAX_NS)
        for other in after[number]:
            earliest[other] = max(earliest[other], end)
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (earliest[other], other))
    return starts


def _rows(nodes: dict[int, Node], starts: dict[int, int], texts: Texts) -> Rows:
    table: dict[str, list[int]] = {column: [] for column in ("cat", "name", "tid", "start", "end")}
    args: dict[str, dict[int, int]] = defaultdict(dict)

    def add(category: str, text: str, lane: int, begin: int, until: int) -> int:
        values = (texts.id(category), texts.id(text), lane, begin, until)
        for column, value in zip(table.values(), values, strict=True):
            column.append(value)
        return len(table["cat"]) - 1

    for node in nodes.values():
        begin = starts.get(node.id)
        if begin is None or node.kind == 1:
            continue
        text, until = _PART.sub("", node.name), begin + node.dur_ns
        if node.on_host:
            add("cuda_runtime" if DEVICE_CALL.match(text) else "cpu_op", text, node.lane, begin, until)
            continue
        row = add(_device_category(text), text, node.lane, begin, until)
        launcher = next((nodes[w] for w in node.waits if w in starts and nodes[w].on_host), None)
        if launcher is not None:  # a launch that takes no time, at the end of the node that caused the work
            ends = starts[launcher.id] + launcher.dur_ns
            launch = add("cuda_runtime", "cudaLaunchKernel", launcher.lane, ends, ends)
            args["correlation"][row] = args["correlation"][launch] = node.id + 1
        args["device"][row], args["stream"][row] = 0, node.lane
        _add_communication(node, row, args, texts)
    number = len(table["cat"])
    of = {column: np.array(values, np.int64) for column, values in table.items()}
    columns = {}
    for key, values in args.items():
        found, known = np.zeros(number, np.int64), np.zeros(number, bool)
        places = np.fromiter(values, np.int64, len(values))
        fits = [v if abs(v) < 1 << 62 else -1 for v in values.values()]
        found[places], known[places] = fits, True
        columns[key] = found, known
    process, ids = np.zeros(number, np.int64), (of["cat"].astype(np.int32), of["name"].astype(np.int32))
    return Rows(process, *ids, process, of["tid"], of["start"], of["end"], np.ones(number, bool), columns)


def _device_category(name: str) -> str:
    if name.startswith("Memcpy"):
        return "gpu_memcpy"
    return "gpu_memset" if name.startswith("Memset") else "kernel"


def _add_communication(node: Node, row: int, args: dict[str, dict[int, int]], texts: Texts) -> None:
    if node.kind not in (_COLLECTIVE, _SEND, _RECEIVE):
        return
    kind, size = node.attrs.get("comm_type"), node.attrs.get("comm_size")
    known = isinstance(kind, int) and node.kind == _COLLECTIVE and kind < len(COLLECTIVE_TYPES)
    op = COLLECTIVE_TYPES[kind] if known and isinstance(kind, int) else "send" if node.kind == _SEND else "recv"
    if known or node.kind != _COLLECTIVE:
        args["collective"][row] = texts.id(op)
    if isinstance(size, int):
        args["in_elems"][row] = args["out_elems"][row] = size
        args["dtype"][row] = texts.id("Byte")
    group = node.attrs.get("pg_name")
    if isinstance(group, str) and group:
        args["group_name"][row] = texts.id(group)
