"""`stepscope gate`: revisions, folders and commands in turn; verdict, lines, summary and exit code."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.owners.owned_folder import owned_folder
from tests.analyze.step_logs import log_lines, write_log

from stepscope.cli.main import main
from stepscope.lab.cli import trials
from stepscope.record.turns import steps_of_turn


class PlantedJob:
    """Stands for the job: its step takes what `cost.txt` in its folder holds, in ms, or the command's last word."""

    def __init__(self) -> None:
        self.ran: list[tuple[tuple[str, ...], Path | None]] = []
        self.fails: list[str] = []
        self.turns: list[tuple[str, int]] = []
        self.takes_turns = False

    def __call__(
        self, command: Sequence[str], log: Path, *, steps: int, folder: Path | None, light: bool = True,
        turn_address: str | None = None, **_: Any,
    ) -> tuple[Path | None, str | None]:  # fmt: skip
        self.ran.append((tuple(command), folder))
        if self.fails:
            return None, self.fails.pop()
        costs = Path(folder or ".", "cost.txt")
        cost = float(costs.read_text() if costs.exists() else command[-1])
        out = log.with_suffix("")
        if not light:
            owned_folder(out, late_us=1000 * (cost - 10))
            return out, None
        out.mkdir()
        if turn_address and not self.takes_turns:
            return None, "it ended with exit code 1"
        if turn_address:
            steps = 2
            report = {"world_size": 1, "pid": 0, "step_ns": round(1e6 * cost), "on_device": False, "retries": 0}
            while more := steps_of_turn(turn_address, **report):
                self.turns.append((log.stem[-4:], more))
                steps += more
        noise = ((7 * n + 3 * len(self.ran)) % 5 - 2 for n in range(steps))
        lines = log_lines((cost * (1 + 0.004 * one) for one in noise), window=range(steps, steps), at_ns=0)
        write_log(out, 0, lines, ranks=1, created_ns=0)
        return out, None


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlantedJob:
    planted = PlantedJob()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trials, "run_trial", planted)
    return planted


@pytest.fixture
def repository(job: PlantedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository whose working tree takes 10 % longer than its one commit, in a folder `jobs`."""
    jobs = tmp_path / "repository" / "jobs"
    jobs.mkdir(parents=True)
    (jobs / "cost.txt").write_text("10")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=jobs.parent, check=True)
    (jobs / "cost.txt").write_text("11")
    monkeypatch.chdir(jobs)
    return jobs.parent


@pytest.mark.slow
def test_revision_against_the_working_tree(repository: Path, job: PlantedJob, tmp_path: Path) -> None:
    out = tmp_path / "out"
    files = {name: tmp_path / name for name in ("json", "markdown", "bencher")}
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert main(["gate", "--base", "HEAD", "--out", str(out), *words, "--", "python", "train.py"]) == 1
    found = json.loads(files["json"].read_text())
    assert found["verdict"] == "regression" and found["rounds"] == 16 and found["false_alarm_pct"] == 2
    assert found["changes"]["typical"]["low_pct"] < 10 < found["changes"]["typical"]["high_pct"]
    assert found["changes"]["typical"]["pct"] == pytest.approx(10, abs=0.5)
    line = found["lines"][0]
    assert (line["file"], line["line"], line["source"].strip()) == ("model.py", 3, "return self.up(x)")
    assert 0.5 < line["head_ms"] - line["base_ms"] <= 1.0  # a part of it was not on the critical path
    summary = files["markdown"].read_text()
    assert "### Training step: regression" in summary and "| model.py:3 |" in summary and "false alarm" in summary
    assert json.loads(files["bencher"].read_text())["training step"]["latency"]["value"] == pytest.approx(
        11e6, rel=0.01
    )
    assert {command for command, _ in job.ran} == {("python", "train.py")}
    checkouts = {folder for _, folder in job.ran}
    assert None in checkouts and len(checkouts) == 2
    listed = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True)
    assert listed.stdout.count("\n") == 1, "the temporary checkout is removed"


def test_two_commands_that_are_equal(job: PlantedJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", "--base", "python old.py 10", "--head", "python 'new job.py' 10"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Training step: no regression\n") and "at most 2 %" in " ".join(said.split())
    assert ("python", "new job.py", "10") in {command for command, _ in job.ran}
    assert len(job.ran) == 2 + 2 + 2 * 16


@pytest.mark.slow
def test_versions_take_turns_within_a_start(job: PlantedJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.takes_turns = True
    assert main(["gate", "--base", "python a 10", "--head", "python b 10", "--json", "equal"]) == 0
    assert job.turns == [("base", 10), ("head", 10)] * (2 + 64) and len(job.ran) == 2
    found = json.loads(Path("equal").read_text())
    assert (found["rounds"], found["starts"], found["steps_per_trial"], found["no_turns_reason"]) == (64, 1, 10, None)
    assert all(len(one["step_ms"]) == 640 for one in found["trials"])
    job.turns.clear()
    words = ["--base", "python a 10", "--head", "python b 11", "--no-lines", "--json", "slower", "--out", "again"]
    assert main(["gate", *words, "--steps", "5"]) == 1
    assert job.turns[:2] == [("base", 5), ("head", 5)] and job.turns[-2:] == [("head", 5), ("base", 5)]
    found = json.loads(Path("slower").read_text())
    assert (found["rounds"], found["starts"]) == (128, 2), "a second start confirms a regression"
    assert found["changes"]["typical"]["pct"] == pytest.approx(10, abs=0.5)


@pytest.mark.slow
def test_whole_trials_where_turns_do_not_work(job: PlantedJob, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--base", "python a 10", "--head", "python b 10"]
    assert main(["gate", *words, "--json", "found"]) == 0
    assert "every round starts the job anew: a job ended before" in capsys.readouterr().err
    found = json.loads(Path("found").read_text())
    assert found["rounds"] == found["starts"] == 16 and "ended" in found["no_turns_reason"] and not job.turns
    sides = [one["side"] for one in found["trials"] if one["when"].startswith("round")]
    assert sides[:4] in (["base", "head", "head", "base"], ["head", "base", "base", "head"])
    assert main(["gate", *words, "--restart", "--out", "again"]) == 0
    assert len(job.ran) == 2 * (2 + 2 * 16) + 2


def test_two_folders(job: PlantedJob, tmp_path: Path) -> None:
    for name, cost in (("a", 10), ("b", 10.1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cost.txt").write_text(str(cost))
    assert main(["gate", "--base", "a", "--head", "b", "--json", "found", "--", "python", "train.py"]) == 0
    found = json.loads(Path("found").read_text())
    assert found["verdict"] == "no regression" and "below the threshold" in found["reason"] and not found["lines"]


def test_one_failed_start_is_repeated_and_two_are_an_error(job: PlantedJob, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gate", "--base", "python a 10", "--head", "python b 10"]
    words.append("--restart")
    job.fails = ["it ended with exit code 1"]
    assert main([*words, "--out", "one"]) == 0
    job.fails = ["it ended with exit code 1"] * 2
    capsys.readouterr()
    assert main([*words, "--out", "two"]) == 2
    assert "base: it ended with exit code 1; its output is in two/001-base.log" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--base", "main"], "give the job's command after --"),
        (["--base", "nowhere", "--", "python", "train.py"], "neither a revision of a git repository here nor a folder"),
        (["--base", "python 'a", "--head", "python b"], "write it as in a shell"),
        (["--base", "a", "--head", "b", "--rounds", "2"], "needs at least 3"),
        (["--base", "a", "--head", "b", "--rounds", "8", "--max-rounds", "4"], "is below --rounds 8"),
        (["--base", "a", "--head", "b", "--false-alarms", "60"], "below 50"),
    ],
)
def test_wrong_use_is_one_line(words, said, job, capsys):
    assert main(["gate", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and not job.ran
