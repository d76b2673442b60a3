"""The learning rate of each step: linear warm-up, then constant, linear or cosine decay. Standard library only.

rate   |    ______            constant
       |   /      \\___        linear, cosine: down to final_ratio at total_steps
       |  /
       | /
       +--------------- step
          warmup
"""

import math

DECAYS = ("constant", "linear", "cosine")


def learning_rate(
    step: int,
    *,
    peak: float,
    warmup_steps: int,
    decay: str = "constant",
    total_steps: int = 0,
    final_ratio: float = 0.0,
) -> float:
    """Return the rate of a step, counted from 0.

    >>> [learning_rate(s, peak=1.0, warmup_steps=2) for s in range(4)]
    [0.0, 0.5, 1.0, 1.0]
    >>> [learning_rate(s, peak=1.0, warmup_steps=2, decay="linear", total_steps=6) for s in range(8)]
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    if decay == "constant":
        return peak
    way = min(1.0, (step - warmup_steps) / max(total_steps - warmup_steps, 1))
    left = 1.0 - way if decay == "linear" else (1.0 + math.cos(math.pi * way)) / 2
    return peak * (final_ratio + (1.0 - final_ratio) * left)
