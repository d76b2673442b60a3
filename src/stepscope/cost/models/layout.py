"""How a training job is spread over devices and how it keeps its numbers: the terms that costs are stated in."""

from enum import Enum

from stepscope.dataclass import dataclass
from stepscope.errors import UsageError


class Sharding(Enum):
    """What data-parallel ranks split among them."""

    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"


class Precision(Enum):
    """Bytes of weights, gradients and computation."""

    FP32 = "fp32"
    AMP = "amp"
    """fp32 weights, computation cast to 16 bits by autocast, which keeps the cast weights until backward"""
    MIXED = "mixed"
    """16-bit weights and gradients, the optimizer keeps an fp32 copy (Megatron, DeepSpeed, FSDP mixed precision)"""
    BF16 = "bf16"
    """everything in 16 bits, the optimizer too"""

    @property
    def weight_bytes(self) -> int:
        """Return bytes of a weight as it is computed with or stored."""
        return 4 if self in (Precision.FP32, Precision.AMP) else 2

    @property
    def compute_bytes(self) -> int:
        """Return bytes of an activation inside a layer."""
        return 4 if self is Precision.FP32 else 2

    @property
    def residual_bytes(self) -> int:
        """Return bytes of the residual stream: autocast leaves it in fp32."""
        return 4 if self in (Precision.FP32, Precision.AMP) else 2

    @property
    def master_bytes(self) -> int:
        """Return bytes of the optimizer's own copy of a weight."""
        return 4 if self is Precision.MIXED else 0


class Optimizer(Enum):
    """Values an optimizer keeps per weight."""

    ADAM = "adam"
    SGD = "sgd"
    MOMENTUM = "momentum"

    @property
    def moments(self) -> int:
        """Return how many."""
        return {Optimizer.ADAM: 2, Optimizer.SGD: 0, Optimizer.MOMENTUM: 1}[self]


@dataclass(frozen=True)
class Layout:
    """Ranks along each dimension; their product is the world size. Experts are spread inside `data`."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    sharding: Sharding = Sharding.DDP
    micro_batches: int = 1
    """per step and rank: accumulation, or the pipeline's"""

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline", "expert", "micro_batches"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} has to be at least 1, not {getattr(self, name)}")
        if self.data % self.expert:
            raise UsageError(f"expert ranks have to divide the {self.data} data ranks; {self.expert} do not")

    @property
    def world_size(self) -> int:
        """Return the number of devices."""
        return self.data * self.tensor * self.pipeline

    def __str__(self) -> str:
        parts = [self.sharding.value if self.data > 1 else "one rank" if self.world_size == 1 else ""]
        parts += [f"{name} {count}" for name, count in self._dimensions() if count > 1]
        return " x ".join(p for p in parts if p)

    def _dimensions(self) -> list[tuple[str, int]]:
        return [("dp", self.data), ("tp", self.tensor), ("pp", self.pipeline), ("ep", self.expert)]
