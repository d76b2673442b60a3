"""Jobs that compute on the CPU: what the loop does beside training is named by its line, and nothing of a pass is."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.analyze.build import MAIN, built_run
from tests.analyze.owners.planted import PlantedRank

from stepscope.analyze.account import Account, account_of
from stepscope.contract.run_folder import HOOK
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import diagnose
from stepscope.whatif.settings import what_if

STEPS = 6
FORWARD, BACKWARD, OPTIMIZER = 2000.0, 4000.0, 1000.0
PLANTED = 1500.0
"""us per step: 17.6 % of it"""

Plant = Callable[[PlantedRank, float, int], float]
"""adds something to a rank at a moment, in step number n; returns when it ended"""


def nothing(_: PlantedRank, at: float, __: int) -> float:
    return at


def a_step(r: PlantedRank, n: int, at: float, planted: dict[str, Plant]) -> float:
    """Forward at train.py:10, backward at :12, the optimizer at :14; what is planted stands in between."""

    def put(where: str) -> float:
        return planted.get(where, nothing)(r, at, n)

    begin = at
    at = put("before")
    with r.line("train.py:10", "model.py:5", module="blocks.0"):
        r.ran("aten::addmm", at, at + FORWARD, **{"Sequence number": 10 * n})
    at += FORWARD
    at = put("forward")
    with r.line("train.py:12"):
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        args = {"Sequence number": 10 * n, "Fwd thread id": 1}
        with r.op(node, at, at + BACKWARD, thread=MAIN, **args):
            r.ran("aten::mm", at, at + BACKWARD)
    at += BACKWARD
    at = put("backward")
    if "by_hand" not in planted:
        with r.line("train.py:14", "lib:site-packages/torch/optim/adam.py:248"):
            r.annotation("Optimizer.step#AdamW.step", at, at + OPTIMIZER)
            r.ran("aten::_fused_adamw_", at, at + OPTIMIZER)
        at += OPTIMIZER
    at = put("after")
    r.step(n, begin, at)
    return at


def account(
    folder: Path, planted: dict[str, Plant], *, owners: bool = True, ranks: int = 1, only: int | None = None
) -> Account:
    """Return the account of a job on the CPU; with `only` the plants are on that rank alone."""
    folder.mkdir(exist_ok=True)
    made = []
    for rank in range(ranks):
        r, at, begin = PlantedRank(rank, world_size=ranks), 0.0, 0.0
        for n in range(STEPS + 1):
            begin = at
            at = a_step(r, n, at, planted if only in (None, rank) else {})
        if owners:
            r.write_owners(folder, (begin, at))
        r.events = [e for e in r.events if e["ts"] < r._local_ns(begin) / 1000]
        made.append(r)
    return account_of(built_run(folder, made))


def python(*stack: str, us: float = PLANTED) -> Plant:
    def plant(r: PlantedRank, at: float, _: int) -> float:
        r.python_time(at, at + us, *stack)
        return at + us

    return plant


def operators(*names: str, stack: tuple[str, ...] = ("train.py:13",), module: str | None = None) -> Plant:
    """Return operators one after the other that take `PLANTED` together."""

    def plant(r: PlantedRank, at: float, _: int) -> float:
        each = PLANTED / len(names)
        for k, name in enumerate(names):
            with r.line(*stack, module=module):
                r.ran(name, at + k * each, at + (k + 1) * each - 1)
        return at + PLANTED

    return plant


def in_backward(*names: str, stacks: tuple[tuple[str, ...], ...] = (("watch.py:9:look",),)) -> Plant:
    """Return a node of autograd that calls operators of the user's in turn, with Python between them."""

    def plant(r: PlantedRank, at: float, _: int) -> float:
        each = PLANTED / len(names)
        node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        with (
            r.line("train.py:12", "lib:torch/autograd/__init__.py:395:backward"),
            r.op(node, at, at + PLANTED, thread=MAIN),
        ):
            for k, name in enumerate(names):
                with r.line("train.py:12", *stacks[k % len(stacks)], module=None):
                    r.ran(name, at + k * each, at + (k + 0.6) * each)
        return at + PLANTED

    return plant


def beside(found: Account, id_: str = "host-stall") -> list[Finding]:
    return [f for f in diagnose(found).findings if f.id == id_]


@pytest.mark.parametrize("where", ["backward", "after"])
@pytest.mark.parametrize(
    "plant", [python("train.py:13"), operators(*["aten::clone"] * 12)], ids=["Python alone", "operators"]
)
def test_a_line_in_no_pass_is_named_and_saves_its_time(tmp_path: Path, where: str, plant: Plant) -> None:
    found = account(tmp_path, {where: plant})
    (one,) = beside(found)
    assert (one.title, one.where[0].text) == ("Non-training work in every step (train.py:13)", "train.py:13")
    assert one.alone_ns == pytest.approx(PLANTED * 1000, rel=0.05)
    assert one.low_ns <= PLANTED * 1000 <= 1.01 * one.high_ns  # it ends at the time that the line takes
    assert one.what_if == ("--without", "train.py:13")
    prediction = what_if(found, [], without=["train.py:13"]).prediction
    assert prediction.baseline_ns - prediction.step_ns == pytest.approx(one.alone_ns, rel=0.01)
    assert "the recording cannot show" in one.remedy


def test_a_line_above_forward_may_prepare_the_input(tmp_path: Path) -> None:
    (one,) = beside(account(tmp_path, {"before": python("train.py:8")}), "host-work")
    assert one.where[0].text == "train.py:8" and "loader workers" in one.remedy
    assert one.title == "Preparing the model's input in every step: 1.5 of 8.5 ms (train.py:8)"
    # All of it can be done in the loader: the bound is one that can be counted on.
    assert one.at_most and one.low_ns == one.alone_ns == pytest.approx(PLANTED * 1000, rel=0.05)
    (other,) = beside(account(tmp_path / "after", {"after": python("train.py:18")}))
    assert "loader workers" not in other.remedy and not other.at_most


def test_work_after_a_pass_without_gradients_is_no_input_preparation(tmp_path: Path) -> None:
    """An agent acts by its model and steps its environment: no loader can do that ahead of time."""

    def acts(r: PlantedRank, at: float, n: int) -> float:
        with r.line("train.py:6", "model.py:5", module="blocks.0"):
            r.ran("aten::addmm", at, at + 100)
        with r.line("train.py:7", module=None):
            r.ran("aten::argmax", at + 110, at + 120)
        return python("train.py:8", "env.py:3")(r, at + 130, n)

    (one,) = beside(account(tmp_path, {"before": acts}), "host-work")
    assert one.title.startswith("Work after a pass without gradients") and "may depend on its output" in one.cause
    assert "loader" not in one.remedy


def test_tensors_changed_after_the_optimizer_are_not_to_be_deleted(tmp_path: Path) -> None:
    averages = operators(*["aten::lerp_"] * 12, stack=("train.py:15",))
    (one,) = beside(account(tmp_path, {"after": averages}), "host-work")
    assert "changes tensors in place" in one.cause and "delete" not in one.remedy


def test_a_hook_of_a_module_is_named(tmp_path: Path) -> None:
    hook = operators(*["aten::sort"] * 4, stack=("train.py:10", f"watch.py:7:note{HOOK}"), module="blocks.0")
    (one,) = beside(account(tmp_path, {"forward": hook}))
    assert one.where[0].text == "watch.py:7"
    assert one.alone_ns == pytest.approx(PLANTED * 1000, rel=0.05)


def test_a_hook_of_gradients_is_named_with_its_python(tmp_path: Path) -> None:
    found = account(tmp_path, {"backward": in_backward(*["aten::norm", "aten::item"] * 20)})
    (one,) = beside(found)
    assert one.title == "Gradient hook in every backward (watch.py:9)"
    assert one.where[0].text == "watch.py:9" and "returns another gradient" in one.remedy
    assert one.alone_ns == pytest.approx(PLANTED * 1000, rel=0.05)
    prediction = what_if(found, [], without=["watch.py:9"]).prediction
    assert prediction.baseline_ns - prediction.step_ns == pytest.approx(one.alone_ns, rel=0.01)


def zero_grad(r: PlantedRank, at: float, _: int) -> float:
    """Add a `zero_grad` whose range covers a small part of its line."""
    end = at + PLANTED
    with r.line("train.py:9"):
        r.annotation("Optimizer.zero_grad#AdamW.zero_grad", end - PLANTED / 10, end)
    r.python_time(at, end - PLANTED / 10, "train.py:9")
    return end


SPARED: dict[str, dict[str, Plant]] = {
    "an optimizer's zero_grad": {"forward": zero_grad},
    "the backward of a Function of the user's": {
        "backward": in_backward(*["aten::mul"] * 8, stacks=(("ops.py:20:backward",),))
    },
    "what the backward of a Function calls": {
        "backward": in_backward(*["aten::mul"] * 8, stacks=(("ops.py:20:backward", "ops.py:40:scaled"),))
    },
    "gradients clipped in place by a hook": {"backward": in_backward(*["aten::clamp_"] * 8)},
    "an optimizer that backward steps": {
        "backward": in_backward(
            *["aten::norm"] * 8,
            stacks=(("own.py:8:hook",), ("own.py:9:hook", "lib:site-packages/torch/optim/adam.py:248")),
        )
    },
    "forward run again by backward": {"backward": in_backward(*["aten::dropout"] * 8, stacks=(("model.py:5",),))},
    "a job that only trains": {},
    "a mask made in forward": {
        "forward": operators("aten::tril", stack=("train.py:10", "model.py:9"), module="blocks.0")
    },
    "a frozen network": {"before": operators("aten::linear", stack=("train.py:9", "old.py:5"), module="teacher")},
    "gradients clipped by hand": {"backward": operators(*["aten::clamp_"] * 8)},
    "gradients clipped by torch": {
        "backward": operators("aten::_foreach_norm", stack=("train.py:13", "lib:torch/nn/utils/clip_grad.py:38"))
    },
    "gradients clipped by a framework": {
        "backward": operators(
            "aten::_foreach_norm",
            stack=("train.py:13", "lib:site-packages/accelerate/accelerator.py:2900:clip_grad_norm_"),
        )
    },
    "gradients zeroed by hand": {"after": operators(*["aten::zero_"] * 8)},
    "weights updated by hand": {"by_hand": nothing, "after": operators(*["aten::sub_"] * 8)},
    "weights made anew by hand": {"by_hand": nothing, "after": operators(*["aten::sub"] * 8)},
    "a loader of torch's": {"before": python("train.py:7", "lib:torch/utils/data/dataloader.py:701")},
    "Python for a moment": {"after": python("train.py:13", us=60)},
}


@pytest.mark.parametrize("name", SPARED)
def test_nothing_that_training_may_need_is_accused(tmp_path: Path, name: str) -> None:
    assert beside(account(tmp_path, SPARED[name])) == []


@pytest.mark.parametrize("where", ["backward", "after"])
def test_a_stall_of_one_step_is_no_work_of_every_step(tmp_path: Path, where: str) -> None:
    def once(r: PlantedRank, at: float, n: int) -> float:
        return python("train.py:13", us=4000 if n == 2 else 20)(r, at, n)

    assert beside(account(tmp_path, {where: once})) == []


def test_what_one_rank_does_alone_is_not_said_of_all(tmp_path: Path) -> None:
    assert beside(account(tmp_path, {"after": operators("aten::sort")}, ranks=2, only=1)) == []
    both = beside(account(tmp_path / "both", {"after": operators("aten::sort")}, ranks=2))
    assert [f.where[0].text for f in both] == ["train.py:13"]
