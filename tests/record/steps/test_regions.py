"""Regions: exclusive time, nesting, lost ends, threads."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.record import steps as regions_module
from stepscope.record.steps import Regions, nvtx_functions


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


@pytest.mark.parametrize(
    ("script", "at", "expected"),
    [
        (
            "+optimizer_step@0 +forward_pass@2 -forward_pass@7 +backward_pass@7 -backward_pass@9 -optimizer_step@10",
            12,
            {"forward_pass": (5, 1), "backward_pass": (2, 1), "optimizer_step": (3, 1)},
        ),
        ("+forward_pass@0 -forward_pass@3 +forward_pass@10 -forward_pass@14", 20, {"forward_pass": (7, 2)}),
        # An end closes what was left open inside; one without a begin does nothing.
        (
            "+optimizer_step@0 +forward_pass@2 -optimizer_step@10",
            10,
            {"forward_pass": (8, 1), "optimizer_step": (2, 1)},
        ),
        ("-forward_pass@1 +a@2 -forward_pass@3 -a@4", 5, {"a": (2, 1)}),
    ],
)
def test_own_times_of_regions(clock: Any, script: str, at: int, expected: dict[str, tuple[int, int]]) -> None:
    regions = Regions()
    play(regions, clock, script)
    assert regions.split_step(at) == {name: {"ns": ns, "n": n} for name, (ns, n) in expected.items()}
    assert regions.split_step(at + 1) == {}


def test_region_open_over_a_step_boundary_is_split_there(clock: Any) -> None:
    regions = Regions()
    play(regions, clock, "+epoch@0 +forward_pass@2")
    assert regions.split_step(10) == {"forward_pass": {"ns": 8, "n": 1}, "epoch": {"ns": 2, "n": 1}}
    play(regions, clock, "-forward_pass@13 -epoch@20")
    assert regions.split_step(20) == {"forward_pass": {"ns": 3, "n": 0}, "epoch": {"ns": 7, "n": 0}}
    play(regions, clock, "+forward_pass@20")  # raised: the end never comes
    regions.split_step(30)
    assert regions.split_step(40) == {"forward_pass": {"ns": 10, "n": 0}}
    assert regions.split_step(50) == {}


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


def test_no_ranges_where_no_tool_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = SimpleNamespace(rangePushA=lambda name: -2, rangePop=lambda: -2)
    monkeypatch.setattr("torch.cuda.nvtx._nvtx", nobody)
    assert nvtx_functions() is None
