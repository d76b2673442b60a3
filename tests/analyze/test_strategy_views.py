"""Buckets, sharding, tensor, expert and context parallelism: figures of jobs whose truth is known.

Times are those of `jobs.py`: a step of 4 ms, forward kernels of 0.2 ms, backward kernels of 0.4 ms every 0.5 ms.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace
from tests.analyze.jobs import Job, collective, ddp, fsdp, job_run, tp

from stepscope.analyze import data_parallel
from stepscope.analyze.account import by_strategy
from stepscope.analyze.collective_costs import rank_account
from stepscope.analyze.parallel_strategy import strategy_of
from stepscope.run.aligned import aligned
from stepscope.units import ms


def seen(tmp_path: Path, view: Any, job: Job, **given: Any) -> Any:
    run = job_run(tmp_path, job, **given)
    return view(aligned(run), strategy_of(run), [rank_account(r) for r in run.ranks])


def test_a_job_has_the_views_of_its_dimensions_and_no_others(tmp_path: Path) -> None:
    none = seen(tmp_path / "a", by_strategy, lambda r, at: None)
    assert set(none.values()) == {None}
    one = seen(tmp_path / "b", by_strategy, ddp)
    assert [name for name, view in one.items() if view is not None] == ["buckets"]


def test_buckets_come_with_size_order_delay_and_tail(tmp_path: Path) -> None:
    found = seen(tmp_path, data_parallel.bucket_view, ddp)
    assert [b.size_bytes for b in found.buckets] == [1_000_000, 4_000_000, 4_000_000]
    assert [ms(b.ready_ns) for b in found.buckets] == pytest.approx([0.7, 1.1, 1.5])
    assert [ms(b.time_ns) for b in found.buckets] == pytest.approx([0.1] * 3)
    assert [b.occurrences for b in found.buckets] == [8] * 3
    assert found.usual_share == 1
    one = found.ranks[0]
    assert (one.count, one.size_bytes, one.syncs, one.backward_passes) == (3, 9_000_000, 1, 1)
    assert ms(one.time_ns) == pytest.approx(0.3)
    assert ms(one.wait_ns) == pytest.approx(0, abs=0.001)
    # backward runs on the device from 1.210 to 3.110 ms, the first bucket from 1.900, the last until 2.800
    assert ms(one.backward_ns) == pytest.approx(1.9)
    assert ms(one.first_delay_ns) == pytest.approx(0.69)
    assert one.first_delay_pct == pytest.approx(100 * 0.69 / 1.9)
    assert ms(one.tail_ns) == 0
    assert found.over_ranks["count"].std == 0
    assert found.over_ranks["time_ns"].count == 4


def test_synchronising_every_micro_batch_shows(tmp_path: Path) -> None:
    """The second half of the backward pass becomes a pass of its own by a forward operator in between."""

    def accumulate(r: RankTrace, at: float) -> None:
        r.ran("aten::mm", at + 1992, at + 1998)
        for start in (at + 1400, at + 2400):
            collective(r, "allreduce", start, thread=AUTOGRAD)

    found = seen(tmp_path, data_parallel.bucket_view, accumulate)
    assert (found.ranks[0].syncs, found.ranks[0].backward_passes) == (2, 2)
    assert len(found.buckets) == 1
    assert found.buckets[0].occurrences == 16


@pytest.mark.parametrize(("again", "times"), [(True, 2), (False, 1)])
def test_gathers_against_parameters(tmp_path: Path, again: bool, times: int) -> None:
    found = seen(tmp_path, data_parallel.sharding_view, lambda r, at: fsdp(r, at, again=again))
    one = found.ranks[0]
    assert found.stage == ("zero3" if again else "zero2")
    assert (one.gathers_forward, one.gathers_backward, one.scatters) == (2, 2 * again, 2)
    assert one.parameter_bytes == 2 * 16_000_000
    assert one.gathers_of_parameters == times
    assert one.traffic_of_parameters == times + 1
    assert ms(one.gather_ns) == pytest.approx(0.2 * times)


def test_layers_of_tensor_parallelism(tmp_path: Path) -> None:
    found = seen(tmp_path, data_parallel.tensor_parallel_view, tp)
    assert [(x.part, x.position) for x in found.layers] == [(p, k) for p in ("forward", "backward") for k in range(4)]
    second = found.layers[1]
    # runs from 0.655 to 0.755 ms, the one before ended at 0.505; kernels run until 0.670 and from 0.720
    assert second.size_bytes == 4_000_000
    assert ms(second.time_ns) == pytest.approx(0.1)
    assert ms(second.compute_ns) == pytest.approx(0.150)
    assert ms(second.exposed_ns) == pytest.approx(0.050)
    assert second.share_pct == pytest.approx(100 * 0.050 / 0.250)
    one = found.ranks[0]
    assert one.count == 8 and ms(one.time_ns) == pytest.approx(0.8)
    assert one.share_of_step_pct == pytest.approx(100 * ms(one.exposed_ns) / 4)


def test_load_of_experts_is_on_the_uneven_side(tmp_path: Path) -> None:
    sent = 4_000
    received = {0: 13_000, 1: 1_000, 2: 1_000, 3: 1_000}

    def experts(r: RankTrace, at: float) -> None:
        amounts: dict[str, Any] = {
            "In split size": [3250, 250, 250, 250],
            "Out split size": [received[r.rank] // 4] * 4,
        }
        back: dict[str, Any] = {"In split size": [received[r.rank] // 4] * 4, "Out split size": [3250, 250, 250, 250]}
        collective(r, "all_to_allv", at + 100, elements=sent, out_elements=received[r.rank], **amounts)
        collective(r, "all_to_allv", at + 600, elements=received[r.rank], out_elements=sent, **back)

    found = seen(tmp_path, data_parallel.experts_view, experts)
    assert found.kind == "ep"
    assert found.imbalance == pytest.approx(13 / 4)
    assert found.worst_exchange == pytest.approx(13 / 4)
    assert found.fullest_rank == 0
    assert found.ranks[0].load_bytes == 2 * 4 * 13_000
    assert found.ranks[1].sent_bytes == 4 * (sent + 1_000)
    assert found.ranks[2].routing_imbalance == pytest.approx(3.25)


def test_ring_of_context_parallelism_and_uneven_compute(tmp_path: Path) -> None:
    def ring(r: RankTrace, at: float) -> None:
        pair = (("send", (r.rank + 1) % 4), ("recv", (r.rank - 1) % 4))
        r.messages(*pair, at=at + 30, start=at + 3120, end=at + 3220)
        if r.rank == 3:
            r.kernel("attention", at=at + 900, start=at + 3220, end=at + 3520)

    found = seen(tmp_path, data_parallel.context_parallel_view, ring)
    assert found.by == "ring"
    plain = 4 * 0.2 + 4 * 0.4 + 0.18
    assert ms(found.ranks[0].compute_ns) == pytest.approx(plain)
    assert found.compute_imbalance == pytest.approx((plain + 0.3) / (plain + 0.3 / 4))
    assert ms(found.ranks[0].exposed_ns) == pytest.approx(0.1)
    assert found.ranks[0].hidden_pct == pytest.approx(0)
