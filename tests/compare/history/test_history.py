"""Runs over time: rows of known truth, hosts that are slow and hosts that only look it, the newest run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compare.history.folders import light_run

from stepscope.compare.history import (
    HistoryRow,
    HostTime,
    groups,
    history_rows,
    host_records,
    host_times,
    interval_of_one_more,
    newest_runs,
    row_from_json,
    run_folders,
    runs_before,
    tail,
)
from stepscope.errors import InputError


def day(n: int) -> str:
    return f"2026-11-{n:02d}T08:00:00+00:00"


def job(n: int, **slowdowns: float) -> HistoryRow:
    times = tuple(HostTime(host, value, has_rank_0=False) for host, value in slowdowns.items())
    return HistoryRow(run=f"run{n}", created=day(n), host_times=times)


def test_row_of_a_light_run(tmp_path: Path) -> None:
    light_run(tmp_path / "one", created=day(1), step_ms=20.0, late_ms=(0.0, 5.0), hosts=("a", "b", "c"))
    (row,) = history_rows(tmp_path, cache=False)
    assert row.step_ms == pytest.approx(25.0, abs=0.2) and row.step_source == "unprofiled"
    assert (row.run, row.created, row.commit, row.world_size) == ("one", day(1), "c" * 40, 3)
    assert row.peak_memory_bytes == 3_000_000_002 and row.hosts == ("a", "b", "c")
    assert "torchrun train.py" in row.config and "3 x NVIDIA H200" in row.config
    slow = {one.host: one.slowdown for one in row.host_times}
    assert slow["b"] == pytest.approx(1.25, abs=0.03) and slow["c"] < 1.02
    assert {one.host for one in row.host_times if one.has_rank_0} == {"a"}


def test_host_that_is_always_the_slowest_is_named() -> None:
    rows = [job(n, a=1.0, b=1.0 + n % 3 / 1000, bad=1.2, d=0.99) for n in range(1, 8)]
    first, *others = host_records(rows)
    assert first.host == "bad" and first.is_slow and first.slowest == first.runs == 7
    assert first.slowdown == pytest.approx(1.2, abs=0.01) and first.expected == pytest.approx(7 / 4)
    assert not any(one.is_slow for one in others)


def test_two_slow_jobs_name_nobody() -> None:
    records = host_records([job(n, a=1.0, bad=1.5) for n in (1, 2)])
    assert not any(one.is_slow for one in records)


def test_a_host_that_is_hardly_slower_is_not_named() -> None:
    (first, *_) = host_records([job(n, a=1.0, b=1.0, c=1.0, d=1.02) for n in range(1, 12)])
    assert first.host == "d" and not first.is_slow and "less than 5 %" in str(first.why_not)


def test_rank_0_alone_on_a_host_is_no_reason() -> None:
    rows = [HistoryRow("x", host_times=(HostTime("a", 1.3, True), *(HostTime(h, 1.0, False) for h in "bcd")))] * 8
    (first, *_) = host_records(rows)
    assert not first.is_slow and "rank 0" in str(first.why_not)


def test_equal_hosts_are_named_in_less_than_one_of_a_hundred_histories() -> None:
    rng, named = np.random.default_rng(7), 0
    for _ in range(150):
        rows = [job(1, **{f"h{i}": float(v) for i, v in enumerate(rng.normal(1.0, 0.2, 8))}) for _ in range(12)]
        named += any(one.is_slow for one in host_records(rows))
    assert named <= 4  # 1.5 expected at most, and the seed is fixed


def test_tail_is_that_of_the_binomial() -> None:
    assert tail([0.5] * 10, 10) == pytest.approx(2**-10)
    assert tail([0.1] * 3, 0) == 1.0


def test_rank_0_is_left_out_where_its_host_has_others() -> None:
    found = host_times({0: 2.0, 1: 1.0, 2: 1.0, 3: 1.0}, {0: "a", 1: "a", 2: "b", 3: "b"})
    assert [(one.host, one.slowdown, one.has_rank_0) for one in found] == [("a", 1.0, False), ("b", 1.0, False)]
    assert host_times({0: 1.0, 1: 2.0}, {0: "a", 1: "a"}) == ()


@pytest.mark.parametrize(("last_ms", "verdict"), [(20.1, "as usual"), (23.0, "slower"), (17.0, "faster")])
def test_newest_run_against_those_before_it(last_ms: float, verdict: str) -> None:
    steps = [20.0, 20.2, 19.8, 20.1, 19.9, last_ms]
    rows = [HistoryRow(f"r{n}", created=day(n + 1), step_ms=s, step_source="unprofiled") for n, s in enumerate(steps)]
    (newest,) = newest_runs(rows[::-1])
    assert (newest.run, newest.verdict, newest.before) == ("r5", verdict, 5)
    assert newest_runs(rows[:3])[0].verdict == "unknown"


def test_interval_of_one_more_holds_19_of_20() -> None:
    rng, inside = np.random.default_rng(3), 0
    for _ in range(1000):
        *before, last = np.exp(rng.normal(3.0, 0.05, 7)).tolist()
        low, high = interval_of_one_more(before)
        assert low is not None and high is not None
        inside += low <= last <= high
    assert 930 <= inside <= 970


def test_groups_by_commit_and_host() -> None:
    rows = [
        HistoryRow("r1", created=day(1), commit="a", hosts=("x", "y"), step_ms=10.0, findings=(("straggler", 20.0),)),
        HistoryRow("r2", created=day(2), commit="b", hosts=("x",), step_ms=12.0, peak_memory_bytes=5),
        HistoryRow("r3", created=day(3), commit="b", hosts=("x",), step_ms=14.0, mfu=0.5),
    ]
    assert [(g.name, g.runs, g.step_ms) for g in groups(rows, "commit")] == [("a", 1, 10.0), ("b", 2, 13.0)]
    assert [(g.name, g.runs, g.min_step_ms, g.max_step_ms) for g in groups(rows, "host")] == [
        ("x", 3, 10.0, 14.0),
        ("y", 1, 10.0, 10.0),
    ]


def test_rows_are_kept_and_only_changed_runs_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepscope.compare import history as folder

    light_run(tmp_path / "old" / "one", created=day(1))
    light_run(tmp_path / "two", created=day(2))
    first = history_rows(tmp_path)
    assert [row.run for row in first] == ["old/one", "two"]
    light_run(tmp_path / "three", created=day(3))
    made: list[str] = []
    row_of_run = folder.row_of_run

    def counted(run: Path, **how: Any) -> HistoryRow:
        made.append(run.name)
        return row_of_run(run, **how)

    monkeypatch.setattr(folder, "row_of_run", counted)
    assert len(history_rows(tmp_path)) == 3 and made == ["three"]
    with (tmp_path / "two" / "run.json").open("a") as f:
        f.write(" ")
    assert len(history_rows(tmp_path)) == 3 and made == ["three", "two"]


def test_planted_rows_are_no_rows(tmp_path: Path) -> None:
    light_run(tmp_path / "one", created=day(1))
    history_rows(tmp_path)
    kept = tmp_path / ".stepscope" / "history.jsonl"
    entry = json.loads(kept.read_text())
    assert row_from_json(entry["row"]) is not None
    for name, value in (("run", 3), ("step_ms", "x"), ("hosts", [1]), ("findings", [[1, 2]]), ("host_times", [{}])):
        assert row_from_json({**entry["row"], name: value}) is None
    assert row_from_json({"run": "x"}) is None and row_from_json([]) is None
    kept.write_text(json.dumps({"key": "0" * 40, "row": {**entry["row"], "run": "planted"}}) + "\nno json\n")
    assert [row.run for row in history_rows(tmp_path)] == ["one"]


def test_a_run_that_cannot_be_read_is_a_row_with_its_reason(tmp_path: Path) -> None:
    light_run(tmp_path / "good", created=day(1))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "rank00000.pt.trace.json").write_text("no trace")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "run.json").write_text('{"created": 1e999, "ranks": [], "command": 7, "device": "x"}')
    rows = {row.run: row for row in history_rows(tmp_path, cache=False)}
    assert set(rows) == {"good", "bad", "empty"} and rows["good"].problem is None
    assert rows["bad"].problem and rows["empty"].problem == "neither traces nor step logs"


def test_no_runs_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no runs"):
        run_folders(tmp_path)
    with pytest.raises(InputError, match="cannot look for runs"):
        run_folders(tmp_path / "none")


def test_runs_of_the_same_configuration_before_it(tmp_path: Path) -> None:
    for n in range(1, 14):
        light_run(tmp_path / f"r{n:02d}", created=day(n), steps=5)
        (tmp_path / f"r{n:02d}" / "rank00000.pt.trace.json").write_text("[]")
    light_run(tmp_path / "other", created=day(1), hosts=("a", "b", "c"), steps=5)
    (tmp_path / "other" / "rank00000.pt.trace.json").write_text("[]")
    light_run(tmp_path / "light", created=day(2), steps=5)
    found = [path.name for path in runs_before(tmp_path / "r12", tmp_path)]
    assert found == [f"r{n:02d}" for n in range(2, 12)]
    with pytest.raises(InputError, match="no earlier run"):
        runs_before(tmp_path / "r01", tmp_path)
