"""Device times of steps, with events and streams that the test moves on by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.record.steps import DeviceTimer


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


def test_in_a_trial_every_step_has_an_event(device: Device) -> None:
    timer = DeviceTimer(shared=False)
    device.done_ms = 1000
    lines = [end_step(timer, device, at_ms) for at_ms in (0, 10, 30)]
    assert timer.finished() == [(lines[0], None), (lines[1], 10_000_000), (lines[2], 20_000_000)]


def test_a_pause_is_in_no_step_and_what_waits_at_the_end_has_no_time(device: Device) -> None:
    timer = DeviceTimer()
    device.done_ms = 1000
    before, shares = end_step(timer, device, 0), end_step(timer, device, 10)
    device.now_ms = 500
    timer.restart()
    after = end_step(timer, device, 600)
    last = end_step(timer, device, 610)
    assert timer.finished() == [(before, None), (shares, None), (after, 100_000_000)]
    assert timer.finished(all_of_them=True) == [(last, None)]
