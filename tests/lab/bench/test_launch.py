"""Ranks that die, refuse, hang or fill the disk, also on two machines: a clear message, nothing measured is lost."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.job_environment import python_path
from tests.limits import HANG_S

from stepscope.lab.bench import launch as launcher
from stepscope.lab.bench.launch import LaunchResult, launch, launched_by, records_of
from stepscope.run.load import load

pytestmark = pytest.mark.job

torch = pytest.importorskip("torch")
JOBS = "tests.lab.bench.launch_jobs"
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def jobs_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT, ROOT / "src"))


def launched(
    job: str, out: Path, *, ranks: int = 1, limit_s: float = HANG_S, count: int = 0, **more: Any
) -> LaunchResult:
    plan = {"job": f"{JOBS}:{job}", "settings": {"count": count} if count else {}}
    return launch(plan, world_size=ranks, backend="gloo", out=out, limit_s=limit_s, **more)


def test_records_of_all_ranks_come_back_in_order_though_one_fails_after_its_last(tmp_path: Path) -> None:
    seen: list[str] = []
    result = launched("aborts_while_it_ends", tmp_path, ranks=2, count=3, on_record=lambda r: seen.append(r["what"]))
    assert result.complete and result.exit_codes in [(0, -signal.SIGABRT), (None, -signal.SIGABRT)]  # None: slow to end
    for rank, records in enumerate(result.records):
        assert [r["number"] for r in records if r["what"] == "number"] == [0, 1, 2]
        assert [r["sum"] for r in records if r["what"] == "number"] == [1.0] * 3, rank
    assert seen == ["machine", "number", "number", "number", "done"]


def test_killed_rank_ends_the_others_and_keeps_what_was_measured(tmp_path: Path) -> None:
    result = launched("one_is_killed", tmp_path, ranks=2)
    assert not result.complete and "rank 1 was killed by signal 9" in (result.message or "")
    assert [r["number"] for r in result.records[0] if r["what"] == "number"] == [0]
    assert result.exit_codes[0] != 0  # None: we ended it


def test_error_of_a_rank_is_told_in_one_line(tmp_path: Path) -> None:
    result = launched("one_fails", tmp_path, ranks=2)
    assert "rank 1" in (result.message or "") and "ValueError: the planted error" in (result.message or "")
    assert "\n" not in (result.message or "")


def test_full_disk_is_named_and_earlier_records_stay(tmp_path: Path) -> None:
    result = launched("disk_is_full", tmp_path)
    assert "No space left on device" in (result.message or "")
    assert [r["number"] for r in result.records[0] if r["what"] == "number"] == [0]


def test_time_limit_ends_ranks_that_hang(tmp_path: Path) -> None:
    result = launched("hangs", tmp_path, limit_s=8)
    assert "not finished after 8 s" in (result.message or "")
    assert result.exit_codes == (None,)  # we ended it


def test_ctrl_c_ends_the_ranks_and_keeps_what_was_measured(tmp_path: Path) -> None:
    script = (
        "import json; from pathlib import Path; from stepscope.lab.bench.launch import launch; "
        f"r = launch({{'job': '{JOBS}:hangs', 'settings': {{}}}}, world_size=1, backend='gloo', "
        f"out=Path({str(tmp_path)!r}), limit_s={HANG_S}); "
        "print(json.dumps([r.interrupted, r.message, len(r.records[0])]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=dict(os.environ), cwd=ROOT
    )
    deadline = time.monotonic() + HANG_S
    while not any(r["what"] == "number" for r in records_of(tmp_path, 0)) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    interrupted, message, count = json.loads(process.communicate(timeout=HANG_S)[0])
    assert interrupted and "Ctrl-C" in message and count == 2


def test_a_second_ctrl_c_while_the_ranks_end_leaves_none_running() -> None:
    class Stubborn:
        killed = False

        def poll(self) -> None: ...

        def terminate(self) -> None: ...

        def wait(self, timeout: float | None = None) -> None:
            if not self.killed:
                raise KeyboardInterrupt

        def kill(self) -> None:
            self.killed = True

    ranks = [SimpleNamespace(process=Stubborn(), ended_by_us=False) for _ in range(2)]
    launcher._end(ranks)  # type: ignore[arg-type]
    assert all(rank.process.killed and rank.ended_by_us for rank in ranks)


SMALL = [
    *("--d-model", "32", "--num-layers", "1", "--num-heads", "2", "--seq-len", "16", "--vocab-size", "64"),
    *("--batch-size", "2", "--steps", "6", "--warmup-steps", "2", "--runs", "2"),
]
TWO_OF_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "torchrun"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "gpu[07-09]"}, "srun"),
        ({"OMPI_COMM_WORLD_RANK": "1", **TWO_OF_MPI, "OMPI_COMM_WORLD_SIZE": "4", "MASTER_ADDR": "a"}, "mpirun"),
    ],
)
def test_launchers_tell_rank_and_world(environ: dict[str, str], launcher: str) -> None:
    found = launched_by(environ)
    assert found is not None
    assert (found.launcher, found.rank, found.world_size, found.writes) == (launcher, 1, 4, False)
    assert found.variables["RANK"] == "1" and found.variables["WORLD_SIZE"] == "4"
    assert found.variables["MASTER_ADDR"] == ("gpu07" if launcher == "srun" else "a")


def test_a_process_without_others_is_alone() -> None:
    assert launched_by({}) is None
    assert launched_by({"RANK": "0", "WORLD_SIZE": "1"}) is None
    batch_script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "gpu1"}
    assert launched_by(batch_script) is None


def under_torchrun(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={_free_port()}"]
    return subprocess.run(
        [*command, "-m", "stepscope", "bench", *words, "--out", str(folder)],
        env={**os.environ, "PYTHONPATH": python_path(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_ranks_of_torchrun_are_the_ranks_of_the_benchmark(tmp_path: Path) -> None:
    done = under_torchrun(tmp_path, "straggler", "--delays-ms", "20", *SMALL)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["complete"] and results["environment"]["world_size"] == 2
    assert {row["name"] for row in results["series"]} == {"0ms", "20ms"}
    assert all(len(row["samples_ms"]) == 2 for row in results["series"])
    assert done.stdout.count("results in") == 1  # one of the two ranks writes and shows
    assert done.stderr.count("measuring on the 2 ranks that torchrun started") == 1


WORKLOAD = """
import os
import torch
from torch import nn

def make(spec, device):
    def loss(model, batch):
        if spec.precision == "bf16" and os.environ["RANK"] == "1":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return model(batch).square().mean()
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), [torch.ones(2, 8)], loss
"""


@pytest.mark.slow
def test_two_machines_make_one_benchmark_and_a_rank_that_gives_up_loses_nothing_else(tmp_path: Path) -> None:
    method = ["--only", "ddp-bf16", "--steps", "3", "--warmup-steps", "1", "--runs", "2", "--batch-size", "2"]
    said = on_two_machines(tmp_path, "strategy", "--workload", "own:make", "--out", "out", *method)
    results = json.loads((tmp_path / "machine0" / "out" / "results.json").read_text())
    assert results["complete"] and results["environment"]["world_size"] == 2
    assert {row["name"]: len(row["samples_ms"]) for row in results["series"]} == {"ddp": 2}
    assert all(row["summary"]["samples_per_step"] == 4 for row in results["series"])
    assert "ran out" not in said[0] and results["recommendation"]["excluded"]["ddp-bf16"].startswith("out of memory")
    assert "2 GiB" in results["recommendation"]["excluded"]["ddp-bf16"]  # the reason of the other machine's rank
    assert results["recommendation"]["series"] == "ddp"
    assert not (tmp_path / "machine1" / "out" / "results.json").exists()
    assert "results in out" in said[0] and "results in" not in said[1]


@pytest.mark.slow
def test_traces_of_a_machine_without_shared_storage_reach_rank_0(tmp_path: Path) -> None:
    method = ["--num-epochs", "4", "--warmup-epochs", "1"]
    profiled = ["--profile", "--profile-output-dir", "profiled"]
    said = on_two_machines(tmp_path / "recorded", "ddp", "--workload", "own:make", *method, *profiled)
    folder = tmp_path / "recorded" / "machine0" / "profiled"
    assert "2 traces" in said[0] and len(load([str(folder)], cache=False).ranks) == 2
    own = tmp_path / "recorded" / "machine1" / "profiled" / "ddp_rank_1_trace.json"
    assert (folder / own.name).read_bytes() == own.read_bytes()


def on_two_machines(folder: Path, *words: str) -> list[str]:
    """Return what `stepscope bench` printed on each of two machines that share no storage."""
    folder.mkdir(exist_ok=True)
    port = _free_port()
    agents = [_agent(folder / f"machine{i}", i, port, words) for i in (0, 1)]
    try:
        said = [agent.communicate(timeout=HANG_S)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], said
    return said


def _agent(folder: Path, number: int, port: int, words: Sequence[str]) -> "subprocess.Popen[str]":
    folder.mkdir()
    (folder / "own.py").write_text(WORKLOAD)
    place = {"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # as torchrun's
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen(
        [sys.executable, "-m", "stepscope", "bench", *words],
        cwd=folder,
        env={**os.environ, **place, **address, "PYTHONPATH": python_path(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
