"""Communication of strategies: volumes that theory gives, and estimates for a model at hand."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stepscope.contract.operations import op_name
from stepscope.lab.predict.closed_form import Fabric, Link, ring_ns
from stepscope.lab.predict.model_memory import Batch
from stepscope.lab.predict.model_shape import Layout, Precision, Sharding, Transformer
from stepscope.lab.predict.strategy_cost import CommunicationProfiler, strategy_traffic

MODEL = Transformer(layers=8, d_model=512, heads=8, vocab=8192, mlp_width=2048)
BATCH = Batch(4, 256, Precision.MIXED)


def sent(sharding, ranks=8):
    return sum(t.sent_bytes for t in strategy_traffic(MODEL, BATCH, Layout(data=ranks, sharding=sharding)))


class Parameter:
    requires_grad = True

    def __init__(self, count):
        self.count = count

    def numel(self):
        return self.count

    def element_size(self):
        return 4


class Model:
    def named_parameters(self):
        yield "embedding", Parameter(1_000_000)
        for layer in range(3):
            yield f"layers.{layer}.weight", Parameter(2_000_000)


def test_costs_of_a_model_at_hand():
    link = Link(10_000, 0.1)
    profiler = CommunicationProfiler(Fabric(link))
    ddp = profiler.estimate_ddp_comm_cost(Model(), world_size=4)
    fsdp = profiler.estimate_fsdp_comm_cost(Model(), world_size=4)
    assert ddp.sent_bytes == 2 * 3 / 4 * 28_000_000 and ddp.interval_ms is None
    assert ddp.collectives == 2  # the last layer fills the first bucket, the rest the second
    assert fsdp.collectives == 4 + 3 + 4
    wanted = sum(ring_ns("all_reduce", size_bytes=s, ranks=4, link=link) for s in (8e6, 20e6))
    assert ddp.time_ms == pytest.approx(wanted / 1e6)
    zero2 = profiler.estimate_fsdp_comm_cost(Model(), world_size=4, reshard_after_forward=False)
    assert zero2.sent_bytes < fsdp.sent_bytes


@pytest.mark.job
def test_collectives_and_bytes_are_those_of_a_real_job_on_four_ranks(tmp_path):
    pytest.importorskip("torch")
    from tests.lab.predict.strategies.parallel_job import CASES, MICRO_BATCH, SHAPE

    job = [sys.executable, "-m", "tests.lab.predict.strategies.parallel_job", str(tmp_path)]
    subprocess.run(job, check=True, capture_output=True, cwd=Path(__file__).parents[4])
    model = Transformer(
        layers=SHAPE.layers, d_model=SHAPE.d_model, heads=SHAPE.heads, vocab=SHAPE.vocab, mlp_width=SHAPE.mlp_width,
        gated_mlp=True, kv_heads=SHAPE.kv_heads, norm_bias=True, learned_positions=SHAPE.seq_len,
    )  # fmt: skip
    for name, (data, tensor) in CASES.items():
        events = json.loads((tmp_path / f"{name}.json").read_text())["traceEvents"]
        asked = [e for e in events if e.get("cat") == "cpu_op" and e["name"].startswith("c10d::")]
        real = Counter((op_name(e["name"]), largest_bytes(e["args"]["Input Dims"])) for e in asked)
        layout = Layout(data=data, tensor=tensor, sharding=Sharding(name))
        found: Counter[tuple[str, int]] = Counter()
        for t in strategy_traffic(model, Batch(MICRO_BATCH, SHAPE.seq_len, Precision.FP32), layout):
            found[t.op, t.size_bytes] += t.count
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
