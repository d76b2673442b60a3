"""Memory of a training step on one rank: weights, gradients, optimizer, activations, and when the peak is.

Bytes per weight in mixed precision with Adam, N ranks: DDP 16; ZeRO-1 4 + 12 / N; ZeRO-2 2 + 14 / N; ZeRO-3 16 / N.
To that come DDP's buckets and the activations. ZeRO-2 and -3 are taken as PyTorch's FSDP does them: shards in fp32, and
whole weights beside them, all from forward to their backward (ZeRO-2) or those of a few layers at a time (ZeRO-3).
The peak is looked for where it can be: at the loss, in each layer's backward, in the optimizer step.
"""

from collections.abc import Iterator

from stepscope.cost.models.activations import Batch, head_bytes, kept_bytes, layer_bytes
from stepscope.cost.models.flops import Recompute, Transformer
from stepscope.cost.models.layout import Layout, Optimizer, Precision, Sharding
from stepscope.cost.models.parameters import checked, on_rank, summed, weights
from stepscope.dataclass import dataclass
from stepscope.errors import UsageError

CONTEXT_BYTES = 500_000_000
"""what CUDA and NCCL take outside the allocator on a rank, about; not in `peak_bytes`"""
WORKSPACE_BYTES = 2 * 32 * 2**20
"""cuBLAS workspaces inside the allocator: 32 MiB for each of the threads of forward and backward (Hopper and later)"""
_PREFETCHED = 2
"""layers that ZeRO-3 holds whole in backward: the one computed and the next"""


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
    one_moment: float
    """of the optimizer's moments, or of a copy it makes"""
    whole_weight: float = 0.0
    """of a gathered weight, beside its shard"""
    whole_gradient: float = 0.0
    """of a gradient before it is scattered"""


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
        raise UsageError(f"batch and sequence have to be at least 1, not {batch.micro_batch} and {batch.seq_len}")
    step = _Step(checked(model), batch, layout, _states(batch.precision, optimizer, layout), workspace_bytes)
    copies = foreach_optimizer and optimizer is Optimizer.ADAM
    moments = [*step.backward(), step.optimizer_step(copied=step.states.one_moment if copies else 0.0)]
    return Memory(max(moments, key=lambda m: m.total), tuple(moments))


def bytes_per_parameter(precision: Precision, optimizer: Optimizer, layout: Layout) -> float:
    """Return what weights, gradients and optimizer take per weight and rank.

    >>> layouts = [Layout(data=4, sharding=s) for s in Sharding]
    >>> [bytes_per_parameter(Precision.MIXED, Optimizer.ADAM, layout) for layout in layouts]
    [16.0, 7.0, 5.5, 4.0]
    """
    n, level = layout.data, _LEVELS[layout.sharding] if layout.data > 1 else 0
    weight, kept = float(precision.weight_bytes), _kept(precision, optimizer)
    return (
        (weight / n if level >= 3 else weight) + (weight / n if level >= 2 else weight) + (kept / n if level else kept)
    )


_LEVELS = {Sharding.DDP: 0, Sharding.ZERO1: 1, Sharding.ZERO2: 2, Sharding.ZERO3: 3}


def _moment(precision: Precision) -> float:
    return 2.0 if precision is Precision.BF16 else 4.0


def _kept(precision: Precision, optimizer: Optimizer) -> float:
    """Return what an optimizer keeps per weight: moments, and its own copy in mixed precision."""
    return precision.master_bytes + _moment(precision) * optimizer.moments


def _states(precision: Precision, optimizer: Optimizer, layout: Layout) -> _States:
    n, level = layout.data, _LEVELS[layout.sharding] if layout.data > 1 else 0
    weight, kept = float(precision.weight_bytes), _kept(precision, optimizer)
    spread = n if level else 1
    if level < 2:
        return _States(weight, weight, kept / spread, _moment(precision) / spread)
    shard = max(weight, float(precision.master_bytes)) / n  # FSDP's shards are what the optimizer updates
    moments = (kept - precision.master_bytes) / n
    return _States(shard, shard, moments, _moment(precision) / n, weight, weight)


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
        yield self._moment("loss", sum(kept) + head_kept + self._cast(len(layers), head=True), loss, 0, len(layers))
        done = self.counts.head + self.counts.final_norm
        gradient_in = self.batch.tokens * self.batch.precision.residual_bytes * self.model.d_model
        for i in reversed(layers):
            working = gradient_in + full[i] / 2 + (full[i] if self.again else 0)
            yield self._moment(f"backward of layer {i}", sum(kept[: i + 1]) + self._cast(i + 1), working, done, i + 1)
            done += self.counts.layers[i]

    def optimizer_step(self, *, copied: float) -> Moment:
        """Return what is held in the optimizer step: all gradients, and the bytes per weight that it copies."""
        s, total = self.states, self.counts.total
        return Moment(
            when="optimizer step",
            parameters=total * s.weights,
            gradients=total * s.gradients,
            optimizer=total * s.optimizer,
            activations=0.0,
            temporary=total * copied + self.always_temporary,
        )

    def _moment(self, when: str, kept: float, working: float, reduced: int, layers_left: int) -> Moment:
        s, total, largest = self.states, self.counts.total, max(self.counts.layers)
        accumulated = total if self.layout.micro_batches > 1 else reduced
        return Moment(
            when=when,
            parameters=total * s.weights + self._gathered(layers_left, bool(reduced)) * s.whole_weight,
            gradients=accumulated * s.gradients + ((self.counts.head + largest) * s.whole_gradient if reduced else 0.0),
            optimizer=total * s.optimizer,
            activations=kept,
            temporary=working + self.always_temporary,
        )

    def _gathered(self, layers_left: int, in_backward: bool) -> int:
        """Return the weights that are held whole: embedding and head throughout, and some of the layers."""
        layers = self.counts.layers
        ends = self.counts.total - sum(layers)
        if self.layout.sharding is Sharding.ZERO2:
            return ends + sum(layers[:layers_left])
        return ends + (_PREFETCHED * max(layers) if in_backward else 0)

    def _cast(self, layers: int, *, head: bool = False) -> float:
        """Return the 16-bit copies of matrices that autocast keeps until the backward of their layer."""
        if self.batch.precision is not Precision.AMP:
            return 0.0
        matrices = 0 if self.again else sum(self.counts.layers[:layers])
        return 2.0 * (matrices + (self.counts.head if head else 0))

    def _buckets(self) -> float:
        """Return DDP's buckets: every gradient once more."""
        is_ddp = self.layout.sharding in (Sharding.DDP, Sharding.ZERO1) and self.layout.data > 1
        return self.counts.total * self.states.gradients if is_ddp else 0.0
