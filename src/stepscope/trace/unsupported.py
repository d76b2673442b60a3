"""Traces without a step, device work or operator: the tool that wrote them, and their largest groups of events."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from stepscope.trace.table import NO_STRING, STRING_ID_BASE, Trace, labels
from stepscope.units import printable

# The tool that wrote a file, by one value of its rows: a format is one line here.
_BY_CATEGORY, _BY_PROCESS, _BY_NAME = "categories", "processes", "names"
_AUTOGRAD = "an export of torch.autograd.profiler from before Kineto (torch 1.7 or older), not linked to device work"
_FORMATS = (
    ("a TensorFlow 1.x timeline", _BY_PROCESS, re.compile(r"^/(job|device|gpu|cpu):.* (Compute|Tensors)$", re.I)),
    ("a trace of the Chrome browser", _BY_CATEGORY, re.compile(r"\b(toplevel|devtools\.timeline|blink|v8)\b")),
    ("a trace of IBM's AIU accelerator", _BY_NAME, re.compile(r"\w (Cmpt (Prep|Exec)|Dma[IO])$")),
    (_AUTOGRAD, _BY_PROCESS, re.compile(r"^(CPU|CUDA) functions$")),
    (_AUTOGRAD, _BY_NAME, re.compile(r"^aten::")),
)
# X is an event with its duration, B the first of a pair
_TIMED, _BEGIN = ord("X"), ord("B")
_SHOWN = 3


def unsupported_content(traces: Sequence[Trace]) -> str:
    """Return why traces cannot be analysed: their format where it is known, their rows, and what to record instead."""
    found = {_BY_CATEGORY: Counter[str](), _BY_PROCESS: Counter[str](), _BY_NAME: Counter[str]()}
    total = pairs = 0
    for trace in traces:
        rows = np.flatnonzero((trace["ph"] == _TIMED) | (trace["ph"] == _BEGIN))
        total += len(rows)
        pairs += int((trace["ph"][rows] == _BEGIN).sum())
        named = {pid: text for (pid, _), text in labels(trace, "process_name").items()}
        for pid, count in Counter(trace["pid"][rows].tolist()).items():
            if text := named.get(pid) or (trace.id_text(pid) if pid < STRING_ID_BASE // 2 else ""):
                found[_BY_PROCESS][text] += count
        for column, what in (("cat", _BY_CATEGORY), ("name", _BY_NAME)):
            found[what].update(trace.strings[i] for i in trace[column][rows].tolist() if i != NO_STRING)
    paths = ", ".join(trace.path for trace in traces[:3])
    record = "record whole steps with torch.profiler.profile or stepscope record, other frameworks with nsys profile"
    if not total:
        return f"nothing to analyse in {paths}: no event has a duration; {record}"
    shown = (_BY_CATEGORY, _BY_PROCESS) if found[_BY_CATEGORY] else (_BY_PROCESS, _BY_NAME)
    listed = "; ".join(_largest(what, found[what]) for what in shown if found[what])
    held = f"{total:,} events{' in begin and end pairs, which are not read' if pairs > total / 2 else ''} ({listed})"
    for title, what, pattern in _FORMATS:
        if any(map(pattern.search, found[what])):
            return f"unsupported format: {paths} is {title}: {held}; {record}"
    return f"nothing to analyse in {paths}: {held}, none of them a step, device work or operator that is read; {record}"


def _largest(what: str, values: Counter[str]) -> str:
    largest = [f"{count:,} {printable(text, width=60)}" for text, count in values.most_common(_SHOWN)]
    more = f" and {len(values) - _SHOWN:,} more" if len(values) > _SHOWN else ""
    return f"{what}: {', '.join(largest)}{more}"
