"""Which data-parallel implementations there are, by name, and which of them run here. Standard library only."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from stepscope.errors import UsageError

_HERE = "stepscope.bench.data_parallel.implementations"
_CLASSES = {
    "ddp": "ddp:Ddp",
    "ddp_individual": "ddp_individual:DdpIndividual",
    "ddp_individual_v2": "ddp_individual_v2:DdpIndividualV2",
    "ddp_bucketed": "ddp_bucketed:DdpBucketed",
    "pytorch_ddp": "pytorch_ddp:PytorchDdp",
    "zero1": "zero1:Zero1",
    "fsdp2_zero2": "fsdp2:Fsdp2Zero2",
    "fsdp2_zero3": "fsdp2:Fsdp2Zero3",
    "fsdp2_hybrid": "fsdp2:Fsdp2Hybrid",
    "deepspeed_zero1": "deepspeed_zero:DeepspeedZero1",
    "deepspeed_zero2": "deepspeed_zero:DeepspeedZero2",
    "deepspeed_zero3": "deepspeed_zero:DeepspeedZero3",
}
# the fewest that hybrid sharding divides: two groups of two
HYBRID_RANKS = 4
# those that run on any number of ranks
NAMES = tuple(name for name in _CLASSES if name != "fsdp2_hybrid")
# a rank holds only a part of the gradients
SHARDED = ("fsdp2_zero2", "fsdp2_zero3", "fsdp2_hybrid", "deepspeed_zero1", "deepspeed_zero2", "deepspeed_zero3")


def available(names: tuple[str, ...] = NAMES) -> tuple[str, ...]:
    """Return the names that can run here: DeepSpeed's only where it is installed."""
    return tuple(name for name in names if not name.startswith("deepspeed") or find_spec("deepspeed") is not None)


def checked_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names, all known and able to run here."""
    for name in names:
        if name not in _CLASSES:
            raise UsageError(f"unknown implementation {name!r}; use some of {', '.join(NAMES)}")
        if not available((name,)):
            raise UsageError(f"{name} needs DeepSpeed, which is not installed here; install it or leave it out")
    return names


def parallel(name: str, model: Any, options: Any) -> Any:
    """Return the model made data-parallel by the implementation of that name (needs torch)."""
    module, _, kind = _CLASSES[checked_names((name,))[0]].partition(":")
    return getattr(import_module(f"{_HERE}.{module}"), kind)(model, options)
