"""Step and region times: exclusive time, nesting, lost ends, threads, device events, order of lines."""

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.record import steps as regions_module
from stepscope.record.steps import DeviceTimer, Regions, StepLog


class Device:
    """Whose clock stands at `now_ms`; work up to `done_ms` has passed."""

    now_ms = 0
    done_ms = 0
    capturing = False
    stream = 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()

    class EventBase:
        def record(self, stream: Any) -> None:
            self.at_ms, self.stream = device.now_ms, stream

    class Event(EventBase):
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def query(self) -> bool:
            assert not device.capturing, "this breaks the capture"
            return self.at_ms <= device.done_ms

        def elapsed_time(self, end: "Event") -> float:
            return float(end.at_ms - self.at_ms)

    monkeypatch.setattr("stepscope.record.steps.perf_counter_ns", lambda: device.now_ms * 1_000_000)
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.current_stream", lambda: SimpleNamespace(number=device.stream))
    for name, answer in (
        ("_cuda_isCurrentStreamCapturing", lambda: device.capturing),
        ("_cuda_getDevice", lambda: 0),
        ("_cuda_getCurrentStream", lambda index: (device.stream, index, 1)),
    ):
        monkeypatch.setattr(f"torch._C.{name}", answer, raising=False)
    return device


def end_step(timer: DeviceTimer, device: Device, at_ms: int, *, followed: bool = False) -> dict[str, Any]:
    device.now_ms = at_ms
    return timer.step_end({"step": at_ms} if followed else None)


def test_a_step_takes_from_the_end_before_it_to_its_own_and_is_never_waited_for(device: Device) -> None:
    timer = DeviceTimer()
    lines = [end_step(timer, device, at_ms) for at_ms in (100, 300, 600)]
    assert timer.finished() == []
    device.done_ms = 300
    assert timer.finished() == [(lines[0], None), (lines[1], 200_000_000)]
    device.done_ms = 600
    assert timer.finished() == [(lines[2], 300_000_000)]


def test_a_step_that_is_captured_into_a_graph_has_no_time_nor_has_the_next(device: Device) -> None:
    timer = DeviceTimer()
    device.done_ms = 1000
    first = end_step(timer, device, 100)
    device.capturing = True
    captured = end_step(timer, device, 200)
    assert timer.finished() == []
    device.capturing = False
    after, later = end_step(timer, device, 300), end_step(timer, device, 450)
    assert timer.finished() == [(first, None), (captured, None), (after, None), (later, 150_000_000)]


def test_short_steps_that_are_only_timed_share_an_event_and_have_its_mean(device: Device) -> None:
    timer = DeviceTimer()
    device.done_ms = 1000
    lines = [end_step(timer, device, at_ms) for at_ms in (0, 20, 30, 60, 70)]
    assert timer.finished() == [(lines[0], None), *[(line, 20_000_000) for line in lines[1:4]]]
    followed = end_step(timer, device, 90, followed=True)  # closely, so it has an event
    assert timer.finished() == [(lines[4], 15_000_000), (followed, 15_000_000)]


HOUR_NS = 3_600_000_000_000
SECOND_NS = 1_000_000_000


@pytest.mark.parametrize("jump_ns", [-HOUR_NS, -SECOND_NS, SECOND_NS, HOUR_NS, 50 * 365 * 24 * HOUR_NS])
def test_T21_lines_leave_in_order_whatever_the_wall_clock_does(jump_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 1_700_000_000 * SECOND_NS
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    sent: list[dict] = []
    log = StepLog(lambda *lines: sent.extend(map(json.loads, lines)), None)
    for step in range(60):
        now_ns += 20_000_000
        if step == 30:
            now_ns += jump_ns
        log.add({"step": step, "dur_ns": 20_000_000, "profiled": False})
        # At most the lines of a tenth of a second wait, also where the clock was set far back.
        assert step - len(sent) < 8
    log.flush()
    assert [line["step"] for line in sent] == list(range(60))
    assert {line["end_ns"] - line["start_ns"] for line in sent} == {20_000_000}


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
