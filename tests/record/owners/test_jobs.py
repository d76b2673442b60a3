"""Jobs of many kinds have owners for all that the training thread does; losses and exit codes stay as they are."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.record.script_runs import recorded, started, step_lines
from tests.two_ranks import on_two_ranks

from stepscope.contract.run_folder import owners_file

pytestmark = pytest.mark.job

JOB = Path(__file__).with_name("job_modes.py")
LINES = JOB.read_text().splitlines()


def line_of(text: str) -> int:
    """Return the number of the only line of the job that has this text."""
    (number,) = [i for i, line in enumerate(LINES, 1) if text in line]
    return number


def run_job(mode: str, folder: Path, *options: str, ranks: int = 1, steps: int = 22) -> tuple[list[str], list[dict]]:
    """Return what a recorded job printed, and the owners of its ranks."""
    modules = "torch.distributed.fsdp torch._dynamo" if mode == "fsdp" else ""
    words = [str(JOB), mode, str(steps)]
    job = on_two_ranks(*words, modules=modules) if ranks == 2 else [sys.executable, *words]
    printed = losses(recorded(folder, job, *options))
    files = [folder / "run" / owners_file(rank) for rank in range(ranks)]
    return printed, [json.loads(gzip.decompress(f.read_bytes())) for f in files if f.exists()]


def losses(done: "subprocess.CompletedProcess[str]") -> list[str]:
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if "0x" in line]


def user_lines(owners: dict, stack: int) -> list[tuple[str, int]]:
    frames = [owners["frames"][f] for f in owners["stacks"][stack]] if stack >= 0 else []
    return [(owners["files"][f[0]], f[1]) for f in frames if f[3]]


def operators(owners: dict) -> list[tuple[str, list[tuple[str, int]], str | None]]:
    (thread,) = [t for t in owners["threads"] if t["role"] == "training"]
    rows = zip(thread["name"], thread["stack"], thread["module"], strict=True)
    modules = owners["modules"]
    return [(owners["names"][n], user_lines(owners, s), modules[m] if m >= 0 else None) for n, s, m in rows]


@pytest.mark.parametrize("mode", ["checkpoint", "compile"])
def test_every_operator_has_a_line_and_losses_are_equal(mode: str, tmp_path: Path) -> None:
    printed, (owners,) = run_job(mode, tmp_path)
    assert printed == losses(started([sys.executable, str(JOB), mode, "22"], tmp_path))
    found = operators(owners)
    assert len(found) > 300
    assert all(lines for _, lines, _ in found)
    in_forward = [lines for name, lines, _ in found if name == "aten::gelu"]
    if mode == "checkpoint":
        assert {lines[-1] for lines in in_forward} == {("job_modes.py", line_of("hidden = F.gelu"))}
        assert {"blocks.2.up", "head"} <= set(owners["modules"])
    else:
        called = ("job_modes.py", line_of("loss = F.mse_loss(model(x.to"))
        assert in_forward and all(called in lines for lines in in_forward)  # below it: the compiled function
    if mode == "checkpoint":
        assert len(in_forward) == 6  # once more in the backward pass
        assert_step_with_frames_is_in_no_timing(tmp_path / "run")


def test_ranks_of_a_ddp_job_have_lines_modules_and_buckets(tmp_path: Path) -> None:
    printed, both = run_job("ddp", tmp_path, ranks=2)
    assert len(printed) == 2 * 22
    assert [o["rank"] for o in both] == [0, 1]
    assert both[0]["steps"] == both[1]["steps"] == [16]
    for owners in both:
        assert {"", "blocks.0.up", "blocks.2", "head"} <= set(owners["modules"])
        names = [name for bucket in owners["buckets"] for name in bucket]
        assert names[0].startswith("head.") and sorted(names) == sorted(set(names)) and len(names) == 20
        statistics = [lines for name, lines, _ in operators(owners) if name == "aten::square"]
        assert len(statistics) == 20
        assert {lines[-1] for lines in statistics} == {("job_modes.py", line_of("return sum(p.grad.float()"))}
        reduced = [lines for name, lines, _ in operators(owners) if name == "c10d::allreduce_"]
        assert len(reduced) == len(owners["buckets"])
        assert {lines[-1][1] for lines in reduced} == {line_of("loss.backward()")}
    assert both[0]["source_files"] == ["job_modes.py"] and both[1]["source_files"] == []
    assert (tmp_path / "run" / "source" / "job_modes.py").read_text() == JOB.read_text()


def test_fsdp_job_has_lines_for_its_collectives(tmp_path: Path) -> None:
    _, both = run_job("fsdp", tmp_path, ranks=2)
    for owners in both:
        gathers = [(lines, module) for name, lines, module in operators(owners) if name == "c10d::_allgather_base_"]
        assert gathers and all(lines for lines, _ in gathers)
        assert "blocks.1.up" in owners["modules"]


def assert_step_with_frames_is_in_no_timing(run_folder: Path) -> None:
    lines = step_lines(run_folder)
    assert [x["step"] for x in lines if x["profiled"]] == [10, 11, 12, 13, 14, 15, 16]
    run = json.loads((run_folder / "run.json").read_text())
    assert run["unprofiled_after"]["steps"] == len(lines) - 18  # 17 settles


LOADER_JOB = Path(__file__).with_name("loader_job.py")
(PLANTED,) = [i for i, line in enumerate(LOADER_JOB.read_text().splitlines(), 1) if "the planted line" in line]


def test_the_dataset_s_line_is_found_in_forked_workers(tmp_path: Path) -> None:
    plain = losses(started([sys.executable, str(LOADER_JOB), "fork"], tmp_path))
    found = {}
    for start in ("fork", "spawn"):
        (where := tmp_path / start).mkdir()
        done = recorded(where, [sys.executable, str(LOADER_JOB), start], "--steps", "4:6")
        assert losses(done) == plain
        found[start] = json.loads(gzip.decompress((where / "run" / owners_file(0)).read_bytes()))
    place, share = found["fork"]["loader"][0]
    assert place == f"loader_job.py:{PLANTED}"
    assert share > 0.9
    assert "loader" not in found["fork"]["reasons"]
    assert found["spawn"]["loader"] is None and "loader" in found["spawn"]["reasons"]
