"""Is the step worth compiling? torch.compile's modes, and the whole step captured as one CUDA graph."""

from collections.abc import Mapping
from typing import Any

from stepscope.bench.sweeps.choices.sweep import Sweep, Variant, rounding

_GRAPHS = "CUDA graphs replay kernels of a CUDA device"


def sweep(spec: Mapping[str, Any]) -> Sweep:
    """Return the sweep; the first runs operator by operator."""
    return Sweep(
        name="compile",
        question="what do torch.compile and CUDA graphs give, and when is the compilation paid back?",
        variants=(
            Variant("eager"),
            _graph("cuda-graph", {"cuda_graph": True}),
            Variant("default", step={"compile": "default"}),
            _graph("reduce-overhead", {"compile": "reduce-overhead"}),
            Variant("max-autotune-no-cudagraphs", step={"compile": "max-autotune-no-cudagraphs"}),
            _graph("max-autotune", {"compile": "max-autotune"}),
        ),
        tolerance=rounding(spec["precision"]),
    )


def _graph(name: str, step: Mapping[str, Any]) -> Variant:
    return Variant(name, step=step, only_on="cuda", why_only=_GRAPHS, graph_memory=True)
