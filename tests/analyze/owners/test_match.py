"""Operators find their counterparts in the step with frames whatever a step does more or less."""

import random
from pathlib import Path

import pytest
from tests.analyze.build import built_run
from tests.analyze.owners.planted import PlantedRank

from stepscope.analyze.match_owners import ownership_by_frames
from stepscope.analyze.ownership import Ownership

STEP = 10_000.0
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
        at = n * STEP
        r.step(n, at, at + STEP)
        at += 1
        for line, names in program:
            at = a_line(r, at, line, names)
    last = (len(steps) - 1) * STEP
    r.write_owners(folder, (last, last + STEP))
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
