"""Which precision? fp32, tf32 on the tensor cores, fp16 with loss scaling, bf16."""

from collections.abc import Mapping
from typing import Any

from stepscope.bench.sweeps.choices.sweep import Sweep, Variant, narrower, rounding


def sweep(spec: Mapping[str, Any]) -> Sweep:
    """Return the sweep; results are compared with fp32."""
    return Sweep(
        name="precision",
        question="which precision is fastest, and does it still compute the same?",
        variants=(
            Variant("fp32", spec={"precision": "fp32"}),
            Variant(
                "tf32",
                spec={"precision": "tf32"},
                only_on="cuda",
                why_only="tf32 is a mode of NVIDIA's tensor cores",
                tolerance=narrower("tf32"),
            ),
            Variant("fp16", spec={"precision": "fp16"}, tolerance=narrower("fp16")),
            Variant("bf16", spec={"precision": "bf16"}, tolerance=narrower("bf16")),
        ),
        tolerance=rounding("fp32"),
    )
