"""Every shape of training loop on real gloo ranks: steps, regions and strategy are found, losses unchanged.

All loops run in one job, each first plain and then with the hooks; see `loops/job.py`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.limits import HANG_S
from tests.made_once import made_once
from tests.two_ranks import on_two_ranks

pytestmark = pytest.mark.job

JOB = Path(__file__).parent / "loops" / "job.py"
SOURCE = Path(__file__).parents[2] / "src"
STEPS = 6
LOAD, FORWARD, BACKWARD, SYNC, STEP = (
    "data_loading", "forward_pass", "backward_pass", "gradient_sync", "optimizer_step",
)  # fmt: skip

# How often each region occurs in a step: loads, forwards, backwards, waits for gradients, optimizer steps.
EXPECTED = {
    "ddp_with_evaluation": (1, 1, 1, 1, 1), "accumulation": (4, 4, 4, 1, 1), "two_optimizers": (1, 1, 1, 1, 2),
    "gan": (1, 5, 2, 0, 2), "scaler_that_skips": (1, 1, 1, 1, 1), "without_loader": (0, 2, 1, 1, 1),
    "teacher_and_recomputation": (1, 2, 1, 0, 1), "compiled_model": (1, 1, 1, 0, 1),
    "compiled_in_place": (1, 1, 1, 0, 1), "compiled_optimizer": (1, 1, 1, 0, 1),
    "training_in_a_thread": (1, 1, 1, 0, 1), "errors_that_the_script_survives": (1, 1, 1, 0, 1),
    "model_that_is_copied": (1, 1, 1, 0, 1), "model_that_is_traced": (1, 1, 1, 0, 1),
    "zero_redundancy": (1, 1, 1, 1, 1), "fsdp2": (1, 1, 1, 0, 1), "fsdp2_accumulation": (4, 4, 4, 0, 1),
    "lightning_loop": (1, 1, 1, 1, 1),
    "lightning_accumulation": (2, 2, 2, 1, 1),
}  # fmt: skip
LOADED_AHEAD = ("lightning_loop", "lightning_accumulation")  # one load more, then one less
SETTLES_LATER = ("without_loader", "training_in_a_thread", "errors_that_the_script_survives", "model_that_is_traced")

ROUTINE = ("accumulation", "two_optimizers", "gan", "compiled_model", "zero_redundancy", "fsdp2", "pipeline")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = made_once(tmp_path_factory, "loops", run_loops)
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]


def run_loops(out: Path) -> None:
    command = on_two_ranks(JOB, out, modules="torch._dynamo")
    # torch as users have it: the compiler is among these loops, and other jobs of the tests start without it.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("loop", EXPECTED)
def test_steps_and_regions_of(loop: str, told: list[dict[str, Any]]) -> None:
    loads, forwards, backwards, syncs, steps = EXPECTED[loop]
    every = {LOAD: loads, FORWARD: forwards, BACKWARD: backwards, SYNC: syncs, STEP: steps}
    expected = {name: count for name, count in every.items() if count}
    for rank in told:
        found = rank[loop]["steps"]
        assert len(found) == STEPS
        if loop in LOADED_AHEAD:
            assert found[0] == {**expected, LOAD: loads + 1}
            assert found[1:-1] == [expected] * (STEPS - 2)
        elif loop in SETTLES_LATER:
            assert found[3:] == [expected] * (STEPS - 3)
        else:
            assert found == [expected] * STEPS


def test_steps_that_are_only_timed_are_the_same_steps(told: list[dict[str, Any]]) -> None:
    for rank in told:
        for loop, found in rank.items():
            timed = found["routine"]
            if loop == "inner_loop":  # its first steps depend on when dropped optimizers are collected
                continue
            assert [without_sync(step) for step in timed["steps"]] == [without_sync(step) for step in found["steps"]]
            assert timed["losses"] == found["losses"]
            assert timed["open"] == []
            assert timed["passed"] > 0 or loop not in ROUTINE, loop


def without_sync(step: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in step.items() if name != SYNC}  # is watched for in some steps only


BY_HAND = "one update of the parameters, written by hand"
# loops of `loops/updates.py` by what a step is in them: loads, forwards, backwards, waits, optimizer steps
UPDATES = {
    "optimizer_per_step": ((0, 1, 1, 0, 1), "one step of SGD"),
    "optimizer_and_scheduler_per_step": ((0, 1, 1, 0, 1), "one step of Adam"),
    "models_in_turn": ((0, 1, 1, 0, 1), "one step of each optimizer: 4 x Adam"),
    "alternating_classes": ((0, 1, 1, 0, 1), "one step of Adam"), "subtracted_by_hand": ((0, 1, 1, 0, 0), BY_HAND),
    "replaced_by_hand": ((0, 1, 1, 0, 0), BY_HAND), "by_hand_accumulated": ((0, 4, 4, 0, 0), BY_HAND),
    "tensors_by_hand": ((0, 0, 1, 0, 0), BY_HAND),
    "functional": ((0, 0, 1, 0, 0), "one backward pass; no optimizer was seen"),
    "own_class": ((0, 1, 1, 0, 0), BY_HAND), "critics_by_hand": ((0, 5, 2, 0, 0), BY_HAND),
    "no_update": ((0, 1, 1, 0, 0), "one backward pass; no optimizer was seen"),
    "in_backward": ((0, 1, 1, 0, 4), "one step of each optimizer: 4 x SGD"),
    "by_hand_in_backward": ((0, 1, 1, 0, 0), BY_HAND), "closures": ((0, 3, 3, 0, 1), "one step of LBFGS"),
}  # fmt: skip


@pytest.mark.parametrize("loop", UPDATES)
def test_a_step_is_one_turn_of_the_loop_however_it_updates(loop: str, told: list[dict[str, Any]]) -> None:
    counts, unit = UPDATES[loop]
    expected = {name: n for name, n in zip((LOAD, FORWARD, BACKWARD, SYNC, STEP), counts, strict=True) if n}
    for rank in told:
        found = rank[loop]["steps"]
        assert len(found) == 40
        settled = [step for step in found[6:] if step != expected]  # models of later folds are found in some steps
        assert len(settled) <= (9 if loop == "models_in_turn" else 0), settled
        assert rank[loop]["facts"]["step_unit"] == unit


def test_steps_of_an_inner_loop_belong_to_the_outer_optimizer(told: list[dict[str, Any]]) -> None:
    for rank in told:
        found = rank["inner_loop"]["steps"]
        assert 40 <= len(found) <= 42  # the outer one is met in the third inner step
        assert {(step[BACKWARD], step[STEP]) for step in found[4:]} == {(4, 4)}
        assert "one step of Adam#0" in rank["inner_loop"]["facts"]["step_unit"]
    assert len(told[0]["by_hand_then_optimizer"]["steps"]) == 40


def test_every_stage_of_a_pipeline_has_the_same_steps(told: list[dict[str, Any]]) -> None:
    for rank, loss_calls in ((0, 0), (1, 4)):
        found = told[rank]["pipeline"]
        assert found["steps"][1:] == [{FORWARD: 4 + loss_calls, BACKWARD: 4, STEP: 1}] * (STEPS - 1)
        assert found["facts"]["pipeline"] == {"schedule": "1F1B", "microbatches": 4, "stages": 2, "stages_here": [rank]}


def test_model_compiled_in_the_middle_of_training_is_found_again(told: list[dict[str, Any]]) -> None:
    found = told[0]["compiled_after_some_steps"]["steps"]
    assert len(found) == 2 * STEPS
    assert found[-1] == {LOAD: 1, FORWARD: 1, BACKWARD: 1, STEP: 1}


def test_results_are_equal_bit_by_bit(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert {loop: r["losses"] for loop, r in rank.items()} == {loop: r["plain_losses"] for loop, r in rank.items()}


def test_nothing_stays_open_and_python_is_not_profiled_afterwards(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert [loop for loop, r in rank.items() if r["open"] or r["profiled"]] == []


def test_model_optimizer_and_batch_are_noted(told: list[dict[str, Any]]) -> None:
    facts = told[0]["ddp_with_evaluation"]["facts"]
    assert (facts["model"], facts["optimizer"]) == ("DistributedDataParallel", "AdamW")
    assert facts["samples_per_step"] == 4
    assert "tokens_per_step" in facts["reasons"]
    assert told[0]["accumulation"]["facts"]["samples_per_step"] == 16


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    job = Path(__file__).with_name("strategy_job.py")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(job)], capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["ddp", "zero1", "fsdp2", "hsdp", "fsdp2+tp", "tp"])
def test_strategy_is_recognised(found: dict[str, Any], name: str) -> None:
    assert found[name] == name


def test_compiled_ddp_is_ddp_and_a_bare_model_is_unknown(found: dict[str, Any]) -> None:
    assert found["compiled"] == "ddp" and found["plain"] is None


def test_ranks_that_share_a_replica(found: dict[str, Any]) -> None:
    assert found["replicas"] == [1, 1, 2]
