"""`stepscope watch` and `stepscope trigger` on constructed run folders: lines, restarts, refusals in one sentence."""

import json
from pathlib import Path

import pytest
from tests.analyze.live.runs import claim, line, write_facts
from tests.analyze.step_logs import write_log
from tests.report.test_commands import cells, sheet_in

from stepscope.cli.main import main
from stepscope.cli.watch import LiveSite, WatchedJob
from stepscope.contract.live import LIVE_FOLDER, WindowPlan
from stepscope.report.html.sheets import sheet_page
from stepscope.report.pages.live import live_sheet
from stepscope.report.sheet_text import sheet_text


def job(folder: Path, *, ended: str | None = None, launch: str = "a") -> Path:
    for rank in (0, 1):
        write_log(claim(folder, launch), rank, [line(step, 10.0) for step in range(40)])
        if ended is not None:
            write_facts(folder, rank, ended)
    return folder


def test_look_is_one_line_where_nobody_watches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(job(tmp_path / "run")), "--once"]) == 0
    (said,) = capsys.readouterr().out.splitlines()
    assert said[9:].startswith("step 39; ") and "10.0 ms per step; forward 2.5 ms" in said


def test_late_rank_is_named_at_the_first_look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, wait_ms in ((0, 5.0), (1, 0.0), (2, 5.0)):
        lines = [line(step, 10.0, wait_ms) for step in range(40)]
        write_log(claim(tmp_path / "run", "a"), rank, lines)
    assert main(["watch", str(tmp_path / "run"), "--once"]) == 0
    (said,) = capsys.readouterr().out.splitlines()
    assert said.endswith("; rank 1 is 5.0 ms late per step")


def test_job_that_was_killed_may_restart(tmp_path: Path) -> None:
    run, elastic = job(tmp_path / "run"), {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RESTART_COUNT": "1"}
    for rank in (0, 1):
        write_facts(run, rank, "killed", environment=elastic)
    watched = WatchedJob(run)
    assert not watched.refresh() and watched.is_over  # it is waited for
    for rank in (0, 1):
        write_facts(run, rank, "killed", environment={**elastic, "TORCHELASTIC_RESTART_COUNT": "3"})
    assert watched.refresh()


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (("closed", "closed"), "the job has ended; stepscope report"),
        (("running", "killed"), "rank 1 has ended, so the ranks would not record the same steps"),
    ],
)
def test_trigger_is_refused_in_one_sentence(tmp_path, capsys, ended, words):
    run = job(tmp_path / "run")
    for rank, how in enumerate(ended):
        write_facts(run, rank, how)
    assert main(["trigger", str(run)]) == 2
    assert words in capsys.readouterr().err
    assert not (run / LIVE_FOLDER).exists()


def test_live_page_shows_the_same_until_the_job_ends(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    hostile = line(40, 10.0, regions={name: {"ns": 10**7, "n": 1}})
    write_log(claim(tmp_path / "run", "a"), 0, [*(line(step, 10.0) for step in range(40)), hostile])
    site = LiveSite(str(tmp_path / "run"))
    page = site("", {})
    assert page is not None and site("report.html", {}) is None
    text = page.body.decode()
    sheet = sheet_in(text)
    titles = [column["title"] for section in sheet["sections"] for column in section["table"]["columns"]]
    assert "10.0 ms per step" in sheet["facts"][2] and page.headers["Refresh"] == "2" and name not in text
    assert name in titles and "memory" not in titles  # no rank has said any
    write_facts(tmp_path / "run", 0, "closed")
    ended = LiveSite(str(tmp_path / "run"))("", {})
    assert ended is not None and "has ended" in sheet_in(ended.body.decode())["facts"] and not ended.headers


def test_each_look_is_one_line_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = job(tmp_path / "run", ended="closed")
    assert main(["watch", str(run), "--json", "-"]) == 0
    (text,) = capsys.readouterr().out.splitlines()
    look = json.loads(text)
    assert look["schema"] == 1 and look["over"] and look["step"] == 39 and look["step_ms"] == 10.0
    assert [rank["rank"] for rank in look["ranks"]] == [0, 1] and look["ranks"][0]["regions_ms"]["forward_pass"] == 2.5
    assert look["mfu"] is None and look["mfu_reason"] and look["alarms"] == look["stalls"] == look["news"] == []
    assert look["ranks"][1]["ended"] == "closed" and look["ranks"][1]["stall"] is None


def test_trigger_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run, plan = job(tmp_path / "run"), WindowPlan("x", 50, 53, 2, 1, by="stepscope trigger")
    monkeypatch.setattr("stepscope.cli.trigger.ask_for_window", lambda folder, *, steps, by: plan)
    windows = [{"window": 1, "name": "window1/a", "status": "exported", "cut": None}]
    files = [{"name": "window1/a", "status": "written", "bytes": 7}]
    write_facts(run, 0, "running", windows=windows, files=files)
    write_facts(run, 1, "killed")
    assert main(["trigger", str(run), "--json", "-"]) == 3
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert "steps 50 to 52 will be profiled on 2 ranks" in said.err
    assert (document["first_step"], document["num_steps"], document["window"]) == (50, 3, 1)
    assert document["report"] == str(run / "window1") and document["asked_by"] == "stepscope trigger"
    written, missing = document["ranks"]
    assert written == {"rank": 0, "status": "written", "trace": "window1/a", "bytes": 7, "cut": None, "reason": None}
    assert missing["status"] == "missing" and missing["reason"] == "it ended before step 53"
    assert main(["trigger", str(run), "--json", str(tmp_path / "asked.json"), "--no-wait"]) == 0
    assert json.loads((tmp_path / "asked.json").read_text())["ranks"] == []
    assert "steps 50 to 52 will be profiled" in capsys.readouterr().out


@pytest.mark.parametrize("width", [80, 120])
def test_screen_is_complete_and_charts_the_steps_of_each_rank(tmp_path: Path, width: int) -> None:
    regions = {name: {"ns": 10**6, "n": 1} for name in ("data_loading", "forward_pass", "backward_pass", "a_region")}
    for rank in (0, 1):
        lines = [line(step, 10.0 + 30 * (rank and step == 38), regions=regions) for step in range(40)]
        write_log(claim(tmp_path / "run", "a"), rank, lines)
    watched = WatchedJob(str(tmp_path / "run"))
    watched.refresh()
    sheet = live_sheet("run", watched.take_document(), watched.picture)
    text = sheet_text(sheet, width=width)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    rows = [row for row in text.splitlines() if "▁" in row]
    assert [("█" in row) for row in sorted(rows)] == [False, True] and all("10" in row for row in rows)
    page = sheet_in(sheet_page(sheet))
    assert all(cell in text for section in page["sections"] for cell in cells(section["table"]))
