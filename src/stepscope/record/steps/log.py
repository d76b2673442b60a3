"""The light log: one line per step (`contract.step_line`), profiled or not, on its way to `rankNNNNN.steps.jsonl`.

On a CUDA device a line waits, in memory, for its device time, which is known when the device has passed the step's
end.

Each line leaves the process at once in the first steps, where jobs are short or fail, and while the profiler runs.
Later lines leave two to ten times a second: several at once cost a fraction, because after a step's work nothing of
ours is in the processor's caches. So a job that is killed loses at most its last half second.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from stepscope.contract.step_line import RegionTimes
from stepscope.record.steps.device_timer import DeviceTimer

_PERIOD_NS = 100_000_000
_FIRST_STEPS = 8

PastStep = tuple[int, RegionTimes, dict[str, Any]]
"""when it ended by `perf_counter_ns`, its regions, and what `mark_end` returned then"""


class StepLog:
    """Builds lines and sends them on, in the order of the steps."""

    def __init__(self, send: Callable[..., None], timer: DeviceTimer | None) -> None:
        self._send = send
        self._timer = timer
        self.mark_end: Callable[[], dict[str, Any]] = dict if timer is None else timer.step_end
        """returns the line, empty so far, of a step that ends now; `add_past` takes it in"""
        self._ready: list[dict[str, Any]] = []
        self._next_send_ns = 0

    def add(self, line: dict[str, Any]) -> None:
        """Take in one step; it is sent soon, once its device time is known."""
        line["end_ns"] = end_ns = time.time_ns() - line.pop("late_ns", 0)
        line["start_ns"] = end_ns - line["dur_ns"]
        line["device_ns"] = None
        if self._timer is None:
            self._ready.append(line)
        else:
            self._timer.step_end(line)
            self._take_finished(all_of_them=False)
        is_soon = self._next_send_ns - _PERIOD_NS <= end_ns < self._next_send_ns  # False where the clock was set back
        if not is_soon or line["step"] < _FIRST_STEPS or line["profiled"]:
            self._next_send_ns = end_ns + _PERIOD_NS
            self._send_ready()

    def may_wait(self, step: int) -> bool:
        """Return whether the line of this step may leave a little later."""
        return step >= _FIRST_STEPS

    def add_past(self, steps: Sequence[PastStep], *, first: int, start_ns: int, phase: str) -> int:
        """Take in steps whose end was marked, by `perf_counter_ns`; return the longest one's time."""
        epoch_ns, longest_ns = time.time_ns() - time.perf_counter_ns(), 0
        for step, (end_ns, regions, line) in enumerate(steps, first):
            dur_ns = end_ns - start_ns
            line["text"] = (  # by hand: json takes three times as long
                f'{{"step": {step}, "start_ns": {start_ns + epoch_ns}, "end_ns": {end_ns + epoch_ns}, '
                f'"dur_ns": {dur_ns}, "profiled": false, "phase": "{phase}", '
                f'"regions": {{{_text_of(regions)}}}, "device_ns": '
            )
            if self._timer is None:
                self._ready.append(line)
            longest_ns = max(longest_ns, dur_ns)
            start_ns = end_ns
        if self._timer is not None:
            self._take_finished(all_of_them=False)
        self._next_send_ns = start_ns + epoch_ns + _PERIOD_NS
        self._send_ready()
        return longest_ns

    def restart(self) -> None:
        """Let the next step's device time begin after a pause."""
        if self._timer is not None:
            self._timer.restart()

    def flush(self) -> None:
        """Send every line that still waits, with or without its device time."""
        if self._timer is not None:
            self._take_finished(all_of_them=True)
        self._send_ready()

    def _take_finished(self, *, all_of_them: bool) -> None:
        assert self._timer is not None
        for line, device_ns in self._timer.finished(all_of_them=all_of_them):
            if line:  # not where its step was given up
                line["device_ns"] = device_ns
                self._ready.append(line)

    def _send_ready(self) -> None:
        ready, self._ready = self._ready, []
        if ready:
            self._send(*map(_text, ready))


def _text(line: dict[str, Any]) -> str:
    """Return the line as it is written; that of a step which was only timed lacks nothing but the device time."""
    begun, device_ns = line.get("text"), line.get("device_ns")
    if begun is None:
        return json.dumps(line)
    return f"{begun}{'null' if device_ns is None else device_ns}}}"


def _text_of(regions: RegionTimes) -> str:
    return ", ".join([f'"{name}": {{"ns": {own["ns"]}, "n": {own["n"]}}}' for name, own in regions.items()])
