"""One torch profiler, controlled directly: prepare, start, stop, export, and nothing it does not need in between.

`torch.profiler.profile` with a schedule numbers steps from its own start; ours carry the job's numbers. Preparing it
imports the compiler stack (over a second) even where nothing is compiled, and older versions build a Python object
per event when they stop: both are avoided here, by what its own `prepare_trace` does otherwise.
"""

import contextlib
import gc
import json
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler
from torch.profiler import ProfilerActivity

from stepscope.errors import UsageError
from stepscope.record.config import RecordConfig
from stepscope.record.window.guards import ProfilerGuard

# Spans that are open when a profiler stops, and would end in the next one.
#
# A `record_function` that began under one profiler and ends under another writes its end into the first one's memory,
# which is freed by then: the process crashes, now or later. Ended while no profiler runs, it writes nothing, and its
# second end does nothing. So whenever a profiler of ours stops, every span that is open anywhere in the process ends,
# the user's as well as ours.


def end_open_spans() -> None:
    """End all open `record_function` spans; to be called when our profiler has stopped and before another starts."""
    # Instances refer to their class. The search is in C: a loop over all objects takes twice as long.
    for found in gc.get_referrers(*_with_subclasses(torch.profiler.record_function)):
        if issubclass(type(found), torch.profiler.record_function):
            record = getattr(found, "record", None)
            if record is not None:
                with contextlib.suppress(Exception):  # an older torch has no such operator: no worse than before
                    torch.ops.profiler._record_function_exit._RecordFunction(record)


def _with_subclasses(kind: type) -> list[type]:
    below: list[type] = type.__subclasses__(kind)
    return [kind, *(one for child in below for one in _with_subclasses(child))]


# What a session may leave behind: CUPTI attached, so that each later launch takes the host longer. A launch shows it.
# Whole steps do not: they vary for other reasons, such as waits for other ranks.

_FIRST_LAUNCHES, _LAUNCHES = 8, 32  # CUPTI is detached in the first CUDA call after a session


def launch_ns(launch: Callable[[], Any] | None = None) -> int | None:
    """Return how long the host takes to launch a kernel that does nothing, the median of some; None without a device.

    To be called between steps. A full queue makes a launch wait; after a session it is empty, since that ends with all
    work on the device done. So launches before a session may seem longer than they are, and those after it do not.
    """
    if launch is None:
        cuda = torch.cuda
        if not cuda.is_available() or not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return None
        launch = partial(cuda._sleep, 1)
    times = []
    for _ in range(_FIRST_LAUNCHES + _LAUNCHES):
        since_ns = perf_counter_ns()
        launch()
        times.append(perf_counter_ns() - since_ns)
    return sorted(times[_FIRST_LAUNCHES:])[_LAUNCHES // 2]


_ACTIVITIES = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU"}


def why_not_available() -> str | None:
    """Return why this torch cannot profile, or None where it can."""
    if not torch.profiler.kineto_available():
        return "this build of torch has no Kineto: steps are timed, no trace is recorded"
    return None


def activities_of(config: RecordConfig) -> list[Any]:
    """Return the requested profiler activities that this torch supports."""
    supported = torch.profiler.supported_activities()
    if config.activities is None:
        return [a for a in (ProfilerActivity.CPU, ProfilerActivity.CUDA) if a in supported]
    unknown = [name for name in config.activities if name not in _ACTIVITIES]
    if unknown:
        raise UsageError(f"activities: there is no {', '.join(unknown)}; use some of {', '.join(_ACTIVITIES)}")
    wanted = [getattr(ProfilerActivity, _ACTIVITIES[name], None) for name in config.activities]
    return [a for a in wanted if a in supported]


class Kineto:
    """A profiler from preparation to export; all calls on the training thread."""

    def __init__(self, config: RecordConfig, guard: ProfilerGuard, *, keep_events: bool) -> None:
        self._guard = guard
        self._keep_events = keep_events  # for a callback that needs the profiler's tables
        self._switches = {
            "record_shapes": config.record_shapes,
            "profile_memory": config.profile_memory,
            "with_stack": config.with_stack,
            "with_flops": config.with_flops,
            "with_modules": config.with_modules,
        }
        self.torch_profiler = torch.profiler._KinetoProfile(activities=activities_of(config), **self._switches)

    def prepare(self) -> None:
        """Set up the buffers, so that the first recorded step does not pay for it."""
        profiler = self.torch_profiler
        config = sys.modules.get("torch._inductor.config")
        profiler.has_cudagraphs = bool(config is not None and config.triton.cudagraphs)
        profiler.profiler = autograd_profiler.profile(
            use_cpu=ProfilerActivity.CPU in profiler.activities,
            use_device="cuda" if ProfilerActivity.CUDA in profiler.activities else None,
            use_kineto=True,
            **self._switches,
        )
        with self._guard.ours():
            profiler.profiler._prepare_trace()
        if not self._keep_events:
            profiler.profiler._parse_kineto_results = lambda *_args, **_kwargs: []

    def start(self) -> None:
        with self._guard.ours():
            self.torch_profiler.start_trace()

    def pause(self) -> None:
        """Record no operators of this thread until `resume()`; device activity is still recorded."""
        torch.autograd._enable_record_function(False)

    def resume(self) -> None:
        torch.autograd._enable_record_function(True)

    def stop(self, *, about: dict[str, Any]) -> None:
        """End recording and keep the results; `about` is stored in the trace under the key `stepscope`."""
        self.torch_profiler.add_metadata_json("stepscope", json.dumps(about))
        with self._guard.ours():
            self.torch_profiler.stop_trace()
        end_open_spans()

    def export(self, path: str) -> None:
        """Write the trace as plain JSON. It returns normally on a full disk: read the file back before use."""
        self.torch_profiler.export_chrome_trace(path)

    def cancel(self, *, prepared: bool) -> None:
        """End a profiler that was started, or only prepared, and drop its results."""
        with self._guard.ours():
            if prepared:  # there is no way back but through
                self.torch_profiler.profiler._start_trace()
            if torch.autograd._profiler_enabled():
                torch.autograd._disable_profiler()
        end_open_spans()
