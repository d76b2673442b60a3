"""Runs over time: rows of known truth, hosts that are slow and hosts that only look it, the newest run."""

from pathlib import Path
from typing import Any

import pytest
from tests.compare.history.folders import light_run

from stepscope.compare.history import HistoryRow, HostTime, history_rows, host_records, newest_runs


def day(n: int) -> str:
    return f"2026-11-{n:02d}T08:00:00+00:00"


def job(n: int, **slowdowns: float) -> HistoryRow:
    times = tuple(HostTime(host, value, has_rank_0=False) for host, value in slowdowns.items())
    return HistoryRow(run=f"run{n}", created=day(n), host_times=times)


def test_a_host_that_is_hardly_slower_is_not_named() -> None:
    (first, *_) = host_records([job(n, a=1.0, b=1.0, c=1.0, d=1.02) for n in range(1, 12)])
    assert first["host"] == "d" and not first["is_slow"] and "less than 5 %" in str(first["why_not"])


@pytest.mark.parametrize(("last_ms", "verdict"), [(20.1, "as usual"), (23.0, "slower"), (17.0, "faster")])
def test_newest_run_against_those_before_it(last_ms: float, verdict: str) -> None:
    steps = [20.0, 20.2, 19.8, 20.1, 19.9, last_ms]
    rows = [HistoryRow(f"r{n}", created=day(n + 1), step_ms=s, step_source="unprofiled") for n, s in enumerate(steps)]
    (newest,) = newest_runs(rows[::-1])
    assert (newest["run"], newest["verdict"], newest["before"]) == ("r5", verdict, 5)
    assert newest_runs(rows[:3])[0]["verdict"] == "unknown"


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


def test_a_run_that_cannot_be_read_is_a_row_with_its_reason(tmp_path: Path) -> None:
    light_run(tmp_path / "good", created=day(1))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "rank00000.pt.trace.json").write_text("no trace")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "run.json").write_text('{"created": 1e999, "ranks": [], "command": 7, "device": "x"}')
    rows = {row.run: row for row in history_rows(tmp_path, cache=False)}
    assert set(rows) == {"good", "bad", "empty"} and rows["good"].problem is None
    assert rows["bad"].problem and rows["empty"].problem == "neither traces nor step logs"
