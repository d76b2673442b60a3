"""One step under a separate profiler, outside the window: limited like a window; the user's profiler has priority.

Never a step before the window: any session slows the steps that follow. Where there is a device it is watched as well,
even if only operators matter: Kineto detaches CUPTI after sessions of the device alone.
"""

import atexit
import bisect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler
from torch.profiler import ProfilerActivity

from stepscope.contract.operations import (
    ATTENTION,
    BACKWARD_TRANSPOSED,
    BACKWARD_WANTED,
    CONVOLUTION_BACKWARD,
    CONVOLUTIONS,
    PRODUCTS,
    AttentionOperator,
    ConvolutionArguments,
    attention_flops,
    attention_recomputed_flops,
    convolution_flops,
    convolution_output,
    product_sizes,
)
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain
from stepscope.record.groups import group_timeout_s
from stepscope.record.window.budget import Budget, TypicalStep
from stepscope.record.window.guards import NO_SIGN, ProfilerGuard, at_thread_end, this_thread
from stepscope.record.window.kineto import activities_of, end_open_spans, why_not_available


class WatchedStep:
    """Watches one step: `begin()` before it, `end()` after it. `purpose` is what the step is for ("be counted")."""

    def __init__(
        self, guard: ProfilerGuard, config: RecordConfig, usual: TypicalStep, *, purpose: str, **switches: bool
    ) -> None:
        self._guard = guard
        self._config = config
        self._usual = usual
        self._purpose = purpose
        self._switches = switches
        self._budget: Budget | None = None
        self._profiler: Any = None
        self._thread = (0, 0)
        self.why_not: str | None = None
        self.was_stopped = False  # in the middle of the step: another one may do

    @property
    def is_on(self) -> bool:
        """Whether the profiler runs."""
        return self._profiler is not None

    def begin(self) -> None:
        """Start watching unless another profiler is active; on any failure the step is just not watched."""
        try:
            self.why_not = why_not_available()
            if self.why_not is None and not self._guard.is_free():
                self.why_not = f"another profiler was active when the step was to {self._purpose}"
            elif self.why_not is None and not at_thread_end(self._thread_ends):
                self.why_not = NO_SIGN
            if self.why_not is not None:
                return
            self._thread = this_thread()
            self._guard.give_way = self.give_way
            on_device = ProfilerActivity.CUDA in activities_of(self._config)
            self._profiler = autograd_profiler.profile(
                use_cpu=True, use_device="cuda" if on_device else None, use_kineto=True, **self._switches
            )
            self._budget = Budget(self._config, usual=self._usual, group_timeout_s=group_timeout_s())
            with self._guard.ours():
                self._profiler._prepare_trace()
                self._profiler._start_trace()
        except Exception as e:  # noqa: BLE001 - training comes first
            self._profiler = self._guard.give_way = None
            self.why_not = f"the profiler failed: {explain(e)}"

    def end(self) -> Any:
        """Return the profiler's results, None where the step could not be watched."""
        if self._profiler is None:
            return None
        if this_thread() != self._thread:  # only that one can stop it, and will as it ends
            self.why_not, self._guard.left_behind = self._other_thread, True
            atexit.register(self._thread_ends)  # the main thread's end
            return None
        self._profiler = None
        self._guard.give_way = None
        with self._guard.ours():
            results = torch.autograd._disable_profiler()
        end_open_spans()
        return results

    def look_at_budget(self) -> None:
        """Stop in the middle of the step where a limit was met; called when a region ends."""
        if self._profiler is None or self._budget is None or this_thread() != self._thread:
            return
        spent = self._budget.spent_inside_step()
        if spent is not None:
            self.stop(f"the step to {self._purpose} was too much to watch ({spent})")

    def stop(self, why_not: str) -> None:
        """Stop at once and keep nothing."""
        if self._profiler is not None and this_thread() == self._thread:
            self._profiler = self._guard.give_way = None
            with self._guard.ours():
                torch.autograd._disable_profiler()
            end_open_spans()
            self.why_not, self.was_stopped = why_not, True

    def give_way(self) -> None:
        """Stop at once: the user starts a profiler of their own."""
        self.end()
        self.why_not = f"another profiler was started in the step to {self._purpose}"

    @property
    def _other_thread(self) -> str:
        return f"the step to {self._purpose} ended on another thread than it began"

    def _thread_ends(self) -> None:
        if self._profiler is not None and this_thread() == self._thread:
            self.end()
            self.why_not, self._guard.left_behind = self._other_thread, False


# Floating-point operations of one operator call, from the shapes of its inputs.
#
# The formulas are the contract's. Only operators that never run inside another one are counted: `aten::linear` and
# `aten::matmul` end in one of these and would count twice. Attention's backward counts the scores that it computes
# again.

Shapes = Sequence[Sequence[int]]
Inputs = Sequence[Any]


def flops_of(name: str, shapes: Shapes, inputs: Inputs) -> int:
    """Return the FLOPs of one call; 0 for operators that are not matrix products, convolutions or attention."""
    try:
        if name in PRODUCTS:
            return _product(shapes[PRODUCTS[name] :])
        if name in ATTENTION:
            return _attention(ATTENTION[name], shapes)
        if name in CONVOLUTIONS:
            return _convolution(CONVOLUTIONS[name], shapes, inputs)
        return _convolution_backward(shapes, inputs) if name == CONVOLUTION_BACKWARD else 0
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        return 0  # an overload with other arguments


def _product(shapes: Shapes) -> int:
    found = product_sizes(shapes[0], shapes[1])
    return 2 * found[0] if found else 0


def _attention(operator: AttentionOperator, shapes: Shapes) -> int:
    query, key, value = shapes[operator.backward : operator.backward + 3]
    if not len(query) == len(key) == len(value) == 4:  # packed sequences: their lengths are not among the shapes
        return 0
    pairs = operator.pairs(query, key)
    again = attention_recomputed_flops(pairs, query[3], backward=operator.backward)
    return attention_flops(pairs, query[3], value[3], backward=operator.backward) + again


def _convolution(at: ConvolutionArguments, shapes: Shapes, inputs: Inputs) -> int:
    data, weight = shapes[0], shapes[1]
    if at.transposed is not None and inputs[at.transposed]:
        return convolution_flops(data, weight)
    dims = len(data) - 2
    stride, padding, dilation = (
        (inputs[i] if len(inputs[i]) > 1 else [inputs[i][0]] * dims) for i in (at.stride, at.padding, at.dilation)
    )
    output = convolution_output(data, weight, stride=stride, padding=padding, dilation=dilation)
    return convolution_flops(output, weight)


def _convolution_backward(shapes: Shapes, inputs: Inputs) -> int:
    gradient, data, weight = shapes[:3]
    once = convolution_flops(data if inputs[BACKWARD_TRANSPOSED] else gradient, weight)
    wanted = inputs[BACKWARD_WANTED]
    return once * (bool(wanted[0]) + bool(wanted[1]))


# One step's operators, counted while they run: how many events a step makes and how many FLOPs it does.
#
# A profiler with shapes watches the first step after the window. No operator is replaced or decomposed,
# so results stay bit-equal, compiled code included.


class StepCensus(WatchedStep):
    """Watches one step: `begin()` before it, `counts()` after it."""

    def __init__(self, guard: ProfilerGuard, config: RecordConfig, usual: TypicalStep) -> None:
        super().__init__(guard, config, usual, purpose="be counted", record_shapes=True)

    def counts(self) -> dict[str, int] | None:
        """Return `{"events", "total", "forward"}` of the watched step, None where it could not be watched."""
        results = self.end()
        if results is None:
            return None
        events = results.events()
        if len(events) > self._config.max_events:
            self.why_not = f"the step to be counted has {len(events)} events, {self._config.max_events} allowed"
            return None
        return {"events": len(events), **_counted(events)}


def _counted(events: Iterable[Any]) -> dict[str, int]:
    operators, backward = [], []
    for event in events:
        name = event.name()
        if name.startswith("autograd::engine::evaluate_function"):
            backward.append((event.start_thread_id(), event.start_ns(), event.start_ns() + event.duration_ns()))
        else:
            flops = flops_of(name, event.shapes(), event.concrete_inputs())
            if flops:
                operators.append((event.start_thread_id(), event.start_ns(), flops))
    spans = _merged(backward)
    total = sum(flops for _, _, flops in operators)
    forward = sum(flops for thread, at_ns, flops in operators if not _within(spans, thread, at_ns))
    return {"total": total, "forward": forward}


def _merged(spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    out: list[tuple[int, int, int]] = []
    for thread, start_ns, end_ns in sorted(spans):
        if out and out[-1][0] == thread and start_ns <= out[-1][2]:
            out[-1] = (thread, out[-1][1], max(end_ns, out[-1][2]))
        else:
            out.append((thread, start_ns, end_ns))
    return out


def _within(spans: list[tuple[int, int, int]], thread: int, at_ns: int) -> bool:
    i = bisect.bisect_right(spans, (thread, at_ns, 1 << 63)) - 1
    return i >= 0 and spans[i][0] == thread and at_ns <= spans[i][2]
