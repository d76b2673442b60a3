"""One real job of two ranks: asked twice for a window, scraped, and made to stand still; it ends as it would have."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.job_environment import python_path
from tests.limits import HANG_S, until
from tests.record.script_runs import INJECT, SOURCE, environment, step_lines
from tests.two_ranks import on_two_ranks

from stepscope.cli.main import main
from stepscope.contract.live import LIVE_FOLDER, read_status
from stepscope.contract.run_folder import RUN_JSON, json_object_in
from stepscope.record.config import RecordConfig

pytestmark = [pytest.mark.job, pytest.mark.slow]
PAGE = Path(__file__).parents[3] / "docs" / "commands" / "trigger.md"
JOB = Path(__file__).parent / "live_job.py"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a job that runs until its file `end` is there."""
    where = tmp_path_factory.mktemp("live")
    config = RecordConfig(out=str(where / "run"), light=True, metrics="0", asked_pause_s=0.0, telemetry=False)
    environ = {**environment(), **config.to_env(), "PYTHONPATH": python_path(INJECT, SOURCE)}
    with (where / "job.log").open("wb") as log:
        process = subprocess.Popen(
            on_two_ranks(JOB, where), env=environ, stdout=log, stderr=log, start_new_session=True
        )
    try:
        logs = [where / "run" / f"rank{rank:05}.steps.jsonl" for rank in (0, 1)]
        until(lambda: process.poll() is not None or all(p.exists() and p.read_bytes().count(b"\n") > 9 for p in logs))
        assert process.poll() is None, (where / "job.log").read_text()
        yield where
        (where / "end").touch()
        assert process.wait(HANG_S) == 0, (where / "job.log").read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)


def _shape(printed: str) -> list[str]:
    """Return the lines without their numbers and the window's folder."""
    return [re.sub(r"[\d.]+", "N", line.strip()).partition("/window")[0] for line in printed.strip().splitlines()]


def asked_window(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, list[int]]:
    """Return folder and steps of a window that all ranks recorded; on a busy machine a request may be refused."""

    def ask() -> str:
        return capsys.readouterr().out if main(["trigger", str(run), "--steps", "2"]) == 0 else ""

    said = until(ask)
    documented = PAGE.read_text().partition("    $ stepscope trigger run --steps 3\n")[2].partition("\n\n")[0]
    assert _shape(said.replace(str(run), "run")) == _shape(documented)
    first, last, where = re.search(r"steps (\d+) to (\d+) will[^$]*stepscope report (\S+)", said).groups()  # type: ignore[union-attr]
    return Path(where), list(range(int(first), int(last) + 1))


def test_two_windows_that_were_asked_for_are_read(job, capsys):
    run = job / "run"
    folders = []
    for _ in range(2):
        folder, window = asked_window(run, capsys)
        folders.append(folder)
        assert main(["report", str(folder), "--json", "-", "--no-cache"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["run"]["num_ranks"] == 2 and report["run"]["num_steps"] == 2
        assert {c["op"] for c in report["collectives"]} == {"all_reduce"}
        assert all(c["group"] not in (None, "") for c in report["collectives"])
        for rank in (0, 1):
            lines = (run / f"rank{rank:05}.steps.jsonl").read_text().splitlines()[1:]
            phases = {step["step"]: step["phase"] for step in map(json.loads, lines)}
            assert [phases[step] for step in window] == ["window"] * 2
        until(lambda: not (run / LIVE_FOLDER / "request.jsonl").exists())
    assert folders[0] != folders[1] and folders[1].name.startswith("window")

    def asked_by() -> bool:
        windows = json_object_in(run / RUN_JSON).get("windows") or []
        return [w["ranks"]["1"].get("asked_by") for w in windows if "1" in w["ranks"]] == ["stepscope trigger"] * 2

    until(asked_by)
    assert "will be profiled, requested by stepscope trigger" in (job / "job.log").read_text()


def scraped(job: Path) -> dict[str, float]:
    url = until(lambda: (s := read_status(job / "run", 1)) and s.metrics_url)
    with urlopen(url, timeout=HANG_S) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_rank_that_stands_still_is_named_and_metrics_equal_the_log(job, capsys):
    (job / "stand").touch()
    run = job / "run"
    until(lambda: all((s := read_status(run, rank)) is not None and s.stall is not None for rank in (0, 1)))
    assert main(["watch", str(run), "--once"]) == 0
    said = capsys.readouterr().out
    assert "rank 1 did not arrive at all_reduce" in said and re.search(r"live_job.py:\d+ in stands_still_here", said)
    assert main(["trigger", str(run)]) == 2
    assert "has taken no step for" in capsys.readouterr().err
    assert_equal_to_log(scraped(job), run)
    (job / "stand").unlink()
    until(lambda: (s := read_status(run, 1)) is not None and s.stall is None)


def assert_equal_to_log(found: dict[str, float], run: Path) -> None:
    lines = step_lines(run, 1)
    label = 'run="run",rank="1"'
    assert found[f"stepscope_steps_total{{{label}}}"] == len(lines)
    assert found[f"stepscope_step_number{{{label}}}"] == lines[-1]["step"]
    own = [line["dur_ns"] for line in lines if not line["profiled"]]
    assert found[f"stepscope_step_duration_seconds_sum{{{label}}}"] == pytest.approx(sum(own) / 1e9)
    for name in ("forward_pass", "backward_pass", "optimizer_step", "gradient_sync"):
        total_ns = sum(line["regions"].get(name, {"ns": 0})["ns"] for line in lines)
        value = found[f'stepscope_region_time_seconds_total{{{label},region="{name}"}}']
        assert value == pytest.approx(total_ns / 1e9)
    sizes = [line["collectives"]["bytes"] for line in lines if line.get("collectives", {}).get("bytes")]
    assert found[f"stepscope_collective_size_bytes_total{{{label}}}"] == sum(sizes)
