"""Spans that are open when a profiler stops, and would end in the next one.

A `record_function` that began under one profiler and ends under another writes its end into the first one's memory,
which is freed by then: the process crashes, now or later. Ended while no profiler runs, it writes nothing, and its
second end does nothing. So whenever a profiler of ours stops, every span that is open anywhere in the process ends,
the user's as well as ours.
"""

import contextlib
import gc

import torch


def end_open_spans() -> None:
    """End all open `record_function` spans; to be called when our profiler has stopped and before another starts."""
    for found in gc.get_objects():
        if issubclass(type(found), torch.profiler.record_function):
            record = getattr(found, "record", None)
            if record is not None:
                with contextlib.suppress(Exception):  # an older torch knows no such operator: no worse than before
                    torch.ops.profiler._record_function_exit._RecordFunction(record)
