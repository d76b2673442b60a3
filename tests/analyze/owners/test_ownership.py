"""Every operator, kernel and stretch of Python gets the line that was planted for it."""

import random
from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, built_run
from tests.analyze.owners.owned_folder import owned_folder
from tests.analyze.owners.planted import PlantedRank
from tests.not_none import not_none

from stepscope.analyze.account import account_of
from stepscope.analyze.match_owners import ownership_by_frames
from stepscope.analyze.operators import call_costs
from stepscope.analyze.owner_costs import code_costs, owner_sums
from stepscope.analyze.ownership import Ownership
from stepscope.records import Row

STEP = 1000.0


def a_step(r: PlantedRank, n: int, *, saves: bool = False, ranged: bool = False) -> None:
    """Forward at train.py:10, backward at train.py:11, a statistic at train.py:12 with its Python at tools.py:3."""
    at = n * STEP
    number = 100 * n
    r.step(n, at, at + STEP)
    with (
        r.line("train.py:10", "model.py:5", module="blocks.0.up"),
        r.op("aten::linear", at + 10, at + 60, **{"Sequence number": number}),
        r.op("aten::addmm", at + 20, at + 50, **{"Sequence number": number}),
    ):
        r.kernel("gemm", at=at + 30, start=at + 60, end=at + 160)
    with (
        r.line("train.py:10", "model.py:6", module="blocks.1"),
        r.op("aten::relu", at + 70, at + 100, **{"Sequence number": number + 1}),
    ):
        r.kernel("relu", at=at + 80, start=at + 170, end=at + 200)
    if saves:
        with r.line("train.py:30"):
            for k in range(3):
                r.ran("aten::copy_", at + 105 + 5 * k, at + 109 + 5 * k)
    if ranged:
        with r.line("train.py:11"):
            r.annotation("backward_pass", at + 105, at + 455)
    with r.line("train.py:11"):
        for k, node in enumerate(("ReluBackward0", "AddmmBackward0")):
            start = at + 200 + 100 * k
            args = {"Sequence number": number + 1 - k, "Fwd thread id": 1}
            with (
                r.op(f"autograd::engine::evaluate_function: {node}", start, start + 90, thread=AUTOGRAD, **args),
                r.op(node, start + 5, start + 80, thread=AUTOGRAD, **args),
                r.op("aten::mm", start + 10, start + 60, thread=AUTOGRAD),
            ):
                r.kernel(node, at=start + 20, start=start + 30, end=start + 80, thread=AUTOGRAD)
        accumulate = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        with r.op(accumulate, at + 400, at + 450, thread=AUTOGRAD):
            r.ran("aten::add_", at + 405, at + 415, thread=AUTOGRAD)
            r.collective("allreduce", at=at + 425, start=at + 430, end=at + 480)
    r.python_time(at + 100, at + 110, "train.py:10")
    r.python_time(at + 110, at + 500 + 300 * (n == 4), "train.py:11")  # with frames backward took longer
    r.python_time(at + 500, at + 550, "train.py:12", "tools.py:3")
    r.python_time(at + 550, at + 600, "train.py:12", "tools.py:4")
    r.python_time(at + 700, at + STEP, "train.py:9")
    with r.line("train.py:12", "tools.py:4"), r.op("aten::std", at + 600, at + 700):
        r.kernel("std", at=at + 650, start=at + 660, end=at + 690)


@pytest.fixture
def owned(tmp_path: Path) -> Ownership:
    return owners_of(tmp_path)


def owners_of(tmp_path: Path, *, ranged: bool = False) -> Ownership:
    r = PlantedRank()
    for n in range(4):
        a_step(r, n, saves=n == 1, ranged=ranged)
    a_step(r, 4, ranged=ranged)
    r.write_owners(tmp_path, (4 * STEP, 5 * STEP))
    r.events = [e for e in r.events if e["ts"] < r._local_ns(4 * STEP) / 1000]
    run = built_run(tmp_path, [r])
    return ownership_by_frames(run.ranks[0], run.owners[0])


def lines_of(owned: Ownership, stack: int) -> list[str]:
    return [f"{owned.frames[f].file}:{owned.frames[f].line}" for f in owned.stacks[stack]] if stack >= 0 else []


def by_name(owned: Ownership, name: str) -> list[tuple[list[str], list[str], str]]:
    trace = owned.rank.trace
    return [
        (lines_of(owned, s), lines_of(owned, c), owned.modules[m] if m >= 0 else "")
        for row, s, c, m in zip(
            owned.rank.work.row, owned.by_work.stack, owned.by_work.caller, owned.by_work.module, strict=True
        )
        if trace.strings[trace["name"][row]].startswith(name)
    ]


def test_forward_kernels_have_the_line_that_launched_them(owned: Ownership) -> None:
    assert by_name(owned, "gemm") == [(["train.py:10", "model.py:5"],) * 2 + ("blocks.0.up",)] * 4
    assert by_name(owned, "std") == [(["train.py:12", "tools.py:4"],) * 2 + ("",)] * 4


def test_backward_kernels_have_the_forward_line_and_where_backward_was_called(owned: Ownership) -> None:
    assert by_name(owned, "ReluBackward0") == [(["train.py:10", "model.py:6"], ["train.py:11"], "blocks.1")] * 4
    assert by_name(owned, "AddmmBackward0") == [(["train.py:10", "model.py:5"], ["train.py:11"], "blocks.0.up")] * 4


def test_a_gradient_bucket_is_of_no_forward_line(owned: Ownership) -> None:
    assert by_name(owned, "nccl") == [(["train.py:11"], ["train.py:11"], "")] * 4
    assert [lines_of(owned, s) for s in owned.by_collective.stack] == [["train.py:11"]] * 4


def test_a_step_with_more_operators_keeps_all_its_owners(owned: Ownership) -> None:
    assert owned.matched_share == pytest.approx(1 - 3 / (4 * 14 + 3))
    copies = [i for i, name in enumerate(owned.calls.name) if owned.rank.trace.strings[name] == "aten::copy_"]
    # Nobody saw them with frames: they ran between train.py:10 and train.py:12, which have no caller in common.
    assert set(owned.by_call.stack[copies].tolist()) == {-1}


def test_host_time_is_owned_once(owned: Ownership) -> None:
    found = not_none(code_costs([owned], [owner_sums(owned, call_costs(owned.rank))]))
    assert found.total.host_ns == pytest.approx(STEP * 1000)
    own = sum(line.own.host_ns for line in found.lines)
    assert own + found.unowned.host_ns == pytest.approx(STEP * 1000)
    assert found.unowned_host_share is not None and found.unowned_host_share < 0.05
    assert found.unowned_device_share == 0


def test_a_line_of_many_small_calls_has_its_own_time_only(tmp_path: Path) -> None:
    """It takes 100 of 500 us; with frames each of its calls took 5 us longer, those of the other line as well."""
    r = PlantedRank()
    for n in range(5):
        at = n * STEP
        r.step(n, at, at + STEP)
        with r.line("train.py:19"):
            r.ran("aten::randn", at, at + 100)
        r.python_time(at + 100, at + 500 + 10, "train.py:20", calls=2)
        r.python_time(at + 500, at + 600 + 5_000, "train.py:21", calls=1_000)
        with r.line("train.py:22"):
            r.ran("aten::mm", at + 600, at + STEP)
    r.write_owners(tmp_path, (4 * STEP, 5 * STEP))
    r.events = [e for e in r.events if e["ts"] < r._local_ns(4 * STEP) / 1000]
    run = built_run(tmp_path, [r])
    owned = ownership_by_frames(run.ranks[0], run.owners[0])
    found = not_none(code_costs([owned], [owner_sums(owned, call_costs(owned.rank))]))
    took = {line.line: line.own.host_ns for line in found.lines}
    assert took[20] == pytest.approx(400_000, rel=0.02) and took[21] == pytest.approx(100_000, rel=0.05)


def test_costs_by_line_and_module(owned: Ownership) -> None:
    found = not_none(code_costs([owned], [owner_sums(owned, call_costs(owned.rank))]))
    lines = {line.owner: line for line in found.lines}
    assert lines["model.py:5"].inclusive.device_ns == 150_000
    assert lines["model.py:5"].backward.device_ns == 50_000
    assert lines["model.py:5"].module == "blocks.0.up"
    assert lines["train.py:10"].inclusive.device_ns == 230_000
    assert lines["train.py:10"].own.device_ns == 0
    assert lines["train.py:11"].inclusive.device_ns == 100_000  # all of backward was called there
    assert lines["train.py:11"].own.comm_ns == 50_000
    # Python after backward, from when the engine began its last operator at 422 to 600, halved between two lines.
    assert lines["tools.py:3"].own.host_ns == pytest.approx((178_000 - 28_000) / 2, abs=15_000)
    assert lines["train.py:12"].inclusive.host_ns == pytest.approx(100_000 + 150_000, abs=30_000)
    modules = {module.module: module for module in found.modules}
    assert modules["blocks"].inclusive.device_ns == 230_000
    assert modules["blocks.0.up"].backward.device_ns == 50_000


def test_what_follows_backward_is_not_its_own_where_a_range_ends_with_it(tmp_path: Path) -> None:
    owned = owners_of(tmp_path, ranged=True)
    found = not_none(code_costs([owned], [owner_sums(owned, call_costs(owned.rank))]))
    lines = {line.owner: line for line in found.lines}
    for line in ("tools.py:3", "tools.py:4"):  # in the step with frames each took an eleventh of backward's time
        assert lines[line].own.host_ns >= (600 - 455) / 2 * 1000


def found(node: Row, *names: str) -> Row:
    for name in names:
        node = next(child for child in node.children if child.name == name)
    return node


def test_callers_are_around_what_they_call(tmp_path: Path) -> None:
    trees = not_none(account_of(owned_folder(tmp_path)).code_trees)
    forward = found(trees.lines, "train.py:9", "train.py:10", "model.py:3")
    assert forward.device_ns == 150_000 and forward.backward_device_ns == 50_000
    assert found(trees.lines, "train.py:9").device_ns == trees.lines.device_ns == 180_000
    assert found(trees.modules, "blocks", "blocks.0", "blocks.0.up").device_ns == 150_000
    assert trees.modules.device_ns == 180_000  # the root holds what is in no module too


STEP_US = 10_000.0
Line = tuple[int, tuple[str, ...]]
LAYERS = 12


def a_line(r: PlantedRank, at: float, line: int, names: tuple[str, ...]) -> float:
    """Run operators inside each other at one line; return when they are done."""
    with r.line("train.py:9", f"model.py:{line}", module=f"layers.{line}"):
        for depth, name in enumerate(names):
            r.ran(name, at + depth, at + 2 * len(names) - depth, **{"Planted line": line})
    return at + 2 * len(names) + 1


def lines_of_a_model(rng: random.Random) -> list[Line]:
    """Return what a step runs: layers that look all the same, each with a few lines."""
    names = ("aten::linear", "aten::add", "aten::view", "aten::mm")
    layer = [tuple(rng.choice(names) for _ in range(rng.randrange(1, 4))) for _ in range(6)]
    return [(100 * number + k, names) for number in range(LAYERS) for k, names in enumerate(layer)]


def run_of(folder: Path, steps: list[list[Line]]) -> Ownership:
    """Return the owners of a run whose last step has frames."""
    r = PlantedRank()
    for n, program in enumerate(steps):
        at = n * STEP_US
        r.step(n, at, at + STEP_US)
        at += 1
        for line, names in program:
            at = a_line(r, at, line, names)
    last = (len(steps) - 1) * STEP_US
    r.write_owners(folder, (last, last + STEP_US))
    r.events = [e for e in r.events if e["ts"] < r._local_ns(last) / 1000]
    run = built_run(folder, [r])
    return ownership_by_frames(run.ranks[0], run.owners[0])


def planted_and_found(owned: Ownership, steps: list[list[Line]]) -> list[tuple[int, int]]:
    """Return for each operator its true line, and the one it got; -1 for none."""
    true = [line for program in steps for line, names in program for _ in names]
    found = [owned.frames[owned.stacks[s][-1]].line if s >= 0 else -1 for s in owned.by_call.stack.tolist()]
    return list(zip(true, found, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_lines_that_some_steps_lack_leave_the_others_matched(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    program = lines_of_a_model(rng)
    steps = [[line for line in program if rng.random() > 0.03] for _ in range(3)]
    owned = run_of(tmp_path, [*steps, program])
    pairs = planted_and_found(owned, steps)
    assert sum(true != found for true, found in pairs) <= 0.02 * len(pairs)


@pytest.mark.parametrize("seed", range(3))
def test_lines_that_only_some_steps_have_get_no_line_of_others(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    program = lines_of_a_model(rng)
    steps = []
    for n in range(3):
        more = list(program)
        more.insert(rng.randrange(len(more)), (9_000 + n, ("aten::save", "aten::copy_", "aten::to")))
        steps.append(more)
    owned = run_of(tmp_path, [*steps, program])
    for true, found in planted_and_found(owned, steps):
        # Between two lines of one function: what calls that function is known.
        assert found == true or (true >= 9_000 and found == 9)
