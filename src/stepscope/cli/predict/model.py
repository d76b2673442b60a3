"""The model, batch and device that predictions are asked for, from arguments."""

import argparse

from stepscope.cli.say import say_aside
from stepscope.cli.sizes import above_zero, at_least_one, at_least_zero
from stepscope.cost.chips.hardware import GIB, look_up
from stepscope.cost.chips.table import Chip, built_in_chips, load_chips
from stepscope.cost.models.flops import Experts, LatentAttention, Recompute, Transformer
from stepscope.cost.models.parameters import checked, transformer_from_config
from stepscope.errors import UsageError

RECOMPUTE = {
    "none": Recompute.NONE,
    "attention": Recompute.ATTENTION,
    "blocks": Recompute.BLOCKS,
    "full": Recompute.FULL,
}
_NEEDED = ("layers", "d_model", "heads", "vocab")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shape of a transformer."""
    model = parser.add_argument_group("model")
    model.add_argument("--config", metavar="FILE", help="config.json of the Transformers library, instead of the rest")
    for name in ("layers", "d-model", "heads", "vocab"):
        model.add_argument(f"--{name}", type=at_least_one, metavar="N")
    model.add_argument("--kv-heads", type=at_least_one, metavar="N", help="heads of keys and values (grouped)")
    model.add_argument("--head-width", type=at_least_one, metavar="N", help="default d_model / heads")
    model.add_argument("--mlp-width", type=at_least_one, metavar="N", help="default 4 d_model")
    model.add_argument("--gated-mlp", action="store_true", help="three matrices (SwiGLU)")
    model.add_argument("--positions", type=at_least_one, default=0, metavar="N", help="learned position table")
    model.add_argument("--norm-bias", action="store_true", help="layer norms with a bias")
    model.add_argument("--tied-head", action="store_true", help="the head is the embedding")
    model.add_argument("--fused-qkv", action="store_true", help="one matrix for queries, keys and values")
    model.add_argument("--experts", type=at_least_one, metavar="N", help="routed experts per layer")
    model.add_argument("--experts-per-token", type=at_least_one, default=2, metavar="N")
    model.add_argument("--expert-width", type=at_least_one, metavar="N", help="default the MLP's width")
    model.add_argument("--shared-experts", type=at_least_zero, default=0, metavar="N")
    model.add_argument(
        "--dense-layers", type=at_least_zero, default=0, metavar="N", help="leading layers without experts"
    )
    model.add_argument(
        "--latent",
        type=_latent,
        metavar="KV:NOPE:ROPE:VALUE[:Q]",
        help="latent attention: key-value rank, widths without and with rotation, value width, query rank",
    )


def model_of(args: argparse.Namespace) -> Transformer:
    """Return the model that the arguments describe."""
    if args.config:
        return transformer_from_config(args.config)
    missing = [f"--{name.replace('_', '-')}" for name in _NEEDED if getattr(args, name) is None]
    if missing:
        raise UsageError(f"expected a model, found no {', '.join(missing)}; give them or --config config.json")
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


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the device, by name or by its numbers."""
    device = parser.add_argument_group("device")
    device.add_argument("--device", metavar="NAME", help="a chip of the hardware table, such as H200")
    device.add_argument("--hardware", metavar="FILE", help="TOML file with chips of your own")
    device.add_argument("--memory-gib", type=above_zero, metavar="N", help="memory of a device")


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
        say_aside(f"note: {found.note}; name one of them to choose it")
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


def _latent(text: str) -> LatentAttention:
    parts = text.split(":")
    try:
        numbers = [int(p) for p in parts]
        if len(numbers) not in (4, 5) or min(numbers) < 1:
            raise ValueError
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected KV:NOPE:ROPE:VALUE[:Q], found {text!r}") from error
    return LatentAttention(*numbers)
