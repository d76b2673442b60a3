"""DeepSpeed's ZeRO 1, 2 and 3, where it is installed. Its engine does the exchange, the optimizer and the scaling."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stepscope.bench.data_parallel.implementations.averaging import share_weights
from stepscope.bench.data_parallel.implementations.parallel import Options, Parallel, Tensors


class DeepspeedZero(Parallel):
    """A DeepSpeed engine behind the interface of the others."""

    sharded = True
    stage = 1

    def __init__(self, model: nn.Module, options: Options) -> None:
        import deepspeed

        share_weights(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
        self.model, self.optimizer, _, _ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=_config(self.stage, options), dist_init_required=False
        )
        self.exchange = True

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass; the engine divides by the number of micro-batches itself."""
        self.model.backward(loss * self.model.gradient_accumulation_steps())
        if not self.exchange:
            self.model.step()  # counts the micro-batch

    def update(self, scaler: Any) -> None:
        """Let the engine step."""
        self.model.step()

    def weights(self) -> Tensors:
        """Return the whole weights, gathered where they are sharded."""
        import deepspeed

        named = dict(self.model.module.named_parameters())
        with deepspeed.zero.GatheredParameters(list(named.values()), enabled=self.stage == 3):
            return {name: p.detach().clone() for name, p in named.items()}

    def gradients(self) -> Tensors | None:
        """Return None: the engine keeps its gradients in partitions of its own."""
        return None


class DeepspeedZero1(DeepspeedZero):
    """Optimizer state sharded."""


class DeepspeedZero2(DeepspeedZero):
    """Gradients as well."""

    stage = 2


class DeepspeedZero3(DeepspeedZero):
    """Parameters as well."""

    stage = 3


def _config(stage: int, options: Options) -> dict[str, Any]:
    return {
        "train_batch_size": options.micro_batch_size * options.grad_accum * dist.get_world_size(),
        "train_micro_batch_size_per_gpu": options.micro_batch_size,
        "gradient_accumulation_steps": options.grad_accum,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": int(options.bucket_size_mb * 2**20 / 4)},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
