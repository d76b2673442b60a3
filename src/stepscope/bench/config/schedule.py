"""How the learning rate moves over the steps of a training, as configured. Standard library only."""

from dataclasses import dataclass

from stepscope.bench.config.field import setting
from stepscope.bench.learning_rate import DECAYS, learning_rate


@dataclass(frozen=True)
class SchedulerConfig:
    """How the learning rate moves over the steps."""

    warmup_steps: int = setting(10, "steps in which the rate rises linearly from 0 to train.lr", least=0)
    decay: str = setting("constant", "what the rate does after the warm-up", choices=DECAYS)
    total_steps: int | None = setting(None, "step at which the decay ends; none: train.steps", least=1)
    final_ratio: float = setting(0.0, "share of train.lr that is left at total_steps", least=0)

    def rate(self, step: int, *, peak: float, total_steps: int) -> float:
        """Return the rate of a step, counted from 0."""
        return learning_rate(
            step,
            peak=peak,
            warmup_steps=self.warmup_steps,
            decay=self.decay,
            total_steps=total_steps,
            final_ratio=self.final_ratio,
        )
