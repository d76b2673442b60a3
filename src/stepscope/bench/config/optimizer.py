"""The optimizer of a training: which one, with which settings. Needs torch only to make it."""

from dataclasses import dataclass
from typing import Any

from stepscope.bench.config.field import setting
from stepscope.errors import UsageError

_NAMES = ("adamw", "adam", "sgd")


@dataclass(frozen=True)
class OptimizerConfig:
    """What steps the parameters; the learning rate is `train.lr` and `scheduler`."""

    name: str = setting("adamw", "adamw, adam or sgd", choices=_NAMES)
    weight_decay: float = setting(0.01, "decay of the weights", least=0)
    betas: tuple[float, float] = setting((0.9, 0.999), "of adam and adamw", least=0)
    momentum: float = setting(0.0, "of sgd", least=0)
    fused: bool = setting(False, "one kernel for all parameters, where the device has it")


def _class_and_arguments(config: OptimizerConfig, *, lr: float) -> tuple[Any, dict[str, Any]]:
    import torch

    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[config.name]
    own = {"momentum": config.momentum} if config.name == "sgd" else {"betas": config.betas}
    how = {"fused": True} if config.fused else {"foreach": True}
    return kind, {"lr": lr, "weight_decay": config.weight_decay, **own, **how}


def give_optimizer(parallel: Any, config: OptimizerConfig, *, strategy: str, lr: float) -> None:
    """Let a data-parallel model step by the configured optimizer instead of the one it was made with."""
    if config == OptimizerConfig():
        return
    kind, arguments = _class_and_arguments(config, lr=lr)
    if strategy.startswith("deepspeed"):
        raise UsageError(
            f"optimizer: the engine of train.strategy {strategy} owns its optimizer, so it cannot be changed "
            f"(name={config.name!r}); choose another strategy or leave [optimizer] out"
        )
    if strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        parallel.optimizer = ZeroRedundancyOptimizer(parallel.model.parameters(), optimizer_class=kind, **arguments)
    else:
        parallel.optimizer = kind(parallel.model.parameters(), **arguments)
