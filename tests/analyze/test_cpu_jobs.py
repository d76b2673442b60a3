"""CPU ranks: what gloo's threads do side by side, what is waiting, long steps that recur, uneven work."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.step_logs import log_lines
from tests.not_none import not_none

from stepscope.analyze.account import Account, account_of
from stepscope.analyze.replay.changes import larger_messages
from stepscope.analyze.replay.graph import NOTHING, host_program
from stepscope.analyze.replay.replay import Replay, replay_of
from stepscope.diagnose.findings import diagnose
from stepscope.run.aligned import aligned
from stepscope.run.load import Run
from stepscope.run.side_files import step_log_of

MS = 1000.0
RANKS = 2


def traces() -> list[RankTrace]:
    return [RankTrace(rank, world_size=RANKS, backend="gloo") for rank in range(RANKS)]


def overlapped(folder: Path, *, steps: int = 6) -> Run:
    """Return steps of 60 ms: buckets of 15 ms, two at a time, asked for every 10 ms of a backward pass of 40 ms.

    forward 10 | backward 40: buckets asked for at 20, 30, 40, 50, run till 35, 45, 55, 65 | optimizer 5: 70 ms
    """
    ranks = traces()
    for trace in ranks:
        for n in range(steps):
            at = n * 70 * MS
            trace.step(n, at, at + 70 * MS)
            trace.ran("aten::forward", at, at + 10 * MS)
            for k in range(4):
                begin = at + (10 + 10 * k) * MS
                trace.ran("aten::backward", begin, begin + 10 * MS - 100)  # a moment of nothing between operators
                asked = begin + 10 * MS
                trace.gloo("allreduce", at=asked - 50, start=asked, end=asked + 15 * MS, elements=250_000)
            trace.ran("aten::optimizer", at + 65 * MS, at + 70 * MS)
    return built_run(folder, ranks)


def replay_of_run(run: Run) -> Replay:
    return not_none(replay_of(aligned(run)))


def test_collectives_run_side_by_side_on_gloos_threads(tmp_path: Path) -> None:
    run = overlapped(tmp_path)
    program = host_program(aligned(run), 0, np.array([0, 1]))
    assert program.stream[:4].tolist() == [0, 1, 0, 1]
    assert program.stream_predecessor[:4].tolist() == [NOTHING, NOTHING, 0, 1]


def test_merging_messages_spares_the_calls_and_no_compute(tmp_path: Path) -> None:
    """Compute between two calls is the same with one call less; 5 us of a call are the operator's."""
    replay = replay_of_run(overlapped(tmp_path))
    merged = larger_messages(replay)
    before, after = (sum(p.host.own_ns.sum() for p in r.programs) for r in (replay, merged))
    calls = sum(len(p) for p in replay.programs)
    assert 0 < before - after <= calls * 5_000


def alone(folder: Path, lengths_ms: list[float]) -> Run:
    """Return steps of these lengths, all but 10 ms of each spent in an operator."""
    ranks = traces()
    for trace in ranks:
        at = 0.0
        for n, length in enumerate(lengths_ms):
            trace.step(n, at, at + length * MS)
            trace.ran("aten::mm", at, at + (length - 10) * MS)
            trace.gloo("allreduce", at=at + (length - 10) * MS, start=at + (length - 9.9) * MS, end=at + length * MS)
            at += length * MS
    return built_run(folder, ranks)


def test_single_hiccup_is_left_out_of_the_replay(tmp_path: Path) -> None:
    lengths = [50.0] * 12
    lengths[9] = 400
    run = alone(tmp_path, lengths)
    replay = replay_of_run(run)
    assert replay.steps.tolist() == list(range(9)) and replay.hiccups == (9,)
    assert replay.period_ns == pytest.approx(50e6, rel=0.02)
    said = "step 9 took over 1.5 times the median: savings and what-ifs use steps 0 to 8"
    assert said in account_of(run).warnings


def test_step_number_that_one_rank_recorded_twice_breaks_nothing(tmp_path: Path) -> None:
    run = alone(tmp_path, [50.0] * 8)
    twice = run.ranks[0].steps
    steps = replace(twice, number=np.concatenate((twice.number[:7], twice.number[6:7])))
    again = replace(run, ranks=(replace(run.ranks[0], steps=steps), run.ranks[1]))
    assert replay_of_run(again).steps.tolist() == list(range(7))


def with_logs(run: Run, lengths_ms: list[float]) -> Run:
    logs = tuple(step_log_of(log_lines(lengths_ms), rank=rank) for rank in range(RANKS))
    return replace(run, logs=logs, description={**run.description, "unprofiled_step_ms": 50.0})


def account(folder: Path, profiled_ms: list[float], unprofiled_ms: list[float]) -> Account:
    return account_of(with_logs(alone(folder, profiled_ms), unprofiled_ms))


def test_step_of_a_run_with_recurring_long_steps_is_their_mean(tmp_path: Path) -> None:
    found = account(tmp_path, [50, 50, 200] * 4, [50, 50, 200] * 10)
    assert found.step is not None
    assert found.step.unprofiled_ns == pytest.approx(100e6) and found.step.profiled_ns == pytest.approx(50e6, rel=0.01)
    assert sum(part.ns_per_step for part in found.step.parts) == pytest.approx(100e6)
    assert found.step.ns("unknown") < 1e6
    assert any("33 % of the unprofiled steps take over 1.5 times their median" in w for w in found.warnings)


def uneven(folder: Path, *, flops: tuple[int, int], more_operators: bool = False) -> Run:
    """Return a run in which rank 1 computes 60 ms and rank 0 30 ms before they meet."""
    ranks = traces()
    for rank, trace in enumerate(ranks):
        for n in range(6):
            at, own = n * 75 * MS, (30 + 30 * rank) * MS
            trace.step(n, at, at + 75 * MS)
            count = 20 if rank and more_operators else 10
            for k in range(count):
                trace.ran("aten::mm", at + k * own / count, at + (k + 1) * own / count - 5)
            trace.gloo("allreduce", at=at + own, start=at + own + 10, end=at + 70 * MS, elements=1_000_000)
            trace.ran("aten::add_", at + 70 * MS, at + 75 * MS)
    about = {str(rank): {"flops": {"total": flops[rank]}} for rank in range(RANKS)}
    return built_run(folder, ranks, description={"schema": 1, "world_size": RANKS, "ranks": about})


def test_evenly_spread_load_saves_half_of_the_difference(tmp_path: Path) -> None:
    first = diagnose(account_of(uneven(tmp_path, flops=(10**9, 2 * 10**9)))).findings[0]
    assert first.id == "load-imbalance" and first.ranks == (1,)
    assert first.saving_ns == pytest.approx(15e6, rel=0.2)
