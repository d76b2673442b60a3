"""Hooks leave the job as it was: its tracebacks, stacks, storages and groups; a warning is given once."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.fx.traceback
from tests.one_rank_group import one_rank_group
from tests.record.script_runs import script, started
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: F401 - registers the backend "fake"

from stepscope.contract.step_line import ANOMALY_DETECTION
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import SAID, SEEN_VARIABLE, say
from stepscope.record.hooks import install as anomaly
from stepscope.record.hooks.forward import releasing
from stepscope.record.hooks.install import let_gloo_finish
from stepscope.record.hooks.patches import Patches
from stepscope.record.loop.updates import ParameterWatch
from stepscope.record.window.guards import Interruptions


def test_the_storage_of_a_watched_parameter_can_still_be_freed():
    model, watch = torch.nn.Linear(2, 2), ParameterWatch()
    watch.backward_begins([model(torch.ones(2)).sum()])
    assert not watch.changed()
    for parameter in model.parameters():
        parameter.untyped_storage().resize_(0)  # as FSDP does after every pass
    assert not watch.changed()


def named_beside(n: int) -> int:
    return n + 1


def test_scripted_class_finds_the_names_of_the_file_that_scripts_it():
    class Counted:
        def __init__(self) -> None:
            self.n = named_beside(1)

    released: list[torch.nn.Module] = []
    script = releasing(torch.jit.script, released.append)
    assert script(Counted)().n == 2
    model = torch.nn.Linear(2, 2)
    script(model)
    assert released == [model]


def in_place(*, trains: bool = True) -> tuple[Any, Patches]:
    loop, patches = SimpleNamespace(interruptions=Interruptions(), is_training_thread=lambda _: trains), Patches()
    anomaly.anomaly_install(loop, patches)  # type: ignore[arg-type]
    return loop.interruptions, patches


@pytest.mark.parametrize("trains", [True, False])
def test_stacks_are_timed_on_the_training_thread_and_hold_nothing_of_ours(trains):
    noted, patches = in_place(trains=trains)
    original = torch.fx.traceback.format_stack.__wrapped__
    try:
        x = torch.ones(2, requires_grad=True)
        with torch.autograd.detect_anomaly(check_nan=False):
            y = x * 2
    finally:
        patches.undo()
    stack = y.grad_fn.metadata["traceback_"]
    assert __file__ in stack[-1] and not any(anomaly.__file__ in line for line in stack)
    taken = noted.taken(before_ns=1 << 62)
    assert [one.name for one in taken] == [ANOMALY_DETECTION] * trains
    assert all(0 < one.own_ns <= one.end_ns - one.begin_ns for one in taken)
    assert torch.fx.traceback.format_stack is original


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[None]:
    with one_rank_group(request.param):
        yield


def has_lock_meanwhile() -> bool:
    """Return whether a thread that waits for Python's lock gets it, where the one that has it never gives way."""
    held, had = threading.Lock(), threading.Event()

    def wait() -> None:
        with held:
            had.set()

    before = sys.getswitchinterval()
    with held:
        waiting = threading.Thread(target=wait)
        waiting.start()
        sys.setswitchinterval(1000.0)
    try:
        let_gloo_finish()
        return had.is_set()
    finally:
        sys.setswitchinterval(before)
        waiting.join()


@pytest.mark.parametrize("group", ["gloo", "cpu:gloo,cuda:gloo"], indirect=True)
@pytest.mark.usefixtures("group")
def test_gloo_threads_get_the_lock_before_a_group_is_left():
    assert any(has_lock_meanwhile() for _ in range(20))  # on a busy machine a thread may get no core meanwhile


def test_ranks_of_one_machine_say_a_thing_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(SEEN_VARIABLE, str(tmp_path))
    program = "from stepscope.record.failsafe import say; say('the disk is slow')"
    others = subprocess.run([sys.executable, "-c", program], env=os.environ, capture_output=True, text=True)
    for text in ("the disk is slow", "something else", "something else"):
        say(text)
    assert others.stderr == "stepscope: the disk is slow\n"
    assert capsys.readouterr().err == "stepscope: something else\n"
    assert len(list(tmp_path.glob(f"{SAID}*"))) == 2
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    say("something else")
    assert capsys.readouterr().err == "stepscope: something else\n"


_FRAME = re.compile(r'^(?:\[rank0\]: )?  File "(.*)", line \d+, in (.*)$', re.MULTILINE)

SEARCHED, ONLY_TIMED, IN_WINDOW = 1, 8, 11
FAILURES = [
    ("forward", SEARCHED),
    ("forward", IN_WINDOW),
    ("loop", ONLY_TIMED),
    ("save", ONLY_TIMED),
    ("collective", IN_WINDOW),
]


@pytest.mark.job
@pytest.mark.parametrize("where", dict.fromkeys(where for where, _ in FAILURES))
def test_errors_of_the_script_have_its_frames_alone(where, tmp_path):
    plain = started(script("raises.py", where, "8"), tmp_path)
    assert (plain.returncode, len(_FRAME.findall(plain.stderr)) > 0) == (1, True)
    for at in (at for name, at in FAILURES if name == where):
        config = RecordConfig(out=str(tmp_path / f"run{at}"), telemetry=False)
        done = started(script("raises.py", where, str(at)), tmp_path, config)
        assert done.returncode == 1
        assert _FRAME.findall(done.stderr) == _FRAME.findall(plain.stderr), done.stderr
        assert (tmp_path / f"run{at}" / "run.json").exists()
