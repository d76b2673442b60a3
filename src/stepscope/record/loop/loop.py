"""What the training thread is doing right now, as the hooks see it: one part inside another, told on once.

    hook                 part        not counted inside            (it is then part of that)
    data loader          DATA        data, forward, backward
    loader's iterator    LOADER      the same                      the start of its workers
    module call          FORWARD     data, forward, backward       recomputation belongs to backward
    autograd engine      BACKWARD    data, forward, backward       forces by autograd.grad belong to forward
    optimizer, scaler    OPTIMIZER   optimizer                     a wrapper steps its inner optimizer

A part that counts becomes a region of the recorder and an event of the step finder. Each hook's method asks the
`routine` first: where a step goes like the last one, noting the time is all there is to do.

The loop is one object, so that nothing is passed on while training runs, in layers with a file each:

    loop              what the hooks tell
    optimizer_steps   which optimizer steps, by itself or by a scaler
    step_ends         what follows from the end of a step
    rows              what is called too often to be timed call by call
    state             where training is now
"""

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch

from stepscope.contract import step_line as regions
from stepscope.record.failsafe import explain, say
from stepscope.record.loop.pattern import (
    BACKWARD,
    BACKWARD_BEGINS,
    BACKWARD_ENDS,
    DATA,
    DATA_BEGINS,
    DATA_ENDS,
    FORWARD,
    FORWARD_BEGINS,
    FORWARD_ENDS,
    HIDDEN_INSIDE,
    LOADER,
    LOADER_BEGINS,
    LOADER_ENDS,
    MAX_STRETCHES,
    NO_BATCH,
    OPTIMIZER,
    QUIET,
    QUIET_ROW_BEGINS,
    REGION,
    ROW_BEGINS,
    ROW_ENDS,
    SAVING,
    SCHEDULE_BEGINS,
    STEPS_ROW,
    STEPS_ROW_ENDS,
    STRETCH,
    STRETCH_BEGINS,
    STRETCH_ENDS,
    SYNC_BEGINS,
    WORK,
    Event,
    Pattern,
    StretchPlan,
    StretchTimes,
)
from stepscope.record.loop.routine import SHORT_STEP_NS, Repeats, Routine
from stepscope.record.loop.steps import StepFinder, StepUnit
from stepscope.record.loop.threads import is_of_autograd, is_over, is_waiting
from stepscope.record.window.guards import Interruptions

# Which optimizers exist in this process and step on their own, so that a first step waits for all of them.


class OptimizersAlive:
    """Weak references only: an optimizer that the script dropped is not waited for."""

    def __init__(self) -> None:
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inner: weakref.WeakSet[Any] = weakref.WeakSet()

    def is_made(self, optimizer: Any) -> None:
        """Take note of a new optimizer."""
        self._alive.add(optimizer)

    def is_inner(self, optimizer: Any, *, of: Any) -> None:
        """Take note that another optimizer steps this one (ZeroRedundancyOptimizer and the like)."""
        if optimizer is not of:
            self._inner.add(optimizer)

    def main(self) -> Any:
        """Return the optimizer with the most parameters among those that step on their own, None without any."""
        own = [o for o in self._alive if o not in self._inner]
        return max(own, key=lambda o: sum(len(g["params"]) for g in o.param_groups), default=None)

    def keys(self) -> frozenset[Hashable]:
        """Return the keys under which those that step on their own will be seen."""
        return frozenset(id(o) for o in self._alive if o not in self._inner)


# Did the parameters change since the last backward? The one sign of an update that no optimizer hook sees.
#
# p -= lr * p.grad  (no_grad)     counts up `p._version`, on any device
# p.data = p.data - lr * p.grad   another place in memory
# p.data.add_(p.grad, ...)        neither: on a CPU the values are compared, a few hundred of them. Elsewhere reading
#                                 them would synchronise: there the gradients tell, once they are reset for the next
#                                 backward, and the step's end is known a little late
#
# Sharding wrappers (FSDP) free and gather parameters around every pass, in the same version: a place in memory says
# something only where there was one before and after.

_SAMPLE = 256
_MAX_NODES = 10_000
State = tuple[int, int, bytes | None]


class ParameterWatch:
    """The first and the last parameter of the trained model stand for all."""

    def __init__(self) -> None:
        self._parameters: list[Any] = []
        self._states: list[State] = []
        self._gradients: list[tuple[int, int] | None] = []

    def watch(self, module: Any) -> None:
        """Watch parameters of this module, if it trains some and none are watched yet."""
        if not any(reference() is not None for reference in self._parameters):
            found = [p for p in module.parameters() if p.requires_grad]
            self._parameters = [weakref.ref(p) for p in {id(p): p for p in (*found[:1], *found[-1:])}.values()]
            self.remember()

    def watch_trained_by(self, outputs: Any) -> None:
        """Watch parameters that a backward from these outputs will reach, where no module is known yet."""
        if any(reference() is not None for reference in self._parameters):
            return
        found: list[Any] = []
        waiting = [output.grad_fn for output in outputs if getattr(output, "grad_fn", None) is not None]
        seen = set(waiting)
        while waiting and len(found) < 2 and len(seen) < _MAX_NODES:
            node = waiting.pop()
            variable = getattr(node, "variable", None)
            if isinstance(variable, torch.nn.Parameter):
                found.append(variable)
            new = {n for n, _ in node.next_functions if n is not None} - seen
            seen |= new
            waiting += new
        self._parameters = [weakref.ref(p) for p in found]
        self.remember()

    def remember(self) -> None:
        """Remember the state after a backward."""
        alive = self._alive()
        self._states = [_state(p) for p in alive]
        self._gradients = [_gradient(p) for p in alive]

    def changed(self) -> bool:
        """Return whether a parameter was changed since `remember`, as far as that can be seen at once."""
        alive = self._alive()
        return len(alive) == len(self._states) and any(
            _differs(_state(p), before) for p, before in zip(alive, self._states, strict=True)
        )

    def gradients_reset(self) -> bool:
        """Return whether a gradient was set to zero or to None since `remember`."""
        alive = self._alive()
        return len(alive) == len(self._gradients) and any(
            before is not None and _gradient(p) != before for p, before in zip(alive, self._gradients, strict=True)
        )

    def _alive(self) -> list[Any]:
        return [p for p in (reference() for reference in self._parameters) if p is not None]


def _state(parameter: Any) -> State:
    if type(parameter) is not torch.nn.Parameter or not parameter.untyped_storage().size():
        return parameter._version, 0, None  # sharded or otherwise special: its version has to do
    values = None
    if parameter.device.type == "cpu":
        sample = parameter.detach().reshape(-1)[:_SAMPLE].clone()  # a storage that numpy saw can't be freed by FSDP
        values = sample.view(torch.uint8).numpy().tobytes()
    return parameter._version, parameter.data_ptr(), values


def _differs(now: State, before: State) -> bool:
    both_placed = bool(now[1] and before[1])
    return now[0] != before[0] or (both_placed and now != before)


def _gradient(parameter: Any) -> tuple[int, int] | None:
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)


# Where training is: on which thread, inside which parts of the step, and whether it is followed at all.
#
# Other threads (prefetching, replicas, a second training loop) are not the loop: what they do is left alone, unless
# training itself moves to another thread: the loop's own has ended, or waits for others.


def _training_first(method: Any) -> Any:

    @functools.wraps(method)
    def guarded(self: "LoopState", *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as e:  # noqa: BLE001 - training comes first
            self.stop()
            say(f"steps are no longer followed, training goes on: {explain(e)}")
            return False

    return guarded


class LoopState:
    """What is known of the training loop at this moment; the layers above it say what changes that."""

    routine: Routine
    _finder: StepFinder
    _events: dict[int, Event]  # those that are the same in every step

    def __init__(self) -> None:
        self.recorder: Any = None
        self.optimizers = OptimizersAlive()
        self.parameters = ParameterWatch()
        self.forwards = self.backwards = 0  # that counted in this step
        self.watcher: Any = None  # told `part_begins(part)` and `part_ends(part)`, while it is needed
        self.interruptions = Interruptions()
        self.row = 0  # FORWARD, QUIET or OPTIMIZER while a row of them lasts, or STRETCH
        self.backwards_left = 0  # in the stretch that lasts; negative inside one of them
        self.thread = threading.main_thread().ident
        self._in_a_row = 0  # forwards, or optimizer steps, with nothing else between
        self._row_of = 0
        self._batch_unused = False
        self._inside = 0
        self._lock = threading.RLock()
        self._optimizer: Any = None  # the one that is stepping
        self._stepper: Any = None  # who steps it: itself, or a scaler
        self._on = True
        self._repeats = Repeats()

    def stop(self) -> None:
        """See nothing more."""
        self._on = False
        self.row = self.backwards_left = 0
        self.routine.forget()

    def is_training_thread(self, thread: int) -> bool:
        """Return whether this is the thread whose steps are followed."""
        return thread == self.thread and self._on and self.recorder is not None

    def in_forked_child(self) -> None:
        """A run that has begun is the parent's alone; where it has not, ranks may be forked from here."""
        if self.recorder is not None:
            self.stop()

    @_training_first
    def safely(self, act: Callable[..., Any], *args: Any) -> Any:
        """Return `act(*args)`, or False where it failed, after which the hooks are off."""
        return act(*args)

    def _enters(self, part: int) -> bool:
        return self._on and not self._inside & HIDDEN_INSIDE[part] and threading.get_ident() == self.thread

    def _speaks(self) -> bool:
        here = threading.get_ident()
        return here == self.thread or bool(self._inside & BACKWARD and is_of_autograd(here))

    def _adopt_thread(self) -> None:
        here = threading.get_ident()
        if here == self.thread:
            return
        with self._lock:
            if not is_over(self.thread) and (self._inside or not is_waiting(self.thread)):
                return
            self.thread = here
            self.row = self.backwards_left = 0
            self.routine.end()
            self._inside = 0
            self._repeats.break_off()

    def _begin(self, part: int, token: int | None, at_ns: int | None) -> bool:
        self._inside |= part
        self._batch_unused = part == DATA
        if part != self._row_of and not (part == FORWARD and self._row_of == QUIET):
            self._in_a_row = 0
        if self.watcher is not None:
            self.watcher.part_begins(part)
        if token is not None:
            self._repeats.add(self._events[token])
        if self.recorder is not None:
            self.recorder.enter(REGION[part], at_ns)
        return True

    def _end(self, part: int, token: int | None, at_ns: int | None) -> None:
        self._inside &= ~part
        if self.recorder is not None:
            self.recorder.leave(REGION[part], at_ns)
        if token is not None:
            self._repeats.add(self._events[token])
        if self.watcher is not None:
            self.watcher.part_ends(part)


# Calls that are not timed one by one: rows of forwards or optimizer steps, and stretches of micro-batches.
#
# After `MAX_IN_A_ROW` forwards, or optimizer steps, with nothing else between, the following ones are a *row*: one
# region from the next call on to whatever comes after the last, during which their hooks are off. So a loop that calls
# a
# cell for every token, or an optimizer for every parameter, pays for some calls per step and no more. Where the first
# steps, in which every call is seen, had `LONG_ROW` forwards in a row, later rows begin with their second call: the
# next
# three are a small part of it, and cost most of what a timed step does. Of many micro-batches that go alike, most are
# in
# a *stretch* (see `stretch`), in which neither loads, forwards nor backwards are told of.

_MAX_IN_A_ROW = 4
# forwards in a row, in a step in which every call is seen, from which on only the first of a row is timed by itself
_LONG_ROW = 32
# forwards that are timed by themselves: beyond it, every forward begins a row
MAX_IN_A_STEP = 64
# forwards without gradients in a row, before any with: from here on it is evaluation or generation
_MAX_QUIET_CALLS = 64


class Rows(LoopState):
    """The row or stretch that lasts, and when one begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.rest_optimizers: Callable[[bool], None] | None = None  # turns the optimizers' hooks off and on
        self._quiet_calls = 0  # in the row that lasts
        self._most_forwards_in_a_row = 0  # with gradients, that were told of
        self._wake: list[Callable[[], None]] = []
        self._plan: StretchPlan | None = None
        self._stretches = StretchTimes()
        self._stretches_wanted = False  # in this step

    def is_inside(self, part: int) -> bool:
        """Return whether the loop is inside a part now."""
        if self.row == STRETCH:
            return part == BACKWARD and self.backwards_left < 0
        return bool((self.routine.inside() if self.routine.on else self._inside) & part)

    def in_row(self, *, grad: bool) -> bool:
        """Return whether a forward belongs to the row that lasts; one of another kind ends it."""
        if self.row == STRETCH:
            return True
        if self.row == (FORWARD if grad else QUIET) or (self.row == FORWARD and not grad):
            self._quiet_calls += not grad
            if self._quiet_calls == _MAX_QUIET_CALLS:
                self._evaluation_goes_on()
            return True
        if threading.get_ident() == self.thread:
            self._end_row()
        return False

    @_training_first
    def _evaluation_goes_on(self) -> None:
        if self.recorder is not None and not self.routine.on and self._finder.only_evaluated():
            self.recorder.evaluation_goes_on()

    def wake_after_row(self, act: Callable[[], None]) -> None:
        """Call `act` when the row is over."""
        self._wake.append(act)

    def _forwards_before_row(self) -> int:
        if self.forwards > MAX_IN_A_STEP:
            return 0
        return _MAX_IN_A_ROW if self._most_forwards_in_a_row < _LONG_ROW else 1

    def _begins_row(self, kind: int, *, most: int) -> bool:
        self._in_a_row = self._in_a_row + 1 if self._row_of == kind else 1
        self._row_of = kind
        if kind == FORWARD:
            self._most_forwards_in_a_row = max(self._most_forwards_in_a_row, self._in_a_row)
        return self._in_a_row > most and self.watcher is None and self.recorder is not None

    def _forward_row_begins(self, grad: bool, at_ns: int | None = None) -> None:
        self._begin(FORWARD, ROW_BEGINS if grad else QUIET_ROW_BEGINS, at_ns)
        self.row = FORWARD if grad else QUIET

    def _row_again(self, grad: bool, at_ns: int) -> None:
        self.forwards += 1
        self._forward_row_begins(grad, at_ns)

    @_training_first
    def _end_row(self) -> None:
        kind, self.row = self.row, 0
        if not kind:
            return
        self._quiet_calls = 0
        wake, self._wake = self._wake, []
        for act in wake:
            act()
        if kind == STRETCH:
            if self.backwards_left:  # it was to go on: learn again how many micro-batches there are
                self._plan = None
            self.backwards_left = 0
            if not self.routine.takes(STRETCH_ENDS):
                self._stretch_ends()
        elif kind == OPTIMIZER:
            self._rest_optimizers(False)
            if not self.routine.takes(STEPS_ROW_ENDS):
                self._steps_row_ends()
        elif not self.routine.takes(ROW_ENDS):
            self._row_ends()

    def _row_ends(self, at_ns: int | None = None) -> None:
        self.row = 0
        self._in_a_row = 0
        self._end(FORWARD, ROW_ENDS, at_ns)

    def _steps_row_ends(self, at_ns: int | None = None) -> None:
        self.row = 0
        self._in_a_row = 0
        if self._inside & OPTIMIZER and self._optimizer is not None:
            key = id(self._optimizer)
            self._optimizer = self._stepper = None
            self._end(OPTIMIZER, STEPS_ROW_ENDS, at_ns)
            self._finder.optimizer_ends(key, perf_counter_ns() if at_ns is None else at_ns)

    def _rest_optimizers(self, rest: bool) -> None:
        if self.rest_optimizers is not None:
            self.rest_optimizers(rest)

    @_training_first
    def _stretch_may_begin(self, plan: StretchPlan) -> None:
        if self.routine.on:
            token = STRETCH_BEGINS + plan.units
            if self.routine.expected != token or not self.routine.takes(token):
                return
        elif not self._stretches_wanted or self._inside or self.backwards not in plan.begins_after or not self._on:
            return
        else:
            self._stretch_begins(plan)
        self.row = STRETCH
        self.backwards_left = plan.backwards

    def _stretch_begins(self, plan: StretchPlan, at_ns: int | None = None) -> None:
        now_ns = perf_counter_ns() if at_ns is None else at_ns
        self.backwards += plan.backwards
        follow = partial(self._stretch_begins, plan)
        self._repeats.add(Event(STRETCH_BEGINS + plan.units, None, follow, stretch_units=plan.units))
        self._stretches.begins(now_ns, self.recorder.regions.so_far(now_ns), plan.units)

    def stretch_ends(self) -> None:
        """The last backward of a stretch returned."""
        self._end_row()

    def _stretch_ends(self, at_ns: int | None = None) -> None:
        now_ns = perf_counter_ns() if at_ns is None else at_ns
        self._repeats.add(self._events[STRETCH_ENDS])
        if self._stretches.ends(now_ns, self.recorder.regions.so_far(now_ns)) == MAX_STRETCHES:
            self._add_stretches()

    def _add_stretches(self) -> None:
        times = self._stretches.taken()
        if times and self.recorder is not None:
            self.recorder.regions.add(times)

    def _something_else(self) -> None:
        if threading.get_ident() == self.thread:
            if self.row == STRETCH:
                self._end_row()
            self.routine.end()
            self._repeats.break_off()


# What follows from the end of a step: the recorder hears of it, and the coming steps are only timed if they may be.

_FIRST_STEPS = 8  # in which those who learn about the job are told of each
_ANY_LENGTH_NS = 1 << 62


class StepEnds(Rows):
    """Between the step finder, which decides where a step ends, and the recorder and those who learn about the job."""

    def __init__(self, start_recorder: Callable[[], Any], unit: StepUnit | None = None) -> None:
        super().__init__()
        self.steps = 0
        self.on_step: list[Callable[[Any], None]] = []
        self.on_first_steps: list[Callable[[Any], None]] = []
        self.optimizer_seen = False
        self._start_recorder = start_recorder
        self._happening: int | None = None  # the event that may be the first of a step
        self._followed_ns = 0  # when the event happened that is followed only now
        self.routine = Routine(whole_steps=self._steps_passed, open_step=self._follow_open_step)
        self._finder = StepFinder(
            self,
            optimizers=self.optimizers.keys,
            parameters_changed=self.parameters.changed,
            gradients_reset=self.parameters.gradients_reset,
            unit=unit,
        )

    @_training_first
    def start(self) -> None:
        """Start the recorder, once: this process takes part in training."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        if self.recorder is None and self._on:
            self.recorder = self._start_recorder()
            self._on = self.recorder is not None
            if self._on:
                self.recorder.on_own_region = self._something_else
                self.recorder.regions.interruptions = self.interruptions

    @_training_first
    def finish(self) -> None:
        """End the last step: training is over, or its process groups are about to go."""
        self._end_row()
        here = threading.get_ident()
        if self.routine.on and self.thread != here and is_over(self.thread):
            self.thread = self.recorder.regions.training_thread = here  # what it left open is followed from here
        self.routine.end()
        if self._on and not self._inside:
            self._finder.finish()

    def step_unit(self) -> str | None:
        """Return what one step is in this job, None before the first."""
        return self._finder.describe() if self.steps else None

    def step_end(self, at_ns: int | None = None) -> None:
        """Tell the recorder, as the step finder decided."""
        self.steps += 1
        if self.recorder is not None:
            self.recorder.step_end(at_ns=at_ns)
        for tell in self.on_step:
            tell(self)
        if self.steps <= _FIRST_STEPS:
            for tell in self.on_first_steps:
                tell(self)
        self._stretches.taken()
        repeats = self._repeats.next_step()
        self._plan_stretches(repeats=repeats)
        self.forwards = self.backwards = 0
        if repeats and at_ns is None:
            self._begin_routine()

    def step_may_end(self, *, expected: bool) -> int:
        """Ask the recorder, for the step finder, to remember this moment."""
        if not expected:
            self._repeats.break_off()
        at_ns = self._followed_ns or perf_counter_ns()
        return int(self.recorder.step_may_end(at_ns)) if self.recorder is not None else at_ns

    def step_begin(self) -> None:
        """Tell the recorder, as the step finder decided."""
        self._repeats.break_off()
        if self.recorder is not None:
            self.recorder.step_begin()

    def _plan_stretches(self, *, repeats: bool) -> None:
        pattern = self._repeats.pattern
        if pattern is None:
            return
        if self._plan is None:
            self._plan = pattern.plan if repeats and self.optimizer_seen else None
        elif pattern.stretches and self.backwards != self._plan.step_backwards:
            self._plan = None
        self._stretches_wanted = (
            self._plan is not None
            and self.watcher is None
            and self.recorder is not None
            and self.recorder.steps_to_time(_ANY_LENGTH_NS) > 0
        )

    def _begin_routine(self) -> None:
        pattern = self._repeats.pattern
        if self._stretches_wanted and pattern is not None and not pattern.stretches:
            return  # the next step has some
        if self.watcher is None and not self._inside and self.optimizer_seen and self.recorder is not None and pattern:
            steps = self.recorder.steps_to_time(SHORT_STEP_NS) if pattern.tokens[0] == self._happening else 0
            if steps > 0:
                recorder = self.recorder
                self.routine.begin(
                    pattern,
                    steps=steps,
                    mark=recorder.mark_step_end,
                    nvtx=recorder.regions.nvtx,
                    waits=recorder.waits_on_host,
                )

    @_training_first
    def _steps_passed(self, pattern: Pattern, times: list[int], ends: list[Any]) -> int:
        count = len(pattern.tokens)
        self.steps += len(ends)
        interruptions = [i for i in self.interruptions.taken(before_ns=times[-1]) if i.begin_ns >= times[0]]
        steps = zip(times[count::count], pattern.steps(times, interruptions), ends, strict=True)
        self.recorder.steps_passed(list(steps))
        return int(self.recorder.steps_to_time(_ANY_LENGTH_NS))

    @_training_first
    def _follow_open_step(self, events: Sequence[Event], times: list[int]) -> None:
        self._repeats.break_off()
        for event, at_ns in zip(events, times, strict=True):
            self._followed_ns = at_ns
            event.follow(at_ns)
        self._followed_ns = 0


# Which optimizer is stepping, by itself or by a scaler that decides about it: one step, whoever else is inside it.


class OptimizerSteps(StepEnds):
    """The steps of optimizers, of which a wrapper's may hold another's."""

    def __init__(self, start_recorder: Callable[[], Any], unit: StepUnit | None = None) -> None:
        super().__init__(start_recorder, unit)
        self._gone = 0  # the optimizer that is stepping, where it exists no more

    def optimizer_begins(self, optimizer: Any, by: Any) -> None:
        """An optimizer begins to step, `by` itself or by the scaler that will decide about it."""
        if self.row:
            if self.row == OPTIMIZER:
                return
            self._end_row()
        token = id(optimizer) + id(by)
        if self.routine.on and self.routine.expected == token + STEPS_ROW:
            self.routine.takes(token + STEPS_ROW)
            self.row = OPTIMIZER
            self._rest_optimizers(True)
        elif not self.routine.takes(token) and not self.routine.is_elsewhere():
            self._optimizer_begins(optimizer, by)

    @_training_first
    def _optimizer_begins(self, optimizer: Any, by: Any, at_ns: int | None = None) -> None:
        self._adopt_thread()
        if not self._on or not self._speaks():
            return
        if self._inside & OPTIMIZER:
            if by is not self._stepper:
                self.optimizers.is_inner(optimizer, of=self._optimizer)
                self._repeats.add(self._optimizer_event(optimizer, by, None))
                return
            self._repeats.break_off()
            self._end(OPTIMIZER, None, None)  # it raised last time and so never ended
        self.start()
        self._add_stretches()
        self.optimizer_seen = True
        self._happening = None
        self._finder.optimizer_begins(id(optimizer), type(optimizer).__name__)
        self._optimizer, self._stepper = optimizer, by
        is_row = self._begins_row(OPTIMIZER, most=_MAX_IN_A_ROW)
        self._repeats.add(self._optimizer_event(optimizer, by, ("begin", regions.OPTIMIZER), is_row=is_row))
        self._begin(OPTIMIZER, None, at_ns)
        if is_row:
            self.row = OPTIMIZER
            self._rest_optimizers(True)

    def optimizer_ends(self, by: Any) -> None:
        """End what `by` began."""
        if self.row != OPTIMIZER and not self.routine.takes(-id(by)) and not self.routine.is_elsewhere():
            self._optimizer_ends(by)

    @_training_first
    def _optimizer_ends(self, by: Any, at_ns: int | None = None) -> None:
        if not self._speaks():
            return
        counts = self._inside & OPTIMIZER and by is self._stepper
        self._repeats.add(self._optimizer_end(by, ("end", regions.OPTIMIZER) if counts else None))
        if counts:
            key = id(self._optimizer)
            self._optimizer = self._stepper = None
            self._end(OPTIMIZER, None, at_ns)
            self._finder.optimizer_ends(key, perf_counter_ns() if at_ns is None else at_ns)

    def _optimizer_event(self, optimizer: Any, by: Any, edge: tuple[str, str] | None, *, is_row: bool = False) -> Event:
        alive, alive_by, key = weakref.ref(optimizer), weakref.ref(by), id(optimizer)

        def follow(at_ns: int) -> None:
            if (o := alive()) is not None and (b := alive_by()) is not None:
                self._optimizer_begins(o, b, at_ns)
            elif edge is not None:  # dropped since: its step counts all the same
                self._gone = key
                self._finder.optimizer_begins(key)
                self._begin(OPTIMIZER, None, at_ns)

        return Event(id(optimizer) + id(by) + is_row, edge, follow)

    def _optimizer_end(self, by: Any, edge: tuple[str, str] | None) -> Event:
        alive = weakref.ref(by)

        def follow(at_ns: int) -> None:
            if (b := alive()) is not None:
                self._optimizer_ends(b, at_ns)
            elif edge is not None:
                self._end(OPTIMIZER, None, at_ns)
                self._finder.optimizer_ends(self._gone, at_ns)

        return Event(-id(by), edge, follow)


class Loop(OptimizerSteps):
    """One per process. Without a recorder yet it follows the loop all the same, so that step 0 is right."""

    def __init__(self, start_recorder: Callable[[], Any], unit: StepUnit | None = None) -> None:
        super().__init__(start_recorder, unit)
        self.on_unused_batch: Callable[[], None] | None = None  # a batch is asked for and the last met nothing
        self._events = self._known_events()

    def data_begins(self) -> bool:
        """Return whether this load counts; if so `data_ends` must follow."""
        if self.row:
            self._end_row()
        return self.routine.takes(DATA_BEGINS, WORK) or (not self.routine.ignores(DATA) and self._data_begins())

    @_training_first
    def _data_begins(self, at_ns: int | None = None) -> bool:
        if not self._enters(DATA):
            return False
        self._happening = DATA_BEGINS
        self._finder.load_begins()
        if self.routine.on:
            return True
        if self._batch_unused and self.on_unused_batch is not None:
            self.on_unused_batch()
        return self._begin(DATA, DATA_BEGINS, at_ns)

    def data_ends(self, *, got_batch: bool) -> None:
        """End a load that counted."""
        if not self.routine.takes(DATA_ENDS if got_batch else NO_BATCH):
            self._data_ends(got_batch)

    @_training_first
    def _data_ends(self, got_batch: bool, at_ns: int | None = None) -> None:
        self._end(DATA, DATA_ENDS if got_batch else NO_BATCH, at_ns)
        self._finder.load_ends(got_batch=got_batch)

    def loader_begins(self) -> bool:
        """Return whether this creation of a loader's iterator counts; if so `loader_ends` must follow."""
        if self.row:
            self._end_row()
        return self.routine.takes(LOADER_BEGINS, WORK) or (not self.routine.ignores(LOADER) and self._loader_begins())

    @_training_first
    def _loader_begins(self, at_ns: int | None = None) -> bool:
        if not self._enters(LOADER):
            return False
        self._happening = LOADER_BEGINS
        self._finder.loader_begins()
        return True if self.routine.on else self._begin(LOADER, LOADER_BEGINS, at_ns)

    def loader_ends(self) -> None:
        """End what counted."""
        if not self.routine.takes(LOADER_ENDS):
            self._loader_ends()

    @_training_first
    def _loader_ends(self, at_ns: int | None = None) -> None:
        self._end(LOADER, LOADER_ENDS, at_ns)

    @_training_first
    def saving_begins(self) -> bool:
        """Return whether this checkpoint counts; if so `saving_ends` must follow."""
        if self.recorder is None or not self._on or threading.get_ident() != self.thread:
            return False
        self._end_row()
        self._something_else()
        return self._enters(SAVING) and self._begin(SAVING, None, None)

    @_training_first
    def saving_ends(self) -> None:
        """End what counted."""
        self._end(SAVING, None, None)
        self._finder.saved(perf_counter_ns())

    def forward_begins(self, *, grad: bool, own: bool) -> bool:
        """Return whether this call of a module counts; if so `forward_ends` must follow.

        Not where it begins a row: that ends with whatever comes next.
        """
        routine = self.routine
        if routine.on:
            row = ROW_BEGINS if grad else QUIET_ROW_BEGINS
            if routine.expected == row:
                routine.takes(row)
                self.row = FORWARD if grad else QUIET
                return False
            if routine.takes(FORWARD_BEGINS + grad + 2 * own, WORK):
                return True
            if routine.ignores(FORWARD):
                return False
        return bool(self._forward_begins(grad, own))

    @_training_first
    def _forward_begins(self, grad: bool, own: bool, at_ns: int | None = None) -> bool:
        if not self._enters(FORWARD):
            return False
        token = self._happening = FORWARD_BEGINS + grad + 2 * own
        if not self._inside & OPTIMIZER:
            self._finder.forward_begins(grad=grad, own=own)
            if self.routine.on:
                return True
        self.forwards += 1
        if self._begins_row(FORWARD if grad else QUIET, most=self._forwards_before_row()):
            self._forward_row_begins(grad, at_ns)
            return False
        return self._begin(FORWARD, token, at_ns)

    def forward_ends(self) -> None:
        """End a forward that counted."""
        if not self.routine.takes(FORWARD_ENDS):
            self._forward_ends()

    @_training_first
    def _forward_ends(self, at_ns: int | None = None) -> None:
        self._end(FORWARD, FORWARD_ENDS, at_ns)

    def backward_begins(self) -> bool:
        """Return whether this backward counts; if so `backward_ends` must follow."""
        if self.row:
            self._end_row()
        return self.routine.takes(BACKWARD_BEGINS, WORK) or (
            not self.routine.ignores(BACKWARD) and bool(self._backward_begins())
        )

    @_training_first
    def _backward_begins(self, at_ns: int | None = None) -> bool:
        self._adopt_thread()
        if not self._enters(BACKWARD):
            return False
        if self.recorder is None:
            self.start()
        if not self._inside & OPTIMIZER:
            self._happening = BACKWARD_BEGINS
            self._finder.backward_begins()
            if self.routine.on:
                return True
        self.backwards += 1
        return self._begin(BACKWARD, BACKWARD_BEGINS, at_ns)

    @_training_first
    def gradient_sync_begins(self, *, of_every_step: bool = True) -> None:
        """All gradients are computed; the rest of this backward waits for their reduction.

        `of_every_step` is False where only some backwards are watched for it.
        """
        if of_every_step and self.routine.takes(SYNC_BEGINS):
            return
        self._sync_begins(of_every_step)

    def _sync_begins(self, of_every_step: bool = True, at_ns: int | None = None) -> None:
        if self._inside & BACKWARD and threading.get_ident() == self.thread and self.recorder is not None:
            self.recorder.enter(regions.GRADIENT_SYNC, at_ns)
            if of_every_step:
                self._repeats.add(self._events[SYNC_BEGINS])

    def backward_ends(self) -> None:
        """End a backward that counted, and the wait for reductions inside it."""
        if self.row:
            self._end_row()
        if not self.routine.takes(BACKWARD_ENDS):
            self._backward_ends()
        if self._plan is not None:
            self._stretch_may_begin(self._plan)

    @_training_first
    def _backward_ends(self, at_ns: int | None = None) -> None:
        self._end(BACKWARD, BACKWARD_ENDS, at_ns)
        if not self.optimizer_seen:
            self.parameters.remember()

    def schedule_begins(self) -> None:
        """A pipeline schedule begins its step."""
        if self.row:
            self._end_row()
        if not self.routine.takes(SCHEDULE_BEGINS, WORK) and not self.routine.ignores(DATA):
            self._schedule_begins()

    @_training_first
    def _schedule_begins(self, at_ns: int | None = None) -> None:
        if self._enters(DATA):
            self._happening = SCHEDULE_BEGINS
            self._finder.schedule_begins()
            if not self.routine.on:
                self._repeats.add(self._events[SCHEDULE_BEGINS])

    def _known_events(self) -> dict[int, Event]:
        follow: dict[int, tuple[tuple[str, str] | None, Callable[[int], Any]]] = {
            DATA_BEGINS: (("begin", regions.DATA_LOADING), self._data_begins),
            DATA_ENDS: (("end", regions.DATA_LOADING), partial(self._data_ends, True)),
            NO_BATCH: (("end", regions.DATA_LOADING), partial(self._data_ends, False)),
            FORWARD_ENDS: (("end", regions.FORWARD), self._forward_ends),
            BACKWARD_BEGINS: (("begin", regions.BACKWARD), self._backward_begins),
            BACKWARD_ENDS: (("end", regions.BACKWARD), self._backward_ends),
            SYNC_BEGINS: (("begin", regions.GRADIENT_SYNC), partial(self._sync_begins, True)),
            SCHEDULE_BEGINS: (None, self._schedule_begins),
            LOADER_BEGINS: (("begin", regions.LOADER_START), self._loader_begins),
            LOADER_ENDS: (("end", regions.LOADER_START), self._loader_ends),
            ROW_BEGINS: (("begin", regions.FORWARD), partial(self._row_again, True)),
            QUIET_ROW_BEGINS: (("begin", regions.FORWARD), partial(self._row_again, False)),
            ROW_ENDS: (("end", regions.FORWARD), self._row_ends),
            STEPS_ROW_ENDS: (("end", regions.OPTIMIZER), self._steps_row_ends),
            STRETCH_ENDS: (None, self._stretch_ends),
        }
        for grad in (False, True):
            for own in (False, True):
                token = FORWARD_BEGINS + grad + 2 * own
                follow[token] = ("begin", regions.FORWARD), partial(self._forward_begins, grad, own)
        return {token: Event(token, edge, act) for token, (edge, act) in follow.items()}
