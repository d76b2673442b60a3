"""Who is this process among a launcher's ranks, and do the benchmark's ranks become the launcher's?"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.job_environment import python_path
from tests.limits import HANG_S

from stepscope.bench.session.launcher import launched_by
from stepscope.errors import UsageError

ROOT = Path(__file__).parents[3]
SMALL = [
    *("--d-model", "32", "--num-layers", "1", "--num-heads", "2", "--seq-len", "16", "--vocab-size", "64"),
    *("--batch-size", "2", "--steps", "6", "--warmup-steps", "2", "--runs", "2"),
]
TWO_OF_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


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


def test_two_machines_need_the_address_of_rank_0() -> None:
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        launched_by({"OMPI_COMM_WORLD_RANK": "0", **TWO_OF_MPI, "OMPI_COMM_WORLD_SIZE": "4"})


def test_sessions_of_one_command_never_meet() -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7"}
    plain = launched_by(environ)
    agent = launched_by({**environ, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert plain is not None and agent is not None
    assert [plain.of_session(n)["MASTER_PORT"] for n in (0, 1)] == ["7", "8"]
    assert [agent.of_session(n)["MASTER_PORT"] for n in (0, 1)] == ["7", "7"]  # torchrun's store stays, its keys differ
    assert [agent.of_session(n)["STEPSCOPE_BENCH_SESSION"] for n in (0, 1)] == ["0", "1"]


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


@pytest.mark.job
@pytest.mark.parametrize(("words", "series"), [(("straggler", "--delays-ms", "20"), {"0ms", "20ms"})])
def test_ranks_of_torchrun_are_the_ranks_of_the_benchmark(
    words: tuple[str, ...], series: set[str], tmp_path: Path
) -> None:
    done = under_torchrun(tmp_path, *words, *SMALL)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["complete"] and results["environment"]["world_size"] == 2
    assert {row["name"] for row in results["series"]} == series
    assert all(len(row["samples_ms"]) == 2 for row in results["series"])
    assert done.stdout.count("results in") == 1  # one of the two ranks writes and shows
    assert done.stderr.count("measuring on the 2 ranks that torchrun started") == 1


@pytest.mark.job
def test_buckets_on_the_ranks_of_torchrun(tmp_path: Path) -> None:
    done = under_torchrun(tmp_path, "buckets", "--sizes-mb", "0.01,25", "--round-steps", "2", *SMALL)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "results.json").read_text())["recommendation"]
    assert done.stdout.count("recommended:") == 1


@pytest.mark.job
def test_ranks_on_machines_without_a_shared_folder_bring_their_records_to_rank_0(tmp_path: Path) -> None:
    port, ranks = str(_free_port()), []
    for rank in (0, 1):
        machine = tmp_path / f"machine{rank}"
        machine.mkdir()
        environ = {
            **os.environ,
            **TWO_OF_MPI,
            "OMPI_COMM_WORLD_RANK": str(rank),
            "PYTHONPATH": python_path(ROOT / "src"),
        }
        words = ("ddp", "--implementations", "pytorch_ddp", "--no-trace", "--out", "out", *SMALL)
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-m", "stepscope", "bench", *words],
                env={**environ, "MASTER_PORT": port},
                cwd=machine,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [rank.communicate(timeout=HANG_S)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    results = json.loads((tmp_path / "machine0" / "out" / "results.json").read_text())
    assert results["complete"] and len(results["series"][0]["samples_ms"]) == 2
    assert not (tmp_path / "machine1" / "out" / "results.json").exists()
    assert "results in" not in said[1]


@pytest.mark.job
def test_what_needs_one_rank_is_refused_under_a_launcher(tmp_path: Path) -> None:
    done = under_torchrun(tmp_path, "precision", *SMALL)
    assert done.returncode != 0
    assert "bench precision measures on one rank; start it without torchrun" in done.stderr
