"""ZeRO-1: PyTorch's DDP, with the optimizer's state shared out over the ranks (ZeroRedundancyOptimizer)."""

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from stepscope.bench.data_parallel.implementations.parallel import Options
from stepscope.bench.data_parallel.implementations.pytorch_ddp import PytorchDdp


class Zero1(PytorchDdp):
    """Each rank updates its share of the parameters and broadcasts them."""

    def _optimizer(self, model: nn.Module, options: Options) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.AdamW, lr=options.lr, foreach=True
        )
