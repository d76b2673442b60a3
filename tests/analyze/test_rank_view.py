"""One record per rank: in the order of the run, with everything of that rank and nothing of another."""

from pathlib import Path

from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import account_of
from stepscope.records import MAX_REPR


def busy(number: int, kernels: int) -> RankTrace:
    """Return a rank with as many kernels of 100 us in each of its three steps."""
    trace = RankTrace(number, world_size=3)
    for step in range(3):
        at = 1000.0 * step
        trace.step(step, at, at + 990)
        for k in range(kernels):
            start = at + 10 + 110 * k
            trace.kernel("gemm", start=start, end=start + 100, at=start - 8)
    return trace


def test_each_view_holds_what_belongs_to_its_rank(tmp_path: Path) -> None:
    run = built_run(tmp_path, [busy(0, 1), busy(1, 5), busy(2, 3)])
    account = account_of(run)
    assert tuple(view.rank for view in account.ranks) == run.ranks
    for view, kernels in zip(account.ranks, (1, 5, 3), strict=True):
        assert view.window is not None and view.budget is not None and view.on_device
        assert view.window.compute.total_ns == 3 * kernels * 100_000
        assert len(view.costs.duration_ns) == 3 * kernels and view.costs.rank is view.rank
        assert view.budget.regions is not None and len(view.budget.regions.region) == 3 * kernels


def test_a_rank_without_steps_or_work_says_none_and_keeps_its_place(tmp_path: Path) -> None:
    account = account_of(built_run(tmp_path, [busy(0, 2), RankTrace(1, world_size=3), busy(2, 4)]))
    empty = account.ranks[1]
    assert (empty.rank.rank, empty.window, empty.wait, empty.budget, empty.on_device) == (1, None, None, None, False)
    assert [view.window is not None for view in account.ranks] == [True, False, True]


def test_a_view_is_shown_in_one_short_line(tmp_path: Path) -> None:
    (view,) = account_of(built_run(tmp_path, [busy(0, 2)])).ranks
    assert repr(view).startswith("RankView(rank=Rank(...)") and len(repr(view)) <= MAX_REPR
    assert view != account_of(built_run(tmp_path, [busy(0, 2)])).ranks[0]
