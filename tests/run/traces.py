"""Traces from bare events, for tests of what reading makes of single events and of hostile ones."""

import json
from pathlib import Path
from typing import Any

from stepscope.run.rank import Rank, rank_of_trace
from stepscope.trace.read import read
from stepscope.trace.table import Trace

Event = dict[str, Any]


def event(
    cat: str | None, name: str, ts: float = 0, dur: float = 1, *, ph: str = "X", tid: int = 1, **args: Any
) -> Event:
    """Return one complete event (times in microseconds)."""
    out: Event = {"ph": ph, "name": name, "pid": 1, "tid": tid, "ts": ts, "args": args}
    if cat is not None:
        out["cat"] = cat
    if ph == "X":
        out["dur"] = dur
    return out


def trace_of(folder: Path, events: list[Event], *, name: str = "trace.json", cut: bool = False, **header: Any) -> Trace:
    """Write the events as a trace file and return it as read; `cut` ends the file inside the last event."""
    text = json.dumps({**header, "traceEvents": events})
    path = folder / name
    path.write_text(text[:-6] if cut else text)
    return read(path)


def rank_of(folder: Path, events: list[Event], *, cut: bool = False, **header: Any) -> Rank:
    """Return the events as rank 0."""
    return rank_of_trace(trace_of(folder, events, cut=cut, **header), rank=0, rank_source="order")
