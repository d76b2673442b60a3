"""DDP or sharded? Data-parallel strategies from simple to complicated, with and without mixed precision."""

from collections.abc import Mapping
from typing import Any

from stepscope.bench.data_parallel.strategies import HYBRID_RANKS
from stepscope.bench.sweeps.choices.sweep import Sweep, Variant, narrower, rounding
from stepscope.errors import UsageError

# from simple to complicated: the order in which advice prefers them
_STRATEGIES = {
    "ddp": "pytorch_ddp",
    "zero1": "zero1",
    "zero2": "fsdp2_zero2",
    "zero3": "fsdp2_zero3",
    "hybrid": "fsdp2_hybrid",
}
# mixed precision; fp16 would need a loss scale that shards agree on
_MIXED = "bf16"


def sweep(spec: Mapping[str, Any], *, world_size: int) -> Sweep:
    """Return the sweep; the first is DDP in the given precision, and with bf16 there is nothing but mixed precision."""
    given = spec["precision"]
    if given == "fp16":
        raise UsageError("fp16 needs a loss scale that shards agree on, and sharded gradients have none; use bf16")
    if world_size < 2:
        raise UsageError("a strategy is for several ranks; use --world-size 2 or more")
    precisions = (given,) if given == _MIXED else (given, _MIXED)
    return Sweep(
        name="strategy",
        question="which data-parallel strategy fits, and which is fastest?",
        variants=tuple(
            _variant(name, precision, world_size=world_size, plain=precision == given)
            for name in _STRATEGIES
            for precision in precisions
        ),
        tolerance=rounding(given),
        goal="both",
    )


def _variant(name: str, precision: str, *, world_size: int, plain: bool) -> Variant:
    few = name == "hybrid" and (world_size < HYBRID_RANKS or world_size % 2)
    return Variant(
        name if plain else f"{name}-{precision}",
        spec={"precision": precision},
        step={"strategy": _STRATEGIES[name]},
        tolerance=None if plain else narrower(precision),
        why_not=f"hybrid sharding needs an even number of ranks, {HYBRID_RANKS} or more" if few else "",
    )
