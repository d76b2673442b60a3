"""What do weights, gradients and optimizer state take by the formulas, for the model that the job described?

    weights            parameters of this rank x bytes of each
    gradients          as the weights that are trained
    optimizer state    Adam and AdamW two values per trained weight, of its own type

The model's shape is not recorded, so activations are not among them: `stepscope predict memory` takes it.
"""

from collections.abc import Mapping
from typing import Any

from stepscope.analyze.memory.moments import Moments
from stepscope.cost.models.layout import Optimizer
from stepscope.dataclass import dataclass

_MOMENTS = {"Adam": Optimizer.ADAM, "AdamW": Optimizer.ADAM}
"""by the class of the optimizer; others may keep anything (SGD a momentum or nothing)"""
_NO_MODEL = "the run's description does not give the model's parameters"
_NO_SHAPE = "it takes the model's shape, which is not recorded: stepscope predict memory"


@dataclass(frozen=True)
class StateRow:
    """One category, by formula and as measured. None is unknown."""

    category: str
    predicted_bytes: int | None
    measured_bytes: int | None
    """the most that was held of it in the window"""
    reason: str | None
    """why it is not predicted"""


def predicted_states(description: Mapping[str, Any], moments: Moments | None) -> tuple[StateRow, ...]:
    """Return the formulas beside what was measured; empty where nothing of either is known."""
    weights = _share_of_weights(description, "local_parameters")
    trained = _share_of_weights(description, "trainable_parameters")
    whole = _share_of_weights(description, "parameters")
    gradients = weights * trained // whole if weights and trained is not None and whole else None
    name = description.get("optimizer")
    kept = _MOMENTS.get(name) if isinstance(name, str) else None
    state = gradients * kept.moments if gradients is not None and kept else None
    why_state = _NO_MODEL if gradients is None else "what its optimizer keeps per weight is not known"
    rows = (
        ("weights", weights, _NO_MODEL),
        ("gradients", gradients, _NO_MODEL),
        ("optimizer_state", state, why_state),
        ("activations", None, _NO_SHAPE),
        ("temporary", None, _NO_SHAPE),
    )
    found = tuple(
        StateRow(category, size, moments.most(category) if moments else None, None if size is not None else why)
        for category, size, why in rows
    )
    return found if any(row.predicted_bytes is not None or row.measured_bytes for row in found) else ()


def _share_of_weights(description: Mapping[str, Any], of: str) -> int | None:
    """Return the bytes of some of the parameters, None where the job did not say."""
    model = description.get("model")
    said = [model.get(name) for name in ("bytes", of, "parameters")] if isinstance(model, dict) else []
    numbers = [n for n in said if type(n) is int and n >= 0]
    return numbers[0] * numbers[1] // numbers[2] if len(numbers) == 3 and numbers[2] else None
