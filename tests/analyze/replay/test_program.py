"""What each rank does in order, and what each thing waits for, as read off a trace."""

from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.simulate import SYNC, WAIT, collective, kernel, simulate

from stepscope.analyze.replay.program import EMPTY_PROGRAM, NOTHING, Program, device_program, host_program
from stepscope.run.aligned import AlignedRun, aligned
from stepscope.trace.classify import EventKind


def program_of(folder: Path, trace: RankTrace) -> Program:
    shared = aligned(built_run(folder, [trace]))
    return device_program(shared, 0, shared.run.ranks[0].steps.number)


def test_items_come_in_launch_order_with_the_hosts_time_before_each(tmp_path: Path) -> None:
    trace = RankTrace(0)
    trace.step(3, 0, 500)
    trace.kernel("second", at=200, start=400, end=450)
    trace.kernel("first", at=50, start=60, end=390)
    trace.copy(at=300, start=460, end=470)
    program = program_of(tmp_path, trace)
    assert program.kind.tolist() == [EventKind.KERNEL, EventKind.KERNEL, EventKind.COPY]
    assert (program.host.total_ns / 1000).tolist()[:2] == [50, 150]
    assert program.tail.total_ns.tolist()[0] / 1000 + program.host.total_ns[2] / 1000 == pytest.approx(300, abs=2.1)
    assert (program.duration_ns / 1000).tolist() == [330, 50, 10]
    assert program.step.tolist() == [0, 0, 0]


def test_work_from_before_the_window_is_a_backlog_and_no_item(tmp_path: Path) -> None:
    trace = RankTrace(0)
    trace.step(0, 0, 500)
    trace.kernel("old", at=None, start=-100, end=80)
    trace.kernel("new", at=10, start=81, end=100)
    program = program_of(tmp_path, trace)
    assert len(program) == 1
    assert program.backlog_ns == {0: 80_000}


def test_streams_run_in_order_and_wait_where_told(tmp_path: Path) -> None:
    job = simulate([kernel(300), collective(500), kernel(300), WAIT, kernel(100)], steps=1)
    shared = job.aligned(tmp_path)
    program = device_program(shared, 0, np.array([0]))
    assert program.stream_predecessor.tolist() == [NOTHING, NOTHING, 0, 2]
    assert program.waits.T.tolist() == [[0, 1], [1, 3]]


def test_first_operation_after_a_call_waits_and_not_the_next(tmp_path: Path) -> None:
    job = simulate([kernel(300), collective(500), WAIT, kernel(100), kernel(100)], steps=1)
    program = device_program(job.aligned(tmp_path), 0, np.array([0]))
    assert program.waits.T.tolist() == [[0, 1], [1, 2]]


def test_synchronisation_releases_the_next_launch(tmp_path: Path) -> None:
    job = simulate([kernel(300), kernel(300), SYNC, kernel(50)], steps=2)
    program = device_program(job.aligned(tmp_path), 0, np.array([0, 1]))
    assert program.released_by.tolist() == [NOTHING, NOTHING, 1, NOTHING, NOTHING, 4]
    assert program.tail_released_by == NOTHING


def test_synchronisation_at_the_end_releases_the_next_repetition(tmp_path: Path) -> None:
    job = simulate([kernel(300), kernel(300), SYNC], steps=2)
    program = device_program(job.aligned(tmp_path), 0, np.array([0, 1]))
    assert program.released_by.tolist() == [NOTHING, NOTHING, 1, NOTHING]
    assert program.tail_released_by == 3


def test_synchronisation_after_the_last_step_is_the_profilers(tmp_path: Path) -> None:
    trace = RankTrace(0)
    trace.step(0, 0, 100)
    trace.kernel("gemm", at=10, start=20, end=400)
    trace.call("cudaDeviceSynchronize", 110, 420)
    assert program_of(tmp_path, trace).tail_released_by == NOTHING


def test_collectives_take_their_transfer_alone(tmp_path: Path) -> None:
    job = simulate([kernel(300), collective(500)], [kernel(2300), collective(500)], steps=3)
    shared = job.aligned(tmp_path)
    for index in (0, 1):
        program = device_program(shared, index, np.arange(3))
        is_comm = program.collective != NOTHING
        assert program.duration_ns[is_comm] == pytest.approx(500_000, rel=0.01)
        assert program.collective[is_comm].tolist() == [0, 1, 2]


def test_latency_is_the_short_end_and_bounded(tmp_path: Path) -> None:
    for name, delay, expected in (("short", 7, 7_000), ("queued", 900, 5_000)):
        folder = tmp_path / name
        folder.mkdir()
        trace = RankTrace(0)
        trace.step(0, 0, 5000)
        for k in range(4):
            trace.kernel("gemm", at=1000 * k, start=1000 * k + delay, end=1000 * k + delay + 5)
        assert program_of(folder, trace).latency_ns == expected


def test_gap_between_queued_operations_is_the_devices(tmp_path: Path) -> None:
    program = device_program(
        simulate([kernel(300, host_us=5) for _ in range(8)], steps=2).aligned(tmp_path), 0, np.arange(2)
    )
    assert program.queued_gap_ns == {EventKind.KERNEL: 1000.0}


def test_same_stream_number_on_two_devices_is_two_streams(tmp_path: Path) -> None:
    trace = RankTrace(0)
    trace.step(0, 0, 500)
    trace.kernel("a", at=10, start=20, end=90)
    trace.kernel("b", at=30, start=40, end=50)
    trace.events[-1]["args"]["device"] = 1
    assert program_of(tmp_path, trace).stream_predecessor.tolist() == [NOTHING, NOTHING]


def test_steps_that_were_not_recorded_give_the_empty_program(tmp_path: Path) -> None:
    shared = simulate([kernel(10)], steps=2).aligned(tmp_path)
    assert device_program(shared, 0, np.array([7])) is EMPTY_PROGRAM
    assert len(EMPTY_PROGRAM) == 0


def gloo(rank: int, *, late_us: float) -> RankTrace:
    """Return two steps of: compute, ask for an all-reduce, wait for it, compute."""
    trace = RankTrace(rank, world_size=2, backend="gloo")
    for step in range(2):
        begin = 10_000 * step
        trace.step(step, begin, begin + 10_000)
        trace.ran("aten::mm", begin, begin + 2000 + late_us)
        trace.gloo("allreduce", at=begin + 2000 + late_us, start=begin + 2010 + late_us, end=begin + 6000)
        trace.ran("aten::add", begin + 6010, begin + 10_000)
    return trace


@pytest.fixture
def cpu(tmp_path: Path) -> AlignedRun:
    return aligned(built_run(tmp_path, [gloo(0, late_us=0), gloo(1, late_us=3000)]))


def test_cpu_rank_waits_for_its_collectives(cpu: AlignedRun) -> None:
    program = host_program(cpu, 0, np.array([0, 1]))
    assert program.released_by.tolist() == [NOTHING, 0]
    assert program.tail_released_by == 1
    assert (program.host.own_ns / 1000).tolist() == pytest.approx([2000, 6010], abs=15)
    assert (program.tail.own_ns / 1000).tolist() == pytest.approx([4000], abs=15)


def test_cpu_rank_transfers_without_its_wait(cpu: AlignedRun) -> None:
    early, late = (host_program(cpu, index, np.array([0, 1])) for index in (0, 1))
    assert early.duration_ns == pytest.approx(late.duration_ns, rel=0.01)
    assert (late.duration_ns / 1000).tolist() == pytest.approx([990, 990], abs=2)
    assert host_program(cpu, 0, np.array([9])) is EMPTY_PROGRAM
