"""Micro-batches that are not timed: which ones, what the others say about them, and that nothing else changes."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stepscope.contract.run_folder import steps_file
from stepscope.record import step_recorder as recorder_module
from stepscope.record import step_recorder as times_module
from stepscope.record import steps as regions_module
from stepscope.record.config import RecordConfig
from stepscope.record.hooks.install import install
from stepscope.record.loop import loop as loop_module
from stepscope.record.loop import loop as optimizer_steps_module
from stepscope.record.loop import loop as rows_module
from stepscope.record.loop import loop as step_ends_module
from stepscope.record.loop import routine as routine_module
from stepscope.record.loop.loop import MAX_IN_A_STEP
from stepscope.record.loop.pattern import MAX_STRETCHES, Event, Pattern, plan_of
from stepscope.record.session import Recorder
from stepscope.record.window import guards as interruptions_module
from stepscope.record.window.guards import Interruption

LOAD, FORWARD, BACKWARD, STEP = "data_loading", "forward_pass", "backward_pass", "optimizer_step"
READERS_OF_THE_CLOCK = (
    *(loop_module, optimizer_steps_module, rows_module, step_ends_module, routine_module),
    *(recorder_module, times_module, regions_module, interruptions_module),
)
LOAD_NS, FORWARD_NS, GLUE_NS, BACKWARD_NS, CLIP_NS, STEP_NS = 5_000, 10_000, 1_000, 30_000, 70_000, 50_000


@pytest.mark.parametrize(("units", "skipped"), [(14, 0), (15, 6), (64, 54), (300, 288)])
def test_all_but_a_few_micro_batches_are_in_stretches(units: int, skipped: int) -> None:
    plan = plan_of(["first", *["unit"] * units, None, "other"])
    if not skipped:
        assert plan is None
        return
    assert plan is not None
    assert MAX_STRETCHES * plan.backwards == MAX_STRETCHES * plan.units == skipped
    begins = sorted(plan.begins_after)
    assert begins[0] == 1 + 2  # after the other first one, and two that are always timed
    assert begins[-1] + plan.backwards <= 1 + units - 2
    assert units - skipped <= 14


def test_what_repeats_may_be_two_backwards_long() -> None:
    plan = plan_of(["a", "b"] * 40)
    assert plan is not None
    assert (plan.backwards, plan.units) == (10, 5)
    assert all(after % 2 == 0 for after in plan.begins_after)
    assert plan_of(list(range(100))) is None
    assert plan_of([None] * 100) is None


def micro_batches(stretch_units: tuple[int, ...]) -> Pattern:
    """Return a step of forward and backward, over and over, with stretches between."""
    events = []
    for units in (*stretch_units, 0):
        edges = [("begin", FORWARD), ("end", FORWARD), ("begin", BACKWARD), ("end", BACKWARD)]
        events += [Event(i, edge, lambda _: None) for i, edge in enumerate(edges)]
        if units:
            events += [Event(100, None, lambda _: None, stretch_units=units), Event(101, None, lambda _: None)]
    return Pattern(events)


def test_a_stretch_consists_of_what_the_samples_beside_it_do() -> None:
    pattern = micro_batches((3, 3))
    #        unit 1       stretch  sample           stretch  last unit
    times = [0, 10, 12, 40, 40, 160, 162, 172, 174, 200, 200, 320, 321, 330, 331, 900]
    found = pattern.region_times(times, 0)
    assert found[FORWARD] == {"ns": 10 + 10 + 9 + 240 * 10 // 40, "n": 3 + 6}
    assert found[BACKWARD] == {"ns": 28 + 26 + 569 + 240 * 26 // 40, "n": 3 + 6}


def test_what_interrupts_a_stretch_or_a_sample_is_no_time_of_its_regions() -> None:
    pattern = micro_batches((3, 3))
    times = [0, 10, 12, 40, 40, 160, 162, 172, 174, 200, 200, 320, 321, 330, 331, 900]
    undisturbed = pattern.steps([*times, 900], [])
    later = [t + 1000 * (t >= 160) + 5000 * (t >= 172) for t in times]
    collections = [
        Interruption("garbage_collection", 100, 1100, 1000),
        Interruption("garbage_collection", 1165, 6165, 5000),
    ]
    found = pattern.steps([*later, later[-1]], collections)
    assert found[0].pop("garbage_collection") == {"ns": 6000, "n": 2}
    assert found == undisturbed


class Clock:
    """The time that everything of ours reads, moved by the job alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000_000_000
        self.spent: dict[str, int] = {}
        for module in READERS_OF_THE_CLOCK:
            monkeypatch.setattr(module, "perf_counter_ns", lambda: self.now_ns)

    def spend(self, name: str, ns: int) -> None:
        self.now_ns += ns
        self.spent[name] = self.spent.get(name, 0) + ns


class Job:
    """Accumulates gradients over batches of a loader, and notes by hand what each region of each step takes."""

    def __init__(self, clock: Clock, *, vary: Callable[[], float] = lambda: 1.0) -> None:
        self.clock, self.vary = clock, vary
        self.model = torch.nn.Linear(2, 2)
        self.model.register_forward_hook(lambda *_: self.spend(FORWARD, FORWARD_NS))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.optimizer.register_step_pre_hook(lambda *_: self.spend(STEP, STEP_NS))
        self.batches = iter(torch.utils.data.DataLoader(range(10**6), collate_fn=self.load))
        self.by_hand: list[dict[str, int]] = []
        self.losses: list[float] = []

    def spend(self, name: str, ns: int) -> None:
        self.clock.spend(name, int(ns * self.vary()))

    def load(self, _: object) -> torch.Tensor:
        self.spend(LOAD, LOAD_NS)
        return torch.ones(1, 2)

    def step(self, micro_batches: int) -> None:
        self.clock.spent = {}
        for _ in range(micro_batches):
            loss = self.model(next(self.batches)).square().mean()
            self.spend("glue", GLUE_NS)
            loss.register_hook(lambda _: self.spend(BACKWARD, BACKWARD_NS))
            loss.backward()
        self.spend("clip", CLIP_NS)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        self.by_hand.append(self.clock.spent)


def recorded(counts: list[int], job: Job, out: Path) -> list[dict[str, Any]]:
    """Return the log of steps with these numbers of micro-batches."""
    recorder = Recorder.start(RecordConfig(out=str(out), light=True, telemetry=False))
    hooks = install(lambda: recorder)
    hooks.loop.start()
    try:
        for count in counts:
            job.step(count)
        hooks.finish()
    finally:
        hooks.remove()
        recorder.close()
    lines = (out / steps_file(0)).read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("followed", [True, False])
@pytest.mark.parametrize("micro_batches", [8, 16, 64, 150])
def test_sums_over_all_micro_batches_agree_with_hand_timers(
    micro_batches: int, followed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if followed:
        monkeypatch.setattr(step_ends_module, "SHORT_STEP_NS", 0)
    torch.manual_seed(0)
    job = Job(Clock(monkeypatch))
    found = recorded([micro_batches] * 30, job, tmp_path / "run")
    assert [line["step"] for line in found] == list(range(30))
    since = 3 if micro_batches <= MAX_IN_A_STEP else 13  # until then a forward lasts to whatever comes next
    for line, by_hand in zip(found[since:], job.by_hand[since:], strict=True):
        for name in (LOAD, FORWARD, BACKWARD, STEP):
            assert line["regions"][name]["ns"] == pytest.approx(by_hand[name], abs=MAX_STRETCHES), (line["step"], name)
        assert [line["regions"][n]["n"] for n in (LOAD, FORWARD, BACKWARD, STEP)] == [*[micro_batches] * 3, 1]


@pytest.mark.slow
def test_micro_batches_that_differ_are_estimated_without_bias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    job = Job(Clock(monkeypatch), vary=lambda: draw.uniform(0.5, 1.5))
    found = recorded([64] * 200, job, tmp_path / "run")
    assert len(found) == 200
    for name in (LOAD, FORWARD, BACKWARD):
        sums = sum(line["regions"][name]["ns"] for line in found), sum(step[name] for step in job.by_hand)
        assert sums[0] == pytest.approx(sums[1], rel=0.02), name


@pytest.mark.slow
def test_another_number_of_micro_batches_keeps_the_steps_and_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [*[64] * 20, 5, *[64] * 6, *[20] * 14, *[100] * 14]
    job = Job(Clock(monkeypatch))
    found = recorded(counts, job, tmp_path / "run")
    assert len(found) == len(counts)
    for line, by_hand in zip(found[3:], job.by_hand[3:], strict=True):
        assert sum(r["ns"] for r in line["regions"].values()) <= sum(by_hand.values())
    for at in (19, 26, 40, 53):
        for name in (LOAD, FORWARD, BACKWARD):
            assert found[at]["regions"][name]["ns"] == pytest.approx(job.by_hand[at][name], abs=MAX_STRETCHES), at


def test_training_goes_as_without_us_and_hooks_are_back_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    plain = Job(Clock(monkeypatch))
    for _ in range(20):
        plain.step(40)
    torch.manual_seed(0)
    job = Job(Clock(monkeypatch))
    backward = torch.autograd._engine_run_backward
    recorded([40] * 20, job, tmp_path / "run")
    assert job.losses == plain.losses
    assert torch.autograd._engine_run_backward is backward
    assert "_compiled_call_impl" not in vars(job.model)
