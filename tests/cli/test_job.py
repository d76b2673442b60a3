"""`stepscope job` on run folders in which every second was planted."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main

NS = 1_000_000_000
EPOCH = 1_800_000_000 * NS  # some day in 2027


def at(seconds: float) -> int:
    return EPOCH + round(seconds * NS)


def plant(
    folder: Path,
    *,
    start: float,
    steps: list[list[tuple[float, dict[str, float]]]],
    first: float,
    end: float,
    killed: tuple[int, ...] = (),
    launched: float | None = None,
    launch_id: str = "one",
    restart: int = 0,
    loads: tuple[tuple[float, float, str], ...] = (),
    saves: tuple[tuple[float, float | None, str], ...] = (),
    after: dict[str, float] | None = None,
    launch_end: float | None = None,
    exit_code: int = 0,
    ends: dict[int, float] | None = None,
) -> None:
    """Write a run folder: per rank a process that starts, steps of so many seconds with regions in them, an end."""
    folder.mkdir(parents=True)
    out = str(folder.with_name(folder.name.partition("-")[0]))
    described = {
        "world_size": len(steps),
        "config": {"out": out, "run_id": launch_id},
        "environment": {"TORCHELASTIC_RESTART_COUNT": str(restart)},
        "created": f"2027-01-01T00:00:{int(start) % 60:02d}+00:00",
    }
    (folder / "run.json").write_text(json.dumps(described))
    for rank, of_rank in enumerate(steps):
        lifetime = {
            "launched_ns": at(start if launched is None else launched),
            "process_ns": at(start),
            "torch_ns": at(start + 1),
            "group_ns": [at(start + 1), at(start + 1.5)],
            "checkpoints": [["load", at(a), at(b), path] for a, b, path in loads],
        }
        lines: list[dict[str, Any]] = [{"schema": 1, "rank": rank, "world_size": len(steps), "lifetime": lifetime}]
        now = first
        for number, (dur, regions) in enumerate(of_rank):
            line = {"step": number, "start_ns": at(now), "end_ns": at(now + dur), "dur_ns": round(dur * NS)}
            own = {name: {"ns": round(s * NS), "n": 1} for name, s in regions.items()}
            lines.append({**line, "device_ns": None, "profiled": False, "phase": "before", "regions": own})
            now += dur
        (folder / f"rank{rank:05d}.steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        facts = {
            "ended": "killed" if rank in killed else "closed",
            "ended_ns": at((ends or {}).get(rank, end)),
            "checkpoints": [["save", at(a), b and at(b), path] for a, b, path in saves if rank == 0],
        }
        if rank not in killed:
            own = {name: {"ns": round(s * NS), "n": 1} for name, s in (after or {}).items()}
            facts["after_steps"] = {"end_ns": at(end), "dur_ns": 0, "regions": own}
        (folder / f"rank{rank:05d}.facts.jsonl").write_text(json.dumps(facts) + "\n")
    if launch_end is not None:
        launch = {"launch_id": launch_id, "ended_ns": at(launch_end), "exit_code": exit_code}
        (folder / "launch.jsonl").write_text(json.dumps(launch))


def plain(count: int, dur: float = 1.0) -> list[tuple[float, dict[str, float]]]:
    return [(dur, {})] * count


def ledger(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, float], dict[str, Any]]:
    assert main(["job", str(run), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    parts = {part["part"]: part["s"] for part in document["parts"] if part["s"] > 1e-4}
    assert sum(part["s"] for part in document["parts"]) == pytest.approx(document["total_s"])
    assert sum(part["pct"] for part in document["parts"]) == pytest.approx(100.0)
    return parts, document


def test_parts_of_an_undisturbed_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [(5.0, {"data_loading": 0.5}), *plain(9)]
    steps[4] = (3.0, {"evaluation": 2.0})
    steps[6] = (1.75, {"checkpoint": 0.75})
    steps[8] = (1.25, {"data_loading": 0.25})
    plant(
        tmp_path / "run", start=2, launched=0, first=6, end=25, steps=[steps], after={"evaluation": 1.5}, launch_end=27
    )
    parts, document = ledger(tmp_path / "run", capsys)
    expected = {
        "startup": 6.5,  # launcher, imports, group, model, and the loader's start
        "compile": 3.5,
        "productive": 10.0,
        "evaluation": 3.5,
        "checkpoint_save": 0.75,
        "slowed": 0.25,
        "shutdown": 2.5,
    }
    assert parts == pytest.approx(expected, abs=1e-5)
    detail = next(part["detail"] for part in document["parts"] if part["part"] == "startup")
    assert detail == pytest.approx({"launcher": 2.0, "imports": 1.0, "process_group": 0.5, "model_and_data": 3.0})
    assert document["goodput_pct"] == pytest.approx(100 * 10 / 27)
    assert [one["reason"] for one in document["attempts"]] == ["finished"]
    assert document["energy"] is None


SAVE = (9.0, 9.5, "/ckpt/last.pt")


def plant_two_attempts(
    where: Path, *, over: float = 12.9, saved: bool = True, loaded: bool = True, **second: Any
) -> None:
    """Nine steps, rank 0 saves after six of them, rank 1 is killed; then a restart with six steps."""
    steps = [[*plain(5), (1.5, {"checkpoint": 0.5} if saved and rank == 0 else {}), *plain(3)] for rank in range(2)]
    plant(
        where / "run", start=0, first=3, end=over, steps=steps, killed=(0, 1), saves=(SAVE,) if saved else (),
        ends={0: over + 0.5},
    )  # fmt: skip
    later = over + 5.1
    loads = ((later - 2, later - 1, SAVE[2]),) if loaded else ()
    about = {"restart": 1, "launched": 0, "launch_end": later + 7, "loads": loads, **second}
    plant(where / "run-2", start=over + 1.1, first=later, end=later + 6.5, steps=[plain(6)] * 2, **about)


def test_steps_after_the_last_save_are_lost_by_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_two_attempts(tmp_path)
    for run in ("run", "run-2"):
        parts, document = ledger(tmp_path / run, capsys)
        expected = {
            "startup": 3.0,
            "productive": 12.0,
            "checkpoint_save": 0.5,  # rank 1 waits for it
            "lost_work": 3.4,  # three steps and a part of one
            "restart": 4.1,
            "checkpoint_load": 1.0,
            "shutdown": 1.0,
        }
        assert parts == pytest.approx(expected, abs=1e-5)
        assert [(one["steps"], one["steps_lost"], one["reason"]) for one in document["attempts"]] == [
            (9, 3, "rank 1 killed"),
            (6, 0, "finished"),
        ]
        assert document["warnings"] == []


def test_lost_work_is_unknown_where_neither_a_save_nor_a_load_was_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant_two_attempts(tmp_path, saved=False, loaded=False)
    parts, document = ledger(tmp_path / "run", capsys)
    assert parts["unknown"] == pytest.approx(9.5)
    assert parts["productive"] == pytest.approx(6.0)
    assert document["attempts"][0]["steps_lost"] is None
    assert "unknown" in document["warnings"][0] and "run-2" in document["warnings"][0]


def test_a_restart_without_a_checkpoint_loses_everything_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant_two_attempts(tmp_path, loaded=False)
    parts, document = ledger(tmp_path / "run", capsys)
    assert document["attempts"][0]["steps_lost"] == 9
    assert parts["productive"] == pytest.approx(6.0)
    assert "read no checkpoint" in document["warnings"][0]


def test_no_step_for_long_before_the_end_is_a_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_two_attempts(tmp_path, over=72.5)
    parts, _ = ledger(tmp_path / "run", capsys)
    assert parts["hang"] == pytest.approx(60.0)
    assert parts["lost_work"] == pytest.approx(3.0)


def test_a_later_launch_that_reads_the_checkpoint_is_the_same_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant_two_attempts(tmp_path, launch_id="two", restart=0, launched=13.5)
    parts, document = ledger(tmp_path / "run", capsys)
    assert len(document["attempts"]) == 2
    assert document["total_s"] == pytest.approx(13.4 + 25.0 - 13.5)
    assert parts["startup"] == pytest.approx(3.0 + 3.5)
    assert parts["lost_work"] == pytest.approx(3.4, abs=0.3)
    assert "between launches" in document["warnings"][-1]


def test_another_launch_in_the_same_place_is_another_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_two_attempts(tmp_path, launch_id="two", restart=0, launched=13.5, loaded=False)
    for run in ("run", "run-2"):
        assert [one["run"] for one in ledger(tmp_path / run, capsys)[1]["attempts"]] == [run]


def test_a_long_step_of_one_rank_slows_all_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [plain(12), plain(12)]
    steps[0][7] = (3.0, {"backward_pass": 2.5})
    steps[1][7] = (3.0, {"forward_pass": 2.5})
    steps[0] = [(dur, {"backward_pass": 0.5, **regions}) for dur, regions in steps[0]]
    steps[1] = [(dur, {"backward_pass": 0.5, **regions}) for dur, regions in steps[1]]
    plant(tmp_path / "run", start=0, first=2, end=16, steps=steps)
    parts, document = ledger(tmp_path / "run", capsys)
    assert parts == pytest.approx({"startup": 2.0, "productive": 12.0, "slowed": 2.0}, abs=1e-5)
    assert next(p["detail"] for p in document["parts"] if p["part"] == "slowed")["straggler"] == pytest.approx(2.0)


def test_what_fewer_saves_and_evaluations_give_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [(1.6, {"checkpoint": 0.5, "evaluation": 0.1}) if n % 10 == 9 else (1.0, {}) for n in range(100)]
    plant(tmp_path / "run", start=0, first=2, end=108, steps=[steps])
    _, document = ledger(tmp_path / "run", capsys)
    saves = next(one for one in document["savings"] if one["part"] == "checkpoint_save")
    assert saves["change"] == "saving every 50 instead of every 10 steps"
    assert saves["s"] == pytest.approx(0.8 * 5.0)


def test_one_screen_a_page_and_a_column_of_the_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_two_attempts(tmp_path)
    page = tmp_path / "job.html"
    assert main(["job", str(tmp_path / "run"), "--html", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 80
    assert lines[0] == "run: 25 s, 2 attempts, 2 ranks, goodput 48.0 %"
    assert "Goodput: 48 pct" in page.read_text()
    assert main(["history", str(tmp_path), "--no-cache", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert [row["goodput_pct"] for row in rows] == pytest.approx([48.0, 48.0])


def test_a_folder_without_step_logs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", str(tmp_path)]) == 2
    assert "no step log" in capsys.readouterr().err
