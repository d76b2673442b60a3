"""The step finder alone: sequences of what a loop does, and the steps that must come out."""

from stepscope.record.loop.steps import StepFinder


class Told:
    """Collects `E` for an end in the moment, `E@t` for one in the past, `B` for a begin after a gap."""

    def __init__(self, *optimizers: str) -> None:
        self.log: list[str] = []
        self.expected: list[bool] = []  # of each moment at which a step might have ended
        self.now = 0
        self.changed = False
        self.finder = StepFinder(
            self, optimizers=lambda: frozenset(optimizers), parameters_changed=lambda: self.changed
        )

    def step_end(self, at_ns: int | None = None) -> None:
        self.log.append("E" if at_ns is None else f"E@{at_ns}")

    def step_may_end(self, *, expected: bool) -> int:
        self.expected.append(expected)
        return self.now

    def step_begin(self) -> None:
        self.log.append("B")

    def play(self, *events: str) -> list[str]:
        """Play events one ns apart; the log shows the events with what was told before each of them."""
        for event in events:
            self.now += 1
            self._one(event)
            self.log.append(event)
        return self.log

    def _one(self, event: str) -> None:
        f = self.finder
        if event == "load":
            f.load_begins()
            f.load_ends(got_batch=True)
        elif event == "empty":
            f.load_begins()
            f.load_ends(got_batch=False)
        elif event == "fwd":
            f.forward_begins(grad=True, own=True)
        elif event in ("eval", "teacher"):
            f.forward_begins(grad=False, own=event == "eval")
        elif event == "bwd":
            f.backward_begins()
            self.changed = False
        elif event == "by hand":
            self.changed = True
        elif event == "pp":
            f.schedule_begins()
        elif event == "finish":
            f.finish()
        else:
            f.optimizer_begins(event)
            f.optimizer_ends(event, self.now)


def steps(log: list[str]) -> list[list[str]]:
    """Return the events of each step, those in no step left out."""
    found: list[list[str]] = []
    step: list[str] = []
    for event in log:
        if event.startswith("E"):
            found.append(step)
            step = []
        elif event == "B":
            step = []
        else:
            step.append(event)
    return found


def test_step_ends_when_the_loop_asks_for_the_next_batch() -> None:
    log = Told("a").play(*["load", "fwd", "bwd", "a"] * 3, "finish")
    assert steps(log) == [["load", "fwd", "bwd", "a"]] * 3


def test_last_step_ends_with_its_optimizer_not_with_the_process() -> None:
    log = Told("a").play("load", "fwd", "bwd", "a", "finish")
    assert log[-2] == "E@4"


def test_without_a_loader_the_next_forward_ends_the_step() -> None:
    log = Told("a").play(*["fwd", "bwd", "a"] * 3, "finish")
    assert steps(log) == [["fwd", "bwd", "a"]] * 3


def test_without_loader_and_modules_the_next_backward_ends_the_step() -> None:
    log = Told("a").play(*["bwd", "a"] * 3, "finish")
    assert steps(log) == [["bwd", "a"]] * 3


def test_accumulation_is_one_step() -> None:
    one = ["load", "fwd", "bwd"] * 4 + ["a"]
    assert steps(Told("a").play(*one * 3, "finish")) == [one] * 3


def test_two_optimizers_after_one_backward_are_one_step() -> None:
    one = ["load", "fwd", "bwd", "a", "b"]
    assert steps(Told("a", "b").play(*one * 3, "finish")) == [one] * 3


def test_two_optimizers_with_forwards_between_are_one_step() -> None:
    one = ["load", "fwd", "bwd", "d", "fwd", "bwd", "g"]
    told = Told("d", "g")
    assert steps(told.play(*one * 4, "finish")) == [one] * 4
    assert told.expected == [False, True, True, True]  # once the first step has shown that it goes on


def test_the_same_without_a_loader() -> None:
    one = ["fwd", "bwd", "d", "fwd", "bwd", "g"]
    told = Told("d", "g")
    assert steps(told.play(*one * 4, "finish")) == [one] * 4
    assert told.expected == [False, True, True, True]  # once the first step has shown that it goes on


def test_an_optimizer_that_never_steps_delays_only_the_first_decision() -> None:
    log = Told("a", "unused").play(*["load", "fwd", "bwd", "a"] * 7, "finish")
    assert [e for e in log if e.startswith("E")] == ["E@5", "E@9", "E@13", "E@17", "E", "E", "E@28"]


def test_a_critic_for_every_batch_and_a_generator_for_some_are_as_many_steps_as_batches() -> None:
    for rate in (2, 3, 5, 7):
        told = Told("d", "g")
        batches = [
            ["load", "fwd", "bwd", "d", *(["fwd", "bwd", "g"] if i % rate == rate - 1 else [])] for i in range(30)
        ]
        assert len(steps(told.play(*[event for batch in batches for event in batch], "finish"))) == 30
        assert told.finder.describe().startswith("one batch of the loader")


def test_an_optimizer_made_anew_now_and_then_is_the_same_unit() -> None:
    alive = {"a"}
    told = Told()
    told.finder = StepFinder(told, optimizers=lambda: frozenset(alive), parameters_changed=lambda: False)
    for name in ("a", "b", "c", "d"):
        alive.add(name)  # those before are garbage that nobody collected yet
        told.play(*["fwd", "bwd", name] * 3)
    assert len(steps(told.play("finish"))) == 12
    assert "each optimizer" in told.finder.describe()


def test_without_a_loader_the_first_optimizer_is_the_unit() -> None:
    one, delayed = ["fwd", "bwd", "q"], ["fwd", "bwd", "a", "bwd", "t"]
    for rate in (2, 3):
        told = Told("q", "a", "t")
        loop = [[*one, *(delayed if i % rate == rate - 1 else [])] for i in range(30)]
        assert len(steps(told.play(*[event for part in loop for event in part], "finish"))) == 30


def test_gradients_that_were_reset_tell_of_an_update_by_hand_a_little_late() -> None:
    told = Told()
    told.finder = StepFinder(
        told, optimizers=frozenset, parameters_changed=lambda: False, gradients_reset=lambda: told.changed
    )
    one = ["load", "fwd", "by hand", "bwd"]
    log = told.play(*one * 3, "finish")
    assert len([e for e in log if e.startswith("E")]) == 3


def test_optimizer_per_parameter_inside_backward_is_one_step() -> None:
    one = ["load", "fwd", "bwd", "p1", "p2", "p3"]
    assert steps(Told("p1", "p2", "p3").play(*one * 3, "finish")) == [one] * 3


def test_optimizer_per_parameter_with_one_left_out_sometimes() -> None:
    whole, part = ["load", "fwd", "bwd", "p1", "p2"], ["load", "fwd", "bwd", "p1"]
    assert steps(Told("p1", "p2").play(*whole, *whole, *part, *whole, "finish")) == [whole, whole, part, whole]


def test_an_optimizer_joins_later() -> None:
    log = Told("a").play(*["load", "fwd", "bwd", "a"] * 2, *["load", "fwd", "bwd", "a", "b"] * 3, "finish")
    assert len(steps(log)) == 5


def test_evaluation_between_steps_is_in_no_step() -> None:
    train, evaluation = ["load", "fwd", "bwd", "a"], ["load", "eval"] * 3 + ["empty"]
    log = Told("a").play(*train, *train, *evaluation, *train, *train, "finish")
    assert steps(log) == [train] * 4


def test_evaluation_of_another_module_is_in_no_step() -> None:
    train, evaluation = ["load", "fwd", "bwd", "a"], ["load", "teacher"] * 3 + ["empty"]
    log = Told("a").play(*train, *train, *evaluation, *train, "finish")
    assert steps(log) == [train] * 3


def test_evaluation_whose_forwards_are_not_seen_is_in_no_step() -> None:
    train, evaluation = ["load", "fwd", "bwd", "a"], ["load"] * 3 + ["empty"]
    log = Told("a").play(*train, *train, *evaluation, *train, "finish")
    assert steps(log) == [train] * 3


def test_evaluation_before_a_batch_that_was_loaded_ahead() -> None:
    ahead, evaluation = ["load", "fwd", "bwd", "a"], ["load", "eval"] * 3 + ["empty"]
    log = Told("a").play("load", *ahead, *ahead, *evaluation, "fwd", "bwd", "a", "finish")
    assert steps(log)[2] == ["fwd", "bwd", "a"]


def test_an_incomplete_last_accumulation_is_a_step() -> None:
    whole, last = ["load", "load", "fwd", "bwd", "fwd", "bwd", "a"], ["load", "empty", "fwd", "bwd", "a"]
    assert steps(Told("a").play(*whole, *whole, *last, "finish")) == [whole, whole, last]


def test_evaluation_before_training_is_in_no_step() -> None:
    train = ["load", "fwd", "bwd", "a"]
    assert steps(Told("a").play(*["load", "eval"] * 2, "empty", *train, "finish")) == [train]


def test_evaluation_without_a_loader_is_in_no_step() -> None:
    train = ["fwd", "bwd", "a"]
    assert steps(Told("a").play(*train, *train, *["eval"] * 5, *train, "finish")) == [train] * 3


def test_forward_of_a_teacher_belongs_to_the_step() -> None:
    for one in (["load", "teacher", "fwd", "bwd", "a"], ["teacher", "fwd", "bwd", "a"]):
        assert steps(Told("a").play(*one * 3, "finish")) == [one] * 3


def test_batches_loaded_ahead_keep_the_number_of_steps() -> None:
    one = ["load", "fwd", "bwd", "a"]
    assert len(steps(Told("a").play("load", *one * 4, "fwd", "bwd", "a", "finish"))) == 5


def test_closure_that_loads_inside_the_optimizer_step() -> None:
    assert len(steps(Told("a").play("a", "a", "a", "finish"))) == 3


def test_pipeline_stage_without_data_begins_with_its_schedule() -> None:
    one = ["pp", "fwd", "bwd", "fwd", "bwd", "a"]
    assert steps(Told("a").play(*one * 3, "finish")) == [one] * 3


def test_update_by_hand_is_a_step() -> None:
    one = ["load", "fwd", "bwd", "load", "fwd", "bwd", "by hand"]
    assert steps(Told().play(*one * 3, "finish")) == [one] * 3


def test_inference_has_no_steps() -> None:
    assert steps(Told().play(*["load", "eval"] * 5, "finish")) == []
