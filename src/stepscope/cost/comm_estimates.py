"""What it costs to keep the ranks of a given model in step: the estimates for users who have the model at hand.

    profiler = CommunicationProfiler("calibration.json")
    cost = profiler.estimate_ddp_comm_cost(model, world_size=8)
    print(cost.time_ms, cost.sent_bytes)

The model only needs `parameters()` whose items know `numel()` and `element_size()`, as PyTorch's do.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.cost.calibration import Calibration, load_calibration
from stepscope.cost.closed_form import Fabric
from stepscope.cost.strategy_cost import (
    BUCKET_BYTES,
    CommTime,
    Traffic,
    ddp_traffic,
    fsdp_traffic,
    times_of,
    total_time,
)
from stepscope.dataclass import dataclass
from stepscope.errors import UsageError
from stepscope.units import NS_PER_MS

# of a parameter's name: `layers.3` of `layers.3.mlp.weight`, and `3` of `3.weight` in a Sequential
_LAYER = re.compile(r"^((?:.*?\.)?\d+)\.")
_NO_SOURCE = "no calibration and no links were given; make one with `stepscope calibrate`"
_DISABLED = "the profiler is disabled"


@dataclass(frozen=True)
class CommCost:
    """Communication of one rank per step."""

    world_size: int
    traffic: tuple[Traffic, ...]
    estimate: CommTime | None
    #: why there is no estimate
    reason: str | None = None

    @property
    def time_ms(self) -> float | None:
        """Return the time of all collectives one after another, before any overlap; None without measured links."""
        return None if self.estimate is None else self.estimate.time_ns / NS_PER_MS

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """Return the bounds of that time, None where the links were given and not measured."""
        if self.estimate is None:
            return None
        low, high = self.estimate.low_ns, self.estimate.high_ns
        return None if low is None or high is None else (low / NS_PER_MS, high / NS_PER_MS)

    @property
    def sent_bytes(self) -> float:
        """Return what this rank puts on its link."""
        return sum(t.sent_bytes for t in self.traffic)

    @property
    def collectives(self) -> int:
        """Return the number of calls."""
        return sum(t.count for t in self.traffic)


class CommunicationProfiler:
    """Estimates communication from a calibration (or its file) or from a fabric's links.

    Without either it counts bytes and collectives, and times are unknown. With `enabled=False` it estimates nothing, so
    that a training loop can hold one always.
    """

    def __init__(self, source: Calibration | Fabric | str | Path | None = None, *, enabled: bool = True) -> None:
        known = load_calibration(source) if isinstance(source, str | Path) else source
        self._times = None if known is None else times_of(known)
        self.enabled = enabled

    def estimate_ddp_comm_cost(self, model: Any, world_size: int, *, bucket_bytes: int = BUCKET_BYTES) -> CommCost:
        """Return the cost of DDP's all-reduces, one per bucket of gradients."""
        sizes = [size for _, size in _trained(model)]
        return self._cost(world_size, ddp_traffic(sizes, ranks=world_size, bucket_bytes=bucket_bytes))

    def estimate_fsdp_comm_cost(
        self, model: Any, world_size: int, *, reshard_after_forward: bool = True, units: Sequence[int] | None = None
    ) -> CommCost:
        """Return the cost of FSDP's gathers and scatters, each layer one unit and the rest another.

        Layers are told by numbers in the names (`layers.3.mlp...`); `units` gives their bytes instead, the root first.
        """
        listed = list(units) if units is not None else _units(model)
        return self._cost(world_size, fsdp_traffic(listed, ranks=world_size, reshard=reshard_after_forward))

    def _cost(self, world_size: int, traffic: list[Traffic]) -> CommCost:
        if not self.enabled:
            return CommCost(world_size, (), None, _DISABLED)
        if self._times is None:
            return CommCost(world_size, tuple(traffic), None, _NO_SOURCE)
        return CommCost(world_size, tuple(traffic), total_time(traffic, self._times))


def _trained(model: Any) -> list[tuple[str, int]]:
    if hasattr(model, "named_parameters"):
        named = list(model.named_parameters())
    elif hasattr(model, "parameters"):
        named = [("", p) for p in model.parameters()]
    else:
        raise UsageError(f"the model has to have parameters(); {type(model).__name__} has none")
    found = [(n, int(p.numel()) * int(p.element_size())) for n, p in named if getattr(p, "requires_grad", True)]
    if not found:
        raise UsageError("the model has no parameters that are trained")
    return found


def _units(model: Any) -> list[int]:
    root, layers = 0, dict[str, int]()
    for name, size in _trained(model):
        layer = _LAYER.match(name)
        if layer is None:
            root += size
        else:
            layers[layer[1]] = layers.get(layer[1], 0) + size
    return [root, *layers.values()] if root else list(layers.values())
