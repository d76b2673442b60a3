"""FLOPs per token from a model's shape, against PyTorch's counter on small models of that shape."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from stepscope.bench.config import WorkloadSpec
from stepscope.bench.workloads import Workload, workload
from stepscope.cost.model_flops import (
    Experts,
    LatentAttention,
    Recompute,
    Transformer,
    forward_flops_per_token,
    training_flops_per_token,
)
from stepscope.cost.model_shape import transformer_from_config
from stepscope.errors import StepscopeError

SIZES: dict[str, Any] = {"d_model": 32, "num_layers": 3, "num_heads": 4, "seq_len": 16, "vocab_size": 100}
GPT = Transformer(layers=3, d_model=32, heads=4, vocab=100, mlp_width=128)
GROUPED = Transformer(layers=3, d_model=32, heads=4, kv_heads=2, vocab=100, mlp_width=128)
DEEPSEEK = Transformer(
    layers=3, d_model=32, heads=4, vocab=100, mlp_width=128, gated_mlp=True,
    latent=LatentAttention(kv_rank=16, nope_width=8, rope_width=4, value_width=8, query_rank=24),
    experts=Experts(count=6, per_token=2, width=24, shared=1, dense_layers=1),
)  # fmt: skip
LATENT = {"kv_rank": 16, "head_width": 8, "rotary_width": 4, "q_rank": 24}
ROUTED = {"num_experts": 6, "experts_per_token": 2, "expert_width": 24, "shared_experts": 1, "dense_layers": 1}


def built(name: str = "gpt", **options: object) -> Workload:
    return workload(WorkloadSpec(name, batch_size=2, options=options, **SIZES), "cpu")


def counted_flops_per_token(work: Workload, *, backward: bool = True) -> float:
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss = work.loss(work.model, next(work.batches()))
        if backward:
            loss.backward()
    return counter.get_total_flops() / (2 * 16)


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [("gpt", {}, GPT), ("gpt", {"kv_heads": 2}, GROUPED), ("deepseek", {**LATENT, **ROUTED}, DEEPSEEK)],
)
def test_forward_and_training_flops_equal_the_counter(name: str, options: dict[str, int], shape: Transformer) -> None:
    work = built(name, **options)
    forward = counted_flops_per_token(work, backward=False)
    assert forward_flops_per_token(shape, seq_len=16).total == pytest.approx(forward, rel=0.01)
    assert training_flops_per_token(shape, seq_len=16).model == pytest.approx(counted_flops_per_token(work), rel=0.01)


def test_checkpointed_blocks_equal_the_counter() -> None:
    found = training_flops_per_token(GPT, seq_len=16, recompute=Recompute.BLOCKS)
    with set_checkpoint_early_stop(False):  # else a block is computed again up to what backward needs of it
        counted = counted_flops_per_token(built(checkpointing="full"))
    assert found.hardware == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize(
    ("field", "value"), [("v_head_dim", "2"), ("n_routed_experts", "x"), ("q_lora_rank", [5]), ("hidden_size", -1)]
)
def test_a_model_whose_sizes_are_no_numbers_is_refused_by_name(tmp_path, field, value):
    honest = json.loads((Path(__file__).parents[2] / "data" / "side_files" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**honest, field: value}))
    with pytest.raises(StepscopeError, match=r"has to be (a whole number|at least)"):
        transformer_from_config(tmp_path / "config.json")
