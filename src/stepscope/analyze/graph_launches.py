"""Which captured launch made each kernel of a CUDA graph, and so which line and module?

    capture    cudaStreamBeginCapture   launch a   launch b   copy c   cudaStreamEndCapture     nothing runs yet
    replay     cudaGraphLaunch    ->    kernel a   kernel b   copy c

The operations of a launch, by node where nodes were recorded and else by start, are those of the capture with the same
kinds in the same order. Several captures that fit are told apart by order: every step launches each of them equally
often, in the order of their capture, and a capture has the same kernels in every launch. What fits none, or several,
stays with the line that launches the graph, and a note says so.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from stepscope.analyze.ownership import NOBODY, Ids, OwnedWork, Ownership, Stacks
from stepscope.analyze.phases import graph_launches
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.device_work import operators_around
from stepscope.run.rank import Rank
from stepscope.run.side_files import Frame, KernelLines
from stepscope.stats.robust import among, distinct
from stepscope.trace.table import EventKind, Int64s, by_string

_BEGIN, _END, _GRAPH_LAUNCH = "StreamBeginCapture", "StreamEndCapture", "GraphLaunch"
_KERNEL, _COPY, _SET = 1, 2, 3
_DRIVER_KERNEL = re.compile(r"mem(cpy|set)\d+(_\w+)?$")
_OF_CALL = {"Memcpy": _COPY, "Memset": _SET, "Launch": _KERNEL}
_OF_WORK = {EventKind.KERNEL: _KERNEL, EventKind.COMM_KERNEL: _KERNEL, EventKind.COPY: _COPY, EventKind.SET: _SET}


@dataclass(frozen=True, eq=False, repr=False)
class _Operations(ArrayRecord):
    kinds: Int64s
    #: of a capture: rows of its event table; of a launch: rows of the rank's DeviceWork
    rows: Int64s
    step: int = NOBODY

    @property
    def kernels(self) -> "_Operations":
        keep = self.kinds == _KERNEL
        return _Operations(self.kinds[keep], self.rows[keep], self.step)

    @property
    def key(self) -> bytes:
        return self.kinds.astype(np.uint8).tobytes()


def launches_graphs(rank: Rank) -> bool:
    """Return whether a rank launched CUDA graphs whose operations were recorded."""
    rows, unrecorded = graph_launches(rank)
    return len(rows) > len(unrecorded)


def with_captures(owned: Ownership, captures: Iterable[Ownership]) -> Ownership:
    """Return the ownership with the operations of graphs given to the lines and modules that captured them."""
    launches = _launches(owned.rank)
    if not launches:
        return owned
    captured = [(one, ops) for one in captures for ops in _captures(one.rank)]
    mapped = _mapped(owned.rank, launches, captured)
    if mapped:
        owned = _merged(owned, captured, mapped)
    done = {int(row) for _, rows, _ in mapped for row in rows}
    left = [ops for ops in launches if done.isdisjoint(ops.rows.tolist())]
    if not left:
        return owned
    why = "no capture has the same operations, or several have" if captured else "no capture was recorded (--graphs)"
    note = (
        f"rank {owned.rank.rank}: {len(left)} of {len(launches)} launches of CUDA graphs are counted for the line that "
        f"launches them: {why}"
    )
    return replace(owned, notes=(*owned.notes, note))


def _launches(rank: Rank) -> list[_Operations]:
    """Return the operations of each launch of a graph, in the order of the launches."""
    work, trace = rank.work, rank.trace
    mine = np.flatnonzero(among(work.launch_row, graph_launches(rank)[0]))
    node = trace.arg("graph_node").at(work.row[mine], missing=NOBODY)
    by_node = node if (node >= 0).all() else work.start_ns[mine]
    launch = work.launch_row[mine]
    order = np.lexsort((work.start_ns[mine], by_node, launch, trace["ts_ns"][launch]))
    mine, launch = mine[order], launch[order]
    kinds = np.array([_OF_WORK[EventKind(kind)] for kind in work.kind[mine].tolist()], np.int64)
    by_driver = by_string(trace, work.name[mine], _kind_of_driver_kernel)
    kinds = np.where(by_driver > 0, by_driver, kinds)
    edges = [*np.flatnonzero(np.append(True, launch[1:] != launch[:-1])[: len(launch)]).tolist(), len(launch)]
    return [_Operations(kinds[a:b], mine[a:b], int(work.step[mine[a]])) for a, b in pairwise(edges)]


def _captures(rank: Rank) -> list[_Operations]:
    """Return the operations of each capture of a trace; of one that does not mark them, all that nothing ran for."""
    trace = rank.trace
    calls, kinds = rank.coded_rows(_kind_of_call, EventKind.RUNTIME)
    idle = ~among(calls, rank.work.launch_row)
    calls, kinds = calls[idle], kinds[idle].astype(np.int64)
    order = np.argsort(trace["ts_ns"][calls], kind="stable")
    calls, kinds = calls[order], kinds[order]
    begins, ends = (_moments(rank, mark) for mark in (_BEGIN, _END))
    edges = [int(ends[at]) for at in np.searchsorted(ends, begins).tolist() if at < len(ends)]
    spans = list(zip(begins.tolist(), edges, strict=False)) or [(0, np.iinfo(np.int64).max)]
    inside = [slice(*np.searchsorted(trace["ts_ns"][calls], span)) for span in spans]
    return [_Operations(kinds[part].astype(np.int64), calls[part]) for part in inside if part.stop > part.start]


def _moments(rank: Rank, mark: str) -> Int64s:
    return np.sort(rank.trace["ts_ns"][rank.rows_named(lambda name: mark in name, EventKind.RUNTIME)])


def _kind_of_driver_kernel(name: str) -> int:
    """Return the operation of a driver kernel, 0 for other kernels: graphs run some sets and copies as `memset32`."""
    found = _DRIVER_KERNEL.match(name)
    return 0 if found is None else _COPY if found[1] == "cpy" else _SET


def _kind_of_call(name: str) -> int:
    return 0 if _GRAPH_LAUNCH in name else next((kind for part, kind in _OF_CALL.items() if part in name), 0)


# a launch's operations with the capture's: number of the capture, rows of DeviceWork, rows of the capture
_Pair = tuple[int, Int64s, Int64s]


def _mapped(
    rank: Rank, launches: Sequence[_Operations], captured: Sequence[tuple[Ownership, _Operations]]
) -> list[_Pair]:
    """Return the launches that fit one capture; where copies and sets differ, by their kernels alone."""
    found: list[_Pair] = []
    for kernels_only in (False, True):
        taken = {int(rows[0]) for _, rows, _ in found}
        by_key: dict[bytes, list[_Operations]] = defaultdict(list)
        for ops in (one.kernels if kernels_only else one for one in launches):
            if len(ops.rows) and taken.isdisjoint(ops.rows.tolist()):
                by_key[ops.key].append(ops)
        fitting: dict[bytes, list[tuple[int, _Operations]]] = defaultdict(list)
        for number, (_, ops) in enumerate(captured):
            one = ops.kernels if kernels_only else ops
            fitting[one.key].append((number, one))
        for key, group in by_key.items():
            found += _assigned(rank, group, _distinct(captured, fitting[key]))
    return found


def _distinct(
    captured: Sequence[tuple[Ownership, _Operations]], fitting: Sequence[tuple[int, _Operations]]
) -> list[tuple[int, _Operations]]:
    """Return those with different lines or modules; all of them where some differ, for their order counts."""

    def content(number: int, ops: _Operations) -> Any:
        owned, own = captured[number][0], _owners(captured[number][0], ops.rows)
        return [
            ([owned.frames[f] for f in owned.stacks[stack]], owned.modules[module] if module >= 0 else None)
            for stack, module in zip(own.stack.tolist(), own.module.tolist(), strict=True)
        ]

    contents = [content(*one) for one in fitting]
    return list(fitting[:1]) if all(a == b for a, b in pairwise(contents)) else list(fitting)


def _assigned(rank: Rank, group: Sequence[_Operations], fitting: Sequence[tuple[int, _Operations]]) -> list[_Pair]:
    by_step: dict[int, list[_Operations]] = defaultdict(list)
    for ops in group:
        by_step[ops.step].append(ops)
    count = len(fitting)
    if not count or any(len(step) % count for number, step in by_step.items() if number >= 0):
        return []
    pairs = [(fitting[n % count], ops) for step in by_step.values() for n, ops in enumerate(step)]
    names: dict[int, Any] = {}
    for (number, _), ops in pairs:
        if not np.array_equal(names.setdefault(number, rank.work.name[ops.rows]), rank.work.name[ops.rows]):
            return []  # another graph of as many operations
    return [(number, ops.rows, captured.rows) for (number, captured), ops in pairs]


def _owners(owned: Ownership, rows: Int64s) -> OwnedWork:
    """Return the owners of launches that were captured: of the operator around each, else of that moment."""
    rank = owned.rank
    by_operator = owned.by_call.at(owned.calls.at_rows(operators_around(rank.trace, rank.kinds, rows)))
    return by_operator.where(by_operator.stack >= 0, owned.of_rows(rows))


def _capture_frames(owned: Ownership, call: int) -> list[Frame] | None:
    """Return the user's frames outside the capture of this call: empty on autograd threads, None if unknown.

    If the user's code begins the capture, as in `with torch.cuda.graph(g):`, its function belongs to the inside: its
    next lines are captured.
    """
    trace = owned.rank.trace
    begins = owned.rank.rows_named(lambda name: _BEGIN in name, EventKind.RUNTIME)
    begins = begins[trace["ts_ns"][begins] <= trace["ts_ns"][call]]
    if not len(begins):
        return None
    begin = begins[[np.argmax(trace["ts_ns"][begins])]]
    frames = [owned.frames[f] for f in owned.stacks[int(owned.of_rows(begin).stack[0])]]
    users = [frame for frame in frames if frame.is_user]
    is_users = bool(frames) and (frames[-1].is_user or frames[-1].function == "__enter__")
    return users[:-1] if is_users else users


def _num_shared(frames: Sequence[Frame], outside: Sequence[Frame]) -> int:
    """Return the number of leading frames in the same functions as those outside, at any line."""
    pairs = zip(frames, outside, strict=False)
    differs = (n for n, (a, b) in enumerate(pairs) if (a.file, a.function) != (b.file, b.function))
    return next(differs, min(len(frames), len(outside)))


def _merged(owned: Ownership, captured: Sequence[tuple[Ownership, _Operations]], mapped: Sequence[_Pair]) -> Ownership:
    """Return the ownership with the frames, stacks and modules of the captures, and their owners.

    The stack of a kernel is that of the graph's launch, followed by the frames inside the capture.
    """
    frames = {frame: None for one in (owned, *(one for one, _ in captured)) for frame in one.frames}
    number = {frame: n for n, frame in enumerate(frames)}
    same = [number[frame] for frame in owned.frames]
    stacks = Stacks(tuple(frames), (tuple(same[f] for f in owned.stacks[n]) for n in range(len(owned.stacks))))
    modules = {name: n for n, name in reversed(list(enumerate(owned.modules)))}
    names = list(owned.modules)
    was = owned.by_work
    work = OwnedWork(was.stack.copy(), was.caller.copy(), was.module.copy(), was.backward.copy())
    for at, rows, calls in mapped:
        one = captured[at][0]
        own, outside = _owners(one, calls), _capture_frames(one, int(calls[0]))
        known = own.stack >= 0

        def composed(
            launched: Ids, held: Ids, one: Ownership = one, outside: Sequence[Frame] | None = outside
        ) -> list[int]:
            pairs = list(zip(launched.tolist(), held.tolist(), strict=True))
            found = {}
            for launch, stack in dict.fromkeys(pairs):
                held_frames = [one.frames[f] for f in one.stacks[stack]]
                above = stacks.users(launch) if outside is not None else NOBODY
                shared = outside or [stacks.frames[f] for f in stacks[above]]
                below = held_frames if above == NOBODY else held_frames[_num_shared(held_frames, shared) :]
                found[launch, stack] = stacks.called(above, *(number[frame] for frame in below))
            return [found[pair] for pair in pairs]

        for column, found in (
            (work.stack, composed(was.stack[rows], own.stack)),
            (work.caller, composed(was.caller[rows], own.caller)),
            (work.module, [_numbered(modules, names, one.modules[n]) if n >= 0 else NOBODY for n in own.module]),
            (work.backward, own.backward | was.backward[rows]),
        ):
            column[rows[known]] = np.asarray(found)[known]
    device = owned.rank.collectives.device_index
    in_graph = among(device, np.concatenate([rows for _, rows, _ in mapped]))
    return replace(
        owned,
        frames=tuple(frames),
        stacks=stacks,
        modules=tuple(names),
        by_work=work,
        by_collective=work.at(device).where(in_graph, owned.by_collective),
    )


def _numbered(numbers: dict[str, int], names: list[str], name: str) -> int:
    found = numbers.setdefault(name, len(names))
    if found == len(names):
        names.append(name)
    return found


# Lines of compiled kernels, by the compiler's own notes.
#
#     notes     triton_poi_fused_relu_0:1 -> model.py:12, 13      extern_kernels.addmm:2 -> model.py:14
#     trace     ## Call CompiledFxGraph ... ##  triton_poi_fused_relu_0  aten::addmm
#
# Kernels run in the order of their numbers, so those of a call are its operators of the same names in that order. A
# kernel of several lines of a function is between the first and the last of them.

_COMPILED = "## Call CompiledFxGraph"
_TRITON = "triton_"


def with_kernel_lines(owned: Ownership, tables: Sequence[KernelLines], *, is_capture: bool = False) -> Ownership:
    """Return the ownership with the operators of compiled graphs given to the lines that their kernels were made of.

    A capture starts inside the compiled graph, so its trace lacks the `Call CompiledFxGraph` range.
    """
    calls, strings = owned.calls, owned.rank.trace.strings
    is_graph = by_string(owned.rank.trace, calls.name, lambda name: name.startswith(_COMPILED)).astype(bool)
    around = calls.nearest(is_graph)
    if (
        is_capture
        and not is_graph.any()
        and by_string(owned.rank.trace, calls.name, lambda name: name.startswith(_TRITON)).any()
    ):
        around = np.zeros(len(calls), np.int64)
    inside = np.flatnonzero((around >= 0) & ~is_graph)
    found: dict[int, Frame] = {}
    for graph in distinct(around[inside]).tolist():
        mine = inside[around[inside] == graph].tolist()
        names = [_plain_name(strings[calls.name[n]]) for n in mine]
        fitting = [_in_order(names, table) for table in tables]
        best = max(fitting, key=len, default={})
        found |= {mine[at]: frame for at, lines in best.items() if (frame := _frame(owned, lines)) is not None}
    if not found:
        return owned
    frames = {frame: n for n, frame in reversed(list(enumerate(owned.frames)))}
    every = [*owned.frames]
    for frame in found.values():
        if frames.setdefault(frame, len(every)) == len(every):
            every.append(frame)
    stacks = Stacks(tuple(every), (owned.stacks[n] for n in range(len(owned.stacks))))
    stack = owned.by_call.stack.copy()
    for call, frame in found.items():
        stack[call] = stacks.called(stacks.users(int(stack[call])), frames[frame])
    below = calls.nearest(among(np.arange(len(calls)), np.array(sorted(found), np.int64)))
    stack = np.where(below >= 0, stack[below], stack).astype(np.int32)
    by_call = replace(owned.by_call, stack=stack)
    by_operator = by_call.at(calls.at_rows(owned.rank.work.op_row))
    work = by_operator.where(by_operator.stack >= 0, owned.by_work)
    return replace(owned, frames=tuple(every), stacks=stacks, by_call=by_call, by_work=work)


def _plain_name(name: str) -> str:
    return name.partition(":")[0] if not name.startswith("aten::") else name.removeprefix("aten::").partition(".")[0]


def _in_order(names: Sequence[str], table: KernelLines) -> dict[int, tuple[tuple[str, int, str], ...]]:
    """Return the lines of those of a call's operators that are kernels of the table, in the order of its numbers."""
    parts = [(name.rpartition(":"), lines) for name, lines in table.items()]
    kernels = [(int(n), name.removeprefix("extern_kernels."), lines) for (name, _, n), lines in parts if n.isdecimal()]
    out, at = {}, 0
    for _, kernel, lines in sorted(kernels):
        place = next((k for k in range(at, len(names)) if names[k] == kernel), None)
        if place is not None:
            out[place], at = lines, place + 1
    return out


def _frame(owned: Ownership, lines: Sequence[tuple[str, int, str]]) -> Frame | None:
    places = {(file, function) for file, _, function in lines}
    if len(places) != 1:
        return None  # of several functions: what called the graph stays
    ((file, function),) = places
    known = next((f for f in owned.frames if f.file and (file == f.file or file.endswith("/" + f.file))), None)
    numbers = [line for _, line, _ in lines]
    is_user = known.is_user if known else "/site-packages/" not in file
    return Frame(known.file if known else file, min(numbers), function, is_user, max(numbers))
