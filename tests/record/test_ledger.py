"""The ledger of a job that was killed twice, against the times that the job's own script took of its parts."""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.limits import HANG_S
from tests.record.script_runs import environment, recorded

JOB = Path(__file__).with_name("ledger_job.py")
# of the job's time
CLOSE_PCT = 2.0
LONG = 1.5

Stamp = tuple[int, str, float, float, int | None]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("ledger")
    torchrun = f"{sys.executable} -W ignore -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 2"
    # `date` by hand: what the launcher itself takes is part of the job
    script = f"date +%s.%N > began; {torchrun} --monitor-interval 0.1 {JOB}; code=$?; date +%s.%N > ended; exit $code"
    done = recorded(where, ["sh", "-c", script], "--light")
    assert done.returncode == 0, done.stderr[-3000:]
    return where


def stepscope(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "stepscope.cli.main", *map(str, words)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=HANG_S)


def ledger(run: Path) -> dict[str, Any]:
    done = stepscope("job", run, "--json", "-")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def by_hand(where: Path) -> tuple[float, dict[str, float]]:
    """Return the job's time and that of each part, from the stamps alone: the mean over both ranks."""
    began, ended = (float((where / name).read_text()) for name in ("began", "ended"))
    stamps = [
        [tuple(json.loads(line)) for line in (where / f"stamps-{rank}.jsonl").read_text().splitlines()]
        for rank in range(2)
    ]
    killed = {attempt: begin_end[1] for rank in stamps for attempt, what, *begin_end, _ in rank if what == "killed"}
    parts: dict[str, float] = {}
    for rank in stamps:
        for name, seconds in _of_rank(rank, began, ended, killed):
            parts[name] = parts.get(name, 0.0) + seconds / 2
    parts["productive"] = ended - began - sum(parts.values())
    return ended - began, parts


def _of_rank(stamps: list[Stamp], began: float, ended: float, killed: dict[int, float]) -> Iterator[tuple[str, float]]:
    usual = statistics.median(end - begin for _, what, begin, end, _ in stamps if what == "step")
    for attempt in range(3):
        own = [one for one in stamps if one[0] == attempt]
        steps = [one for one in own if one[1] == "step"]
        calls = ("save", "load", "evaluation", "evaluated")
        took = {what: sum(end - begin for _, name, begin, end, _ in own if name == what) for what in calls}
        yield from (("checkpoint_save", took["save"]), ("checkpoint_load", took["load"]))
        yield "evaluation", took["evaluation"] - took["evaluated"]
        yield "compile", sum(max(0.0, end - begin - usual) for _, _, begin, end, _ in steps[:2]) + took["evaluated"]
        start = began if attempt == 0 else killed[attempt - 1]
        yield "startup" if attempt == 0 else "restart", steps[0][2] - start - took["load"]
        over = killed.get(attempt)
        if over is None:
            yield "slowed", sum(e - b - usual for _, _, b, e, _ in steps[2:] if e - b > LONG * usual)
            yield "shutdown", ended - max(end for _, what, _, end, _ in own if what == "trained")
        else:
            saved = max((end for _, what, _, end, _ in own if what == "save"), default=0.0)
            done = max(end for _, what, _, end, _ in own if end <= over and what != "killed")
            yield "lost_work", over - done + sum(end - begin for _, _, begin, end, _ in steps if begin > saved)


@pytest.mark.job
def test_every_part_is_within_2_percent_of_the_time_taken_by_hand(job: Path) -> None:
    found = ledger(job / "run-2")
    total_s, expected = by_hand(job)
    parts = {part["part"]: part["s"] for part in found["parts"]}
    assert sum(parts.values()) == pytest.approx(found["total_s"], rel=1e-9)
    assert sum(part["pct"] for part in found["parts"]) == pytest.approx(100.0, abs=1e-6)
    off = {name: 100 * (parts[name] - expected.get(name, 0.0)) / total_s for name in parts}
    assert max(map(abs, off.values())) < CLOSE_PCT, (off, parts, expected)
