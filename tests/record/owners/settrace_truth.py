"""The line of user code that each operator ran in, by settrace: at every change of line a mark goes into the trace."""

import sys

import torch.autograd.profiler as autograd_profiler
from torch._C._profiler import _RecordFunctionFast

MARK = "line#"


def operators_by_line(step, file: str) -> list[tuple[str, int]]:
    """Return `(operator, line)` in order of start; 0 where no function of `file` runs."""
    profiler = autograd_profiler.profile(use_cpu=True, use_kineto=True)
    profiler._prepare_trace()
    profiler._start_trace()
    sys.settrace(_tracer(file))
    try:
        step()
    finally:
        sys.settrace(None)
    events = sorted(_disable().events(), key=lambda e: (e.start_ns(), -e.duration_ns()))
    out, line = [], 0
    for event in events:
        name = event.name()
        if name.startswith(MARK):
            line = int(name.removeprefix(MARK))
        elif name != "[memory]":
            out.append((name, line))
    return out


def _disable():
    import torch

    return torch.autograd._disable_profiler()


def _tracer(file):
    def note(line):
        with _RecordFunctionFast(f"{MARK}{line}"):
            pass

    def local(frame, event, _arg):
        if event == "return":
            note(_line_above(frame.f_back))
        elif event == "line":
            note(frame.f_lineno)
        return local

    def _line_above(frame):
        while frame is not None and frame.f_code.co_filename != file:
            frame = frame.f_back
        return frame.f_lineno if frame is not None else 0

    def trace(frame, _event, _arg):
        return local if frame.f_code.co_filename == file else None

    return trace
