"""A transformer's shape, also from a `config.json`: its weights, whole and on one rank, and its FLOPs per token.

Linear layers are counted without biases, which are below a thousandth of the whole.

Conventions of FLOPs, the same as for recorded operators: 2 per multiply-add, attention in full (not halved for a causal
mask), normalisation, activations and look-ups not counted. Training is three times forward: backward computes the
gradients of inputs and of weights. "6 N per token" has the 2 and the 3 in it already.
"""

from collections.abc import Iterable
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from stepscope.errors import InputError, UsageError
from stepscope.records import dataclass
from stepscope.side_file import read_side_json
from stepscope.units import printable


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


# How a training job is spread over devices and how it keeps its numbers: the terms that costs are stated in.


class Sharding(Enum):
    """What data-parallel ranks split among them."""

    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"


class Precision(Enum):
    """Bytes of weights, gradients and computation."""

    FP32 = "fp32"
    #: fp32 weights, computation cast to 16 bits by autocast, which keeps the cast weights until backward
    AMP = "amp"
    #: 16-bit weights and gradients, the optimizer keeps an fp32 copy (Megatron, DeepSpeed, FSDP mixed precision)
    MIXED = "mixed"
    #: everything in 16 bits, the optimizer too
    BF16 = "bf16"

    @property
    def weight_bytes(self) -> int:
        return 4 if self in (Precision.FP32, Precision.AMP) else 2

    @property
    def compute_bytes(self) -> int:
        return 4 if self is Precision.FP32 else 2

    @property
    def residual_bytes(self) -> int:
        """Return bytes of the residual stream: autocast leaves it in fp32."""
        return 4 if self in (Precision.FP32, Precision.AMP) else 2

    @property
    def master_bytes(self) -> int:
        return 4 if self is Precision.MIXED else 0


class Optimizer(Enum):
    """Values an optimizer keeps per weight."""

    ADAM = "adam"
    SGD = "sgd"
    MOMENTUM = "momentum"

    @property
    def moments(self) -> int:
        return {Optimizer.ADAM: 2, Optimizer.SGD: 0, Optimizer.MOMENTUM: 1}[self]


@dataclass(frozen=True)
class Layout:
    """Ranks along each dimension; their product is the world size. Experts are spread inside `data`."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    sharding: Sharding = Sharding.DDP
    #: per step and rank: accumulation, or the pipeline's
    micro_batches: int = 1

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline", "expert", "micro_batches"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} has to be at least 1, not {getattr(self, name)}")
        if self.data % self.expert:
            raise UsageError(f"expert ranks have to divide the {self.data} data ranks; {self.expert} do not")

    @property
    def world_size(self) -> int:
        return self.data * self.tensor * self.pipeline

    def __str__(self) -> str:
        parts = [self.sharding.value if self.data > 1 else "one rank" if self.world_size == 1 else ""]
        parts += [f"{name} {count}" for name, count in self._dimensions() if count > 1]
        return " x ".join(p for p in parts if p)

    def _dimensions(self) -> list[tuple[str, int]]:
        return [("dp", self.data), ("tp", self.tensor), ("pp", self.pipeline), ("ep", self.expert)]


_MAX_SIZE = 1 << 40
_AT_LEAST_ONE = frozenset(("layers", "d_model", "heads", "vocab"))
_MAY_BE_UNKNOWN = frozenset(("kv_heads", "head_width", "latent", "experts", "query_rank"))


@dataclass(frozen=True)
class Weight:
    """Equal weights of one layer, or of the ends of the model."""

    name: str
    #: None: embedding, final norm and head
    layer: int | None
    rows: int
    columns: int = 1
    #: what tensor parallelism splits: rows, columns or nothing
    split: str | None = None
    #: how many of them: the number of routed experts for theirs
    routed: int = 1

    @property
    def count(self) -> int:
        return self.rows * self.columns * self.routed


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters of a model, or of one rank of it."""

    #: tokens and positions
    embedding: int
    #: each layer, everything in it
    layers: tuple[int, ...]
    final_norm: int
    #: 0 where it is the embedding
    head: int

    @property
    def total(self) -> int:
        return self.embedding + sum(self.layers) + self.final_norm + self.head


def checked(model: Transformer) -> Transformer:
    """Return the model where its numbers can be a transformer's, else say which cannot."""
    for part in (model, model.latent, model.experts):
        for field in fields(part) if part is not None else ():
            _check_size(field.name, getattr(part, field.name))
    if model.head_width is None and model.latent is None and model.d_model % model.heads:
        raise UsageError(f"d_model {model.d_model} has to be a multiple of heads {model.heads}")
    if model.kv_heads and model.heads % model.kv_heads:
        raise UsageError(f"heads {model.heads} has to be a multiple of kv_heads {model.kv_heads}")
    if model.experts is None and model.mlp_width < 1:
        raise UsageError(f"the MLP width has to be at least 1, not {model.mlp_width}")
    return model


def _check_size(name: str, size: Any) -> None:
    if isinstance(size, LatentAttention | Experts) or (size is None and name in _MAY_BE_UNKNOWN):
        return
    if not isinstance(size, int):
        raise UsageError(f"{name} has to be a whole number, not {printable(repr(size), width=60)}")
    least, most = int(name in _AT_LEAST_ONE), 100_000 if name == "layers" else _MAX_SIZE
    if size < least:
        raise UsageError(f"{name} has to be at least {least}, not {size}")
    if size > most:
        raise UsageError(f"{name} has to be at most {most:,}, not {size:.3g}")


def parameters(model: Transformer) -> Parameters:
    """Return the number of parameters of a transformer by part.

    >>> gpt = Transformer(layers=12, d_model=1024, heads=16, vocab=32768, mlp_width=4096, learned_positions=1024,
    ...                   norm_bias=True)
    >>> parameters(gpt).total
    219203584
    """
    return summed(weights(model), model)


def summed(listed: Iterable[Weight], model: Transformer) -> Parameters:
    """Return the parts that the weights add up to."""
    by_layer: dict[int | None, int] = {}
    named: dict[str, int] = {}
    for w in listed:
        by_layer[w.layer] = by_layer.get(w.layer, 0) + w.count
        named[w.name] = named.get(w.name, 0) + w.count
    return Parameters(
        embedding=named.get("tokens", 0) + named.get("positions", 0),
        layers=tuple(by_layer[i] for i in range(model.layers) if i in by_layer),
        final_norm=named.get("norm", 0) + named.get("norm bias", 0),
        head=named.get("head", 0),
    )


def weights(model: Transformer) -> list[Weight]:
    """Return the weights in the order in which a model lists them."""
    out = [Weight("tokens", None, model.vocab, model.d_model, "rows")]
    if model.learned_positions:
        out.append(Weight("positions", None, model.learned_positions, model.d_model))
    for layer in range(model.layers):
        attention = _latent(model, model.latent, layer) if model.latent else _grouped(model, layer)
        out += [*_norm(model, "norm1", layer), *attention, *_norm(model, "norm2", layer), *_mlp(model, layer)]
    out += _norm(model, "norm", None)
    if not model.tied_head:
        out.append(Weight("head", None, model.vocab, model.d_model, "rows"))
    return out


def on_rank(listed: Iterable[Weight], layout: Layout, *, layers: int) -> list[Weight]:
    """Return what one rank of the last pipeline stage holds before sharding: its layers, rows, columns and experts."""
    first_layer = layers - -(-layers // layout.pipeline)
    held = []
    for w in listed:
        if w.layer is not None and w.layer < first_layer:
            continue
        rows = -(-w.rows // layout.tensor) if w.split == "rows" else w.rows
        columns = -(-w.columns // layout.tensor) if w.split == "columns" else w.columns
        held.append(Weight(w.name, w.layer, rows, columns, w.split, -(-w.routed // layout.expert)))
    return held


def transformer_from_config(path: str | Path) -> Transformer:
    """Return the shape in a `config.json` of the Transformers library (GPT-2, Llama, Mixtral, DeepSeek styles)."""
    try:
        config = read_side_json(path).value
        if not isinstance(config, dict):
            raise ValueError(f"{type(config).__name__} instead of an object")
        return checked(_from_config(config))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a config.json: {error}") from error
    except (KeyError, TypeError, ArithmeticError) as error:
        raise InputError(
            f"{path}: is not a transformer's config.json, it lacks {error}; give the shape by flags"
        ) from error


def _from_config(config: dict[str, Any]) -> Transformer:
    def first(*names: str, default: Any = None) -> Any:
        found = next((config[name] for name in names if config.get(name) is not None), default)
        if found is None:
            raise KeyError(names[0])
        return found

    width, heads = first("hidden_size", "n_embd"), first("num_attention_heads", "n_head")
    is_gpt2 = "n_embd" in config
    return Transformer(
        layers=first("num_hidden_layers", "n_layer"),
        d_model=width,
        heads=heads,
        vocab=first("vocab_size"),
        mlp_width=first("intermediate_size", "n_inner", default=4 * width),
        gated_mlp=first("hidden_act", "activation_function", default="gelu") in ("silu", "swish"),
        kv_heads=first("num_key_value_heads", default=heads),
        head_width=config.get("head_dim"),
        latent=_latent_from(config),
        experts=_experts_from(config),
        learned_positions=first("n_positions", "max_position_embeddings", default=0) if is_gpt2 else 0,
        norm_bias=is_gpt2 or "layer_norm_eps" in config,
        tied_head=bool(config.get("tie_word_embeddings", is_gpt2)),
        fused_qkv=is_gpt2,
    )


def _latent_from(config: dict[str, Any]) -> LatentAttention | None:
    if not config.get("kv_lora_rank"):
        return None
    return LatentAttention(
        kv_rank=config["kv_lora_rank"],
        nope_width=config["qk_nope_head_dim"],
        rope_width=config["qk_rope_head_dim"],
        value_width=config["v_head_dim"],
        query_rank=config.get("q_lora_rank"),
    )


def _experts_from(config: dict[str, Any]) -> Experts | None:
    count = config.get("n_routed_experts") or config.get("num_local_experts") or config.get("num_experts")
    if not count:
        return None
    return Experts(
        count=count,
        per_token=config["num_experts_per_tok"],
        width=config.get("moe_intermediate_size") or config["intermediate_size"],
        shared=config.get("n_shared_experts") or 0,
        dense_layers=config.get("first_k_dense_replace") or 0,
    )


def _norm(model: Transformer, name: str, layer: int | None) -> list[Weight]:
    names = [name, f"{name} bias"] if model.norm_bias else [name]
    return [Weight(n, layer, model.d_model) for n in names]


def _grouped(model: Transformer, layer: int) -> list[Weight]:
    width = model.head_width or model.d_model // model.heads
    query, shared = model.heads * width, (model.kv_heads or model.heads) * width
    return [
        Weight("query", layer, query, model.d_model, "rows"),
        Weight("key", layer, shared, model.d_model, "rows"),
        Weight("value", layer, shared, model.d_model, "rows"),
        Weight("out", layer, model.d_model, query, "columns"),
    ]


def _latent(model: Transformer, latent: LatentAttention, layer: int) -> list[Weight]:
    query = model.heads * (latent.nope_width + latent.rope_width)
    if latent.query_rank is None:
        out = [Weight("query", layer, query, model.d_model, "rows")]
    else:
        out = [
            Weight("query down", layer, latent.query_rank, model.d_model),
            Weight("query norm", layer, latent.query_rank),
            Weight("query up", layer, query, latent.query_rank, "rows"),
        ]
    expanded = model.heads * (latent.nope_width + latent.value_width)
    return [
        *out,
        Weight("latent down", layer, latent.kv_rank + latent.rope_width, model.d_model),
        Weight("latent norm", layer, latent.kv_rank),
        Weight("latent up", layer, expanded, latent.kv_rank, "rows"),
        Weight("out", layer, model.d_model, model.heads * latent.value_width, "columns"),
    ]


def _mlp(model: Transformer, layer: int) -> list[Weight]:
    experts = model.experts
    if experts is None or layer < experts.dense_layers:
        return _matrices(model, layer, "mlp", model.mlp_width, 1)
    shared = _matrices(model, layer, "shared expert", experts.shared * experts.width, 1) if experts.shared else []
    routed = _matrices(model, layer, "expert", experts.width, experts.count)
    return [*routed, *shared, Weight("router", layer, experts.count, model.d_model)]


def _matrices(model: Transformer, layer: int, name: str, width: int, routed: int) -> list[Weight]:
    first = ["up", "gate"] if model.gated_mlp else ["up"]
    out = [Weight(f"{name} {n}", layer, width, model.d_model, "rows", routed) for n in first]
    return [*out, Weight(f"{name} down", layer, model.d_model, width, "columns", routed)]


# FLOPs per token


def forward_flops_per_token(model: Transformer, *, seq_len: int) -> dict[str, int]:
    """Return the forward FLOPs per token at a sequence length by part, over all layers, and their total.

    2 for each weight that a token meets, and attention.

    >>> gpt = Transformer(layers=12, d_model=1024, heads=16, vocab=32768, mlp_width=4096)
    >>> forward_flops_per_token(gpt, seq_len=1024)["total"] == 12 * (24 * 1024**2 + 4 * 1024 * 1024) + 2 * 32768 * 1024
    True
    """
    latent, width = model.latent, model.head_width or model.d_model // model.heads
    widths = latent.nope_width + latent.rope_width + latent.value_width if latent else 2 * width
    attention, head = 2 * seq_len * model.heads * widths * model.layers, 2 * model.d_model * model.vocab
    flops = {"projections": 0, "attention": attention, "mlp": 0, "router": 0, "head": head}
    for w in weights(model):
        if w.layer is not None and "norm" not in w.name:
            kind = "mlp" if "mlp" in w.name or "expert" in w.name else "router" if w.name == "router" else "projections"
            met = model.experts.per_token if model.experts and w.name.startswith("expert ") else 1
            flops[kind] += 2 * w.rows * w.columns * met
    return {**flops, "total": sum(flops.values())}


def training_flops_per_token(
    model: Transformer, *, seq_len: int, recompute: Recompute = Recompute.NONE
) -> dict[str, int]:
    """Return the FLOPs per token of a training step: of the model, as MFU counts them, recomputed, and both."""
    forward = forward_flops_per_token(model, seq_len=seq_len)
    repeated = {
        Recompute.NONE: 0,
        Recompute.ATTENTION: forward["attention"],
        Recompute.BLOCKS: forward["total"] - forward["head"],
        Recompute.FULL: forward["total"],
    }[recompute]
    return {"model": 3 * forward["total"], "recomputed": repeated, "hardware": 3 * forward["total"] + repeated}


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
