"""The learning rate of each step: linear warm-up, then constant, linear or cosine decay. Standard library only.

rate   |    ______            constant
       |   /      \\___        linear, cosine: down to final_ratio at total_steps
       |  /
       | /
       +--------------- step
          warmup
"""

import math
from dataclasses import dataclass

from stepscope.bench.config.field import setting

DECAYS = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class SchedulerConfig:
    """How the learning rate moves over the steps."""

    warmup_steps: int = setting(10, "steps in which the rate rises linearly from 0 to train.lr", least=0)
    decay: str = setting("constant", "what the rate does after the warm-up", choices=DECAYS)
    total_steps: int | None = setting(None, "step at which the decay ends; none: train.steps", least=1)
    final_ratio: float = setting(0.0, "share of train.lr that is left at total_steps", least=0)


def learning_rate(step: int, *, peak: float, config: SchedulerConfig, total_steps: int) -> float:
    """Return the rate of a step, counted from 0.

    >>> linear = SchedulerConfig(warmup_steps=2, decay="linear")
    >>> [learning_rate(s, peak=1.0, config=linear, total_steps=6) for s in range(8)]
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    if step < config.warmup_steps:
        return peak * step / config.warmup_steps
    if config.decay == "constant":
        return peak
    way = min(1.0, (step - config.warmup_steps) / max(total_steps - config.warmup_steps, 1))
    left = 1.0 - way if config.decay == "linear" else (1.0 + math.cos(math.pi * way)) / 2
    return peak * (config.final_ratio + (1.0 - config.final_ratio) * left)
