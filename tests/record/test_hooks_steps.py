"""The step finder alone: sequences of events of a loop, and the steps that must come out."""

from typing import Any

import pytest

from stepscope.record.loop.steps import StepFinder

TRAIN = ["load", "fwd", "bwd", "a"]
GAN = ["load", "fwd", "bwd", "d", "fwd", "bwd", "g"]
TAIL = ["load", "load", "fwd", "bwd", "fwd", "bwd", "a"], ["load", "empty", "fwd", "bwd", "a"]
WHOLE, PART = ["load", "fwd", "bwd", "p1", "p2"], ["load", "fwd", "bwd", "p1"]


class Found:
    """Collects `E` for an end in the moment, `E@t` for one in the past, `B` for a begin after a gap."""

    def __init__(self, *optimizers: str, **settings: Any) -> None:
        self.log: list[str] = []
        self.expected: list[bool] = []  # of each moment at which a step might have ended
        self.now = 0
        self.changed = False
        defaults = {"optimizers": lambda: frozenset(optimizers), "parameters_changed": lambda: self.changed}
        self.finder = StepFinder(self, **{**defaults, **settings})

    def step_end(self, at_ns: int | None = None) -> None:
        self.log.append("E" if at_ns is None else f"E@{at_ns}")

    def step_may_end(self, *, expected: bool) -> int:
        self.expected.append(expected)
        return self.now

    def step_begin(self) -> None:
        self.log.append("B")

    def play(self, *events: str) -> list[str]:
        """Play events one ns apart; the log shows the events with what was reported before each of them."""
        f = self.finder
        for event in events:
            self.now += 1
            if event in ("load", "empty"):
                f.load_begins()
                f.load_ends(got_batch=event == "load")
            elif event in ("fwd", "eval", "teacher"):
                f.forward_begins(grad=event == "fwd", own=event != "teacher")
            elif event == "bwd":
                f.backward_begins()
                self.changed = False
            elif event == "by hand":
                self.changed = True
            elif event == "pp":
                f.work_begins()
            elif event == "finish":
                f.finish()
            else:
                f.optimizer_begins(event)
                f.optimizer_ends(event, self.now)
            self.log.append(event)
        return self.log


def steps(log: list[str]) -> list[list[str]]:
    """Return the events of each step, those in no step left out."""
    found: list[list[str]] = []
    step: list[str] = []
    for event in log:
        if event.startswith("E"):
            found.append(step)
        if event[0] in "EB":
            step = []
        else:
            step.append(event)
    return found


@pytest.mark.parametrize(
    ("optimizers", "step"),
    [
        ("a", TRAIN),
        ("a", ["fwd", "bwd", "a"]),  # without a loader
        ("a", ["bwd", "a"]),
        ("a", ["load", "fwd", "bwd"] * 4 + ["a"]),  # accumulation
        ("a b", ["load", "fwd", "bwd", "a", "b"]),
        ("d g", GAN),
        ("d g", GAN[1:]),
        ("p1 p2 p3", ["load", "fwd", "bwd", "p1", "p2", "p3"]),  # an optimizer per parameter, inside backward
        ("a", ["load", "teacher", "fwd", "bwd", "a"]),
        ("a", ["teacher", "fwd", "bwd", "a"]),
        ("a", ["a"]),  # a closure that loads
        ("a", ["pp", "fwd", "bwd", "fwd", "bwd", "a"]),  # a pipeline stage without data
        ("", ["load", "fwd", "bwd", "load", "fwd", "bwd", "by hand"]),
    ],
)
def test_step_of(optimizers: str, step: list[str]) -> None:
    assert steps(Found(*optimizers.split()).play(*step * 4, "finish")) == [step] * 4


@pytest.mark.parametrize(
    ("evaluation", "train"),
    [
        (["load", "eval"] * 3 + ["empty"], TRAIN),
        (["load", "teacher"] * 3 + ["empty"], TRAIN),
        (["load"] * 3 + ["empty"], TRAIN),  # whose forwards are not seen
        (["eval"] * 5, TRAIN[1:]),
    ],
)
def test_evaluation_is_in_no_step(evaluation: list[str], train: list[str]) -> None:
    assert steps(Found("a").play(*train, *train, *evaluation, *train, *train, "finish")) == [train] * 4


@pytest.mark.parametrize(
    ("optimizers", "events", "expected"),
    [
        ("a", [*["load", "eval"] * 2, "empty", *TRAIN], [TRAIN]),
        ("a", [*TAIL[0], *TAIL[0], *TAIL[1]], [TAIL[0], TAIL[0], TAIL[1]]),
        ("p1 p2", [*WHOLE, *WHOLE, *PART, *WHOLE], [WHOLE, WHOLE, PART, WHOLE]),
        ("", ["load", "eval"] * 5, []),
    ],
)
def test_steps_of(optimizers: str, events: list[str], expected: list[list[str]]) -> None:
    assert steps(Found(*optimizers.split()).play(*events, "finish")) == expected


def test_evaluation_before_a_batch_that_was_loaded_ahead() -> None:
    log = Found("a").play("load", *TRAIN, *TRAIN, *["load", "eval"] * 3, "empty", "fwd", "bwd", "a", "finish")
    assert steps(log)[2] == ["fwd", "bwd", "a"]


def test_the_end_of_a_step_is_placed_where_it_was() -> None:
    assert Found("a").play(*TRAIN, "finish")[-2] == "E@4"  # with its optimizer, not with the process
    log = Found("a", "unused").play(*TRAIN * 7, "finish")
    assert [e for e in log if e.startswith("E")] == ["E@5", "E@9", "E@13", "E@17", "E", "E", "E@28"]
    found = Found("d", "g")
    found.play(*GAN * 4, "finish")
    assert found.expected == [False, True, True, True]  # once the first step has shown that it goes on


@pytest.mark.parametrize("rate", [2, 3, 5, 7])
def test_optimizers_at_unequal_rates_are_one_step_per_batch_or_first_optimizer(rate: int) -> None:
    found, without_loader = Found("d", "g"), Found("q", "a", "t")
    for i in range(30):
        late = i % rate == rate - 1
        found.play("load", "fwd", "bwd", "d", *(["fwd", "bwd", "g"] if late else []))
        without_loader.play("fwd", "bwd", "q", *(["fwd", "bwd", "a", "bwd", "t"] if late else []))
    assert len(steps(found.play("finish"))) == len(steps(without_loader.play("finish"))) == 30
    assert found.finder.describe().startswith("one batch of the loader")


def test_an_optimizer_made_again_or_joining_later_is_the_same_unit() -> None:
    alive: set[str] = set()
    found = Found(optimizers=lambda: frozenset(alive))
    for name in ("a", "b", "c", "d"):
        alive.add(name)  # those before are garbage that was not collected yet
        found.play(*["fwd", "bwd", name] * 3)
    assert len(steps(found.play("finish"))) == 12
    assert "each optimizer" in found.finder.describe()
    assert len(steps(Found("a").play(*TRAIN * 2, *[*TRAIN, "b"] * 3, "finish"))) == 5


def test_reset_gradients_reveal_an_update_by_hand_a_little_late() -> None:
    found: Found = Found(parameters_changed=lambda: False, gradients_reset=lambda: found.changed)
    log = found.play(*["load", "fwd", "by hand", "bwd"] * 3, "finish")
    assert len([e for e in log if e.startswith("E")]) == 3
