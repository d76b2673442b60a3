"""The kind of each event, decided once per distinct category and name.

Categories changed over the years (`Kernel`, `Memcpy`, `Runtime` until 2021; `hip_runtime`, `xpu_driver` on other
chips) and communication kernels come from many libraries, not only from NCCL. Until torch 1.12 ranges had the category
of operators: their names tell them. Some vendors file all that their device does under one category, or none.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord, once_per_record
from stepscope.stats.distinct import among
from stepscope.trace.table import NO_STRING, Trace

# Device work without a category: tools other than Kineto file events by process and thread alone.
#
# Ascend (torch_npu)     process `Ascend Hardware`, threads `Stream 12`
# TPU and JAX (xprof)    process `/device:TPU:0`, thread `XLA Ops`; threads such as `XLA Modules` and `Steps` hold
#                        ranges around the same operations and are not counted again

_DEVICE_PROCESS = re.compile(r"^/device:(TPU|GPU|NPU):\d+|^Ascend Hardware\b", re.IGNORECASE)
_WORK_THREAD = re.compile(r"^(XLA Ops|Stream\b)", re.IGNORECASE)


def labels(trace: Trace, name: str) -> dict[tuple[int, int], str]:
    """Return what metadata events of one name (`process_name`, `thread_name`) call each process and thread."""
    wanted = [i for i, text in enumerate(trace.strings) if text == name]
    rows = np.flatnonzero((trace["ph"] == ord("M")) & np.isin(trace["name"], wanted))
    said = trace.arg("label").at(rows, missing=NO_STRING)
    keys = zip(trace["pid"][rows].tolist(), trace["tid"][rows].tolist(), said.tolist(), strict=True)
    return {(pid, tid): trace.strings[i] for pid, tid, i in keys if i != NO_STRING}


def _uncategorised_device_rows(trace: Trace) -> npt.NDArray[np.intp]:
    open_rows = np.flatnonzero((trace["cat"] == NO_STRING) & (trace["ph"] == ord("X")))
    if not len(open_rows):
        return open_rows
    devices = {pid for (pid, _), text in labels(trace, "process_name").items() if _DEVICE_PROCESS.search(text)}
    out = np.zeros(len(open_rows), bool)
    for (pid, tid), text in labels(trace, "thread_name").items():
        if pid in devices and _WORK_THREAD.search(text):
            out |= (trace["pid"][open_rows] == pid) & (trace["tid"][open_rows] == tid)
    return open_rows[out]


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
    kinds[_uncategorised_device_rows(trace)] = EventKind.KERNEL
    return _by_name(trace, kinds)


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
    kinds.flags.writeable = False  # they are everybody's
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
    """Return `rule(text)` for each string id, asking the rule once per distinct id; 0 where there is no string."""
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

    The rule is asked once for each name.
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
