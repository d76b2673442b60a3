"""How many parameters a transformer has, by part, from its shape; and its shape from a `config.json`.

Linear layers are counted without biases, which are below a thousandth of the whole.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.cost.model_flops import Experts, LatentAttention, Transformer
from stepscope.errors import InputError, UsageError


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters of a model."""

    embedding: int
    """tokens and positions"""
    layers: tuple[int, ...]
    """each layer, everything in it"""
    routed_experts: tuple[int, ...]
    """of each layer, what expert parallelism spreads"""
    final_norm: int
    head: int
    """0 where it is the embedding"""

    @property
    def total(self) -> int:
        """Return all parameters."""
        return self.embedding + sum(self.layers) + self.final_norm + self.head


def checked(model: Transformer) -> Transformer:
    """Return the model where its numbers can be a transformer's, else say which cannot."""
    for name in ("layers", "d_model", "heads", "vocab"):
        if getattr(model, name) < 1:
            raise UsageError(f"expected {name} of at least 1, found {getattr(model, name)}")
    if model.head_width is None and model.latent is None and model.d_model % model.heads:
        raise UsageError(f"expected d_model to be a multiple of heads, found {model.d_model} and {model.heads}")
    if model.kv_heads and model.heads % model.kv_heads:
        raise UsageError(f"expected heads to be a multiple of kv_heads, found {model.heads} and {model.kv_heads}")
    if model.experts is None and model.mlp_width < 1:
        raise UsageError(f"expected an MLP width of at least 1, found {model.mlp_width}")
    return model


def parameters(model: Transformer) -> Parameters:
    """Return the number of parameters of a transformer by part.

    >>> gpt = Transformer(layers=12, d_model=1024, heads=16, vocab=32768, mlp_width=4096, learned_positions=1024,
    ...                   norm_bias=True)
    >>> parameters(gpt).total
    219203584
    """
    norm = model.d_model * (2 if model.norm_bias else 1)
    mlps = [_mlp(model, layer) for layer in range(model.layers)]
    shared = 2 * norm + _attention(model)
    return Parameters(
        embedding=(model.vocab + model.learned_positions) * model.d_model,
        layers=tuple(shared + always + routed for always, routed in mlps),
        routed_experts=tuple(routed for _, routed in mlps),
        final_norm=norm,
        head=0 if model.tied_head else model.vocab * model.d_model,
    )


def transformer_from_config(path: str | Path) -> Transformer:
    """Return the shape in a `config.json` of the Transformers library (GPT-2, Llama, Mixtral, DeepSeek styles)."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
        return checked(_from_config(config))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected a readable config.json, found: {error}") from error
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path}: expected a transformer's config.json, found no {error}; give the shape by flags"
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


def _attention(model: Transformer) -> int:
    """Return the projections of one layer (and the norms inside latent attention)."""
    latent = model.latent
    if latent is None:
        width = model.head_width or model.d_model // model.heads
        return 2 * model.d_model * width * (model.heads + (model.kv_heads or model.heads))
    width = latent.nope_width + latent.rope_width
    query = (
        model.d_model * model.heads * width
        if latent.query_rank is None
        else latent.query_rank * (model.d_model + model.heads * width + 1)
    )
    down = model.d_model * (latent.kv_rank + latent.rope_width) + latent.kv_rank
    up = latent.kv_rank * model.heads * (latent.nope_width + latent.value_width)
    return query + down + up + model.heads * latent.value_width * model.d_model


def _mlp(model: Transformer, layer: int) -> tuple[int, int]:
    """Return the parameters of a layer's MLP that every rank has, and those of its routed experts."""
    per_width = (3 if model.gated_mlp else 2) * model.d_model
    experts = model.experts
    if experts is None or layer < experts.dense_layers:
        return per_width * model.mlp_width, 0
    always = per_width * experts.shared * experts.width + model.d_model * experts.count
    return always, per_width * experts.count * experts.width
