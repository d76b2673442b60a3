"""Waits in collectives that run at the same time count once: nobody waits longer than the window."""

from pathlib import Path

from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import account_of


def test_waits_that_overlap_count_once(tmp_path: Path) -> None:
    ranks = []
    for number, late_us in ((0, 0), (1, 400)):
        r = RankTrace(number, world_size=2, backend="gloo")
        for step in range(3):
            at = 1000.0 * step
            r.step(step, at, at + 990)
            for k in range(3):  # three at once, on gloo's own threads
                r.gloo("allreduce", at=at + 10 + k + late_us, start=at + 20 + k + late_us, end=at + 600, thread=300 + k)
        ranks.append(r)
    found = account_of(built_run(tmp_path, ranks))
    late = found.ranks[1].wait
    window = found.ranks[0].window
    assert late is not None and late.waited_for_ns is not None and window is not None
    assert 3 * 395_000 < late.waited_for_ns < 3 * 410_000
    assert late.waited_for_ns < window.window_ns
