"""Which rows without a category are device work? Tools other than Kineto file events by process and thread alone.

Ascend (torch_npu)     process `Ascend Hardware`, threads `Stream 12`
TPU and JAX (xprof)    process `/device:TPU:0`, thread `XLA Ops`; threads such as `XLA Modules` and `Steps` hold
                       ranges around the same operations and are not counted again
"""

import re

import numpy as np
import numpy.typing as npt

from stepscope.trace.schema import NO_STRING
from stepscope.trace.table import Trace

_DEVICE_PROCESS = re.compile(r"^/device:(TPU|GPU|NPU):\d+|^Ascend Hardware\b", re.IGNORECASE)
_WORK_THREAD = re.compile(r"^(XLA Ops|Stream\b)", re.IGNORECASE)


def labels(trace: Trace, name: str) -> dict[tuple[int, int], str]:
    """Return what metadata events of one name (`process_name`, `thread_name`) call each process and thread."""
    wanted = [i for i, text in enumerate(trace.strings) if text == name]
    rows = np.flatnonzero((trace["ph"] == ord("M")) & np.isin(trace["name"], wanted))
    said = trace.arg("label").at(rows, missing=NO_STRING)
    keys = zip(trace["pid"][rows].tolist(), trace["tid"][rows].tolist(), said.tolist(), strict=True)
    return {(pid, tid): trace.strings[i] for pid, tid, i in keys if i != NO_STRING}


def uncategorised_device_rows(trace: Trace) -> npt.NDArray[np.intp]:
    """Return the rows without a category that lie on a device's own threads."""
    open_rows = np.flatnonzero((trace["cat"] == NO_STRING) & (trace["ph"] == ord("X")))
    if not len(open_rows):
        return open_rows
    devices = {pid for (pid, _), text in labels(trace, "process_name").items() if _DEVICE_PROCESS.search(text)}
    threads = [key for key, text in labels(trace, "thread_name").items() if _WORK_THREAD.search(text)]
    out = np.zeros(len(open_rows), bool)
    for pid, tid in threads:
        if pid in devices:
            out |= (trace["pid"][open_rows] == pid) & (trace["tid"][open_rows] == tid)
    return open_rows[out]
