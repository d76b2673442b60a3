"""Steps are found under their names, and moments belong to the right one."""

from pathlib import Path
from typing import Any

import pytest
from tests.run.traces import Event, event, trace_of

from stepscope.run.steps import Steps, recorded_steps
from stepscope.trace.classify import event_kinds

AUTOGRAD = 2


def steps_of(folder: Path, events: list[Event], *, cut: bool = False, **header: Any) -> Steps:
    trace = trace_of(folder, events, cut=cut, **header)
    return recorded_steps(trace, event_kinds(trace))


def mark(name: str, start: float, end: float, tid: int = 1) -> Event:
    return event("user_annotation", name, start, end - start, tid=tid)


def test_profiler_steps_by_start_each_once(tmp_path: Path) -> None:
    events = [mark("ProfilerStep#8", 100, 190), mark("ProfilerStep#7", 0, 90), mark("ProfilerStep#7", 5, 80, tid=3)]
    steps = steps_of(tmp_path, events)
    assert steps.number.tolist() == [7, 8]
    assert steps.start_ns.tolist() == [0, 100_000]
    assert steps.end_ns.tolist() == [90_000, 190_000]
    assert steps.by_profiler


@pytest.mark.parametrize(
    ("names", "named", "numbers"),
    [
        (("step_3", "step_4"), "step", [3, 4]),
        (("train_step#11", "train_step#12"), "train_step", [11, 12]),
        (("training_step", "training_step"), "training_step", [0, 1]),
        (("ddp_step", "ddp_step"), "ddp_step", [0, 1]),
        (("## step 5 ##", "## step 6 ##"), "step", [5, 6]),
        (("[pl][profile]run_training_batch",) * 2, "run_training_batch", [0, 1]),
        (("iteration 7", "iteration 8"), "iteration", [7, 8]),
    ],
)
def test_ranges_of_the_loop_stand_in_for_steps(
    tmp_path: Path, names: tuple[str, str], named: str, numbers: list[int]
) -> None:
    steps = steps_of(tmp_path, [mark(names[0], 0, 90), mark(names[1], 100, 190)])
    assert steps.number.tolist() == numbers
    assert steps.named == named
    assert not steps.by_profiler


def test_cut_trace_loses_its_last_step(tmp_path: Path) -> None:
    events = [mark(f"ProfilerStep#{k}", 100 * k, 100 * k + 90) for k in range(3)]
    events.append(event("cpu_op", "aten::mm", 250, 5))
    assert steps_of(tmp_path, events).number.tolist() == [0, 1, 2]
    assert steps_of(tmp_path, [*events, mark("lost", 260, 270)], cut=True).number.tolist() == [0, 1]


def steps_with_launches(until: int, *, threads: tuple[int, ...] = (1,)) -> list[Event]:
    """Return five steps of the host, then launches as the profiler writes them: thread by thread, up to `until`."""
    events = [mark(f"ProfilerStep#{k}", 100 * k, 100 * k + 90) for k in range(5)]
    events += [event("cpu_op", "autograd::engine::evaluate_function: X", 100 * k, 9, tid=AUTOGRAD) for k in range(5)]
    for thread in threads:
        for k in range(5 if thread != threads[-1] else until):
            events.append(
                event("cuda_runtime", "cudaLaunchKernel", 100 * k + 10, 1, tid=thread, correlation=10 * k + thread)
            )
            events.append(event("kernel", "gemm", 100 * k + 40, 5, tid=7, correlation=10 * k + thread))
    return [*events, event("cuda_runtime", "lost", 0, 1, tid=1)]


def test_cut_trace_keeps_only_steps_whose_launches_are_there(tmp_path: Path) -> None:
    """The host's side of all steps is written before the first launch, so it is there although the launches are not."""
    found = steps_of(tmp_path, steps_with_launches(3, threads=(AUTOGRAD, 1)), cut=True)
    assert found.number.tolist() == [0, 1]
