"""FLOPs and memory of models, against PyTorch's counter, peaks measured on an H200, and well-known formulas."""

from dataclasses import replace
from typing import Any

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from stepscope.lab.bench.config import WorkloadSpec
from stepscope.lab.bench.workloads import Workload, workload
from stepscope.lab.predict.model_memory import Batch, training_memory
from stepscope.lab.predict.model_shape import (
    Experts,
    LatentAttention,
    Layout,
    Precision,
    Recompute,
    Sharding,
    Transformer,
    forward_flops_per_token,
    parameters,
    training_flops_per_token,
)

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
    assert forward_flops_per_token(shape, seq_len=16)["total"] == pytest.approx(forward, rel=0.01)
    model = training_flops_per_token(shape, seq_len=16)["model"]
    assert model == pytest.approx(counted_flops_per_token(work), rel=0.01)


def test_checkpointed_blocks_equal_the_counter() -> None:
    found = training_flops_per_token(GPT, seq_len=16, recompute=Recompute.BLOCKS)
    with set_checkpoint_early_stop(False):  # else a block is computed again up to what backward needs of it
        counted = counted_flops_per_token(built(checkpointing="full"))
    assert found["hardware"] == pytest.approx(counted, rel=0.01)


def gpt(layers, d_model, heads, vocab, seq):
    return Transformer(
        layers=layers, d_model=d_model, heads=heads, vocab=vocab, mlp_width=4 * d_model, learned_positions=seq,
        norm_bias=True, fused_qkv=True,
    )  # fmt: skip


# name: model, sequences, sequence length, options of the batch, layout, measured MB (torch 2.11, fused AdamW)
MEASURED: dict[str, Any] = {
    "12 layers": (gpt(12, 1024, 16, 32768, 1024), 8, 1024, {}, Layout(), 9970.2),
    "checkpointed": (gpt(12, 1024, 16, 32768, 1024), 8, 1024, {"recompute": Recompute.BLOCKS}, Layout(), 6439.1),
    "6 layers": (gpt(6, 1024, 16, 32768, 1024), 8, 1024, {}, Layout(), 7097.0),
    "narrow": (gpt(8, 768, 16, 32768, 1024), 16, 1024, {}, Layout(), 11698.0),
    "plain attention": (gpt(6, 1024, 16, 32768, 2048), 4, 2048, {"fused_attention": False}, Layout(), 16795.3),
    "fused attention": (gpt(6, 1024, 16, 32768, 2048), 4, 2048, {}, Layout(), 7109.6),
    "small batch": (gpt(12, 1024, 16, 32768, 128), 1, 128, {}, Layout(), 3568.7),
    "24 layers": (gpt(24, 768, 16, 32768, 256), 2, 256, {}, Layout(), 3685.4),
    "2 layers": (gpt(2, 512, 8, 32768, 256), 4, 256, {}, Layout(), 1042.0),
    "ddp": (gpt(6, 256, 4, 2048, 256), 64, 256, {}, Layout(data=4), 1531.6),
    "fsdp2 zero-2": (
        gpt(6, 256, 4, 2048, 256), 64, 256, {"precision": Precision.FP32},
        Layout(data=4, sharding=Sharding.ZERO2), 2164.1,
    ),
    "fsdp2 zero-3": (
        gpt(6, 256, 4, 2048, 256), 64, 256, {"precision": Precision.FP32},
        Layout(data=4, sharding=Sharding.ZERO3), 2134.9,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_peak_is_within_a_twentieth_of_the_measured_one(name):
    model, sequences, seq, options, layout, measured_mb = MEASURED[name]
    found = training_memory(model, Batch(sequences, seq, **options), layout=layout, foreach_optimizer=False)
    assert found.peak_bytes / 1e6 == pytest.approx(measured_mb, rel=0.05)


# Matrices of their own for queries, keys and values; two ranks, 8 x 1024 tokens (`benchmarks/gpu_memory.py`).
SEPARATE = {
    "ddp": (Sharding.DDP, Precision.AMP, Recompute.NONE, 12126.4),
    "ddp, checkpointed": (Sharding.DDP, Precision.AMP, Recompute.BLOCKS, 7315.9),
    "zero-2": (Sharding.ZERO2, Precision.MIXED, Recompute.NONE, 8304.9),
    "zero-3, checkpointed": (Sharding.ZERO3, Precision.MIXED, Recompute.BLOCKS, 4975.1),
    "zero-3, fp32": (Sharding.ZERO3, Precision.FP32, Recompute.NONE, 11394.0),
}


@pytest.mark.parametrize("name", SEPARATE)
def test_peak_of_two_ranks_is_within_a_tenth_of_the_measured_one(name):
    sharding, precision, again, measured_mb = SEPARATE[name]
    model = replace(gpt(12, 1024, 16, 32768, 1024), fused_qkv=False)
    batch = Batch(8, 1024, precision, again)
    found = training_memory(model, batch, layout=Layout(data=2, sharding=sharding), foreach_optimizer=False)
    assert found.peak_bytes / 1e6 == pytest.approx(measured_mb, rel=0.1)


def test_parameters_of_known_models():
    llama = Transformer(layers=32, d_model=4096, heads=32, vocab=32000, mlp_width=11008, gated_mlp=True)
    assert parameters(llama).total == 6_738_415_616
    deepseek = Transformer(
        layers=61, d_model=7168, heads=128, vocab=129280, mlp_width=18432, gated_mlp=True,
        latent=LatentAttention(kv_rank=512, nope_width=128, rope_width=64, value_width=128, query_rank=1536),
        experts=Experts(count=256, per_token=8, width=2048, shared=1, dense_layers=3),
    )  # fmt: skip
    assert parameters(deepseek).total == pytest.approx(671e9, rel=0.001)
