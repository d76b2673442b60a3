"""The graph of several ranks: when things run if each starts as soon as all it waits for has ended."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.simulate import SYNC, WAIT, collective, kernel, simulate

from stepscope.analyze.host_time import HostParts
from stepscope.analyze.replay.graph import (
    CircularWaits,
    Meeting,
    build_graph,
    end_times,
    steady_period_ns,
    step_ends,
    with_durations,
)
from stepscope.analyze.replay.program import EMPTY_PROGRAM, NO_WAITS, NOTHING, Program, device_program
from stepscope.analyze.replay.replay import replay_of
from stepscope.trace.classify import EventKind


def program(*items: tuple[float, float], steps: int = 1, tail: float = 0, begin_ns: int = 0) -> Program:
    """Return one stream's `(host, device)` times per step, in ns."""
    count = len(items) * steps
    host = np.array([h for _ in range(steps) for h, _ in items], np.int64)
    none = np.zeros(count, np.int64)
    zero = np.zeros(1, np.int64)
    return Program(
        device_index=np.arange(count),
        step=np.repeat(np.arange(steps), len(items)).astype(np.int32),
        host=HostParts(host, none, none, none),
        tail=HostParts(np.array([round(tail)]), zero, zero, zero),
        duration_ns=np.array([d for _ in range(steps) for _, d in items], np.int64),
        kind=np.full(count, EventKind.KERNEL, np.uint8),
        collective=np.full(count, NOTHING),
        stream=none,
        stream_predecessor=np.arange(-1, count - 1),
        waits=NO_WAITS,
        released_by=np.full(count, NOTHING),
        latency_ns=0,
        queued_gap_ns={},
        begin_ns=begin_ns,
    )


def device_ends(
    *programs: Program, meetings: tuple[Meeting, ...] = (), steps: int = 1, repeats: int = 1
) -> list[list[float]]:
    graph = build_graph(programs, meetings, num_steps=steps, repeats=repeats)
    end = end_times(graph)
    return [end[nodes].tolist() for nodes in graph.device]


def test_operation_starts_after_its_launch_and_its_predecessor() -> None:
    assert device_ends(program((10, 5), (10, 30), (1, 4))) == [[15, 50, 54]]


def test_latency_gaps_and_other_streams_delay_it() -> None:
    plain = program((10, 50), (10, 30))
    late = replace(plain, latency_ns=7, queued_gap_ns={int(EventKind.KERNEL): 2.0})
    assert device_ends(late) == [[67, 99]]
    other = replace(plain, stream=np.array([0, 1]), stream_predecessor=np.array([NOTHING, NOTHING]))
    assert device_ends(other) == [[60, 50]]
    assert device_ends(replace(other, waits=np.array([[0], [1]]))) == [[60, 90]]
    assert device_ends(replace(other, also_after=((1, 0, 13),))) == [[60, 103]]


def test_host_waits_for_what_releases_it() -> None:
    assert device_ends(replace(program((10, 50), (10, 30)), released_by=np.array([NOTHING, 0]))) == [[60, 100]]


def test_collective_starts_when_the_last_rank_has_arrived() -> None:
    meeting = (((0, 1), (1, 1)),)
    early, late = program((1, 10), (1, 20)), program((1, 99), (1, 20))
    assert device_ends(early, late, meetings=meeting) == [[11, 120], [100, 120]]


def test_ranks_begin_when_they_began_and_streams_when_they_were_free() -> None:
    first, second = program((10, 5)), program((10, 5), begin_ns=100)
    assert device_ends(first, second) == [[15], [115]]
    assert device_ends(replace(first, backlog_ns={0: 40})) == [[45]]


def test_repetition_goes_on_where_the_last_one_ended() -> None:
    assert device_ends(program((10, 50), tail=3), repeats=3) == [[60, 110, 160]], "device-bound"
    assert device_ends(program((50, 10), tail=3), repeats=3) == [[60, 113, 166]], "host-bound, with its tail"
    released = replace(program((10, 50), tail=3), tail_released_by=0)
    assert device_ends(released, repeats=3) == [[60, 123, 186]], "synchronised at the end"


def test_steps_end_with_their_last_operation() -> None:
    graph = build_graph([program((10, 50), (1, 5), steps=2)], (), num_steps=2)
    assert step_ends(graph, end_times(graph)).tolist() == [[65, 120]]


def test_period_is_that_of_the_second_half() -> None:
    steady = replace(program((10, 50), steps=8), backlog_ns={0: 500})
    graph = build_graph([steady], (), num_steps=8)
    assert steady_period_ns(graph, end_times(graph)) == 50
    one = build_graph([program((10, 50))], (), num_steps=1)
    assert steady_period_ns(one, end_times(one)) == 60


def test_rank_without_a_program_does_not_count() -> None:
    graph = build_graph([EMPTY_PROGRAM, program((10, 50), steps=4)], (), num_steps=4)
    assert steady_period_ns(graph, end_times(graph)) == 50


def test_other_durations_keep_the_wiring() -> None:
    before, after = program((10, 50), (1, 5)), program((10, 7), (1, 5))
    graph = build_graph([before], (), num_steps=1)
    changed = with_durations(graph, [after], 0)
    assert changed.wiring is graph.wiring
    assert end_times(changed)[changed.device[0]].tolist() == [17, 22]


def test_circle_is_refused_and_not_followed_forever() -> None:
    crossed = replace(program((1, 1), (1, 1)), waits=np.array([[1], [0]]))
    with pytest.raises(CircularWaits, match="wait in a circle"):
        build_graph([crossed], (), num_steps=1)


def test_crossed_meetings_of_two_ranks_are_a_circle() -> None:
    meetings = (((0, 0), (1, 1)), ((0, 1), (1, 0)))
    with pytest.raises(CircularWaits):
        build_graph([program((1, 1), (1, 1))] * 2, meetings, num_steps=1)


def test_simulated_job_is_reproduced_end_by_end(tmp_path: Path) -> None:
    """Not only the period: every operation of every rank ends when it did."""
    step = [kernel(300), collective(500), kernel(200), collective(100), WAIT, kernel(100), SYNC]
    job = simulate(step, [kernel(900, host_us=100), *step[1:]], steps=8, jitter=0.2)
    shared = job.aligned(tmp_path)
    replay = replay_of(shared)
    assert replay is not None
    programs = [device_program(shared, i, np.arange(8)) for i in range(2)]
    graph = build_graph(programs, replay.meetings, num_steps=8)
    end = end_times(graph)
    begin = min(p.begin_ns for p in programs)
    for index, rank in enumerate(shared.run.ranks):
        recorded = shared.clocks.shared(index, rank.work.end_ns[programs[index].device_index]) - begin
        assert end[graph.device[index]] == pytest.approx(recorded, rel=0.005)
