"""Memory of a training step on one rank: weights, gradients, optimizer, activations, and when the peak is.

Bytes per weight in mixed precision with Adam, N ranks: DDP 16; ZeRO-1 4 + 12 / N; ZeRO-2 2 + 14 / N; ZeRO-3 16 / N.
To that come what the ranks hold whole for a while (the layers being computed, DDP's buckets) and the activations.
The peak is looked for where it can be: at the loss, after each layer's backward, in the optimizer step.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from stepscope.cost.memory_activations import Batch, head_bytes, kept_bytes, layer_bytes
from stepscope.cost.model_flops import Recompute, Transformer
from stepscope.cost.model_parameters import checked, on_rank, summed, weights
from stepscope.cost.parallel_layout import Layout, Optimizer, Precision, Sharding
from stepscope.errors import UsageError

CONTEXT_BYTES = 500_000_000
"""what CUDA and NCCL take outside the allocator on a rank, about; not in `peak_bytes`"""
WORKSPACE_BYTES = 2 * 32 * 2**20
"""cuBLAS workspaces inside the allocator: 32 MiB for each of the threads of forward and backward (Hopper and later)"""
_PREFETCHED = 2
"""layers that FSDP holds whole at a time: the one computed and the next; embedding and head stay whole throughout"""


@dataclass(frozen=True)
class Moment:
    """What a rank holds at one point of the step, in bytes."""

    when: str
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    temporary: float

    @property
    def total(self) -> float:
        """Return everything held."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.temporary


@dataclass(frozen=True)
class Memory:
    """Memory of one rank over a step."""

    peak: Moment
    moments: tuple[Moment, ...]

    @property
    def peak_bytes(self) -> float:
        """Return what the allocator holds at the peak."""
        return self.peak.total

    def fits(self, device_bytes: float, *, reserve: float = 0.05) -> bool:
        """Return whether the peak and the context leave `reserve` of the device free for fragmentation."""
        return self.peak_bytes + CONTEXT_BYTES <= device_bytes * (1 - reserve)


@dataclass(frozen=True)
class _States:
    """Bytes per weight of one rank."""

    weights: float
    gradients: float
    optimizer: float
    whole_weight: float
    """of a weight while its layer is computed, beyond `weights`"""
    whole_gradient: float
    """of a gradient before it is reduced, beyond `gradients`"""


def training_memory(
    model: Transformer,
    batch: Batch,
    *,
    layout: Layout | None = None,
    optimizer: Optimizer = Optimizer.ADAM,
    foreach_optimizer: bool = True,
    workspace_bytes: float = WORKSPACE_BYTES,
) -> Memory:
    """Return the memory of a training step on the rank that holds most.

    PyTorch's optimizers work on all weights at once by default (`foreach`) and make a copy of them on the way; fused
    ones and plain loops do not.
    """
    layout = layout or Layout()
    if batch.micro_batch < 1 or batch.seq_len < 1:
        raise UsageError(f"expected batch and sequence of at least 1, found {batch.micro_batch} and {batch.seq_len}")
    step = _Step(checked(model), batch, layout, _states(batch.precision, optimizer, layout), workspace_bytes)
    moments = [*step.backward(), step.optimizer_step(copies=foreach_optimizer and optimizer is Optimizer.ADAM)]
    return Memory(max(moments, key=lambda m: m.total), tuple(moments))


def bytes_per_parameter(precision: Precision, optimizer: Optimizer, layout: Layout) -> float:
    """Return what weights, gradients and optimizer take per weight and rank.

    >>> layouts = [Layout(data=4, sharding=s) for s in Sharding]
    >>> [bytes_per_parameter(Precision.MIXED, Optimizer.ADAM, layout) for layout in layouts]
    [16.0, 7.0, 5.5, 4.0]
    """
    states = _states(precision, optimizer, layout)
    return states.weights + states.gradients + states.optimizer


def _states(precision: Precision, optimizer: Optimizer, layout: Layout) -> _States:
    n = layout.data
    weight = float(precision.weight_bytes)
    moment = 2 if precision is Precision.BF16 else 4
    kept = float(precision.master_bytes + moment * optimizer.moments)
    level = {Sharding.DDP: 0, Sharding.ZERO1: 1, Sharding.ZERO2: 2, Sharding.ZERO3: 3}[layout.sharding]
    if n == 1:
        level = 0
    sharded_weight = level == 3
    return _States(
        weights=weight / n if sharded_weight else weight,
        gradients=weight / n if level >= 2 else weight,
        optimizer=kept / n if level >= 1 else kept,
        whole_weight=weight if sharded_weight else 0.0,
        whole_gradient=weight if level >= 2 else 0.0,
    )


class _Step:
    """One step of one rank."""

    def __init__(
        self, model: Transformer, batch: Batch, layout: Layout, states: _States, workspace_bytes: float
    ) -> None:
        self.model, self.batch, self.layout, self.states = model, batch, layout, states
        self.counts = summed(on_rank(weights(model), layout, layers=model.layers), model)
        self.in_flight = min(layout.pipeline, layout.micro_batches)
        """micro-batches whose activations a pipeline's first stage holds at once"""
        self.again = batch.recompute in (Recompute.BLOCKS, Recompute.FULL)
        self.always_temporary = workspace_bytes + self._buckets()

    def backward(self) -> Iterator[Moment]:
        """Yield what is held at the loss and in the backward of each layer, the last first."""
        layers = range(len(self.counts.layers))
        t = self.layout.tensor
        kept = [kept_bytes(self.model, self.batch, tensor=t, layer=i) * self.in_flight for i in layers]
        full = [layer_bytes(self.model, self.batch, tensor=t, layer=i) for i in layers]
        head_kept, loss = head_bytes(self.model, self.batch, tensor=t)
        yield self._moment("loss", sum(kept) + head_kept + self._cast(len(layers), head=True), loss, 0)
        done = self.counts.head + self.counts.final_norm
        gradient_in = self.batch.tokens * self.batch.precision.residual_bytes * self.model.d_model
        for i in reversed(layers):
            working = gradient_in + full[i] / 2 + (full[i] if self.again else 0)
            yield self._moment(f"backward of layer {i}", sum(kept[: i + 1]) + self._cast(i + 1), working, done)
            done += self.counts.layers[i]

    def optimizer_step(self, *, copies: bool) -> Moment:
        """Return what is held in the optimizer step: all gradients, and a copy of the weights where it makes one."""
        s, total = self.states, self.counts.total
        temporary = total * s.optimizer / 2 if copies else 0.0
        return Moment(
            when="optimizer step",
            parameters=total * s.weights,
            gradients=total * s.gradients,
            optimizer=total * s.optimizer,
            activations=0.0,
            temporary=temporary + self.always_temporary,
        )

    def _moment(self, when: str, kept: float, working: float, reduced: int) -> Moment:
        s, total, largest = self.states, self.counts.total, max(self.counts.layers)
        ends = total - sum(self.counts.layers)
        accumulated = total if self.layout.micro_batches > 1 else reduced
        return Moment(
            when=when,
            parameters=total * s.weights + (ends + _PREFETCHED * largest) * s.whole_weight,
            gradients=accumulated * s.gradients + ((self.counts.head + largest) * s.whole_gradient if reduced else 0.0),
            optimizer=total * s.optimizer,
            activations=kept,
            temporary=working + self.always_temporary,
        )

    def _cast(self, layers: int, *, head: bool = False) -> float:
        """Return the 16-bit copies of matrices that autocast keeps until the backward of their layer."""
        if self.batch.precision is not Precision.AMP or self.states.whole_weight:
            return 0.0
        matrices = 0 if self.again else sum(self.counts.layers[:layers])
        return 2.0 * (matrices + (self.counts.head if head else 0))

    def _buckets(self) -> float:
        """Return DDP's buckets: every gradient once more."""
        is_ddp = self.layout.sharding in (Sharding.DDP, Sharding.ZERO1) and self.layout.data > 1
        return self.counts.total * self.states.gradients if is_ddp else 0.0
