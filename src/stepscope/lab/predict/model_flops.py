"""FLOPs per token of transformers, from their shape: dense and gated MLPs, grouped and latent attention, experts.

Conventions, the same as for recorded operators: 2 FLOPs per multiply-add, attention in full (not halved for a causal
mask), normalisation, activations and look-ups not counted. Training is three times forward: backward computes the
gradients of inputs and of weights. "6 N per token" has the 2 and the 3 in it already.
"""

from enum import Enum

from stepscope.records import dataclass


class Recompute(Enum):
    """What activation checkpointing computes again in backward. It is hardware work, never model work."""

    NONE = "nothing"
    ATTENTION = "scores and their product with the values"
    BLOCKS = "every transformer block, not the output head"
    FULL = "the whole forward pass: a third of the model FLOPs, so HFU is 4/3 of MFU"


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): queries and keys through a narrow width, part of it with rotation."""

    kv_rank: int
    nope_width: int
    rope_width: int
    value_width: int
    #: None: queries are projected directly
    query_rank: int | None = None


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: each token meets `per_token` routed and all `shared` experts."""

    count: int
    per_token: int
    #: hidden width of one expert
    width: int
    shared: int = 0
    #: leading layers that keep the plain MLP
    dense_layers: int = 0


@dataclass(frozen=True)
class Transformer:
    """The shape of a decoder or encoder."""

    layers: int
    d_model: int
    heads: int
    vocab: int
    mlp_width: int
    #: SwiGLU and the like: three matrices instead of two
    gated_mlp: bool = False
    #: None: as many as `heads`
    kv_heads: int | None = None
    #: None: d_model / heads
    head_width: int | None = None
    latent: LatentAttention | None = None
    experts: Experts | None = None
    # What follows has parameters but no FLOPs that count.
    #: rows of a learned position table
    learned_positions: int = 0
    #: layer norms with a bias (RMS norms have none)
    norm_bias: bool = False
    #: the output head is the embedding
    tied_head: bool = False
    #: one matrix makes queries, keys and values (GPT-2): its input is saved once under autocast, not three times
    fused_qkv: bool = False


@dataclass(frozen=True)
class ForwardFlops:
    """Forward FLOPs per token, by part, over all layers."""

    projections: int
    attention: int
    mlp: int
    router: int
    head: int

    @property
    def blocks(self) -> int:
        return self.projections + self.attention + self.mlp + self.router

    @property
    def total(self) -> int:
        return self.blocks + self.head


@dataclass(frozen=True)
class TrainingFlops:
    """FLOPs per token of one training step."""

    #: forward and backward: what MFU counts
    model: int
    recomputed: int

    @property
    def hardware(self) -> int:
        return self.model + self.recomputed


def forward_flops_per_token(model: Transformer, *, seq_len: int) -> ForwardFlops:
    """Return the forward FLOPs per token at a sequence length.

    >>> gpt = Transformer(layers=12, d_model=1024, heads=16, vocab=32768, mlp_width=4096)
    >>> forward_flops_per_token(gpt, seq_len=1024).total == 12 * (24 * 1024**2 + 4 * 1024 * 1024) + 2 * 32768 * 1024
    True
    """
    projections, attention = _latent(model, model.latent, seq_len) if model.latent else _grouped(model, seq_len)
    mlp, router = _mlp(model)
    return ForwardFlops(
        projections=model.layers * projections,
        attention=model.layers * attention,
        mlp=mlp,
        router=router,
        head=2 * model.d_model * model.vocab,
    )


def training_flops_per_token(
    model: Transformer, *, seq_len: int, recompute: Recompute = Recompute.NONE
) -> TrainingFlops:
    """Return model and recomputed FLOPs per token of a training step."""
    forward = forward_flops_per_token(model, seq_len=seq_len)
    repeated = {
        Recompute.NONE: 0,
        Recompute.ATTENTION: forward.attention,
        Recompute.BLOCKS: forward.blocks,
        Recompute.FULL: forward.total,
    }
    return TrainingFlops(model=3 * forward.total, recomputed=repeated[recompute])


def utilisation(
    *, flops_per_step: float, step_s: float, peak_flops_per_s: float | None, devices: int = 1
) -> float | None:
    """Return the share of the peak that `flops_per_step` of the whole job reaches, None where the peak is unknown.

    With model FLOPs it is MFU, with hardware FLOPs HFU.

    >>> utilisation(flops_per_step=450e12, step_s=1.0, peak_flops_per_s=1000e12)
    0.45
    """
    if peak_flops_per_s is None or step_s <= 0 or devices < 1:
        return None
    return flops_per_step / (step_s * peak_flops_per_s * devices)


def _grouped(model: Transformer, seq_len: int) -> tuple[int, int]:
    width = model.head_width or model.d_model // model.heads
    kv_heads = model.kv_heads or model.heads
    query_and_output = 2 * model.d_model * model.heads * width
    return 2 * (query_and_output + (2 * model.d_model * kv_heads * width)), 4 * seq_len * model.heads * width


def _latent(model: Transformer, latent: LatentAttention, seq_len: int) -> tuple[int, int]:
    width = latent.nope_width + latent.rope_width
    query = (
        model.d_model * model.heads * width
        if latent.query_rank is None
        else latent.query_rank * (model.d_model + model.heads * width)
    )
    down = model.d_model * (latent.kv_rank + latent.rope_width)
    up = latent.kv_rank * model.heads * (latent.nope_width + latent.value_width)
    output = model.heads * latent.value_width * model.d_model
    return 2 * (query + down + up + output), 2 * seq_len * model.heads * (width + latent.value_width)


def _mlp(model: Transformer) -> tuple[int, int]:
    matrices = 3 if model.gated_mlp else 2
    per_width = 2 * matrices * model.d_model
    experts = model.experts
    if experts is None:
        return model.layers * per_width * model.mlp_width, 0
    sparse = model.layers - experts.dense_layers
    met = experts.per_token + experts.shared
    mlp = per_width * (experts.dense_layers * model.mlp_width + sparse * met * experts.width)
    return mlp, sparse * 2 * model.d_model * experts.count
