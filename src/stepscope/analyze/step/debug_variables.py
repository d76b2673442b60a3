"""Which variables for debugging were set while the job ran? They slow every step, and no rule can tell by how much."""

from collections.abc import Mapping
from typing import Any

from stepscope.dataclass import dataclass

_ON = frozenset(("1", "true", "yes", "on", "y", "t"))


@dataclass(frozen=True)
class DebugVariable:
    """One variable: the values that slow a job (any that means yes where none is given), and what they do."""

    name: str
    does: str
    values: frozenset[str] = _ON


_VARIABLES = (
    DebugVariable("CUDA_LAUNCH_BLOCKING", "the host waits for every kernel before it launches the next"),
    DebugVariable("PYTORCH_NO_CUDA_MEMORY_CACHING", "every tensor is allocated and freed by the driver"),
    DebugVariable("TORCH_NCCL_BLOCKING_WAIT", "the host waits in every collective"),
    DebugVariable(
        "TORCH_DISTRIBUTED_DEBUG", "the ranks compare every collective by another one first", frozenset(("detail",))
    ),
    DebugVariable("NCCL_DEBUG", "NCCL writes a line for every call", frozenset(("trace",))),
)


def debug_warnings(description: Mapping[str, Any]) -> list[str]:
    """Return a line for each such variable in what `run.json` keeps of the environment."""
    environment = description.get("environment")
    if not isinstance(environment, Mapping):
        return []
    lines = []
    for variable in _VARIABLES:
        value = environment.get(variable.name)
        if isinstance(value, str) and (said := value.strip().lower()) in variable.values:
            shown = said.upper() if variable.values is not _ON else said
            why = "unset it unless you look for an error, and record again"
            lines.append(f"{variable.name}={shown} was set: {variable.does}; {why}")
    return lines
