from pathlib import Path

from tests.analyze.build import RankTrace, built_run, true_ns

from stepscope.analyze.step_periods import StepPeriods, step_periods


def periods(tmp_path: Path, trace: RankTrace) -> StepPeriods:
    found = step_periods(built_run(tmp_path, [trace]).ranks[0])
    assert found is not None
    return found


def lagging(*, older: bool) -> RankTrace:
    """Three steps of 100 on the host, whose device work ends at 250, 460 and 650."""
    r = RankTrace()
    if older:
        r.kernel("older", at=None, start=-50, end=40)
    for k, (start, end) in enumerate([(60, 250), (250, 460), (460, 650)]):
        r.step(k + 7, k * 100, k * 100 + 99)
        r.kernel("k", at=k * 100 + 10, start=start, end=end)
    return r


def test_period_is_from_device_end_to_device_end(tmp_path: Path) -> None:
    p = periods(tmp_path, lagging(older=True))
    assert p.start_ns.tolist() == [true_ns(t) for t in (40, 250, 460)]
    assert p.end_ns.tolist() == [true_ns(t) for t in (250, 460, 650)]
    assert p.complete.all()
    assert p.median_ns == 210_000


def test_first_period_without_older_work_is_incomplete_and_left_out(tmp_path: Path) -> None:
    p = periods(tmp_path, lagging(older=False))
    assert p.start_ns[0] == true_ns(0)
    assert p.complete.tolist() == [False, True, True]
    assert p.median_ns == 200_000
    assert p.typical.tolist() == [1, 2]


def test_work_of_the_next_step_on_another_stream_does_not_end_a_step(tmp_path: Path) -> None:
    r = lagging(older=True)
    r.copy(start=200, end=300, at=110, stream=9)  # step 1's prefetch, while step 0 still runs
    assert periods(tmp_path, r).end_ns.tolist() == [true_ns(t) for t in (250, 460, 650)]


def test_step_without_device_work_joins_the_next_and_is_incomplete(tmp_path: Path) -> None:
    r = RankTrace()
    r.kernel("older", at=None, start=-50, end=-10)
    for k in range(3):
        r.step(k, k * 100, k * 100 + 99)
    r.kernel("k", at=10, start=20, end=90)
    r.kernel("k", at=210, start=220, end=290)
    p = periods(tmp_path, r)
    assert p.step.tolist() == [0, 2]
    assert p.complete.tolist() == [True, False]
