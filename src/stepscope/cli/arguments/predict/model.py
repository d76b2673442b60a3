"""The arguments that describe a model and a device, shared by predictions."""

import argparse

from stepscope.cli.arguments.sizes import above_zero, at_least_one, at_least_zero
from stepscope.cost.model_flops import LatentAttention, Recompute

RECOMPUTE = {
    "none": Recompute.NONE,
    "attention": Recompute.ATTENTION,
    "blocks": Recompute.BLOCKS,
    "full": Recompute.FULL,
}


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


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the device, by name or by its numbers."""
    device = parser.add_argument_group("device")
    device.add_argument("--device", metavar="NAME", help="a chip of the hardware table, such as H200")
    device.add_argument("--hardware", metavar="FILE", help="TOML file with chips of your own")
    device.add_argument("--memory-gib", type=above_zero, metavar="N", help="memory of a device")


def _latent(text: str) -> LatentAttention:
    parts = text.split(":")
    try:
        numbers = [int(p) for p in parts]
        if len(numbers) not in (4, 5) or min(numbers) < 1:
            raise ValueError
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not KV:NOPE:ROPE:VALUE[:Q] in whole numbers above 0") from error
    return LatentAttention(*numbers)
