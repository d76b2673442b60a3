"""What a transformer's forward pass keeps for backward, tensor by tensor, in bytes per token of one rank.

In 16 bits with dropout and plain attention the sum is the well-known 34 H + 5 a S. Without dropout and with fused
attention, which keeps neither scores nor probabilities, it is 32 H. Autocast keeps the residual stream in fp32 and
casts a norm's output once for each matrix that takes it: 36 H, or 40 H where queries, keys and values have one each.
"""

from stepscope.cost.models.flops import Recompute, Transformer
from stepscope.cost.models.layout import Precision
from stepscope.dataclass import dataclass


@dataclass(frozen=True)
class Batch:
    """What one rank computes at a time, and how."""

    micro_batch: int
    """sequences of one forward pass of one rank"""
    seq_len: int
    precision: Precision = Precision.AMP
    recompute: Recompute = Recompute.NONE
    fused_attention: bool = True
    dropout: bool = False

    @property
    def tokens(self) -> int:
        """Return tokens of one forward pass of one rank."""
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


def kept_bytes(model: Transformer, batch: Batch, *, tensor: int = 1, layer: int = 0) -> float:
    """Return what one layer keeps until its backward, with its recomputation."""
    if batch.recompute in (Recompute.BLOCKS, Recompute.FULL):
        return batch.tokens * batch.precision.residual_bytes * model.d_model
    whole = layer_bytes(model, batch, tensor=tensor, layer=layer)
    if batch.recompute is Recompute.ATTENTION and not batch.fused_attention:
        return whole - batch.tokens * _scores(model, batch) / tensor
    return whole


def block_input_shares() -> tuple[float, float]:
    """Return what the input of a transformer's layer is of all that the layer keeps, over precisions: least, most.

    Fused attention, an MLP of four times the width, no dropout; width and length cancel out.

    >>> tuple(round(share, 3) for share in block_input_shares())
    (0.062, 0.111)
    """
    model = Transformer(layers=1, d_model=1024, heads=16, vocab=1, mlp_width=4096, fused_qkv=True)
    batches = [Batch(1, 1, precision, Recompute.BLOCKS) for precision in Precision]
    shares = [kept_bytes(model, batch) / layer_bytes(model, batch) for batch in batches]
    return min(shares), max(shares)


def head_bytes(model: Transformer, batch: Batch, *, tensor: int = 1) -> tuple[float, float]:
    """Return what final norm and head keep, and the most that the loss holds: three fp32 values per logit.

    Those are the log-probabilities, their gradient, and the gradient of the logits made from both. A vocabulary split
    over ranks has its loss in smaller steps, which hold five.
    """
    r, c = batch.precision.residual_bytes, batch.precision.compute_bytes
    per_logit = 12 if tensor == 1 else 20
    return batch.tokens * (r + c) * model.d_model, batch.tokens * per_logit * model.vocab / tensor


def _attention_inputs(model: Transformer, batch: Batch) -> int:
    """Return how many copies of the first norm's output are kept: autocast makes one for each matrix."""
    if batch.precision is not Precision.AMP or model.fused_qkv:
        return 1
    return 2 if model.latent else 3


def _mlp_inputs(model: Transformer, batch: Batch) -> int:
    """Return how many copies of the second norm's output are kept."""
    return 2 if batch.precision is Precision.AMP and model.gated_mlp else 1


def _attention(model: Transformer, batch: Batch) -> float:
    """Return queries, keys, values and the output, and scores where they are kept."""
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
    c = batch.precision.compute_bytes
    per_score = 2 * c + (1 if batch.dropout else 0)
    if batch.precision is Precision.AMP:
        per_score += 2
    return per_score * model.heads * batch.seq_len


def _mlp(model: Transformer, batch: Batch, layer: int) -> float:
    """Return what goes into the activation and what comes out, for each expert that a token meets."""
    c = batch.precision.compute_bytes
    wide = 4 if model.gated_mlp else 2
    experts = model.experts
    if experts is None or layer < experts.dense_layers:
        return c * wide * model.mlp_width
    met = experts.per_token + experts.shared
    sent_and_back = 2 * experts.per_token * model.d_model
    return c * (met * wide * experts.width + sent_and_back) + 4 * experts.count
