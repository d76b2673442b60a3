import sys
from pathlib import Path

import pytest
import torch
from tests.record.owners import planted_step
from tests.record.owners.settrace_truth import operators_by_line
from tests.record.owners.watched import innermost, operators, owners_in, training

from stepscope.record.config import RecordConfig
from stepscope.record.owners.frame_step import FrameStep
from stepscope.record.window.budget import TypicalStep
from stepscope.record.window.guards import ProfilerGuard

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
    assert not [(line, owner) for line, owner in of_file if owner[1:] != (line, line)]
    assert {Path(owner[0]).name for _, owner in of_file} == {Path(FILE).name}


def test_what_raises_no_call_has_its_own_line():
    def step():
        seen, out = torch.rand(4), torch.zeros(2, 2)
        for row in range(2):
            for column in range(2):
                run = float(seen[row]) + 0.5
                out[row, column] = run
        return {
            int(value)  #
            for value in seen
        }

    first = step.__code__.co_firstlineno
    found: dict[str, set[int]] = {}
    for name, owner, _ in operators(owners_in(step)):
        found.setdefault(name, set()).update(line - first for line in owner[1:])
    assert found["aten::item"] == {4, 7}
    assert found["aten::select"] >= {4, 5}
    assert found.get("aten::fill_", found.get("aten::copy_")) == {5}


def test_a_trace_function_of_the_users_stays():
    seen = []

    def theirs(frame, _event, _arg):
        seen.append(frame.f_code.co_name)

    before = sys.gettrace()
    sys.settrace(theirs)
    try:
        owners_in(lambda: torch.ones(2))
        assert sys.gettrace() is theirs and seen
    finally:
        sys.settrace(before)


class WithoutTree:
    """Results of a torch without an event tree."""

    def __init__(self, results):
        self.events = results.events


def test_without_the_event_tree_functions_are_known(step, monkeypatch):
    end = FrameStep.end
    monkeypatch.setattr(FrameStep, "end", lambda self: WithoutTree(end(self)))
    owners = owners_in(step, model=step.model)
    assert owners["lines"] == "functions"
    first = {f.co_name: f.co_firstlineno for f in (planted_step.Step.__call__.__code__, planted_step.nested.__code__)}
    sines = [owner for name, owner, _ in operators(owners) if name == "aten::sin"]
    assert [owner[1] for owner in sines] == [first["nested"]]
    norms = [owner for name, owner, _ in operators(owners) if name == "aten::linalg_vector_norm"]
    assert len(norms) == 20


def test_python_time_between_operators_goes_to_its_line():
    def slow():
        torch.ones(2)
        sorted(str(i) for i in range(3000))
        torch.zeros(2)

    owners = owners_in(slow)
    thread = training(owners)
    zeros = [owners["names"][n] for n in thread["name"]].index("aten::zeros")
    gap = {innermost(owners, s): ns for i, s, ns, _ in thread["python"] if i == zeros}
    line = slow.__code__.co_firstlineno + 2
    assert max(gap, key=lambda frame: gap[frame])[1] == line


def test_users_profiler_in_the_step_with_frames_gets_nothing_of_ours(step):
    """A mark that began in our session and ends in theirs takes the process down."""
    guard, cut_short = ProfilerGuard(), []
    guard.install()
    try:
        frames = FrameStep(guard, RecordConfig(), TypicalStep(), step=1, on_cut_short=lambda: cut_short.append(True))
        frames.begin()
        with torch.profiler.profile() as theirs:
            step()
            frames.end_mark()
        assert cut_short and frames.end() is None and "another profiler was started" in str(frames.why_not)
        names = {event.name for event in theirs.events()}
        assert "aten::linear" in names and not any(name.startswith("ProfilerStep#1") for name in names)
    finally:
        guard.remove()
