"""Which group and how many bytes did each collective of a CPU rank have? The flight recorder knows, the trace does not.

    rank00000.flight_recorder.jsonl   a header line with the groups, then one line per call, in the order of the calls

A call of the window is found by its place in that order: its names are the operators' of the trace, one after the
other, and the times between them are the same. The times themselves are not compared, so a trace with another clock
finds its calls too.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.contract.collectives import OP_CODE, element_bytes, op_name
from stepscope.contract.run_folder import json_object
from stepscope.dataclass import dataclass
from stepscope.errors import InputError
from stepscope.run.groups import MAX_RANK, UNKNOWN_GROUP, Group
from stepscope.side_file import parsed_json, side_file_lines
from stepscope.stats.robust import median
from stepscope.trace.table import Int64s

if TYPE_CHECKING:
    pass

# How large is what an operator was given? From the shapes and types as the profiler writes them.
#
# They come from a file that anybody may have written: what is no shape is unknown, never an error.

# a tensor of more than a petabyte is no tensor
_MAX_ELEMENTS = 1 << 50
_UNKNOWN = -1


def shape_bytes(dims: str | None, types: str | None) -> int:
    """Return the bytes of the first input whose shape and type are recorded, UNKNOWN where there is none.

    >>> shape_bytes("[[6144], []]", '["float", ""]')
    24576
    """
    for shape, kind in zip(_listed(dims), _listed(types), strict=False):
        size = element_bytes(kind if isinstance(kind, str) else None)
        elements = _shape_elements(shape)
        if size and elements is not None:
            return elements * size
    return _UNKNOWN


@lru_cache(maxsize=4096)
def element_counts(dims: str | None) -> frozenset[int]:
    """Return how many elements each of the inputs has, those in lists of tensors too.

    >>> sorted(element_counts("[[[4, 8], [10]], [3], []]"))
    [3, 10, 32]
    """
    counts = set()
    for shape in _listed(dims):
        each = [shape] if _shape_elements(shape) is not None else shape if isinstance(shape, list) else []
        counts |= {n for n in map(_shape_elements, each) if n is not None}
    return frozenset(counts)


def _listed(text: str | None) -> list[Any]:
    try:
        found = parsed_json(text or "[]").value
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _shape_elements(shape: Any) -> int | None:
    if not isinstance(shape, list) or not 0 < len(shape) <= 64:
        return None
    if not all(type(n) is int and n >= 0 for n in shape):
        return None
    elements = math.prod(shape)
    return elements if elements <= _MAX_ELEMENTS else None


FLIGHT_RECORDER = "flight_recorder.jsonl"
# torch keeps 2,000 unless told otherwise
_MAX_CALLS = 20_000
# of which each call takes a few hundred
_MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class FlightCall:
    """One call as torch's flight recorder noted it."""

    op: str
    created_ns: int
    #: of its input, -1 unknown
    size_bytes: int
    group: Group


def flight_calls(path: Path) -> tuple[FlightCall, ...]:
    """Return the calls of a flight recorder's file, oldest first; none where it is missing or damaged.

    Where the recorder left none, a dump that was imported beside it is read.
    """
    dump = path.parent / path.name.replace(FLIGHT_RECORDER, "flight_recorder.dump")
    if not path.exists() and dump.is_file():
        return _calls_of_dump(dump)
    calls = []
    try:
        lines = (json_object(line) or {} for line in side_file_lines(path, max_bytes=_MAX_FILE_BYTES))
        groups = _groups(next(lines, {}))
        for line in islice(lines, _MAX_CALLS):
            call = _call(line, groups)
            if call is not None:
                calls.append(call)
    except OSError:
        return ()
    return tuple(sorted(calls, key=lambda call: call.created_ns))


def _calls_of_dump(path: Path) -> tuple[FlightCall, ...]:
    try:
        from stepscope.trace.flight_recorder import read_flight_dump  # only where there is such a file

        dump = read_flight_dump(path)
    except InputError:
        return ()
    groups = {
        g.name: Group(g.name, g.desc, g.ranks, len(g.ranks)) if g.ranks else Group(g.name, g.desc, None, None)
        for g in dump.groups.values()
    }
    calls = [
        FlightCall(
            e.op,
            e.created_ns,
            _bytes_of(e.input_sizes, e.input_dtypes),
            groups.get(e.group) or Group(e.group, e.group_desc, None, None),
        )
        for e in dump.entries[-_MAX_CALLS:]
        if e.created_ns is not None
    ]
    return tuple(sorted(calls, key=lambda call: call.created_ns))


def _bytes_of(shapes: Sequence[Sequence[int]], types: Sequence[str]) -> int:
    line = {"input_sizes": [list(shape) for shape in shapes], "input_dtypes": list(types)}
    return _input_bytes(line)


def calls_of_operators(calls: Sequence[FlightCall], ops: Sequence[str], called_ns: Int64s) -> list[FlightCall | None]:
    """Return the call that each operator made, None where the recorder no longer holds it.

    `ops` and `called_ns` are the operators in the order they were called. Where they fit in several places, the one
    in which the times between calls agree best is theirs.
    """
    held = np.array([_runs_as(call.op) for call in calls], np.int64)
    wanted = np.array([_runs_as(op) for op in ops], np.int64)
    created = np.array([call.created_ns for call in calls], np.int64)
    fits = [(0, at) for at in _fits(held, wanted)] or [(lost, 0) for lost in _overrun(held, wanted)]
    if not fits:
        return [None] * len(ops)

    def disagreement(fit: tuple[int, int]) -> float:
        lost, at = fit
        apart = created[at : at + len(ops) - lost] - called_ns[lost:]
        return median(np.abs(apart - median(apart)))

    lost, at = min(fits, key=disagreement)
    return [*[None] * lost, *calls[at : at + len(ops) - lost]]


def _fits(held: Int64s, wanted: Int64s) -> list[int]:
    starts = np.flatnonzero(held[: max(len(held) - len(wanted) + 1, 0)] == wanted[0]) if len(wanted) else wanted
    return [at for at in starts.tolist() if np.array_equal(held[at : at + len(wanted)], wanted)]


def _overrun(held: Int64s, wanted: Int64s) -> list[int]:
    most = len(wanted) // 2
    return [
        lost
        for lost in range(max(1, len(wanted) - len(held)), most + 1)
        if np.array_equal(held[: len(wanted) - lost], wanted[lost:])
    ]


def _runs_as(op: str) -> int:
    return OP_CODE["all_reduce" if op == "reduce_scatter" else op]


def _groups(header: dict[str, Any]) -> dict[str, Group]:
    listed = header.get("process_groups")
    groups = {}
    for entry in listed if isinstance(listed, list) else []:
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(ranks, list) and ranks and all(type(rank) is int and 0 <= rank <= MAX_RANK for rank in ranks):
            name = str(entry.get("name", "?"))
            groups[name] = Group(name, str(entry.get("desc") or ""), tuple(ranks), len(ranks))
    return groups


def _call(line: dict[str, Any], groups: dict[str, Group]) -> FlightCall | None:
    created, named, group = line.get("time_created_ns"), line.get("profiling_name"), line.get("process_group")
    if type(created) is not int or not 0 <= created < 1 << 62 or not isinstance(named, str):
        return None
    name = str(group[0]) if isinstance(group, list) and group else "?"
    return FlightCall(op_name(named), created, _input_bytes(line), groups.get(name, UNKNOWN_GROUP))


def _input_bytes(line: dict[str, Any]) -> int:
    shapes, types = line.get("input_sizes"), line.get("input_dtypes")
    if not isinstance(shapes, list) or not isinstance(types, list) or not shapes or len(shapes) != len(types):
        return _UNKNOWN
    elements = [1 if shape == [] else _shape_elements(shape) for shape in shapes]
    each = [element_bytes(kind if isinstance(kind, str) else None) for kind in types]
    known = [n * size for n, size in zip(elements, each, strict=True) if n is not None and size]
    return sum(known) if len(known) == len(shapes) else _UNKNOWN
