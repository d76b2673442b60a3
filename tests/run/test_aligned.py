"""The same collective is found on every rank; waiting and transfer come apart as they were put in."""

import json
import random

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.run.together import Job

from stepscope.contract.operations import OPS
from stepscope.run.aligned import UNMATCHED, aligned
from stepscope.run.clocks import Matches, match_collectives
from stepscope.run.load import Run, load

SECOND = 1_000_000.0
BASE_NS = 1_700_000_000_000_000_000

HARD = {
    "equal clocks": Job(late_us=(0, 2000, 0, 0)),
    "10 s apart": Job(late_us=(0, 2000, 0, 0), offset_us=(0, 10 * SECOND, -10 * SECOND, 20_000)),
    "one always late, another jittering": Job(
        late_us=(5000, 0, 0, 0), arrival_jitter_us=4000, offset_us=(0, -20_000, 0, 7)
    ),
    "drifting 100 ppm for 20 s": Job(
        steps=20, step_us=SECOND, late_us=(0, 0, 9000, 0), drift_ppm=(0, 100, 0, -100), offset_us=(0, SECOND, 0, 0)
    ),
    "eight ranks": Job(ranks=8, offset_us=tuple(1000.0 * r * r for r in range(8)), late_us=(0,) * 7 + (3000,)),
}


@pytest.mark.parametrize("name", HARD)
def test_waiting_and_transfer_are_recovered_within_one_percent(tmp_path, name):
    job = HARD[name]
    run = job.run(tmp_path)
    shared = aligned(run)
    most_us = max(job.wait_us)
    for r, rank in enumerate(run.ranks):
        wait = shared.wait_ns[r]
        assert (wait != UNMATCHED).all(), "everything is matched"
        transfer = rank.collectives.end_ns - rank.collectives.start_ns - wait
        scale = 1 + 1e-6 * (job.drift_ppm[r] if job.drift_ppm else 0)
        assert transfer.sum() / 1000 == pytest.approx(job.transfer_sum_us[r] * scale, rel=0.01)
        assert wait.sum() / 1000 == pytest.approx(job.wait_us[r] * scale, rel=0.01, abs=0.01 * most_us)


def hard_job(seed: int) -> Job:
    """Return a job with everything at once: clocks up to 10 s apart that drift, a late rank, jitter."""
    rng = random.Random(seed)
    late = [0.0] * 5
    late[rng.randrange(5)] = rng.uniform(3000, 9000)
    return Job(
        ranks=5, steps=14, step_us=0.6 * SECOND, late_us=late,
        offset_us=[rng.uniform(-10, 10) * SECOND for _ in range(5)],
        drift_ppm=[rng.uniform(-100, 100) for _ in range(5)], arrival_jitter_us=2000, end_jitter_us=3, seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_cut_and_shifted_windows_on_drifting_clocks_come_apart_too(tmp_path, seed):
    """One rank's file is cut off, another's window begins later: what both still hold is matched, all of it."""
    job, rng = hard_job(seed), random.Random(seed)
    cut, later = rng.sample(range(5), 2)
    traces = job.traces(skip_steps=[2 if r == later else 0 for r in range(5)])
    for trace in traces:
        if trace.rank != cut:
            trace.write(tmp_path)
    text = json.dumps(traces[cut].document())
    (tmp_path / f"rank{cut}.json").write_text(text[: int(len(text) * rng.uniform(0.8, 0.95))])
    run = load(tmp_path, cache=False)
    shared = aligned(run)
    assert len(shared.matches) == job.steps * job.per_step
    for moment in np.linspace(2, job.steps - 4, 5) * job.step_us:
        local = [BASE_NS + trace._local_ns(moment) for trace in traces]
        at = np.array([int(shared.clocks.shared(r, np.array([ns]))[0]) for r, ns in enumerate(local)])
        assert (np.abs(at - at[0]) <= shared.clocks.uncertainty_ns).all()
    everywhere = sorted(set.intersection(*({*rank.steps.number.tolist()} for rank in run.ranks)))
    assert len(everywhere) >= 7
    most = max(job.truth_us[step][r][0] for step in everywhere for r in range(5)) * len(everywhere)
    for r, rank in enumerate(run.ranks):
        wait, c = shared.wait_ns[r], rank.collectives
        assert (wait[c.step >= 0] != UNMATCHED).all()
        mine = np.flatnonzero((c.step >= 0) & np.isin(rank.steps.number[c.step], everywhere))
        assert len(mine) == len(everywhere) * job.per_step
        truth = [sum(job.truth_us[step][r][part] for step in everywhere) for part in (0, 1)]
        assert wait[mine].sum() / 1000 == pytest.approx(truth[0], rel=0.01, abs=0.01 * most)
        assert (c.end_ns - c.start_ns - wait)[mine].sum() / 1000 == pytest.approx(truth[1], rel=0.01)


def test_coalesced_operation_waits_for_the_latest_of_its_peers(tmp_path):
    traces = [RankTrace(r, world_size=3) for r in range(3)]
    starts = (100.0, 400.0, 250.0)
    for trace in traces:
        trace.step(0, 0, 9000)
        peers = [r for r in range(3) if r != trace.rank]
        for k in range(3):
            listed = [(op, peer) for peer in peers for op in ("send", "recv")]
            start = 3000 * k + starts[trace.rank]
            trace.messages(*listed, at=3000 * k, start=start, end=3000 * k + 900)
    waits = aligned(built_run(tmp_path, traces)).wait_ns
    assert [w.tolist() for w in waits] == [[300_000] * 3, [0] * 3, [150_000] * 3]


def members(matches: Matches) -> list[set[tuple[int, int]]]:
    """Return `(rank index, row)` of each match."""
    pairs = list(zip(matches.rank_index.tolist(), matches.row.tolist(), strict=True))
    return [set(pairs[a:b]) for a, b in zip(matches.first[:-1], matches.first[1:], strict=True)]


def true_moments(run: Run, matches: Matches) -> list[set[int]]:
    """Return for each match the true times (in us) at which its members were issued: one where it is right."""
    return [{round(int(run.ranks[r].collectives.issue_ns[row]) / 1000) for r, row in m} for m in members(matches)]


@pytest.mark.parametrize("skip", [(0, 0, 1, 0), (2, 0, 0, 0), (0, 1, 2, 3)])
def test_shifted_windows_match_the_steps_they_share(tmp_path, skip):
    job = Job()
    run = built_run(tmp_path, job.traces(skip_steps=skip))
    matches = match_collectives(run.ranks)
    assert all(len(moments) == 1 for moments in true_moments(run, matches))
    there = [sum(step >= s for s in skip) for step in range(job.steps) for _ in range(job.per_step)]
    assert sorted(len(m) for m in members(matches)) == sorted(n for n in there if n > 1)


@pytest.mark.parametrize("steps", [True, False])
def test_kernels_without_any_arguments_are_matched_by_order(tmp_path, steps):
    """Old versions record neither group nor size: the range around the launch has the operation."""
    traces = []
    for rank in range(3):
        trace = RankTrace(rank, world_size=3, clock_offset_us=1e6 * rank)
        if steps:
            trace.step(0, 0, 10_000)
        for k in range(6):
            name = ("AllReduce", "SendRecv")[k % 2]
            trace.annotation(("nccl:all_reduce", "nccl:all_to_all")[k % 2], 1000 * k, 1000 * k + 30)
            trace.kernel(
                f"ncclKernel_{name}_RING_LL_Sum", at=1000 * k + 10, start=1000 * k + 50 * rank, end=1000 * k + 700
            )
        traces.append(trace)
    run = built_run(tmp_path, traces)
    matches = match_collectives(run.ranks)
    assert [len(m) for m in members(matches)] == [3] * 6
    assert [OPS[matches.op[m]] for m in range(6)] == ["all_reduce", "all_to_all"] * 3
    waits = np.stack(aligned(run).wait_ns)
    assert (waits == [[100_000], [50_000], [0]]).all()


def pipeline(*, coalesced: bool) -> list[RankTrace]:
    """Return a chain of four ranks: each sends to the next and gets back from it, several times per step."""
    traces = [RankTrace(r, world_size=4) for r in range(4)]
    for trace in traces:
        r = trace.rank
        for step in range(2):
            base = 50_000 * step
            trace.step(step, base, base + 49_000)
            for k in range(3):
                for low in range(3):
                    if r not in (low, low + 1):
                        continue
                    there, ready = (r == low), base + 10_000 * k + 2000 * low
                    peer = low + 1 if there else low
                    if coalesced:
                        both = ("send", peer), ("recv", peer)
                        trace.messages(*both, at=ready, start=ready + 100, end=ready + 600, elements=10 + k)
                        continue
                    first, second = ("send", "recv") if there else ("recv", "send")
                    for op, at in ((first, ready), (second, ready + 400)):
                        trace.collective(op, at=at, start=at + 100, end=at + 300, peer=peer, elements=10 + k)
        random.Random(r).shuffle(trace.events)
    return traces


@pytest.mark.parametrize("coalesced", [False, True])
def test_every_send_meets_its_receive(tmp_path, coalesced):
    run = built_run(tmp_path, pipeline(coalesced=coalesced))
    matches = match_collectives(run.ranks)
    assert len(matches) == 2 * 3 * 3 * 2, "steps x repetitions x pairs x directions"
    assert {OPS[matches.op[m]] for m in range(len(matches))} == {"send"}
    for m, (first, after) in enumerate(zip(matches.first[:-1], matches.first[1:], strict=True)):
        (sender, sent), (receiver, got) = zip(matches.rank_index[first:after], matches.row[first:after], strict=True)
        there, back = run.ranks[sender].collectives, run.ranks[receiver].collectives
        assert abs(sender - receiver) == 1
        assert there.start_ns[sent] == back.start_ns[got]
        assert matches.size_bytes[m] == there.in_bytes[sent] == back.out_bytes[got]
    assert all((wait >= 0).all() for wait in aligned(run).wait_ns)
