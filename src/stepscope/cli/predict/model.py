"""The model, batch and device that predictions are asked for, from parsed arguments."""

import argparse

from stepscope.cli.messages import say_with_answer
from stepscope.cost.chips import GIB, Chip, built_in_chips, load_chips, look_up
from stepscope.cost.model_flops import Experts, Transformer
from stepscope.cost.model_shape import checked, transformer_from_config
from stepscope.errors import UsageError

_NEEDED = ("layers", "d_model", "heads", "vocab")


def model_of(args: argparse.Namespace) -> Transformer:
    """Return the model that the arguments describe."""
    if args.config:
        return transformer_from_config(args.config)
    missing = [f"--{name.replace('_', '-')}" for name in _NEEDED if getattr(args, name) is None]
    if missing:
        raise UsageError(f"the model lacks {', '.join(missing)}; give them or --config config.json")
    width = args.mlp_width or 4 * args.d_model
    experts = None
    if args.experts:
        experts = Experts(
            args.experts, args.experts_per_token, args.expert_width or width, args.shared_experts, args.dense_layers
        )
    model = Transformer(
        layers=args.layers, d_model=args.d_model, heads=args.heads, vocab=args.vocab, mlp_width=width,
        gated_mlp=args.gated_mlp, kv_heads=args.kv_heads, head_width=args.head_width, latent=args.latent,
        experts=experts, learned_positions=args.positions, norm_bias=args.norm_bias, tied_head=args.tied_head,
        fused_qkv=args.fused_qkv,
    )  # fmt: skip
    return checked(model)


def chip_of(args: argparse.Namespace) -> Chip | None:
    """Return the chip that was named, None where none was."""
    if args.device is None:
        return None
    extra = load_chips(args.hardware) if args.hardware else ()
    found = look_up(args.device, extra=extra)
    if found.chip is None:  # as people write it, without the vendor
        found = max(found, look_up(f"NVIDIA {args.device}", extra=extra), key=lambda f: f.chip is not None)
    wanted = args.device.strip().lower()
    rows = [*extra, *built_in_chips()]
    named = [c for c in rows if c.name.lower() == wanted] or [c for c in rows if wanted in c.name.lower().split()]
    if found.note and named != [found.chip]:
        say_with_answer(f"note: {found.note}; name one of them to choose it")
    if found.chip is not None or len(named) == 1:
        return found.chip or named[0]
    if named:
        raise UsageError(f"device {args.device!r} may be {', '.join(c.name for c in named)}; say which")
    raise UsageError(found.reason or f"device {args.device!r} is not known")


def device_bytes(args: argparse.Namespace, chip: Chip | None) -> float | None:
    """Return the memory of a device, None where nobody said."""
    if args.memory_gib:
        return float(args.memory_gib) * GIB
    return chip.memory_gib * GIB if chip and chip.memory_gib else None
