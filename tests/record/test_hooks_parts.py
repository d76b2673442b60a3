"""The small parts of the hooks, each alone: batches, imports, replaced functions, hooks that leave no trace."""

import copy
import importlib
import importlib.util
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stepscope.record.hooks.forward import ATTRIBUTE, TimedCall, leave_out_of_state, releasing
from stepscope.record.hooks.patches import after_import
from stepscope.record.loop.job_notes import JobNotes
from stepscope.record.loop.loop import ParameterWatch

IMAGES, LABELS = torch.zeros(8, 3, 32, 32), torch.zeros(8, dtype=torch.long)
TOKENS = torch.zeros(4, 128, dtype=torch.long)


class Loop:
    recorder = None
    optimizers = SimpleNamespace(main=lambda: None)

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def step_unit(self) -> None:
        return None


def test_a_step_has_the_batches_loaded_in_it_and_the_most_frequent_count_wins() -> None:
    size = JobNotes()
    for step, loads in enumerate([3, 2, 2, 2]):  # one batch ahead
        for _ in range(loads):
            size.loaded(TOKENS)
        size.step_ended(Loop(step + 1))  # type: ignore[arg-type]
    facts = size.batch()
    assert (facts["samples_per_step"], facts["tokens_per_step"]) == (8, 1024)
    assert facts["batch_source"].startswith("guess")


def test_unknown_tokens_come_with_a_reason() -> None:
    size = JobNotes()
    size.loaded([IMAGES, LABELS])
    size.step_ended(Loop(1))  # type: ignore[arg-type]
    facts = size.batch()
    assert facts["tokens_per_step"] is None
    assert "no integer tensor" in facts["reasons"]["tokens_per_step"]


def test_act_after_an_import_and_leave_the_loader_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_once.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[int] = []
    after_import("imported_once", lambda: seen.append(sys.modules["imported_once"].value))
    assert importlib.util.find_spec("imported_once") is not None
    assert seen == []  # finding a module does not import it
    module = importlib.import_module("imported_once")
    assert seen == [1]
    assert "exec_module" not in vars(module.__loader__)
    after_import("imported_once", lambda: seen.append(2))
    assert seen == [1, 2]


def timed(module: torch.nn.Module, acted: list[str]) -> torch.nn.Module:
    call = TimedCall(module, None, lambda: not acted.append("in"), lambda output: acted.append("out"))  # type: ignore[func-returns-value]
    vars(module)[ATTRIBUTE] = call
    return module


def test_a_timed_call_is_in_no_pickle_and_no_copy_of_its_module() -> None:
    acted: list[str] = []
    plain = torch.nn.Linear(2, 2)
    before = pickle.dumps(plain)
    module = timed(plain, acted)
    assert pickle.dumps(module) == before
    for make in (copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))):
        assert ATTRIBUTE not in vars(make(module))
    module(torch.ones(1, 2))
    assert acted == ["in", "out"]


class Keeps(torch.nn.Linear):
    """A class with its own idea of what a pickle holds, as DDP has."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)


def test_a_class_with_its_own_state_is_pickled_as_without_us() -> None:
    plain = Keeps(2, 2)
    before, original = pickle.dumps(plain), Keeps.__getstate__
    try:
        assert leave_out_of_state(Keeps)
        assert not leave_out_of_state(Keeps)
        module = timed(plain, [])
        assert pickle.dumps(module) == before
        assert ATTRIBUTE not in vars(copy.deepcopy(module))
    finally:
        Keeps.__getstate__ = original  # type: ignore[method-assign]
    assert vars(copy.deepcopy(module))[ATTRIBUTE] is None  # where nothing keeps it out, it is harmless


def test_a_parameter_changed_in_place_is_noticed_once_per_backward() -> None:
    model, watch = torch.nn.Linear(2, 2), ParameterWatch()
    watch.watch(model)
    assert not watch.changed()
    with torch.no_grad():
        model.weight -= 0.1
    assert watch.changed()
    watch.remember()
    assert not watch.changed()
    del model
    assert not watch.changed()


def test_the_storage_of_a_watched_parameter_can_still_be_freed() -> None:
    model, watch = torch.nn.Linear(2, 2), ParameterWatch()
    watch.watch(model)
    assert not watch.changed()
    for parameter in model.parameters():
        parameter.untyped_storage().resize_(0)  # as FSDP does after every pass
    assert not watch.changed()


def named_beside(n: int) -> int:
    return n + 1


def test_scripted_class_finds_the_names_of_the_file_that_scripts_it() -> None:
    class Counted:
        def __init__(self) -> None:
            self.n = named_beside(1)

    released: list[torch.nn.Module] = []
    script = releasing(torch.jit.script, released.append)
    assert script(Counted)().n == 2
    model = torch.nn.Linear(2, 2)
    script(model)
    assert released == [model]
