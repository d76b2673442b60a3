"""Which events does nothing here understand? They are left out of every number, so they are named with their count."""

import numpy as np

from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind
from stepscope.trace.device_processes import labels
from stepscope.trace.schema import NO_STRING

_HARMLESS = {"trace", "trace_root", "external_correlation"}
"""spans around the whole recording, and joins that the other events carry as well"""
_MAX_NAMED = 4


def unread_lines(ranks: tuple[Rank, ...]) -> list[str]:
    """Return one line per category (or process, for events without one) of spans that no analysis reads."""
    total: dict[str, int] = {}
    for rank in ranks:
        for what, count in _unread(rank).items():
            total[what] = total.get(what, 0) + count
    most = sorted(total.items(), key=lambda item: -item[1])
    lines = [f"{count:,} events {what} are not understood and in no number here" for what, count in most[:_MAX_NAMED]]
    if len(most) > _MAX_NAMED:
        rest = sum(count for _, count in most[_MAX_NAMED:])
        lines.append(f"{rest:,} events of {len(most) - _MAX_NAMED} more categories are not understood either")
    return lines


def _unread(rank: Rank) -> dict[str, int]:
    trace = rank.trace
    rows = np.flatnonzero((rank.kinds == EventKind.OTHER) & (trace["ph"] == ord("X")))
    out: dict[str, int] = {}
    ids, count = np.unique(trace["cat"][rows], return_counts=True)
    for i, n in zip(ids.tolist(), count.tolist(), strict=True):
        if i != NO_STRING and trace.strings[i].lower() not in _HARMLESS:
            out[f"of category {trace.strings[i]!r}"] = n
    bare = rows[trace["cat"][rows] == NO_STRING]
    if len(bare):
        names = {pid: text for (pid, _), text in labels(trace, "process_name").items()}
        pids, count = np.unique(trace["pid"][bare], return_counts=True)
        for pid, n in zip(pids.tolist(), count.tolist(), strict=True):
            what = f"without a category, of process {names.get(pid) or trace.id_text(pid)!r}"
            out[what] = out.get(what, 0) + n
    return out
