"""Do two implementations compute the same? Their gradients, weights and losses against a reference.

Relative errors: |a - b| / |b| in the Euclidean norm over all parameters. Summing the same numbers in another order is
the only difference that is allowed: with two ranks a + b = b + a, so everything is equal bit by bit on a CPU; with
more, rounding differs and grows with the steps. Kernels of a device that add in no fixed order differ from run to run
by themselves, which in 16 bit is more: the reference measured twice shows how much.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

# relative errors of gradient, weights and loss; the optimizer's first steps amplify rounding in the weights
_TOLERANCES = {
    "fp32": (1e-6, 1e-3, 1e-4),
    "tf32": (1e-2, 5e-2, 1e-2),
    "fp16": (1e-2, 5e-2, 1e-2),
    "bf16": (1e-2, 5e-2, 1e-2),
}

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Outcome:
    """What training arrived at: gradients of the first step, weights after all steps, losses of the measured ones."""

    gradients: Tensors | None
    weights: Tensors
    losses: tuple[float, ...]
    steps: int


@dataclass(frozen=True)
class Agreement:
    """How far an outcome is from the reference's."""

    steps: int
    #: None where the implementation does not show its gradients
    gradient_error: float | None
    weight_error: float
    #: the largest of any step
    loss_error: float
    #: weights bit by bit
    equal: bool
    #: all errors within their tolerances
    agrees: bool

    def as_dict(self) -> dict[str, Any]:
        """Return it as it is streamed."""
        return asdict(self)


def agreement(found: Outcome, reference: Outcome, *, precision: str) -> Agreement:
    """Return how far two outcomes of the same training agree, by the tolerances of its precision."""
    for_gradient, for_weights, for_loss = _TOLERANCES[precision]
    both = found.gradients is not None and reference.gradients is not None
    gradient_error = _relative_error(found.gradients or {}, reference.gradients or {}) if both else None
    weight_error = _relative_error(found.weights, reference.weights)
    loss_error = _largest_error(found.losses, reference.losses)
    return Agreement(
        steps=reference.steps,
        gradient_error=gradient_error,
        weight_error=weight_error,
        loss_error=loss_error,
        equal=all(torch.equal(found.weights[name], tensor) for name, tensor in reference.weights.items()),
        agrees=(gradient_error or 0.0) <= for_gradient and weight_error <= for_weights and loss_error <= for_loss,
    )


def _relative_error(found: Tensors, reference: Tensors) -> float:
    apart = sum(float((found[name].double() - tensor.double()).square().sum()) for name, tensor in reference.items())
    whole = sum(float(tensor.double().square().sum()) for tensor in reference.values())
    return float((apart / whole) ** 0.5) if whole else 0.0


def _largest_error(found: Sequence[float], reference: Sequence[float]) -> float:
    return max((abs(a - b) / abs(b) if b else abs(a) for a, b in zip(found, reference, strict=False)), default=0.0)
