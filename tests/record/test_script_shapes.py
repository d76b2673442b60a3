"""Scripts of real shapes, plain and recorded: the same output to the last bit, the right steps, no step too many.

What they print is every loss, and at their end digests of what `torch.save` writes of model, state, copy, average and
optimizers (`scripts/digests.py`).
"""

import gzip
import json
from pathlib import Path

import pytest
from tests.record.script_runs import recorded, run_json, script, started, steps, two_ranks

pytestmark = pytest.mark.job


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
    both_ways(tmp_path, two_ranks("run_clm.py"))
    found = steps(tmp_path)
    assert len(found) == 24
    assert {line["regions"]["backward_pass"]["n"] for line in found} == {2}  # micro-batches
    assert numbers(tmp_path, "evaluation") == [10, 20]
    assert numbers(tmp_path, "checkpoint") == [11]  # the other comes after an evaluation that no step follows
    assert run_json(tmp_path)["strategy"] == "ddp"


@pytest.mark.parametrize(
    ("name", "libraries", "count", "regions"),
    [
        ("run_clm_no_trainer.py", ("transformers", "accelerate"), 24, {"evaluation": [8, 16]}),
        # a model that was saved whole is loaded as weights
        ("word_language_model.py", (), 36, {"evaluation": [12, 24]}),
        # the last checkpoint comes after an evaluation that no step follows
        ("imagenet.py", (), 24, {"evaluation": [8, 16], "checkpoint": [8, 16], "loader_start": [8, 16]}),
    ],
)
def test_steps_and_regions_of(
    name: str, libraries: tuple[str, ...], count: int, regions: dict[str, list[int]], tmp_path: Path
) -> None:
    for library in libraries:
        pytest.importorskip(library)
    both_ways(tmp_path, script(name))
    assert len(steps(tmp_path)) == count
    for region, expected in regions.items():
        found = numbers(tmp_path, region)
        assert found == expected or (region == "loader_start" and set(found) >= set(expected))


def test_generation_between_two_steps_is_neither_profiled_nor_counted(tmp_path: Path) -> None:
    both_ways(tmp_path, script("adder.py"))
    assert len(steps(tmp_path)) == 24
    assert numbers(tmp_path, "evaluation") == [1, 13]
    assert "evaluation began after step 12" in run_json(tmp_path)["windows"][0]["ranks"]["0"]["cut"]
    assert events(tmp_path) < 12_000  # two thousand calls of the model would be a hundred thousand
    assert 0 < run_json(tmp_path)["flops_per_step"] < 1e6
    for line in steps(tmp_path):
        assert sum(region["ns"] for region in line["regions"].values()) <= line["dur_ns"]


def test_rollouts_have_a_region(tmp_path: Path) -> None:
    both_ways(tmp_path, script("ppo.py"))
    found = steps(tmp_path)
    assert len(found) == 64
    rollouts = [line for line in found if line["step"] % 8 == 0 and line["step"] > 0]
    assert len(rollouts) == 7
    for line in rollouts:  # 32 ms of it asleep
        assert line["regions"]["evaluation"]["ns"] > 32e6
    # Where nothing else had the core in between.
    assert max(line["regions"]["evaluation"]["ns"] / line["dur_ns"] for line in rollouts) > 0.5


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


def test_two_training_threads_are_one_recording(tmp_path: Path) -> None:
    said = both_ways(tmp_path, script("two_threads.py"), "--steps", "20:25")
    assert "Error" not in said.replace("ERROR: External", "")
    assert 290 <= len(steps(tmp_path)) <= 300  # of one of them; the other is left alone
    assert not (tmp_path / "run-2").exists()


def events(where: Path) -> int:
    with gzip.open(where / "run" / "rank00000.pt.trace.json.gz") as f:
        return len(json.load(f)["traceEvents"])
