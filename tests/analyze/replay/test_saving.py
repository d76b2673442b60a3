"""What a fix saves: never more than the step or the time it claims, and less surely where the replay misfits."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run
from tests.analyze.simulate import Op, kernel, simulate

from stepscope.analyze.account import account_of
from stepscope.analyze.replay.changes import save_ns, state_saves, without_data_wait, without_state_saves
from stepscope.analyze.replay.communication_changes import larger_messages
from stepscope.analyze.replay.replay import Replay, replay_of
from stepscope.analyze.replay.saving import Fix, saving_of, together
from stepscope.diagnose.findings import diagnose

SYNC = Op("sync", 0)
LOADS = [Op("data", 3000), *[kernel(300)] * 5, SYNC]


@pytest.fixture
def loading(tmp_path: Path) -> Replay:
    found = replay_of(simulate(LOADS).aligned(tmp_path))
    assert found is not None
    return found


def test_a_saving_is_no_more_than_the_step_or_the_claim(loading: Replay) -> None:
    step_ns = loading.period_ns
    free = saving_of(loading, Fix(without_data_wait), step_ns=step_ns)
    assert free.ns == pytest.approx(3e6, rel=0.05) and free.low_ns <= free.ns <= free.high_ns <= step_ns
    assert saving_of(loading, Fix(without_data_wait, limit_ns=1e6), step_ns=step_ns).ns == 1e6
    assert saving_of(loading, Fix(None, formula_ns=9e9), step_ns=step_ns).ns == step_ns


def saving_run(folder: Path, *, copies: int) -> Replay:
    """Return a job that copies tensors to the host after each step, the host busy 100 us before each copy."""
    r = RankTrace()
    at = 0.0
    for n in range(6):
        begin = at
        with r.op("aten::mm", at + 2, at + 12):
            r.kernel("gemm", at=at + 5, start=at + 10, end=at + 1010)
        at += 1012
        for _ in range(copies):
            r.copy("DtoH (Device -> Pageable)", at=at + 100, start=at + 110, end=at + 160, call_us=62)
            at += 165
        r.step(n, begin, at)
    found = replay_of(account_of(built_run(folder, [r])).shared)
    assert found is not None
    return found


def test_many_copies_to_the_host_in_a_row_save_state(tmp_path: Path) -> None:
    replay = saving_run(tmp_path, copies=20)
    assert state_saves(replay.shared.run.ranks[0], replay.programs[0]).sum() == 20 * len(replay.steps)
    assert save_ns(replay) > 20 * 100e3
    assert without_state_saves(replay).period_ns == pytest.approx(1.01e6, rel=0.05)


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
    found = replay_of(account_of(built_run(folder, ranks)).shared)
    assert found is not None
    return found


def test_messages_put_together_take_their_hooks_with_them(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    marked, plain = unit_run(tmp_path / "a", hooks=True), unit_run(tmp_path / "b", hooks=False)
    saved = marked.period_ns - larger_messages(marked).period_ns
    assert saved > 0.7 * 16 * 400e3
    assert saved > plain.period_ns - larger_messages(plain).period_ns + 16 * 150e3


def test_fused_kernels_are_launched_once(tmp_path: Path) -> None:
    """Host-bound: ten elementwise kernels of 10 us, each launched in 100 us. Fused they cost the host one launch, but
    no more is claimed than what the kernels take.
    """
    r = RankTrace()
    for n in range(6):
        t = n * 1500
        r.step(n, t, t + 1500)
        for k in range(10):
            at = t + 5 + 100 * k
            with r.op("aten::mul", at, at + 95):
                r.kernel("void at::native::vectorized_elementwise_kernel<4>", at=at + 90, start=at + 95, end=at + 165)
        r.backward("MmBackward0", t + 1100, t + 1110)
        r.kernel("gemm", at=t + 1105, start=t + 1110, end=t + 1400, thread=AUTOGRAD)
        r.call("cudaDeviceSynchronize", t + 1115, t + 1405)
    found = {f.id: f for f in diagnose(account_of(built_run(tmp_path, [r]))).findings}
    assert found["memory-bound-kernels"].alone_ns == pytest.approx(700e3, rel=0.1)


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
