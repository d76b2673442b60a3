"""Where one training step ends and the next begins, from the observed calls of the loop.

    A step is over when its optimizer (all of them, where there are several) has stepped and the loop turns to new
    work: it requests a batch, or runs a forward, a backward or a pipeline schedule.

So everything up to the next batch (scheduler, logging, checkpoint) belongs to the step that just ran, gradient
accumulation is one step, and the boundary is known in the moment it happens. Three cases need more:

- *Several optimizers* with forwards in between (a GAN) are one step: the loop's turn to new work counts only once
  all of them have stepped. Which ones belong together is learned when one of them steps again; the first time the
  boundary is found late, but its time is recorded.
- *Evaluation* is no step: a batch with only forwards without gradients before the next batch is removed, so the coming
  step begins after it. So are batches without any call before their loader ran out.
- *An update that no hook sees* (written by hand): a parameter that changed after a backward. Backwards at different
  places in the code are different roles, as several optimizers are. Where nothing changes, a backward is a step.

Optimizers that step at unequal rates (five critics to a generator, delayed policies) have no such common step. Once
one steps again before the others of its step did, a step is one of the optimizer around whose inner loop the others
step; where there is none, a batch of the loader or, without one, a step of the first optimizer. `describe()` returns
the unit, and `--step-of` (see `step_unit`) chooses another.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from stepscope.errors import UsageError
from stepscope.record.loop.places import Role, is_in_inner_loop

if TYPE_CHECKING:
    from stepscope.record.loop.updates import ParameterWatch

# Unit of a step, chosen by the user: `--step-of loader`, `--step-of 4`, `--step-of Adam#1`.
#
# auto          all optimizers have stepped; see `steps`
# loader        a batch is requested and something was trained since the last step
# 4             four optimizer steps, of any optimizer
# Adam, Adam#1  a step of the first (second) Adam that steps

AUTO, LOADER, OPTIMIZER, COUNT = "auto", "loader", "optimizer", "count"


@dataclass(frozen=True)
class StepUnit:
    """The chosen unit: `count` optimizer steps, or the optimizer `name` that is number `index` of its class."""

    kind: str = AUTO
    count: int = 1
    name: str = ""
    index: int = 0


def unit_from(text: str | None) -> StepUnit:
    """Return the unit that `--step-of` names."""
    if text is None or text.lower() == AUTO:
        return StepUnit()
    if text.lower() == LOADER:
        return StepUnit(LOADER)
    if text.lower() == OPTIMIZER:
        return StepUnit(COUNT, 1)
    if _is_count(text) and int(text) > 0:
        return StepUnit(COUNT, int(text))
    name, _, index = text.partition("#")
    if name.isidentifier() and (not _ or _is_count(index)):
        return StepUnit(OPTIMIZER, name=name, index=int(index or 0))
    raise UsageError(
        f"--step-of {text[:40]!r}: give loader, optimizer, a number of optimizer steps, or a name, as Adam or Adam#1"
    )


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


_PATIENCE_STEPS = 4  # in which the first steps of optimizers that exist are waited for
_PATIENCE_BACKWARDS = 16  # that may add up gradients before each is a step: nothing updates the parameters
_MAX_INNER = 32  # steps of an optimizer in an inner loop, up to which they are one step of the outer loop's optimizer
_BY_HAND = "one update of the parameters, written by hand"
_ONLY_BACKWARD = "one backward pass; no optimizer was seen"


class StepFinder:
    """The open step of one training loop; `steps` has `step_end`, `step_may_end` and `step_begin`."""

    def __init__(
        self,
        steps: Any,
        *,
        optimizers: Callable[[], frozenset[Hashable]],
        parameters: "ParameterWatch",
        unit: StepUnit | None = None,
    ) -> None:
        self._steps = steps
        self._optimizers = optimizers  # roles of those that exist now; what a first step has to wait for
        self._parameters = parameters
        self._unit = unit or StepUnit()
        self._names: dict[Role, tuple[str, int]] = {}  # class of each optimizer, and its number among those
        self._known_since: dict[Role, int] = {}  # the step in which it first stepped
        self._lead: Role | None = None  # the first that stepped
        self._first: frozenset[Hashable] = frozenset()  # those that existed then
        self._ended = 0
        self._hooked = False  # whether an optimizer of torch's has stepped
        self._backwards = 0  # since the last update, where none has
        self._cycle: frozenset[Role] | None = None  # the optimizers of one step, once known
        self._interleaved = False  # whether new work begins between the optimizers of one step
        self._loads = False  # whether batches come from a loader that we see
        self._after_evaluation = False  # the next batch begins a step
        self._idle = False  # nothing has happened since evaluation was left out
        self._open()

    def _open(self) -> None:
        self._stepped: set[Role] = set()
        self._num_stepped = 0
        self._stepped_ns = 0
        self._maybe_ns: int | None = None  # new work began here while optimizers were still missing
        self._went_on = False  # ... and one of them did come
        self._trained = False
        self._evaluated = False
        self._evaluated_own = False
        self._batches = 0

    def load_begins(self) -> None:
        """Note that the loop requests a batch."""
        ended = self.work_begins(is_load=True)
        if not ended and (self._after_evaluation or self._only_evaluated(self._evaluated)):
            self._leave_out()
            self._after_evaluation = self._idle = True
        self._evaluated = False
        self._loads = True

    def load_ends(self, *, got_batch: bool) -> None:
        """Note that the batch arrived, or there are no more."""
        if got_batch:
            self._after_evaluation = self._idle = False
            self._batches += 1
        elif self._only_evaluated(self._batches > 0):
            self._after_evaluation = True

    def forward_begins(self, *, grad: bool, own: bool) -> None:
        """A module is called, with gradients or without; `own`: one that was called with gradients before."""
        self.work_begins()
        if not grad:
            self._evaluated = True
            self._evaluated_own = self._evaluated_own or own
            return
        if self._idle or (not self._loads and self._only_evaluated(self._evaluated_own)):
            self._leave_out()
        self._after_evaluation = self._idle = False

    def backward_begins(self) -> None:
        """A backward pass begins."""
        self.work_begins()
        if self._maybe_ns is not None and not self._stepped and self._maybe_by_hand():
            if self._parameters.gradients_start_anew() or self._backwards >= _PATIENCE_BACKWARDS:
                self._end(self._maybe_ns)
            self._maybe_ns = None
        self._trained = True
        self._backwards += 1

    def optimizer_begins(self, role: Role, name: str = "") -> None:
        """An optimizer, of the class `name`, begins to step."""
        self._hooked = True
        self._update_begins(role, name)

    def _update_begins(self, key: Role, name: str) -> None:
        if key not in self._names:
            index = sum(1 for known, _ in self._names.values() if known == name)
            self._names[key], self._known_since[key] = (name, index), self._ended
            self._cycle = None  # a new optimizer: learn again which belong together
            if self._lead is None:
                self._lead, self._first = key, self._optimizers()
        if self._unit.kind != AUTO:
            if self._unit.kind != LOADER and self._is_over(is_load=False, comes=key):
                self._end(None)
        elif key in self._stepped and (key == self._lead or self._lead not in self._stepped):
            # It steps again, so a step ended in between.
            missing = (self._cycle or frozenset()) - self._stepped
            if self._interleaved and missing:
                outer = next((r for r in missing if self._is_in_loop_of(r, key)), None)
                name, index = self._names[outer or self._lead or key]
                self._unit = StepUnit(OPTIMIZER, name=name, index=index)
                if outer is not None:
                    return
                if self._loads:
                    self._unit = StepUnit(LOADER)
            self._learn()
            self._end(self._maybe_ns)
        elif self._maybe_ns is not None:
            self._maybe_ns = None
            self._went_on = True

    def _is_in_loop_of(self, outer: Role, inner: Role) -> bool:
        return self._known_since[outer] <= _MAX_INNER and is_in_inner_loop(inner.place, outer.place)

    def optimizer_ends(self, role: Role, now_ns: int) -> None:
        """An optimizer has stepped, or its scaler decided to skip."""
        self._stepped.add(role)
        self._num_stepped += 1
        self._stepped_ns = now_ns

    def saved(self, now_ns: int) -> None:
        """A checkpoint was written: where it is the last of the job, it belongs to the last step."""
        if self._stepped and self._maybe_ns is None:
            self._stepped_ns = now_ns

    def describe(self) -> str:
        """Return what one step is in this job."""
        names = Counter(name for name, _ in self._names.values() if name)
        optimizers = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in sorted(names.items()))
        if self._unit.kind == LOADER:
            return "one batch of the loader" + (f"; optimizers: {optimizers}" if len(self._names) > 1 else "")
        if self._unit.kind == COUNT:
            return f"{self._unit.count} optimizer steps; optimizers: {optimizers}"
        if self._unit.kind == OPTIMIZER:
            return f"one step of {self._unit.name}#{self._unit.index}; optimizers: {optimizers}"
        if not names:
            return _BY_HAND if self._names else _ONLY_BACKWARD
        return f"one step of {optimizers}" if names.total() == 1 else f"one step of each optimizer: {optimizers}"

    def only_evaluated(self) -> bool:
        """Return whether nothing but forwards without gradients, of the trained model, happened in this step so far."""
        return self._only_evaluated(self._evaluated_own)

    def finish(self) -> None:
        """Training is over: the last step ended with its last optimizer."""
        if self._unit.kind in (COUNT, OPTIMIZER) and not self._is_over(is_load=False):
            return
        if self._unit.kind == LOADER and self._trained and not self._stepped:
            self._end(None)
            return
        if not self._loads and self.only_evaluated():
            self._leave_out()
        elif self._find_update_by_hand():
            self._end(None)
        elif self._maybe_by_hand():  # its update is not visible, e.g. because the model was deleted
            self._end(None if self._stepped else self._maybe_ns)
        elif self._stepped:
            self._end(self._maybe_ns if self._maybe_ns is not None else self._stepped_ns)

    def work_begins(self, *, is_load: bool = False) -> bool:
        """The loop turns to new work; return whether that ended a step."""
        if self._unit.kind != AUTO:
            is_over = self._is_over(is_load=is_load)
            if is_over:
                self._end(None)
            return is_over
        self._find_update_by_hand()
        if not self._stepped:
            if self._maybe_by_hand() and self._maybe_ns is None:
                self._maybe_ns = self._steps.step_may_end(expected=False)
            return False
        if self._complete():
            self._end(None)
            return True
        if self._maybe_ns is None:
            self._maybe_ns = self._steps.step_may_end(expected=self._cycle is not None and self._interleaved)
        return False

    def _complete(self) -> bool:
        if self._cycle is None:
            return self._hooked and self._stepped >= self._optimizers()
        if self._interleaved:
            return self._stepped >= self._cycle
        return self._ended >= _PATIENCE_STEPS or self._names.keys() >= self._first & self._optimizers()

    def _is_over(self, *, is_load: bool, comes: Role | None = None) -> bool:
        if self._unit.kind == LOADER:
            return is_load and (self._trained or bool(self._stepped))
        if self._unit.kind == COUNT:
            return self._num_stepped >= self._unit.count
        chosen = next((k for k in self._stepped if self._names[k] == (self._unit.name, self._unit.index)), None)
        return chosen is not None and (comes is None or comes == chosen)

    def _learn(self) -> None:
        self._cycle = frozenset(self._stepped)
        self._interleaved = self._went_on

    def _end(self, at_ns: int | None) -> None:
        if self._cycle is None and self._stepped:
            self._learn()
        self._ended += 1
        self._open()
        self._steps.step_end(at_ns)

    def _only_evaluated(self, evaluated: bool) -> bool:
        return evaluated and not self._trained and not self._stepped

    def _leave_out(self) -> None:
        self._open()
        self._steps.step_begin()

    def _find_update_by_hand(self) -> bool:
        if self._hooked or not self._trained or not self._parameters.changed():
            return False
        self._update_begins(self._parameters.role, "")
        self.optimizer_ends(self._parameters.role, perf_counter_ns())
        self._backwards, self._trained = 0, False  # this change is found once
        return True

    def _maybe_by_hand(self) -> bool:
        return self._trained and not self._hooked and not self._optimizers()
