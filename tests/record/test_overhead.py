"""What recording costs: below 0.5 % of a step outside the window, recorder calls per step bounded, memory flat.

`benchmarks/overhead.py` measures it in full. T1, T2, ... in names number the faults that recording has to survive.
"""

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter_ns
from types import FrameType
from typing import Any

import pytest
import torch

from stepscope.record.config import RecordConfig
from stepscope.record.hooks.install import install
from stepscope.record.session import Recorder

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from overhead import SHAPES, soak

RANK = Path(__file__).parents[2] / "benchmarks" / "overhead.py"


@pytest.mark.job
def test_T26_light_mode_costs_less_than_a_step_that_does_next_to_nothing(tmp_path):
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    packages = Path(spec.origin).parents[1]
    (tmp_path / "stepscope").symlink_to(packages)  # as in a checkout of that name: torch's calls are not ours
    command = [sys.executable, "-W", "ignore", str(RANK), "warm", "--rank", "0", "--folder", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "stepscope")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    # Recorder calls of a step, where it is only timed, and over all steps: on a loaded machine more are followed.
    assert 20 < found["calls_of_timed_step"] < 100
    assert found["calls_per_step"] < 400
    # CPU time of a step that does next to nothing, with light mode and without, on the same machine.
    assert found["on_us"] < 2 * found["off_us"]


@pytest.mark.slow
def test_memory_and_calls_per_step_stay_flat(tmp_path):
    # Samples of threads are bounded by number, not by step.
    looks = list(soak(tmp_path, steps=1_200, looks=6, samples=False))
    early, late = looks[:3], looks[3:]
    # What waits for a busy machine to write it is there at some looks only; a leak would be there at all later ones.
    assert min(x.own_kb for x in late) - max(x.own_kb for x in early) < 200 * 60 / 1024  # 60 bytes a step
    assert min(x.calls for x in late) <= max(x.calls for x in early)


PER_MICRO_BATCH = 100  # where a step is followed, which happens once a second; else 24
MOST = {
    "one": 700,
    "cells": 900,
    "modules": 900,
    "optimizers": 900 + 2 * 500,  # torch still calls two hooks that do nothing for each of them
    "parameters": 700,
    "micro8": 700 + 8 * PER_MICRO_BATCH,
    "micro": 700 + 64 * PER_MICRO_BATCH,
    "micro256": 700 + 256 * PER_MICRO_BATCH,
    "hooked": 700,
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_T31_recorder_calls_per_step(shape, tmp_path):
    counts = counted(shape, RecordConfig(out=str(tmp_path / "run"), light=True, telemetry=False), steps=4)
    assert 0 < max(counts) < MOST[shape], counts


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["one", "cells"])
def test_steps_before_the_window_call_what_those_of_light_mode_call(shape, tmp_path, monkeypatch):
    # Which steps are followed depends on the time: here every reading of the clock is a microsecond after the last.
    clock = itertools.count(perf_counter_ns(), 1_000).__next__
    for name in ("loop.loop", "loop.routine", "loop.steps", "session", "steps"):
        monkeypatch.setattr(f"stepscope.record.{name}.perf_counter_ns", clock)
    light = RecordConfig(out=str(tmp_path / "light"), light=True, telemetry=False)
    waiting = RecordConfig(out=str(tmp_path / "record"), wait=10_000, telemetry=False)
    exporting = RecordConfig(out=str(tmp_path / "export"), light=True, telemetry=False, metrics="0", on_alarm=5)
    counts = min(counted(shape, light, steps=4))  # on a busy machine a step may have a call more
    assert min(counted(shape, exporting, steps=4)) == min(counted(shape, waiting, steps=4)) == counts > 0


@pytest.mark.slow
def test_micro_batches_of_a_timed_step_take_few_calls(tmp_path):
    counts = counted("micro", RecordConfig(out=str(tmp_path / "run"), light=True, telemetry=False), steps=8)
    assert min(counts) < 64 * 30


def counted(shape: str, config: RecordConfig, *, steps: int) -> list[int]:
    """Return the recorder calls in each step once the loop is known."""
    torch.manual_seed(0)
    recorder = Recorder.start(config)
    hooks = install(lambda: recorder)
    hooks.loop.start()
    try:
        step = SHAPES[shape]()
        for _ in range(12):
            step()
        return [calls_of_ours(step) for _ in range(steps)]
    finally:
        hooks.remove()
        recorder.close()


def calls_of_ours(step: Any) -> int:
    """Return how many functions a step calls from our files, ours and built-in ones: the same on every machine."""
    count = 0

    def counting(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call") and "/stepscope/record/" in frame.f_code.co_filename

    sys.setprofile(counting)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count
