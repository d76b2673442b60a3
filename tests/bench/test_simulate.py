"""Simulated steps against a real job on gloo, against the formulas, and against memory measured on an H200."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.bench.parallel_job import CASES, SHAPE

from stepscope.bench.simulate import Job, Shape, simulate_step
from stepscope.contract.collectives import op_name
from stepscope.cost.model_flops import Experts, Recompute, Transformer
from stepscope.cost.model_memory import Batch
from stepscope.cost.model_shape import Layout, Precision, Sharding
from stepscope.cost.strategy_cost import strategy_traffic
from stepscope.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore")
SHARDING = {"ddp": Sharding.DDP, "zero2": Sharding.ZERO2, "zero3": Sharding.ZERO3}


def as_transformer(shape):
    experts = Experts(shape.experts, shape.experts_per_token, shape.mlp_width) if shape.experts else None
    return Transformer(
        layers=shape.layers, d_model=shape.d_model, heads=shape.heads, vocab=shape.vocab, mlp_width=shape.mlp_width,
        gated_mlp=shape.gated_mlp, kv_heads=shape.kv_heads, experts=experts, norm_bias=True,
        learned_positions=shape.seq_len,
    )  # fmt: skip


def by_formula(job):
    recompute = Recompute.BLOCKS if job.checkpoint else Recompute.NONE
    batch = Batch(job.micro_batch, job.shape.seq_len, Precision(job.precision), recompute)
    layout = Layout(data=job.data, tensor=job.tensor, expert=job.expert, sharding=SHARDING[job.strategy])
    return batch, layout, as_transformer(job.shape)


def counted(rows):
    found: Counter[Any] = Counter()
    for op, group, when, size, count in rows:
        found[op, group, when, size] += count
    return found


GATED = replace(SHAPE, gated_mlp=True, kv_heads=2)
EXPERTS = replace(SHAPE, experts=8, experts_per_token=2)
JOBS = {
    "ddp": Job(SHAPE, "ddp", data=4, micro_batch=2),
    "zero-2": Job(GATED, "zero2", data=1024, micro_batch=2, precision="mixed"),
    "zero-3 x tensor": Job(GATED, "zero3", data=128, tensor=2, micro_batch=2, checkpoint=True),
    "experts": Job(EXPERTS, "ddp", data=4, expert=4, micro_batch=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_formulas_list_the_collectives_of_the_simulated_step(name):
    job = JOBS[name]
    step = simulate_step(job)["collectives"]
    if name == "experts":  # plain DDP would reduce experts with the rest
        step = [c for c in step if c["op"] == "all_to_all"]
    batch, layout, model = by_formula(job)
    traffic = [t for t in strategy_traffic(model, batch, layout) if name != "experts" or t.op == "all_to_all"]
    seen = counted((c["op"], c["group"], c["when"], c["bytes"], c["count"]) for c in step)
    assert counted((t.op, t.group, t.when, t.size_bytes, t.count) for t in traffic) == seen


@pytest.mark.job
def test_collectives_and_bytes_equal_those_of_a_real_job_on_four_ranks(tmp_path):
    subprocess.run([sys.executable, "-m", "tests.bench.parallel_job", str(tmp_path)], check=True, capture_output=True)
    for name, (data, tensor) in CASES.items():
        events = json.loads((tmp_path / f"{name}.json").read_text())["traceEvents"]
        asked = [e for e in events if e.get("cat") == "cpu_op" and e["name"].startswith("c10d::")]
        real = Counter((op_name(e["name"]), largest_bytes(e["args"]["Input Dims"])) for e in asked)
        job = Job(SHAPE, name.partition("-")[0], data=data, tensor=tensor, micro_batch=2)
        found: Counter[Any] = Counter()
        for c in simulate_step(job)["collectives"]:
            found[c["op"], c["bytes"]] += c["count"]
        assert found == real, name


def largest_bytes(dims):
    def count(shape):
        if shape and isinstance(shape[0], list):
            return sum(count(s) for s in shape)
        total = 1
        for d in shape:
            total *= d
        return total if shape else 0

    return 4 * max(count(shape) for shape in dims)


BIG = Shape(layers=12, d_model=1024, heads=16, vocab=32768, seq_len=1024, mlp_width=4096)
SMALL = Shape(layers=6, d_model=256, heads=4, vocab=2048, seq_len=256, mlp_width=1024)
WORKSPACE_MB = 67.1
MEASURED_MB = {
    "checkpointed": (Job(BIG, "ddp", micro_batch=8, precision="amp", checkpoint=True, foreach=False), 6439.1),
    "fsdp2 zero-2": (Job(SMALL, "zero2", data=4, micro_batch=64, foreach=False), 2164.1),
    "fsdp2 zero-3": (Job(SMALL, "zero3", data=4, micro_batch=64, foreach=False), 2134.9),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED_MB)
def test_simulated_memory_is_near_the_measured_peak(name):
    job, measured_mb = MEASURED_MB[name]
    memory = simulate_step(job)["memory"]
    assert memory["peak_bytes"] / 1e6 + WORKSPACE_MB == pytest.approx(measured_mb, rel=0.03)
    assert sum(memory["parts"].values()) == memory["peak_bytes"] and memory["peak_when"] == "backward"


def test_nonsense_jobs_are_refused():
    with pytest.raises(UsageError, match="data has to be at least 1"):
        simulate_step(Job(SHAPE, data=0))
    with pytest.raises(UsageError, match="divide"):
        simulate_step(Job(EXPERTS, "ddp", data=4, expert=3))
