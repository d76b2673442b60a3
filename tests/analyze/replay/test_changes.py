"""Every what-if, made on the replay of a simulated job, gives the step of the job simulated with that change."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.simulate import SYNC, WAIT, Op, collective, kernel, simulate

from stepscope.analyze.replay.changes import (
    Change,
    evenly_spread,
    faster_network,
    faster_work,
    fused_work,
    straggler_off,
    without_allocator,
    without_data_wait,
    without_stalls,
    without_syncs,
    without_work,
)
from stepscope.analyze.replay.communication_changes import fewer_bytes
from stepscope.analyze.replay.replay import Replay, replay_of
from stepscope.analyze.replay.saving import Fix, predict

KERNELS = [kernel(300) for _ in range(5)]
TINY = [kernel(20, host_us=100, name="tiny") for _ in range(8)]
SLOW = [kernel(20, host_us=500) for _ in range(200)]
DDP = [kernel(300), collective(500), kernel(300), collective(900), kernel(300), WAIT, kernel(100)]


def replayed(folder: Path, programs: Sequence[Sequence[Op]], **options: float) -> Replay:
    replay = replay_of(simulate(*programs, **options).aligned(folder))  # type: ignore[arg-type]
    assert replay is not None
    return replay


def named(replay: Replay, name: str) -> list[np.ndarray]:
    """Return the device work of a name, per rank."""
    return [np.array([r.trace.text(int(n)) == name for n in r.work.name]) for r in replay.shared.run.ranks]


def ddp(*, compute: float = 1, host: float = 1, transfer: float = 1) -> list[Op]:
    """Return a synchronised data-parallel step, its parts longer or shorter by a factor."""
    return [
        *(
            replace(
                op,
                host_us=op.host_us * host,
                device_us=op.device_us * (transfer if op.what == "collective" else compute),
            )
            for op in DDP
        ),
        SYNC,
    ]


Programs = list[Sequence[Op]]
CASES: dict[str, tuple[Programs, Programs, Change]] = {
    "data": ([[Op("data", 3000), *KERNELS, SYNC]], [[*KERNELS, SYNC]], without_data_wait),
    "data that was hidden": ([[Op("data", 500), *KERNELS]], [KERNELS], without_data_wait),
    "stall": ([[*KERNELS, Op("stall", 4000), SYNC]], [[*KERNELS, SYNC]], without_stalls),
    "stall of 4 ms in a step of 100": ([[*SLOW, Op("stall", 4000), SYNC]], [[*SLOW, SYNC]], without_stalls),
    "allocator": ([[Op("alloc", 2500), *KERNELS, SYNC]], [[*KERNELS, SYNC]], without_allocator),
    "sync in between": ([[*KERNELS, SYNC, *TINY]], [[*KERNELS, *TINY]], without_syncs),
    "sync at the end": ([[*TINY, *KERNELS, SYNC]], [[*TINY, *KERNELS]], without_syncs),
    "work gone": ([[*KERNELS, *TINY, SYNC]], [[*KERNELS, SYNC]], lambda r: without_work(r, named(r, "tiny"))),
    "work twice as fast": (
        [[*KERNELS, SYNC]],
        [[*[kernel(150)] * 5, SYNC]],
        lambda r: faster_work(r, named(r, "gemm"), 0.5),
    ),
    "work fused": (
        [[*KERNELS, *TINY]],
        [[*KERNELS, kernel(40, host_us=100)]],
        lambda r: fused_work(r, named(r, "tiny"), launches=1, device_share=0.25),
    ),
    "network twice as fast": ([ddp()] * 2, [ddp(transfer=0.5)] * 2, lambda r: faster_network(r, 2)),
    "slow device": ([ddp(), ddp(), ddp(compute=4)], [ddp()] * 3, lambda r: straggler_off(r, [2])),
    "slow host": ([ddp(), ddp(), ddp(host=30)], [ddp()] * 3, lambda r: straggler_off(r, [2])),
    "slow data": ([ddp(), ddp(), [Op("data", 3000), *ddp()]], [ddp()] * 3, lambda r: straggler_off(r, [2])),
    "uneven work": ([ddp(compute=1.5), ddp(compute=0.5)], [ddp()] * 2, evenly_spread),
}


@pytest.mark.parametrize("name", CASES)
def test_prediction_equals_the_job_with_the_change(tmp_path: Path, name: str) -> None:
    before, after, change = CASES[name]
    replay = replayed(tmp_path, before)
    truth_us = simulate(*after).period_us
    assert change(replay).period_ns / 1000 == pytest.approx(truth_us, rel=0.02)


def test_changes_compose(tmp_path: Path) -> None:
    replay = replayed(tmp_path, [[Op("data", 3000), *KERNELS, Op("alloc", 2000), SYNC]])
    both = without_allocator(without_data_wait(replay))
    assert both.period_ns / 1000 == pytest.approx(simulate([*KERNELS, SYNC]).period_us, rel=0.02)
    assert without_data_wait(without_allocator(replay)).period_ns == both.period_ns


def test_half_the_bytes_keep_the_latency(tmp_path: Path) -> None:
    """Transfers of 100 us + 1 us per 10,000 elements: half the elements save only their own part."""
    calls = [collective(100 + n / 10_000, elements=n) for n in (1_000_000, 4_000_000, 8_000_000)]
    halved = [collective(100 + n / 20_000, elements=n) for n in (1_000_000, 4_000_000, 8_000_000)]
    replay = replayed(tmp_path, [[kernel(100), *calls, WAIT, kernel(50), SYNC]] * 2)
    truth = simulate(*[[kernel(100), *halved, WAIT, kernel(50), SYNC]] * 2).period_us
    assert fewer_bytes(replay, 0.5).period_ns / 1000 == pytest.approx(truth, rel=0.02)


LATE_IN_ONE_PLACE: dict[str, Sequence[Op]] = {
    "one kernel is long": [kernel(2300), *ddp()[1:]],
    "a kernel that no peer has": [kernel(2000, name="burner"), *ddp()],
    "one call is slow": [kernel(300, host_us=4000), *ddp()[1:]],
}


@pytest.mark.parametrize("name", LATE_IN_ONE_PLACE)
def test_lateness_goes_from_where_it_was(tmp_path: Path, name: str) -> None:
    late = LATE_IN_ONE_PLACE[name]
    replay = replayed(tmp_path, [ddp(), ddp(), late])
    found_us = straggler_off(replay, [2]).period_ns / 1000
    assert found_us == pytest.approx(simulate(ddp(), ddp(), ddp()).period_us, rel=0.02)


def test_prediction_has_an_interval_around_it(tmp_path: Path) -> None:
    replay = replayed(tmp_path, [[Op("data", 3000), *KERNELS, SYNC]])
    found = predict(replay, [("data=instant", Fix(without_data_wait))])
    assert found.baseline_ns == replay.period_ns
    assert found.low_ns < found.step_ns < found.high_ns <= found.baseline_ns
    assert found.changes == ("data=instant",)
    assert found.rank_step_ns == {0: pytest.approx(found.step_ns, rel=0.01)}
