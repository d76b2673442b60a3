"""The same collective is found on every rank that recorded it, and never another one."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.run.together import Job

from stepscope.contract.collectives import OPS
from stepscope.contract.run_folder import trace_file
from stepscope.run.aligned import aligned
from stepscope.run.load import Run, load
from stepscope.run.matching import Matches, match_collectives


def members(matches: Matches) -> list[set[tuple[int, int]]]:
    """Return `(rank index, row)` of each match."""
    pairs = list(zip(matches.rank_index.tolist(), matches.row.tolist(), strict=True))
    return [set(pairs[a:b]) for a, b in zip(matches.first[:-1], matches.first[1:], strict=True)]


def true_moments(run: Run, matches: Matches) -> list[set[int]]:
    """Return for each match the true times (in us) at which its members were issued: one where it is right."""
    return [{round(int(run.ranks[r].collectives.issue_ns[row]) / 1000) for r, row in m} for m in members(matches)]


@pytest.mark.parametrize("seed", range(3))
def test_every_collective_is_matched_on_all_ranks(tmp_path: Path, seed: int) -> None:
    job = Job(seed=seed, arrival_jitter_us=3000)
    run = job.run(tmp_path)
    matches = match_collectives(run.ranks)
    assert len(matches) == job.steps * job.per_step
    assert all(len(m) == job.ranks for m in members(matches))
    assert all(len(moments) == 1 for moments in true_moments(run, matches))
    assert [OPS[matches.op[m]] for m in range(3)] == ["all_reduce", "all_gather", "reduce_scatter"]
    assert matches.step.tolist() == sorted(matches.step.tolist())


@pytest.mark.parametrize("skip", [(0, 0, 1, 0), (2, 0, 0, 0), (0, 1, 2, 3)])
def test_shifted_windows_match_the_steps_they_share(tmp_path: Path, skip: tuple[int, ...]) -> None:
    job = Job()
    run = built_run(tmp_path, job.traces(skip_steps=skip))
    matches = match_collectives(run.ranks)
    assert all(len(moments) == 1 for moments in true_moments(run, matches))
    there = [sum(step >= s for s in skip) for step in range(job.steps) for _ in range(job.per_step)]
    assert sorted(len(m) for m in members(matches)) == sorted(n for n in there if n > 1)


def test_cut_file_matches_all_of_its_whole_steps(tmp_path: Path) -> None:
    job = Job(ranks=3, steps=8)
    for trace in job.traces():
        trace.write(tmp_path)
    text = json.dumps(job.traces()[1].document())
    (tmp_path / trace_file(1)).unlink()
    (tmp_path / "rank1.json").write_text(text[: len(text) * 3 // 4])
    run = load(tmp_path, cache=False)
    kept = run.ranks[1].steps.number.tolist()
    assert 3 <= len(kept) < 8
    matches = match_collectives(run.ranks)
    assert all(len(moments) == 1 for moments in true_moments(run, matches))
    on_all = [m for m, step in zip(members(matches), matches.step, strict=True) if step in kept]
    assert len(on_all) == len(kept) * job.per_step
    assert all(len(m) == 3 for m in on_all)
    assert len(matches) == job.steps * job.per_step, "the other ranks still match each other"


def one_step(calls: Sequence[Sequence[tuple[str, int]]]) -> list[RankTrace]:
    """Return one rank per list of `(operation, elements)`, all in one step."""
    traces = [RankTrace(r, world_size=len(calls)) for r in range(len(calls))]
    for trace, mine in zip(traces, calls, strict=True):
        trace.step(0, 0, 100_000)
        for k, (op, elements) in enumerate(mine):
            trace.collective(op, at=1000 * k, start=1000 * k + 10, end=1000 * k + 300, elements=elements)
    return traces


def sizes(matches: Matches) -> list[int]:
    return [int(n) // 4 for n in matches.size_bytes]


def test_lost_collectives_are_placed_where_sizes_fit(tmp_path: Path) -> None:
    whole = [("allreduce", n) for n in (10, 20, 30, 40)]
    run = built_run(tmp_path, one_step([whole, whole[1:3], whole]))
    assert sizes(match_collectives(run.ranks)) == [10, 20, 30, 40]
    assert [len(m) for m in members(match_collectives(run.ranks))] == [2, 3, 3, 2]


def test_lost_collectives_that_fit_in_several_ways_stay_unmatched(tmp_path: Path) -> None:
    alike = [("allreduce", 10)] * 4
    run = built_run(tmp_path, one_step([alike, alike[:3], alike]))
    matches = match_collectives(run.ranks)
    assert [{r for r, _ in m} for m in members(matches)] == [{0, 2}] * 4
    assert (aligned(run).wait_ns[1] == -1).all()


@pytest.mark.parametrize("steps", [True, False])
def test_kernels_without_any_arguments_are_matched_by_order(tmp_path: Path, steps: bool) -> None:
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
                        trace.messages(
                            ("send", peer),
                            ("recv", peer),
                            at=ready,
                            start=ready + 100,
                            end=ready + 600,
                            elements=10 + k,
                        )
                    else:
                        first, second = ("send", "recv") if there else ("recv", "send")
                        trace.collective(
                            first, at=ready, start=ready + 100, end=ready + 300, peer=peer, elements=10 + k
                        )
                        trace.collective(
                            second, at=ready + 400, start=ready + 500, end=ready + 700, peer=peer, elements=10 + k
                        )
        random.Random(r).shuffle(trace.events)
    return traces


@pytest.mark.parametrize("coalesced", [False, True])
def test_every_send_meets_its_receive(tmp_path: Path, coalesced: bool) -> None:
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
