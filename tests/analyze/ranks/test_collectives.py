"""What collectives cost, on jobs whose waits, bytes and bandwidths are known."""

from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.collective_costs import CollectiveRow, collective_rows, rank_wait
from stepscope.analyze.rank_windows import RankAccount, rank_account
from stepscope.run.aligned import AlignedRun, aligned


def shared_of(folder: Path, traces: list[RankTrace]) -> tuple[AlignedRun, tuple[RankAccount | None, ...]]:
    shared = aligned(built_run(folder, traces))
    return shared, tuple(rank_account(r) for r in shared.run.ranks)


def rows_of(folder: Path, traces: list[RankTrace]) -> list[CollectiveRow]:
    return collective_rows(*shared_of(folder, traces))


def job(ranks: int = 2, *, late: int = 1, elements: int = 250_000, calls: int = 4) -> list[RankTrace]:
    """Return ranks that all-reduce 1 MB in 100 us, one of them 300 us late each time."""
    traces = [RankTrace(r, world_size=ranks) for r in range(ranks)]
    for trace in traces:
        trace.step(0, 0, 1000 * calls)
        for k in range(calls):
            start = 1000 * k + (400 if trace.rank == late else 100)
            trace.collective("allreduce", at=1000 * k + 50, start=start, end=1000 * k + 500, elements=elements)
    return traces


def test_row_has_count_bytes_wait_transfer_and_bandwidth(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, job())
    assert (row.op, row.group.name, row.count, row.size_bytes) == ("all_reduce", "default_pg", 4, 4_000_000)
    assert row.wait_ns == 4 * 300_000 / 2, "mean over the ranks: one waits, the other does not"
    assert row.transfer_ns == 4 * 100_000
    assert row.exposed_ns == 4 * (400_000 + 100_000) / 2
    assert row.algbw_gb_per_s == pytest.approx(1_000_000 / 100_000)
    assert row.busbw_gb_per_s == pytest.approx(10)
    assert row.late_rank == 1
    assert row.unmatched == 0


def test_late_rank_is_not_named_within_the_clocks_doubt(tmp_path: Path) -> None:
    traces = job(3, late=2)
    for event in traces[2].events:
        if event["cat"] == "kernel":  # now 10 us late, and the transfer takes 400
            event["ts"] -= 290
            event["dur"] += 290
    (row,) = rows_of(tmp_path, traces)
    assert row.late_rank is None


def test_one_row_for_a_mesh_dimension_of_many_groups(tmp_path: Path) -> None:
    traces = []
    for rank in range(4):
        groups = {"dp": (0, 2) if rank % 2 == 0 else (1, 3), "tp": (0, 1) if rank < 2 else (2, 3)}
        trace = RankTrace(rank, world_size=4, groups=groups, descriptions={"dp": "mesh_dp", "tp": "mesh_tp"})
        trace.step(0, 0, 2000)
        trace.collective("allreduce", at=10, start=100, end=300, group="tp", elements=100)
        trace.collective("_allgather_base", at=400, start=500, end=900, group="dp", elements=100, out_elements=200)
        traces.append(trace)
    rows = rows_of(tmp_path, traces)
    assert [(r.op, r.group.name, r.count, r.size_bytes, r.group.size) for r in rows] == [
        ("all_gather", "mesh_dp", 1, 800, 2),
        ("all_reduce", "mesh_tp", 1, 400, 2),
    ]


def test_unmatched_operations_are_neither_wait_nor_transfer(tmp_path: Path) -> None:
    shared, accounts = shared_of(tmp_path, job()[:1])
    (row,) = collective_rows(shared, accounts)
    assert (row.wait_ns, row.transfer_ns, row.unmatched, row.late_rank) == (None, None, 4, None)
    assert accounts[0] is not None
    wait = rank_wait(shared, 0, accounts[0])
    assert (wait.wait_ns, wait.transfer_ns, wait.unmatched_ns) == (None, None, 4 * 400_000)
