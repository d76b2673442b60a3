"""The small parts of the hooks, each alone: batches, imports, replaced functions, hooks that leave no trace."""

import copy
import importlib
import importlib.util
import pickle
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from stepscope.record.hooks.forward import ATTRIBUTE, TimedCall, leave_out_of_state, releasing
from stepscope.record.hooks.patches import Patches, after_import
from stepscope.record.loop.job_notes import BatchSize
from stepscope.record.loop.loop import ParameterWatch

IMAGES, LABELS = torch.zeros(8, 3, 32, 32), torch.zeros(8, dtype=torch.long)
TOKENS = torch.zeros(4, 128, dtype=torch.long)


class Loop:
    def __init__(self, steps: int) -> None:
        self.steps = steps


def test_a_step_has_the_batches_loaded_in_it_and_the_most_frequent_count_wins() -> None:
    size = BatchSize()
    for step, loads in enumerate([3, 2, 2, 2]):  # one batch ahead
        for _ in range(loads):
            size.loaded(TOKENS)
        size.step_ended(Loop(step + 1))  # type: ignore[arg-type]
    facts = size.facts()
    assert (facts["samples_per_step"], facts["tokens_per_step"]) == (8, 1024)
    assert facts["batch_source"].startswith("guess")


def test_tokens_of_padded_batches_are_the_median_of_the_usual_steps() -> None:
    size = BatchSize()
    for step, real in enumerate([100, 90, 80, 110, 120]):
        mask = torch.zeros_like(TOKENS)
        mask[0, :real] = 1
        size.loaded({"input_ids": TOKENS, "attention_mask": mask})
        size.step_ended(Loop(step + 1))  # type: ignore[arg-type]
    assert (size.facts()["samples_per_step"], size.facts()["tokens_per_step"]) == (4, 100)


def test_unknown_tokens_come_with_a_reason() -> None:
    size = BatchSize()
    size.loaded([IMAGES, LABELS])
    size.step_ended(Loop(1))  # type: ignore[arg-type]
    facts = size.facts()
    assert facts["tokens_per_step"] is None
    assert "no integer tensor" in facts["reasons"]["tokens_per_step"]


def test_act_after_an_import_and_leave_the_loader_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_once.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[int] = []
    after_import("imported_once", lambda: seen.append(sys.modules["imported_once"].value))
    assert seen == []
    module = importlib.import_module("imported_once")
    assert seen == [1]
    assert "exec_module" not in vars(module.__loader__)
    after_import("imported_once", lambda: seen.append(2))
    assert seen == [1, 2]


def test_a_module_that_is_missing_stays_missing() -> None:
    after_import("no_such_module_anywhere", lambda: pytest.fail("there is nothing to act on"))
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module_anywhere")


def test_replaced_functions_are_hidden_and_put_back() -> None:
    class Owner:
        def double(self, x: int) -> int:
            """Twice."""
            return 2 * x

    original, patches, hidden = Owner.double, Patches(), []
    patches.replace(Owner, "double", lambda f: lambda self, x: f(self, x) + 1)
    assert (Owner().double(2), Owner.double.__doc__) == (5, "Twice.")
    patches.hide_from_compiler(lambda f: hidden.append(f) or f)  # type: ignore[func-returns-value]
    assert len(hidden) == 1
    patches.undo()
    assert Owner.double is original


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


def test_a_module_that_is_dropped_is_gone_at_once() -> None:
    module = timed(torch.nn.Linear(2, 2), [])
    alive = weakref.ref(module)
    del module
    assert alive() is None


def test_looking_for_a_module_is_not_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "looked_for.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[int] = []
    after_import("looked_for", lambda: seen.append(sys.modules["looked_for"].value))
    for _ in range(3):
        assert importlib.util.find_spec("looked_for") is not None
    assert seen == []
    importlib.import_module("looked_for")
    assert seen == [1]


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
