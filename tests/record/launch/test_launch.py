"""`stepscope record` around unmodified scripts: every way of starting ranks, hand timers, nsys and ncu."""

import gzip
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.limits import HANG_S
from tests.record.script_runs import TRAIN, step_lines

from stepscope.contract.run_folder import RUN_JSON, steps_file, trace_file
from stepscope.run.load import load

pytestmark = pytest.mark.job

HERE = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
SPAWNED = (
    TRAIN
    + """
def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    train()
if __name__ == "__main__":
    import torch.multiprocessing as mp
    mp.start_processes(main, args=(sys.argv[1],), nprocs=2, start_method=sys.argv[2])
    sys.exit(7)
"""
)
CRASHES_ONCE = (
    TRAIN
    + """
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]  # a store of its own: gloo's addresses of the first try are stale
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store{restart}", rank=int(os.environ["RANK"]),
                        world_size=2)
train(5)
dist.barrier()  # both have made their steps, however slow the machine
if restart == "0" and dist.get_rank() == 1:
    raise RuntimeError("once")
train(8)
dist.destroy_process_group()
"""
)
OTHER_HOST = (
    TRAIN
    + """
import functools
import stepscope.record.helper.side_channel as probe
host = os.environ["GROUP_RANK"]
probe.boot_id = lambda: "host " + host
if host == "1":
    probe.ask = functools.partial(probe.ask, clock=lambda: time.time_ns() - 37_123_000)
dist.init_process_group("gloo")
for _ in range(4):
    train(3)
    time.sleep(0.5)
dist.destroy_process_group()
"""
)

FORKS = (
    TRAIN
    + """
def fork(step):
    if step not in (0, 3, 7):  # before the folder is known, inside the window, after it
        return
    child = os.fork()
    if child == 0:
        threading.Event.wait = lambda *_: os._exit(99)  # nothing is worth a wait in a child that leaves
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
train(8, fork)
"""
)
SECRETS = ["hf_planted", "pw_planted", "user_planted", "jwt_planted", "query_planted", "url_planted", "port_planted"]


def record(*words: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stepscope.cli.main", "record", *map(str, words)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=HANG_S)


def test_region_times_agree_with_timers_placed_by_hand(tmp_path: Path) -> None:
    done = record(
        "--out", "run", "--steps", "20:22", "--", *TORCHRUN, HERE / "hand_timed_job.py", tmp_path, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    for rank in range(2):
        by_hand = json.loads((tmp_path / f"hand{rank}.json").read_text())
        found = step_lines(run, rank)
        assert len(found) == len(by_hand) == 24
        steady = [i for i, line in enumerate(found) if i >= 3 and line["phase"] == "before"]
        for name in ("data_loading", "forward_pass", "backward_pass", "optimizer_step"):
            assert_between(found, by_hand, steady, name)
        waits = [found[i]["regions"]["gradient_sync"]["ns"] for i in steady]
        assert all(0 < wait < by_hand[i]["backward_pass"][1] for i, wait in zip(steady, waits, strict=True))
    description = json.loads((run / RUN_JSON).read_text())
    assert description["world_size"] == 2
    assert (description["samples_per_step"], description["tokens_per_step"]) == (2 * 8, 2 * 8 * 64)
    assert description["unprofiled_step_ms"] is not None
    assert [(run / trace_file(rank)).exists() for rank in range(2)] == [True, True]
    assert "recorded 24 steps of 2 ranks, profiled steps 20-21 of 2 ranks, in run" in done.stderr
    assert "stepscope report run" in done.stderr


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_made_by_the_script_are_recorded_and_the_exit_code_is_the_scripts(method: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    done = record("--light", "--", sys.executable, "train.py", tmp_path / "store", method, cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    assert [len(step_lines(tmp_path / "stepscope-run", rank)) for rank in range(2)] == [8, 8]


def test_an_elastic_restart_is_a_run_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CRASHES_ONCE)
    done = record("--light", "--out", "run", "--", *TORCHRUN, "--max-restarts=1", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for folder, steps in (("run", 5), ("run-2", 13)):
        killed, crashed = (len(step_lines(tmp_path / folder, rank)) for rank in range(2))
        assert crashed == steps
        assert killed == steps or (folder == "run" and killed == steps - 1)  # a killed rank may lose its last line
        assert json.loads((tmp_path / folder / RUN_JSON).read_text())["world_size"] == 2
        assert f"recorded {steps} steps of 2 ranks, in {folder}" in done.stderr
    assert not (tmp_path / "run-3").exists()


def test_clocks_of_two_hosts_are_compared_around_the_window(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OTHER_HOST)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [sys.executable, "-m", "stepscope.cli.main", "record", "--out", "run", "--steps", "4:6", "--"]
    hosts = [
        subprocess.Popen(
            [*launcher, *TORCHRUN[:3], "--nnodes=2", f"--node-rank={host}", "--master-addr=127.0.0.1",
             f"--master-port={port}", "train.py"],
            cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
        )
        for host in range(2)
    ]  # fmt: skip
    errors = [host.communicate(timeout=HANG_S)[1] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], errors
    probes = json.loads((tmp_path / "run" / RUN_JSON).read_text())["ranks"]
    found = next(rank["clock_probes"] for rank in _each(probes) if rank.get("clock_probes"))
    assert [probe["when"][:5] for probe in found] == ["befor", "after"]
    for probe in found:
        assert abs(probe["offset_ns"] - 37_123_000) <= probe["uncertainty_ns"]
    assert not (tmp_path / "run-2").exists()


def _each(ranks: Any) -> list[dict[str, Any]]:
    return list(ranks.values()) if isinstance(ranks, dict) else ranks


def test_one_process_is_recorded_and_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + "train(4)\n")
    (other := tmp_path / "other").mkdir()
    (other / "sitecustomize.py").write_text("import builtins; builtins.other_ran = True; print('other ran')")
    env = {"PYTHONPATH": str(other)}
    done = record("--out", "run", "--", sys.executable, "train.py", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "other ran" in done.stdout
    assert len(step_lines(tmp_path / "run", 0)) == 4
    assert "no trace: the profiled steps begin at 10; for this job give --steps 1:4" in done.stderr


def test_T34_a_forked_child_leaves_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FORKS)
    done = record("--out", "run", "--steps", "2:5", "--", sys.executable, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["3", "3", "3"]), done.stderr
    assert "recorded 8 steps of 1 rank, profiled steps 2-4 of 1 rank" in done.stderr


def test_no_secret_of_the_job_is_in_its_recording_and_only_the_owner_reads_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + "train(8)\n")
    hf, password, user, jwt, query, endpoint, port = SECRETS
    job = [
        *("train.py", "--hf-token", hf, f"--password={password}", f"https://{user}:x@host/data?sign={query}"),
        *("-p", port, "--pw", port, "-u", f"me:{port}", "--pat", port, "--sas", f"?sv=1&sig={port}", f"?sig={port}"),
        *("--endpoint", f"http://{endpoint}:{endpoint}@127.0.0.1:1?{endpoint}"),
        *("--tokenizer", "gpt2", "--max-tokens", "512"),
    ]
    before = os.umask(0)
    try:
        done = record(
            *("--out", "run", "--steps", "2:4", "--"),
            *(sys.executable, *job),
            cwd=tmp_path,
            env={"SLURM_JWT": jwt, "NCCL_DEBUG": "WARN"},
        )
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {RUN_JSON, trace_file(0), steps_file(0)} <= {path.name for path in files}
    for path in files:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert not [secret for secret in SECRETS if secret.encode() in text], path
        assert path.stat().st_mode & 0o777 == 0o600, path
    run = json.loads((tmp_path / "run" / RUN_JSON).read_text())
    assert run["command"][-4:] == ["--tokenizer", "gpt2", "--max-tokens", "512"]
    assert run["environment"]["NCCL_DEBUG"] == "WARN" and run["environment"]["SLURM_JWT"] == "<redacted>"


KILLED = (
    TRAIN
    + """
import signal
from stepscope.record.session import current
def stop_helper(step):
    while step == 0 and not os.path.exists("run/rank00000.steps.jsonl"):
        time.sleep(0.05)
    os.kill(current()._run.outbox.helper_pid, signal.SIGSTOP)  # it writes nothing before this process is dead
train(9, stop_helper)
helper = current()._run.outbox.helper_pid
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1)
os.kill(helper, signal.SIGCONT)
os._exit(0)
"""
)
REMOVED = (
    TRAIN
    + """
train(9)
while not os.path.exists("run/rank00000.steps.jsonl"):
    time.sleep(0.05)
os.rename("run", "gone")
"""
)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (KILLED, "of 1 rank, profiled steps 2-4 of 1 rank, in run"),
        (REMOVED, "no training step was recorded: the run folder or its step log was removed while the job ran"),
    ],
)
def test_T35_last_words_name_the_real_cause(job: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(job)
    done = record("--out", "run", "--steps", "2:5", "--", sys.executable, "train.py", cwd=tmp_path)
    assert said in done.stderr and "no trace" not in done.stderr, done.stderr
    assert (tmp_path / "run").exists() == (job == KILLED)


def assert_between(found: list[Any], by_hand: list[Any], steps: list[int], name: str) -> None:
    """Every one of these steps spent at least the time inside the region and at most that around it."""
    for i in steps:
        inside_ns, outside_ns = by_hand[i][name]
        assert 0 < inside_ns <= _region_ns(found[i], name) <= outside_ns, (i, name)


def _region_ns(line: dict[str, Any], name: str) -> int:
    inside = ("gradient_sync",) if name == "backward_pass" else ()
    return sum(line["regions"][n]["ns"] for n in (name, *inside) if n in line["regions"])


TOOL = """#!{python} -S
import json, os, subprocess, sys
if "--import" in sys.argv:
    sys.stdout.write(open({table!r}).read())
    sys.exit(0)
if sys.argv[1] == "export":
    import gzip
    out = next(word.partition("=")[2] for word in sys.argv if word.startswith("--output="))
    with open(out, "wb") as f:
        f.write(gzip.open({export!r}).read())
    sys.exit(0 if sys.argv[-1].endswith(".nsys-rep") else 1)
options = [word for word in sys.argv[1:] if word.startswith("--") or word == "profile"]
command = sys.argv[1 + len(options):]
out = next(word.partition("=")[2] for word in options if word.startswith(("--output=", "--export=")))
with open(out + ".{ending}", "w") as f:
    json.dump({{"options": options, "command": command, "rank": os.environ.get("RANK")}}, f)
sys.exit(subprocess.run(command).returncode)
"""
DATA = Path(__file__).parents[2] / "data"
TABLE, EXPORT = DATA / "ncu-h200" / "wide.csv", DATA / "nsys-small" / "export.sqlite.gz"
SCRIPT = "import os; print('rank', os.environ.get('RANK', 'alone'), flush=True); raise SystemExit(3)"


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """Environment with both tools on PATH."""
    (folder := tmp_path / "bin").mkdir()
    for name, ending in (("nsys", "nsys-rep"), ("ncu", "ncu-rep")):
        (folder / name).write_text(
            TOOL.format(python=sys.executable, ending=ending, table=str(TABLE), export=str(EXPORT))
        )
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_one_process_runs_under_nsys_with_our_window_as_its_range(tmp_path: Path, tools: dict[str, str]) -> None:
    done = record("--nsys", "--out", "run", "--", sys.executable, "-c", SCRIPT, cwd=tmp_path, env=tools)
    assert (done.returncode, done.stdout) == (3, "rank alone\n")
    noted = json.loads((tmp_path / "run" / "rank00000.nsys-rep").read_text())
    assert noted["command"] == [sys.executable, "-c", SCRIPT]
    assert {
        "--trace=cuda,nvtx,osrt,cudnn,cublas", "--sample=process-tree", "--cuda-memory-usage=true",
        "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--duration=120", "--kill=none",
        "--force-overwrite=true",
    } < set(noted["options"])  # fmt: skip
    assert "nsys wrote run/rank00000.nsys-rep, run/rank00000.nsys.sqlite" in done.stderr
    # read on a machine without the tool
    assert load(tmp_path / "run", cache=False).ranks[0].has_device
    assert not list(tmp_path.glob(".run*"))


def test_a_missing_tool_is_said_and_the_job_runs(tmp_path: Path) -> None:
    done = record("--nsys", "--", sys.executable, "-c", SCRIPT, cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (3, "rank alone\n")
    assert "nsys is not installed (Nsight Systems: not found on PATH); the job is recorded by torch's" in done.stderr
