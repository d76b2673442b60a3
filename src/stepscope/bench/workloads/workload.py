"""What is trained in a benchmark: a model, its data and its loss, and the description it is built from."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stepscope.bench.workloads.fed import BatchCount
from stepscope.bench.workloads.loader import RankBatches, move_to_device
from stepscope.contract.flops import DEFAULT_WORKLOAD, TRAINING_PRECISIONS, WORKLOAD_DEFAULTS
from stepscope.errors import UsageError

_AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class WorkloadSpec:
    """The description of a workload, plain enough for JSON."""

    name: str = DEFAULT_WORKLOAD
    d_model: int = WORKLOAD_DEFAULTS["d_model"]
    num_layers: int = WORKLOAD_DEFAULTS["num_layers"]
    num_heads: int = WORKLOAD_DEFAULTS["num_heads"]
    seq_len: int = WORKLOAD_DEFAULTS["seq_len"]
    vocab_size: int = WORKLOAD_DEFAULTS["vocab_size"]
    #: samples of one rank in one forward
    batch_size: int = WORKLOAD_DEFAULTS["batch_size"]
    precision: str = "fp32"
    seed: int = 0
    #: what only some workloads know, such as kv_heads, attention, checkpointing, num_experts
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("d_model", "num_layers", "num_heads", "seq_len", "vocab_size", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{name} has to be a whole number of at least 1, not {value!r}")
        if self.precision not in TRAINING_PRECISIONS:
            raise UsageError(f"precision has to be one of {', '.join(TRAINING_PRECISIONS)}, not {self.precision!r}")

    def option(self, name: str, default: Any) -> Any:
        """Return one option, or its default."""
        return self.options.get(name, default)


@dataclass(frozen=True)
class Workload:
    """A model with its data and loss, on its device."""

    spec: WorkloadSpec
    model: nn.Module
    device: torch.device
    #: sample i is the same in every process, whatever the world size
    samples: Dataset[Any]
    #: loss of a batch, in the precision of its inputs
    objective: Callable[[nn.Module, Any], torch.Tensor]
    #: of one rank's forward and backward by formula; None: counted by running it
    model_flops: int | None = None

    def batches(
        self, *, rank: int = 0, world_size: int = 1, fed: BatchCount | None = None
    ) -> Generator[Any, None, None]:
        """Return this rank's batches on the device, each counted in `fed` before it goes there."""
        return (
            move_to_device(batch if fed is None else fed.counted(batch), self.device)
            for batch in self._host_batches(rank=rank, world_size=world_size)
        )

    def _host_batches(self, *, rank: int, world_size: int) -> Iterator[Any]:
        order = RankBatches(batch_size=self.spec.batch_size, rank=rank, world_size=world_size, count=len(self.samples))
        return iter(DataLoader(self.samples, batch_sampler=order, **dict(self.spec.option("loader", {}))))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the loss of a batch; fp16 and bf16 by autocast."""
        with self.autocast():
            return self.objective(model, batch)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of the spec's precision (tf32 is a switch of the process, see `workload`)."""
        dtype = _AUTOCAST.get(self.spec.precision)
        return torch.autocast(self.device.type, dtype) if dtype else nullcontext()

    def flops_per_step(self) -> int:
        """Return model FLOPs of one rank's forward and backward: multiply-add is 2, attention in full, no recompute."""
        return counted_flops(self) if self.model_flops is None else self.model_flops


def counted_flops(work: Workload) -> int:
    """Return the FLOPs of one forward and backward as PyTorch counts them, unfused so that nothing repeats."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    batch = next(work.batches())
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        work.loss(work.model, batch).backward()
    work.model.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())
