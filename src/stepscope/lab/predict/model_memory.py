"""Memory of a training step on one rank: weights, gradients, optimizer, activations, and when the peak is.

Bytes per weight in mixed precision with Adam, N ranks: DDP 16; ZeRO-1 4 + 12 / N; ZeRO-2 2 + 14 / N; ZeRO-3 16 / N.
DDP's buckets and the activations are added. ZeRO-2 and -3 are modelled as PyTorch's FSDP: shards in fp32, and whole
weights in addition, all from forward to their backward (ZeRO-2) or those of a few layers at a time (ZeRO-3).
Candidates for the peak: the loss, each layer's backward, the optimizer step.
"""

from collections.abc import Iterator

from stepscope.errors import UsageError
from stepscope.lab.predict.model_shape import (
    Layout,
    Optimizer,
    Precision,
    Recompute,
    Sharding,
    Transformer,
    checked,
    on_rank,
    summed,
    weights,
)
from stepscope.records import dataclass

# What a transformer's forward pass keeps for backward, tensor by tensor, in bytes per token of one rank.
#
# In 16 bits with dropout and plain attention the sum is the well-known 34 H + 5 a S. Without dropout and with fused
# attention, which keeps neither scores nor probabilities, it is 32 H. Autocast keeps the residual stream in fp32 and
# casts a norm's output once for each matrix that takes it: 36 H, or 40 H where queries, keys and values have one each.


@dataclass(frozen=True)
class Batch:
    """What one rank computes at a time, and how."""

    #: sequences of one forward pass of one rank
    micro_batch: int
    seq_len: int
    precision: Precision = Precision.AMP
    recompute: Recompute = Recompute.NONE
    fused_attention: bool = True
    dropout: bool = False

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.seq_len


def layer_bytes(model: Transformer, batch: Batch, *, tensor: int = 1, layer: int = 0) -> float:
    """Return what one layer keeps when nothing is computed again."""
    r, c = batch.precision.residual_bytes, batch.precision.compute_bytes
    h = model.d_model
    norms = 2 * r * h  # what each norm takes in
    normed = c * h * (_attention_inputs(model, batch) + _mlp_inputs(model, batch))
    masks = 2 * h if batch.dropout else 0
    per_token = norms + normed + masks + (_attention(model, batch) + _mlp(model, batch, layer)) / tensor
    return batch.tokens * per_token


def _kept_bytes(model: Transformer, batch: Batch, *, tensor: int = 1, layer: int = 0) -> float:
    if batch.recompute in (Recompute.BLOCKS, Recompute.FULL):
        return batch.tokens * batch.precision.residual_bytes * model.d_model
    whole = layer_bytes(model, batch, tensor=tensor, layer=layer)
    if batch.recompute is Recompute.ATTENTION and not batch.fused_attention:
        return whole - batch.tokens * _scores(model, batch) / tensor
    return whole


def _head_bytes(model: Transformer, batch: Batch, *, tensor: int = 1) -> tuple[float, float]:
    """Return what final norm and head keep, and the most that the loss holds: three fp32 values per logit.

    Those are the log-probabilities, their gradient, and the gradient of the logits made from both. A vocabulary split
    over ranks has its loss in smaller steps, which hold five.
    """
    r, c = batch.precision.residual_bytes, batch.precision.compute_bytes
    per_logit = 12 if tensor == 1 else 20
    return batch.tokens * (r + c) * model.d_model, batch.tokens * per_logit * model.vocab / tensor


def _attention_inputs(model: Transformer, batch: Batch) -> int:
    if batch.precision is not Precision.AMP or model.fused_qkv:
        return 1
    return 2 if model.latent else 3


def _mlp_inputs(model: Transformer, batch: Batch) -> int:
    return 2 if batch.precision is Precision.AMP and model.gated_mlp else 1


def _attention(model: Transformer, batch: Batch) -> float:
    c = batch.precision.compute_bytes
    if model.latent:
        wide = model.latent.nope_width + model.latent.rope_width
        values = model.heads * (2 * wide + 2 * model.latent.value_width)
        values += model.latent.kv_rank + model.latent.rope_width + (model.latent.query_rank or 0)
    else:
        width = model.head_width or model.d_model // model.heads
        values = 2 * width * (model.heads + (model.kv_heads or model.heads))
    return c * values + (0 if batch.fused_attention else _scores(model, batch))


def _scores(model: Transformer, batch: Batch) -> float:
    """Return probabilities, what dropout makes of them, and its mask: 5 bytes per score in 16 bits.

    Autocast computes the softmax in fp32 and casts: 4 + 2, and the scaled scores in 16 bits.
    """
    per_score = 2 * batch.precision.compute_bytes + (1 if batch.dropout else 0)
    if batch.precision is Precision.AMP:
        per_score += 2
    return per_score * model.heads * batch.seq_len


def _mlp(model: Transformer, batch: Batch, layer: int) -> float:
    c = batch.precision.compute_bytes
    wide = 4 if model.gated_mlp else 2
    experts = model.experts
    if experts is None or layer < experts.dense_layers:
        return c * wide * model.mlp_width
    met = experts.per_token + experts.shared
    return c * (met * wide * experts.width + (2 * experts.per_token * model.d_model)) + 4 * experts.count


# what CUDA and NCCL take outside the allocator on a rank, about; not in `peak_bytes`
CONTEXT_BYTES = 500_000_000
# cuBLAS workspaces inside the allocator: 32 MiB for each of the threads of forward and backward (Hopper and later)
WORKSPACE_BYTES = 2 * 32 * 2**20
# of the device
_RESERVE = 0.05
# layers that ZeRO-3 holds whole in backward: the one computed and the next
_PREFETCHED = 2


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
        return self.parameters + self.gradients + self.optimizer + self.activations + self.temporary


@dataclass(frozen=True)
class Memory:
    """Memory of one rank over a step."""

    peak: Moment
    moments: tuple[Moment, ...]

    @property
    def peak_bytes(self) -> float:
        return self.peak.total

    def fits(self, device_bytes: float) -> bool:
        """Return whether the peak and the context leave a reserve of the device for fragmentation."""
        return self.peak_bytes + CONTEXT_BYTES <= device_bytes * (1 - _RESERVE)


@dataclass(frozen=True)
class _States:
    weights: float
    gradients: float
    optimizer: float
    #: of the optimizer's moments, or of a copy it makes
    one_moment: float
    #: of a gathered weight, in addition to its shard
    whole_weight: float = 0.0
    #: of a gradient before it is scattered
    whole_gradient: float = 0.0


def training_memory(
    model: Transformer,
    batch: Batch,
    *,
    layout: Layout | None = None,
    optimizer: Optimizer = Optimizer.ADAM,
    foreach_optimizer: bool = True,
) -> Memory:
    """Return the memory of a training step on the rank that holds most.

    PyTorch's optimizers work on all weights at once by default (`foreach`) and make a copy of them on the way; fused
    ones and plain loops do not.
    """
    layout = layout or Layout()
    if batch.micro_batch < 1 or batch.seq_len < 1:
        raise UsageError(f"batch and sequence have to be at least 1, not {batch.micro_batch} and {batch.seq_len}")
    step = _Step(checked(model), batch, layout, _states(batch.precision, optimizer, layout))
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
    return precision.master_bytes + _moment(precision) * optimizer.moments


def _states(precision: Precision, optimizer: Optimizer, layout: Layout) -> _States:
    n, level = layout.data, _LEVELS[layout.sharding] if layout.data > 1 else 0
    weight, kept = float(precision.weight_bytes), _kept(precision, optimizer)
    spread = n if level else 1
    if level < 2:
        return _States(weight, weight, kept / spread, _moment(precision) / spread)
    shard = max(weight, float(precision.master_bytes)) / n  # FSDP's shards are what the optimizer updates
    return _States(shard, shard, (kept - precision.master_bytes) / n, _moment(precision) / n, weight, weight)


class _Step:
    def __init__(self, model: Transformer, batch: Batch, layout: Layout, states: _States) -> None:
        self.model, self.batch, self.layout, self.states = model, batch, layout, states
        self.counts = summed(on_rank(weights(model), layout, layers=model.layers), model)
        # micro-batches whose activations a pipeline's first stage holds at once
        self.in_flight = min(layout.pipeline, layout.micro_batches)
        self.again = batch.recompute in (Recompute.BLOCKS, Recompute.FULL)
        self.always_temporary = WORKSPACE_BYTES + self._buckets()

    def backward(self) -> Iterator[Moment]:
        layers = range(len(self.counts.layers))
        t = self.layout.tensor
        kept = [_kept_bytes(self.model, self.batch, tensor=t, layer=i) * self.in_flight for i in layers]
        full = [layer_bytes(self.model, self.batch, tensor=t, layer=i) for i in layers]
        head_kept, loss = _head_bytes(self.model, self.batch, tensor=t)
        yield self._moment("loss", sum(kept) + head_kept + self._cast(len(layers), head=True), loss, 0, len(layers))
        done = self.counts.head + self.counts.final_norm
        gradient_in = self.batch.tokens * self.batch.precision.residual_bytes * self.model.d_model
        for i in reversed(layers):
            working = gradient_in + full[i] / 2 + (full[i] if self.again else 0)
            yield self._moment(f"backward of layer {i}", sum(kept[: i + 1]) + self._cast(i + 1), working, done, i + 1)
            done += self.counts.layers[i]

    def optimizer_step(self, *, copied: float) -> Moment:
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
        layers = self.counts.layers
        ends = self.counts.total - sum(layers)
        if self.layout.sharding is Sharding.ZERO2:
            return ends + sum(layers[:layers_left])
        return ends + (_PREFETCHED * max(layers) if in_backward else 0)

    def _cast(self, layers: int, *, head: bool = False) -> float:
        if self.batch.precision is not Precision.AMP:
            return 0.0
        matrices = 0 if self.again else sum(self.counts.layers[:layers])
        return 2.0 * (matrices + (self.counts.head if head else 0))

    def _buckets(self) -> float:
        is_ddp = self.layout.sharding in (Sharding.DDP, Sharding.ZERO1) and self.layout.data > 1
        return self.counts.total * self.states.gradients if is_ddp else 0.0
