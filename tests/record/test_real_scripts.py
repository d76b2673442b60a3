"""Scripts of the shapes that real ones have, plain and recorded: same output, right steps, regions and files."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.record.script_runs import SCRIPTS, TRAIN, recorded, run_json, script, started, steps
from tests.two_ranks import on_two_ranks

from stepscope.analyze.account import account_of
from stepscope.diagnose.findings import diagnose
from stepscope.run.load import load

pytestmark = pytest.mark.job

LOOKS_FIRST = f"""
import importlib.util
assert importlib.util.find_spec("torch") is not None
{TRAIN}
assert os.environ["TEARDOWN_CUPTI"] == "1"
train(4)
"""


def test_T27_a_script_that_looks_for_torch_first_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(LOOKS_FIRST)
    done = recorded(tmp_path, [sys.executable, "job.py"])
    assert done.returncode == 0, done.stderr
    assert "recorded 4 steps of 1 rank" in done.stderr


def test_T28_the_window_goes_on_after_evaluation_which_is_counted_in_no_flops(tmp_path: Path) -> None:
    found: dict[str, dict[str, Any]] = {}
    done_with = ""
    for name, words in {"with": ("12", "400"), "without": ("100", "1")}.items():
        (where := tmp_path / name).mkdir()
        done = recorded(where, script("evaluates.py", *words))
        assert done.returncode == 0, done.stderr
        assert len(steps(where)) == 24
        found[name] = run_json(where)
        done_with = done.stderr if name == "with" else done_with
    assert found["with"]["flops_per_step"] == found["without"]["flops_per_step"] != 0
    window = found["with"]["windows"][0]["ranks"]["0"]
    assert window["cut"] is None and (window["left_out"], window["last_step"]) == ([12], 15)
    with gzip.open(tmp_path / "with" / "run" / "rank00000.pt.trace.json.gz") as f:
        assert len(json.load(f)["traceEvents"]) < 2_000  # 400 batches would be ten thousand
    evaluated = [line["step"] for line in steps(tmp_path / "with") if "evaluation" in line["regions"]]
    assert evaluated == [12]
    profiled = [line["step"] for line in steps(tmp_path / "with") if line["profiled"]]
    assert profiled == [10, 11, 13, 14, 15, 16]  # operators of 15 are counted, 16 is watched with frames
    run = load(tmp_path / "with" / "run")
    assert run.ranks[0].steps.number.tolist() == [10, 11, 13, 14]
    assert "profiled steps 10-11, 13-14 of 1 rank" in done_with and "not profiled: step 12" in done_with


@pytest.mark.parametrize("kind", ["plain", "ddp"])
def test_T29_checkpoints_are_equal_byte_by_byte(kind: str, tmp_path: Path) -> None:
    outputs = []
    for name in ("without", "with"):
        (where := tmp_path / name).mkdir()
        command = script("saves.py", str(where / "files"), *(["ddp"] if kind == "ddp" else []))
        done = started(command, where) if name == "without" else recorded(where, command, "--steps", "6:8")
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    files = sorted(p.name for p in (tmp_path / "without" / "files").iterdir() if p.suffix in (".pt", ".txt"))
    assert len(files) == 3 * 7
    for name in files:
        same = (tmp_path / way / "files" / name for way in ("without", "with"))
        first, second = (path.read_bytes() for path in same)
        assert first == second, name
    assert [line["step"] for line in steps(tmp_path / "with") if "checkpoint" in line["regions"]] == [3, 7, 11]


def test_window_of_a_loop_without_the_usual_optimizer(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPTS.parent / "loops" / "updates.py"), "critics_by_hand"]
    done = recorded(tmp_path, command, "--steps", "12:18")
    assert (done.returncode, done.stdout) == (0, started(command, tmp_path).stdout)
    assert "recorded 40 steps of 1 rank, profiled steps 12-17" in done.stderr
    assert len(steps(tmp_path)) == 40


@pytest.mark.parametrize(
    ("step_of", "count", "unit"),
    [("Adam#1", 7, "one step of Adam#1; optimizers: 2 x Adam"), ("10", 4, "10 optimizer steps; optimizers: 2 x Adam")],
)
def test_a_unit_that_is_asked_for(step_of: str, count: int, unit: str, tmp_path: Path) -> None:
    done = recorded(tmp_path, script("unequal_rates.py", "wgan"), "--step-of", step_of)
    assert done.returncode == 0, done.stderr
    assert len(steps(tmp_path)) == count
    assert run_json(tmp_path)["step_unit"] == unit
    assert f"a step is {unit}" in done.stderr


def test_a_wrong_unit_is_said_before_the_job_starts(tmp_path: Path) -> None:
    done = recorded(tmp_path, script("unequal_rates.py", "sac"), "--step-of", "a b")
    assert (done.returncode, done.stdout) == (2, "")
    assert ": give loader, optimizer" in done.stderr


def test_a_replay_of_a_graph_that_holds_the_whole_step_is_a_step(tmp_path: Path) -> None:
    done = recorded(tmp_path, script("whole_step_graph.py", "20"), "--steps", "10:14", "--graphs")
    assert [line["step"] for line in steps(tmp_path)] == list(range(23))
    assert "profiled steps 10-13 of 1 rank" in done.stderr
    with gzip.open(tmp_path / "run" / "rank00000.owners.json.gz") as f:
        assert "CUDAGraph.replay" in json.load(f)["names"]


def test_what_recurs_has_regions_of_its_own(tmp_path: Path) -> None:
    plain = started(script("recurs.py"), tmp_path)
    done = recorded(tmp_path, script("recurs.py"))
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    found = {line["step"]: line["regions"] for line in steps(tmp_path)}
    assert len(found) == 24
    assert [s for s, regions in found.items() if "checkpoint" in regions] == [2, 8, 14, 20]
    assert {4, 10, 16, 22} <= {s for s, regions in found.items() if "garbage_collection" in regions}
    assert [s for s, regions in found.items() if "evaluation" in regions] == [6, 12, 18]
    assert [s for s, regions in found.items() if "loader_start" in regions] == [6, 12, 18]
    assert 13 in [s for s, regions in found.items() if "compilation" in regions]
    for line in steps(tmp_path):
        assert sum(region["ns"] for region in line["regions"].values()) <= line["dur_ns"]


def test_rounds_of_a_policy_are_the_steps_of_its_report(tmp_path: Path) -> None:
    """What it writes is no evaluation that could be left out; and its lines are among those with frames."""
    done = recorded(tmp_path, script("rollouts.py", "20"), "--steps", "10:16")
    assert done.returncode == 0, done.stderr
    logged = steps(tmp_path)
    assert len(logged) == 40
    evaluated = [line["step"] for line in logged if "evaluation" in line["regions"]]
    assert evaluated == list(range(evaluated[0], 40, 2)) and evaluated[0] <= 4
    with gzip.open(tmp_path / "run" / "rank00000.owners.json.gz") as f:
        owners = json.load(f)
    assert set(owners["steps"]) <= set(evaluated)
    account = account_of(load(tmp_path / "run"))
    assert len(account.run.ranks[0].steps) == 3
    assert not [f for f in diagnose(account).findings if "evaluation" in f.title]
    lines = {one.line for one in account.code.lines} if account.code else set()
    assert {14, 22} <= lines  # the passes of writing, and of improving
    (owned,) = account.ownership
    assert owned is not None and owned.matched_share is not None and owned.matched_share > 0.95


def both_ways(where: Path, command: list[str], *options: str) -> str:
    """Return what a recording said; the job's own output and exit code are those without it."""
    plain, done = started(command, where), recorded(where, command, *options)
    assert (plain.returncode, done.returncode) == (0, 0), plain.stderr + done.stderr
    assert plain.stdout == done.stdout
    assert all(f"saved {name} " in done.stdout for name in ("model", "state", "copy", "average"))
    assert "Traceback" not in done.stderr and "no longer followed" not in done.stderr, done.stderr
    return done.stderr


def numbers(where: Path, region: str) -> list[int]:
    return [line["step"] for line in steps(where) if region in line["regions"]]


def test_the_trainer_of_transformers_on_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    both_ways(tmp_path, on_two_ranks(SCRIPTS / "run_clm.py", modules="transformers.trainer"))
    found = steps(tmp_path)
    assert len(found) == 20
    assert {line["regions"]["backward_pass"]["n"] for line in found} == {2}  # micro-batches
    assert numbers(tmp_path, "evaluation") == [8, 16]
    assert numbers(tmp_path, "checkpoint") == [9]  # the other comes after an evaluation that no step follows
    assert run_json(tmp_path)["strategy"] == "ddp"


@pytest.mark.parametrize(
    ("words", "count", "unit"),
    [
        ("wgan", 33, "one batch of the loader; optimizers: 2 x Adam"),
        ("sac", 30, "one step of each optimizer: 3 x Adam"),
    ],
)
def test_losses_and_unit_of_optimizers_at_unequal_rates(words: str, count: int, unit: str, tmp_path: Path) -> None:
    said = both_ways(tmp_path, script("unequal_rates.py", words))
    assert (len(steps(tmp_path)), run_json(tmp_path)["step_unit"]) == (count, unit)
    assert (f"a step is {unit}" in said) == ("optimizers:" in unit)


JOB = """
import sys, threading, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
def elsewhere(steps):
    thread = threading.Thread(target=lambda: (time.sleep(0.3), train(steps)))  # the other one waits by then
    thread.start()
    thread.join()
for word in sys.argv[1:]:
    where, _, steps = word.partition(":")
    (train if where == "main" else elsewhere)(int(steps))
print("trained", flush=True)
"""
SEVERAL = "no trace: the steps run in several threads, and only the one that started the profiler could stop it"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["thread:1"] * 9, SEVERAL),
        (["thread:7"], "recorded 7 steps of 1 rank, profiled steps 5-5 of 1 rank"),  # ends inside the window
        (["main:6", "thread:4"], SEVERAL),
        (["main:2", "thread:8"], "recorded 10 steps of 1 rank, profiled steps 5-7 of 1 rank"),  # before the window
        (["main:9", "thread:4"], "recorded 13 steps of 1 rank, profiled steps 5-7 of 1 rank"),  # while one is counted
    ],
)
def test_steps_in_several_threads_do_not_crash_the_job(words: list[str], expected: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    done = recorded(tmp_path, [sys.executable, "job.py", *words], "--steps", "5:8")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


AT_ONCE = f"""
{TRAIN}
threads = [threading.Thread(target=train, args=(300,)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("trained", flush=True)
"""


def test_two_threads_that_train_at_once_are_one_run_without_a_failure(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(AT_ONCE)
    done = recorded(tmp_path, [sys.executable, "job.py"], "--light")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "no longer followed" not in done.stderr and "recording stopped" not in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]
