"""`stepscope tune`: the whole command on a job that is only pretended, and what it refuses."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.contract.live import TRIAL
from stepscope.contract.run_folder import RUN_JSON, rank_file, steps_file
from stepscope.lab.tune import job_in
from stepscope.record.config import RecordConfig
from stepscope.record.launch.launch import LaunchOutcome

LOADER = {"num_workers": 0, "map_style": True}


class Pretended:
    """Leaves what a job would: 40 ms per step, a quarter of it with workers."""

    def __init__(self) -> None:
        self.started = 0
        self.exit_code = 0
        self.interrupted_at = 0

    def __call__(
        self, command: Sequence[str], config: RecordConfig, *, environ: Any = None, run: Any = None
    ) -> LaunchOutcome:
        self.started += 1
        if self.started == self.interrupted_at:
            raise KeyboardInterrupt
        self.environ, self.config = environ, config
        folder = Path(config.out)
        folder.mkdir(parents=True)
        dur_ns = (10 if "loader.num_workers" in config.settings else 40) * 10**6 + 10**4 * (self.started % 3)
        line = {"start_ns": 1, "end_ns": 2, "dur_ns": dur_ns, "device_ns": None, "profiled": False, "phase": "before"}
        steps: list[dict[str, Any]] = [{"step": n, "regions": {}, **line} for n in range(config.trial_steps or 0)]
        lines = [{"schema": 1, "rank": 0, "world_size": 1}, *steps]
        (folder / steps_file(0)).write_text("".join(json.dumps(one) + "\n" for one in lines))
        (folder / RUN_JSON).write_text(json.dumps({"device": {"kind": "cpu"}, "hosts": {"here": [0]}}))
        noted = {"losses": [2.0, 1.0], "took": list(config.settings), "loaders": [LOADER], "threads": 1}
        (folder / rank_file(0, TRIAL)).write_text(json.dumps(noted))
        return LaunchOutcome(self.exit_code, (folder,), python_seen=True, torch_seen=True)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pretended:
    pretended = Pretended()
    monkeypatch.setattr("stepscope.record.launch.launch.launch", pretended)
    monkeypatch.setattr("stepscope.lab.cli.tune._job", lambda folder: job_in(folder, cores=4, mimalloc=True))
    monkeypatch.chdir(tmp_path)
    return pretended


def tune(*words: str) -> int:
    return main(["tune", "--rounds", "3", "--steps", "6", *words, "--", "python", "train.py"])


def test_workers_are_kept_and_the_rest_is_told(job: Pretended, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune() == 0
    out = capsys.readouterr().out
    words = " ".join(out.split())
    assert "Keep loader.num_workers=" in words and "75 % less" in words and "Results: equal." in words
    assert "--apply" in words
    assert all(len(line) <= 80 for line in out.splitlines() if "--apply" not in line)
    found = json.loads(Path("stepscope-tune/tune.json").read_text())
    assert found["keep"]["settings"].keys() == {"loader.num_workers"}
    assert found["keep"]["gain_low_pct"] > 70 and found["command_unchanged_script"].endswith("-- python train.py")
    assert out.startswith(Path("stepscope-tune/tune.txt").read_text())
    assert len(found["trials"]) == job.started - 1


def test_ctrl_c_judges_and_lists_the_trials_that_ended(job: Pretended) -> None:
    job.interrupted_at = 1 + 3 * 3 + 2
    assert main(["tune", "--rounds", "9", "--steps", "6", "--", "python", "train.py"]) == 3
    found = json.loads(Path("stepscope-tune/tune.json").read_text())
    assert found["stopped"] and found["keep"]["settings"].keys() == {"loader.num_workers"}
    assert len(found["trials"]) == 3 * 3 + 1 and all(one["wall_s"] >= 0 for one in found["trials"])


def test_nothing_to_keep_is_a_result(job: Pretended, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--only", "OMP", "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["settings"]] == ["OMP_NUM_THREADS=4"]
    assert found["keep"] is None and found["command_to_keep"] is None
    assert "Nothing to keep" in Path("stepscope-tune/tune.txt").read_text()


def test_what_is_kept_is_applied_and_nothing_else(job: Pretended, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {"loader.num_workers": 2, "os.system": "x", "ddp.bucket_cap_mb": "huge"}
    variables = {"OMP_NUM_THREADS": "2", "LD_PRELOAD": "evil.so", "NCCL_ALGO": 3}
    Path("tune.json").write_text(json.dumps({"keep": {"settings": wanted, "environment": variables}}))
    assert tune("--apply", "tune.json") == 0
    assert job.config.settings == {"loader.num_workers": 2} and job.config.only_set
    assert job.environ["OMP_NUM_THREADS"] == "2" and "evil.so" not in job.environ.values()
    job.exit_code = -15
    Path("tune.json").write_text('{"keep": null}')
    job.config = None  # type: ignore[assignment]
    Path(RecordConfig.out).rename("elsewhere")
    assert tune("--apply", "tune.json") == 143


def test_a_job_that_fails_is_said_with_its_output(job: Pretended, capsys: pytest.CaptureFixture[str]) -> None:
    job.exit_code = 7
    assert tune() == 2
    assert "exit code 7" in capsys.readouterr().err
    assert tune() == 2
    assert "not empty" in capsys.readouterr().err
