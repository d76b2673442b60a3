import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import planted_step
from settrace_truth import operators_by_line
from watched import operators, owners_in

FILE = planted_step.__file__
ANNOTATIONS = ("ProfilerStep#", "Optimizer.")


@pytest.fixture(scope="module")
def step():
    made = planted_step.Step()
    made()
    return made


def test_lines_of_operators_are_those_of_settrace(step):
    owners = owners_in(step, model=step.model)
    found = [o for o in operators(owners) if not o[0].startswith(ANNOTATIONS)]
    truth = [o for o in operators_by_line(step, FILE) if not o[0].startswith(ANNOTATIONS)]
    assert [name for name, _ in truth] == [name for name, _, _ in found]
    assert len(truth) > 500
    of_file = [(line, owner) for (_, line), (_, owner, _) in zip(truth, found, strict=True) if line]
    exact = [line == owner[1] == owner[2] and Path(FILE).name == Path(owner[0]).name for line, owner in of_file]
    assert sum(exact) >= 0.98 * len(exact)
    wrong = [(line, owner) for line, owner in of_file if owner[1] == owner[2] and owner[1] != line]
    assert not wrong
