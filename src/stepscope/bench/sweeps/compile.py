"""Is the step worth compiling? torch.compile's modes, and the whole step captured as one CUDA graph."""

from collections.abc import Mapping
from typing import Any

from stepscope.bench.sweeps.sweep import Sweep, Variant, rounding

_GRAPHS = "CUDA graphs replay kernels of a CUDA device"


def sweep(spec: Mapping[str, Any]) -> Sweep:
    """Return the sweep; the first runs operator by operator."""
    return Sweep(
        name="compile",
        question="what do torch.compile and CUDA graphs give, and when is the compilation paid back?",
        variants=(
            Variant("eager"),
            Variant("cuda-graph", step={"cuda_graph": True}, only_on="cuda", why_only=_GRAPHS),
            Variant("default", step={"compile": "default"}),
            Variant("reduce-overhead", step={"compile": "reduce-overhead"}, only_on="cuda", why_only=_GRAPHS),
            Variant("max-autotune-no-cudagraphs", step={"compile": "max-autotune-no-cudagraphs"}),
            Variant("max-autotune", step={"compile": "max-autotune"}, only_on="cuda", why_only=_GRAPHS),
        ),
        tolerance=rounding(spec["precision"]),
    )
