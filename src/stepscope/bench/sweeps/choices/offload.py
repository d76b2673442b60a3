"""What to keep in host memory? Nothing, activations, the optimizer's state, or parameters and all."""

from collections.abc import Mapping
from typing import Any

from stepscope.bench.sweeps.choices.sweep import Sweep, Variant, rounding

_WHY = "on the CPU everything is in host memory already"


def sweep(spec: Mapping[str, Any]) -> Sweep:
    """Return the sweep; the same arithmetic, some of it elsewhere."""
    return Sweep(
        name="offload",
        question="what does keeping state in host memory save on the device, and what does it cost?",
        variants=(
            Variant("none"),
            *(
                Variant(what, step={"offload": what}, only_on="cuda", why_only=_WHY)
                for what in ("activations", "optimizer", "parameters")
            ),
        ),
        tolerance=rounding(spec["precision"]),
        goal="memory",
    )
