"""Steps are found under their names; cut traces keep whole steps only; step logs become columns."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.run.traces import Event, event, trace_of

from stepscope.contract.run_folder import steps_file
from stepscope.errors import TraceError
from stepscope.run.load import load
from stepscope.run.side_files import read_step_log, step_logs, unprofiled_step
from stepscope.run.steps import Steps, recorded_steps
from stepscope.trace.table import event_kinds
from stepscope.units import ms

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
def test_ranges_of_the_loop_stand_in_for_steps(tmp_path, names, named, numbers):
    steps = steps_of(tmp_path, [mark(names[0], 0, 90), mark(names[1], 100, 190)])
    assert steps.number.tolist() == numbers
    assert steps.named == named
    assert not steps.by_profiler


def test_step_without_any_call_of_the_host_is_none(tmp_path: Path) -> None:
    calls = [event("cpu_op", "aten::mm", at, 5) for at in (20, 120, 800)]
    steps = [mark("ProfilerStep#3", 0, 90), mark("ProfilerStep#4", 100, 190), mark("ProfilerStep#5", 195, 199)]
    assert steps_of(tmp_path, [*calls, *steps]).number.tolist() == [3, 4]
    assert not len(steps_of(tmp_path, [*calls, steps[-1]])), "the calls are outside the only step"
    stall = mark("ProfilerStep#5", 195, 280)
    assert steps_of(tmp_path, [*calls, *steps[:2], stall]).number.tolist() == [3, 4, 5], "the host stalls in it"


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


MS = 1_000_000


def line(step: int, dur_ms: float, *, profiled: bool = False, **more: Any) -> dict[str, Any]:
    start = step * 1000 * MS
    dur = round(dur_ms * MS)
    phase = "window" if profiled else "before"
    fixed = {"step": step, "start_ns": start, "end_ns": start + dur, "dur_ns": dur, "device_ns": None}
    return {
        **fixed,
        "profiled": profiled,
        "phase": phase,
        "regions": {"forward_pass": {"ns": dur // 3, "n": 1}},
        **more,
    }


def write(path: Path, lines: list[dict[str, Any]], *, tail: bytes = b"", rank: int = 0) -> Path:
    header = json.dumps({"schema": 1, "rank": rank}).encode()
    path.write_bytes(b"\n".join([header, *(json.dumps(x).encode() for x in lines)]) + b"\n" + tail)
    return path


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_torn_last_line_is_left_out_and_not_counted_as_lost(tmp_path: Path, cut: int) -> None:
    last = json.dumps(line(2, 10)).encode()[:-cut]
    log = read_step_log(write(tmp_path / steps_file(0), [line(0, 10), line(1, 10)], tail=last))
    assert log.step.tolist() == [0, 1]
    assert log.lost_lines == 0


def test_bad_line_in_the_middle_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path / steps_file(0), [line(0, 10)], tail=b"{garbage\n[1]\n" + json.dumps(line(1, 10)).encode())
    log = read_step_log(path)
    assert log.step.tolist() == [0, 1]
    assert log.lost_lines == 2


def test_unprofiled_step_leaves_out_warm_up_window_and_the_step_after_it(tmp_path: Path) -> None:
    for rank, steady in ((0, 10.0), (1, 12.0)):
        slow = [line(0, 900), line(1, 60)]
        before = [line(n, steady + 0.01 * (n % 3)) for n in range(2, 12)]
        window = [line(n, steady * 2, profiled=True) for n in range(12, 17)]
        after = [line(17, 300), *(line(n, steady + 0.01 * (n % 3)) for n in range(18, 22))]
        write(tmp_path / steps_file(rank), [*slow, *before, *window, *after], rank=rank)
    found = unprofiled_step(step_logs(tmp_path))
    assert found is not None
    assert ms(found.median_ns) == pytest.approx(11.01, abs=0.02)
    assert found.num_steps == 14
    assert found.warm_up_steps == 2


WHOLE = Path(__file__).parent.parent / "data" / "h200-fsdp2" / "rank0.json.gz"


def test_cut_before_the_first_event_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "rank0.json").write_bytes(gzip.decompress(WHOLE.read_bytes())[:1200])
    with pytest.raises(TraceError):
        load(path, cache=False)
