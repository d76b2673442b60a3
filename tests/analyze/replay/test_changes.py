"""Every what-if on the replay of a simulated job gives the step of the job with that change, and its saving."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.owners.owned_folder import owned_folder
from tests.analyze.owners.simulated import line_of, owned_run
from tests.analyze.simulate import SYNC, WAIT, Op, collective, kernel, simulate
from tests.not_none import not_none

from stepscope.analysis import Analysis
from stepscope.analyze.account import account_of
from stepscope.analyze.replay import changes
from stepscope.analyze.replay.removal import MAX_REPLAYED, Fix, predict, saving_of, together
from stepscope.analyze.replay.replay import Replay, replay_of

KERNELS = [kernel(300) for _ in range(5)]
TINY = [kernel(20, host_us=100, name="tiny") for _ in range(8)]
SLOW = [kernel(20, host_us=500) for _ in range(200)]
DDP = [kernel(300), collective(500), kernel(300), collective(900), kernel(300), WAIT, kernel(100)]


def replayed(folder: Path, programs: Sequence[Sequence[Op]], **options: float) -> Replay:
    return not_none(replay_of(simulate(*programs, **options).aligned(folder)))  # type: ignore[arg-type]


def named(replay: Replay, name: str) -> list[np.ndarray]:
    """Return the device work of a name, per rank."""
    return [np.array([r.trace.text(int(n)) == name for n in r.work.name]) for r in replay.shared.run.ranks]


def ddp(*, compute: float = 1, host: float = 1, transfer: float = 1) -> list[Op]:
    """Return a synchronised data-parallel step, its parts longer or shorter by a factor."""
    factor = {"collective": transfer}
    longer = [
        replace(op, host_us=op.host_us * host, device_us=op.device_us * factor.get(op.what, compute)) for op in DDP
    ]
    return [*longer, SYNC]


Programs = list[Sequence[Op]]
CASES: dict[str, tuple[Programs, Programs, changes.Change]] = {
    "data": ([[Op("data", 3000), *KERNELS, SYNC]], [[*KERNELS, SYNC]], changes.without_data_wait),
    "data that was hidden": ([[Op("data", 500), *KERNELS]], [KERNELS], changes.without_data_wait),
    "stall": ([[*KERNELS, Op("stall", 4000), SYNC]], [[*KERNELS, SYNC]], changes.without_stalls),
    "stall of 4 ms in a step of 100": ([[*SLOW, Op("stall", 4000), SYNC]], [[*SLOW, SYNC]], changes.without_stalls),
    "allocator": ([[Op("alloc", 2500), *KERNELS, SYNC]], [[*KERNELS, SYNC]], changes.without_allocator),
    "sync in between": ([[*KERNELS, SYNC, *TINY]], [[*KERNELS, *TINY]], changes.without_syncs),
    "sync at the end": ([[*TINY, *KERNELS, SYNC]], [[*TINY, *KERNELS]], changes.without_syncs),
    "work gone": ([[*KERNELS, *TINY, SYNC]], [[*KERNELS, SYNC]], lambda r: changes.without_work(r, named(r, "tiny"))),
    "work twice as fast": (
        [[*KERNELS, SYNC]],
        [[*[kernel(150)] * 5, SYNC]],
        lambda r: changes.faster_work(r, named(r, "gemm"), 0.5),
    ),
    "work fused": (
        [[*KERNELS, *TINY]],
        [[*KERNELS, kernel(40, host_us=100)]],
        lambda r: changes.fused_work(r, named(r, "tiny"), launches=1, device_share=0.25),
    ),
    "network twice as fast": ([ddp()] * 2, [ddp(transfer=0.5)] * 2, lambda r: changes.faster_network(r, 2)),
    "slow device": ([ddp(), ddp(), ddp(compute=4)], [ddp()] * 3, lambda r: changes.straggler_off(r, [2])),
    "slow host": ([ddp(), ddp(), ddp(host=30)], [ddp()] * 3, lambda r: changes.straggler_off(r, [2])),
    "slow data": ([ddp(), ddp(), [Op("data", 3000), *ddp()]], [ddp()] * 3, lambda r: changes.straggler_off(r, [2])),
    "uneven work": ([ddp(compute=1.5), ddp(compute=0.5)], [ddp()] * 2, changes.evenly_spread),
}


@pytest.mark.parametrize("name", CASES)
def test_prediction_equals_the_job_with_the_change(tmp_path: Path, name: str) -> None:
    before, after, change = CASES[name]
    replay = replayed(tmp_path, before)
    truth_us = simulate(*after).period_us
    assert change(replay).period_ns / 1000 == pytest.approx(truth_us, rel=0.02)


def test_changes_compose(tmp_path: Path) -> None:
    replay = replayed(tmp_path, [[Op("data", 3000), *KERNELS, Op("alloc", 2000), SYNC]])
    both = changes.without_allocator(changes.without_data_wait(replay))
    assert both.period_ns / 1000 == pytest.approx(simulate([*KERNELS, SYNC]).period_us, rel=0.02)
    assert changes.without_data_wait(changes.without_allocator(replay)).period_ns == both.period_ns


LATE_IN_ONE_PLACE: dict[str, Sequence[Op]] = {
    "one kernel is long": [kernel(2300), *ddp()[1:]],
    "a kernel that no peer has": [kernel(2000, name="burner"), *ddp()],
    "one call is slow": [kernel(300, host_us=4000), *ddp()[1:]],
}


@pytest.mark.parametrize("name", LATE_IN_ONE_PLACE)
def test_lateness_goes_from_where_it_was(tmp_path: Path, name: str) -> None:
    late = LATE_IN_ONE_PLACE[name]
    replay = replayed(tmp_path, [ddp(), ddp(), late])
    found_us = changes.straggler_off(replay, [2]).period_ns / 1000
    assert found_us == pytest.approx(simulate(ddp(), ddp(), ddp()).period_us, rel=0.02)


def test_prediction_has_an_interval_around_it(tmp_path: Path) -> None:
    replay = replayed(tmp_path, [[Op("data", 3000), *KERNELS, SYNC]])
    found = predict(replay, [("data=instant", Fix(changes.without_data_wait))])
    assert found.baseline_ns == replay.period_ns
    assert found.low_ns < found.step_ns < found.high_ns <= found.baseline_ns
    assert found.changes == ("data=instant",)
    assert found.rank_step_ns == {0: pytest.approx(found.step_ns, rel=0.01)}


DOWN = "DtoH (Device -> Pageable)"


def saving_run(folder: Path, *, copies: int, size_bytes: int = 4096) -> Replay:
    """Return a job that copies tensors to the host after each step, the host busy 100 us before each copy."""
    r = RankTrace()
    at = 0.0
    for n in range(6):
        begin = at
        with r.op("aten::mm", at + 2, at + 12):
            r.kernel("gemm", at=at + 5, start=at + 10, end=at + 1010)
        at += 1012
        for _ in range(copies):
            r.copy(DOWN, at=at + 100, start=at + 110, end=at + 160, call_us=62, size_bytes=size_bytes)
            at += 165
        r.step(n, begin, at)
    return not_none(replay_of(account_of(built_run(folder, [r])).shared))


def test_many_copies_to_the_host_in_a_row_save_state(tmp_path: Path) -> None:
    replay = saving_run(tmp_path, copies=20)
    assert changes.state_saves(replay.shared.run.ranks[0], replay.programs[0]).sum() == 20 * len(replay.steps)
    assert changes.save_ns(replay) > 20 * 100e3
    assert changes.without_state_saves(replay).period_ns == pytest.approx(1.01e6, rel=0.05)


def test_values_read_one_by_one_are_no_state(tmp_path: Path) -> None:
    replay = saving_run(tmp_path, copies=20, size_bytes=8)
    assert not changes.state_saves(replay.shared.run.ranks[0], replay.programs[0]).any()


def unit_run(folder: Path, *, hooks: bool) -> Replay:
    """Return a job of 16 small gathers, each inside 400 us of the host's hooks."""
    ranks = []
    for rank in range(2):
        r = RankTrace(rank, world_size=2)
        for n in range(6):
            t = n * 8000
            r.step(n, t, t + 8000)
            for k in range(16):
                at = t + 10 + k * 495
                if hooks:
                    r.annotation("FSDP::pre_forward (0.lin)", at, at + 400)
                with r.op("aten::copy_", at + 300, at + 310):
                    r.kernel("copy", at=at + 305, start=at + 310, end=at + 315)
                r.collective("_allgather_base", at=at + 390, start=at + 395, end=at + 425, elements=10_000)
                with r.op("aten::mm", at + 440, at + 450):
                    r.kernel("gemm", at=at + 445, start=at + 450, end=at + 460)
        ranks.append(r)
    return not_none(replay_of(account_of(built_run(folder, ranks)).shared))


def test_messages_put_together_take_their_hooks_with_them(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    marked, plain = unit_run(tmp_path / "a", hooks=True), unit_run(tmp_path / "b", hooks=False)
    saved = marked.period_ns - changes.larger_messages(marked).period_ns
    assert saved > 0.7 * 16 * 400e3
    assert saved > plain.period_ns - changes.larger_messages(plain).period_ns + 16 * 150e3


def test_fixes_that_claim_the_same_time_remove_it_once() -> None:
    stall = Fix(None, formula_ns=4e6, limit_ns=3e6, claim="host_stall")
    other = Fix(None, doubt=0.4, formula_ns=2e6, limit_ns=2e6, claim="host_stall")
    copies = Fix(None, formula_ns=1e6, limit_ns=1e6, claim="copies")
    assert saving_of(None, together([stall, other]), step_ns=9e6).ns == 3e6
    both = together([stall, copies])
    assert saving_of(None, both, step_ns=9e6).ns == 4e6 and both.claim == "copies and host_stall"
    assert saving_of(None, both, step_ns=2e6).ns == 2e6
    assert together([stall, other]).doubt == 0.4
    assert together([stall, replace(other, limit_ns=None)]).limit_ns is None


DEVICE_BOUND = [kernel(150, host_us=20) for _ in range(6)]


def test_a_line_saves_what_the_job_without_it_saves(tmp_path: Path) -> None:
    program = [*DEVICE_BOUND, kernel(900, host_us=20), SYNC, collective(400), WAIT]
    rest = [*DEVICE_BOUND, SYNC, collective(400), WAIT]
    account = account_of(owned_run(tmp_path, program, program))
    true_us = simulate(program, program).period_us - simulate(rest, rest).period_us
    assert account.line_savings[f"train.py:{line_of(6)}"] / 1000 == pytest.approx(true_us, rel=0.05)


def test_savings_are_those_of_the_what_if(tmp_path: Path) -> None:
    run = Analysis(owned_run(tmp_path, [*DEVICE_BOUND, kernel(700), SYNC]))
    for owner, saving_ns in run.account.line_savings.items():
        answer = run.without(owner).prediction
        assert saving_ns == pytest.approx(answer.baseline_ns - answer.step_ns)


def test_the_first_ten_lines_have_one(tmp_path: Path) -> None:
    program = [kernel(100 + 10 * k) for k in range(14)]
    account = account_of(owned_run(tmp_path, program))
    assert account.code is not None and len(account.code.lines) == 14
    assert list(account.line_savings) == [line.owner for line in account.code.lines[:MAX_REPLAYED]]


def test_a_line_around_the_whole_step_has_none(tmp_path: Path) -> None:
    account = account_of(owned_folder(tmp_path))
    assert "train.py:9" not in account.line_savings
    assert {"train.py:10", "train.py:12"} <= set(account.line_savings)
