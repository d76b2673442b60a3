"""Regions: exclusive time, nesting, lost ends, threads."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stepscope.record import steps as regions_module
from stepscope.record.steps import nvtx_functions
from stepscope.record.steps import Regions


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that is set by hand."""

    class Clock:
        now_ns = 0

    monkeypatch.setattr(regions_module, "perf_counter_ns", lambda: Clock.now_ns)
    return Clock


def play(regions: Regions, clock: Any, script: str) -> None:
    """Run `+name@time` and `-name@time` words."""
    for word in script.split():
        name, _, at = word[1:].partition("@")
        clock.now_ns = int(at)
        (regions.begin if word[0] == "+" else regions.end)(name)


def test_time_inside_another_region_is_not_counted_twice(clock: Any) -> None:
    regions = Regions()
    play(regions, clock, "+optimizer_step@0 +forward_pass@2 -forward_pass@7 +backward_pass@7 -backward_pass@9")
    play(regions, clock, "-optimizer_step@10")
    assert regions.split_step(12) == {
        "forward_pass": {"ns": 5, "n": 1},
        "backward_pass": {"ns": 2, "n": 1},
        "optimizer_step": {"ns": 3, "n": 1},
    }


def test_micro_batches_add_up_within_a_step(clock: Any) -> None:
    regions = Regions()
    play(regions, clock, "+forward_pass@0 -forward_pass@3 +forward_pass@10 -forward_pass@14")
    assert regions.split_step(20) == {"forward_pass": {"ns": 7, "n": 2}}
    assert regions.split_step(30) == {}


def test_region_open_over_a_step_boundary_is_split_there(clock: Any) -> None:
    regions = Regions()
    play(regions, clock, "+epoch@0 +forward_pass@2")
    assert regions.split_step(10) == {"forward_pass": {"ns": 8, "n": 1}, "epoch": {"ns": 2, "n": 1}}
    play(regions, clock, "-forward_pass@13 -epoch@20")
    assert regions.split_step(20) == {"forward_pass": {"ns": 3, "n": 0}, "epoch": {"ns": 7, "n": 0}}


def test_standard_region_whose_end_was_lost_is_dropped_after_a_whole_step(clock: Any) -> None:
    regions = Regions()
    play(regions, clock, "+forward_pass@0")  # raised: the end never comes
    regions.split_step(10)
    assert regions.split_step(20) == {"forward_pass": {"ns": 10, "n": 0}}
    assert regions.split_step(30) == {}


def test_end_closes_what_was_left_open_inside(clock: Any) -> None:
    regions = Regions()
    play(regions, clock, "+optimizer_step@0 +forward_pass@2 -optimizer_step@10")
    assert regions.split_step(10) == {"forward_pass": {"ns": 8, "n": 1}, "optimizer_step": {"ns": 2, "n": 1}}


def test_end_without_begin_does_nothing(clock: Any) -> None:
    regions = Regions()
    play(regions, clock, "-forward_pass@1 +a@2 -forward_pass@3 -a@4")
    assert regions.split_step(5) == {"a": {"ns": 2, "n": 1}}


def test_regions_of_other_threads_are_not_counted_into_the_step(clock: Any) -> None:
    regions = Regions()
    thread = threading.Thread(target=play, args=(regions, clock, "+gradient_sync@0 -gradient_sync@5"))
    thread.start()
    thread.join()
    assert regions.split_step(10) == {}


def test_marks_open_and_close_in_order_and_survive_their_window(clock: Any) -> None:
    seen: list[str] = []

    class Mark:
        def __init__(self, name: str) -> None:
            self.name = name
            seen.append(f"+{name}")

        def __exit__(self, *exc: object) -> None:
            seen.append(f"-{self.name}")

    regions = Regions()
    play(regions, clock, "+epoch@0")
    regions.marker = Mark
    play(regions, clock, "+a@1 +b@2 -b@3")
    regions.marker = None
    play(regions, clock, "-a@4 -epoch@5")
    assert seen == ["+a", "+b", "-b", "-a"]


def test_nvtx_ranges_pair_up_even_when_switched_on_in_between(clock: Any) -> None:
    class Nvtx:
        depth = 0

        def range_push(self, name: str) -> None:
            self.depth += 1

        def range_pop(self) -> None:
            self.depth -= 1

    regions = Regions()
    play(regions, clock, "+epoch@0")
    regions.nvtx = nvtx = Nvtx()
    play(regions, clock, "+a@1 -a@2 -epoch@3")
    assert nvtx.depth == 0


def test_nvtx_functions_are_torchs_own_without_the_call_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def push(name: str) -> int:
        seen.append(f"+{name}")
        return 0

    inner = SimpleNamespace(rangePushA=push, rangePop=lambda: seen.append("-"))
    monkeypatch.setattr("torch.cuda.nvtx._nvtx", inner)
    found = nvtx_functions()
    found.range_push("forward_pass")
    found.range_pop()
    assert seen == ["+stepscope", "-", "+forward_pass", "-"] and found.range_pop is inner.rangePop
    monkeypatch.setattr("torch.cuda.nvtx._nvtx", None)
    monkeypatch.setattr("torch.cuda.nvtx.range_push", push)
    monkeypatch.setattr("torch.cuda.nvtx.range_pop", lambda: None)
    assert nvtx_functions() is torch.cuda.nvtx


def test_no_ranges_where_no_tool_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = SimpleNamespace(rangePushA=lambda name: -2, rangePop=lambda: -2)
    monkeypatch.setattr("torch.cuda.nvtx._nvtx", nobody)
    assert nvtx_functions() is None
