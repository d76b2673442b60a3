"""The examples that guides name run on a CPU: alone, and on two gloo ranks."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.job_environment import python_path
from tests.limits import HANG_S
from tests.two_ranks import two_ranks

import stepscope

pytest.importorskip("torch")
pytestmark = pytest.mark.job
ROOT = Path(__file__).parents[2]
# what the ranks import
MODULES = {"train_deepseek_v3": "stepscope.lab.bench.trainer", "fsdp_example": "torch.distributed.fsdp torch._dynamo"}


def environment(**variables: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("STEPSCOPE", "TORCH_TRACE", "PYTORCH_"))}
    fixed = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": python_path(ROOT / "src")}
    return {**kept, **fixed, **variables}


def run(name: str, *arguments: str, **variables: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments]
    done = subprocess.run(
        command, env=environment(**variables), cwd=ROOT, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    return done.stdout


def on_two_ranks(name: str, *arguments: str, **variables: str) -> list[str]:
    environ = {"PYTHONPATH": python_path(ROOT / "src"), **variables}
    return two_ranks(f"examples/{name}.py", *arguments, modules=MODULES[name], env=environ)


def test_memory_profiling_shows_every_part_of_the_step() -> None:
    said = run("memory_profiling", "--width", "64", "--batch-size", "4")
    assert all(f"step 1: {part}" in said for part in ("forward", "backward", "optimizer"))
    assert "parameters" in said and "memory_pct_of_limit" in said


def test_custom_allocator_honours_the_environment() -> None:
    said = run("custom_allocator", "--steps", "5", "--width", "32", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128")
    assert "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128" in said and "after 5 steps" in said


def test_deepseek_is_recorded_where_the_environment_names_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = on_two_ranks(
        "train_deepseek_v3", "--steps", "9", "--out", str(out), TORCH_TRACE_DIR=str(tmp_path / "traces")
    )
    assert "loss" in said[0] and json.loads((out / "summary.json").read_text())
    document = stepscope.load(tmp_path / "traces").document
    assert [rank["num_steps"] for rank in document["ranks"]] == [3, 3]
    assert document["by_strategy"]["name"] == "ddp"


def gathers(said: str) -> tuple[float, float]:
    found = re.search(r"([\d.]+) gathers of ([\d.]+) MB", said)
    assert found, said
    return float(found[1]), float(found[2])


def test_fsdp_gathers_every_layer(tmp_path: Path) -> None:
    said = on_two_ranks(
        "fsdp_example", "--layers", "3", "--width", "64", "--steps", "6", "--out", str(tmp_path / "run")
    )
    count, size_mb = gathers(said[0])
    assert count == 3 and size_mb == pytest.approx(3 * (64 * 64 + 64) * 4 / 1e6, rel=0.01)
    document = stepscope.load(tmp_path / "run").document
    assert [rank["num_steps"] for rank in document["ranks"]] == [3, 3]
    assert document["by_strategy"]["name"].startswith("fsdp")
