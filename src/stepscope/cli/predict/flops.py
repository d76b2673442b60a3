"""`stepscope predict flops`: FLOPs per token and step, as text or JSON."""

import argparse
import sys
from typing import Any

from stepscope.cli.arguments.predict.model import RECOMPUTE
from stepscope.cli.predict.answer import is_for_terminal
from stepscope.cli.predict.model import model_of
from stepscope.cost.model_flops import forward_flops_per_token, training_flops_per_token
from stepscope.cost.model_shape import parameters
from stepscope.report.terminal import console, plain_table


def run(args: argparse.Namespace) -> int:
    """Return 0 after showing the FLOPs."""
    found = _flops(args)
    if is_for_terminal(args, found):
        _print(found)
    return 0


def _flops(args: argparse.Namespace) -> dict[str, Any]:
    model = model_of(args)
    forward = forward_flops_per_token(model, seq_len=args.seq_len)
    training = training_flops_per_token(model, seq_len=args.seq_len, recompute=RECOMPUTE[args.recompute])
    tokens = args.tokens_per_step
    return {
        "parameters": parameters(model).total,
        "seq_len": args.seq_len,
        "convention": "2 per multiply-add, attention in full, training 3 x forward",
        "forward_per_token": {
            "projections": forward.projections,
            "attention": forward.attention,
            "mlp": forward.mlp,
            "router": forward.router,
            "head": forward.head,
            "total": forward.total,
        },
        "training_per_token": {
            "model": training.model,
            "recomputed": training.recomputed,
            "hardware": training.hardware,
        },
        "tokens_per_step": tokens,
        "model_flops_per_step": None if tokens is None else training.model * tokens,
        "hardware_flops_per_step": None if tokens is None else training.hardware * tokens,
    }


def _print(found: dict[str, Any]) -> None:
    out = console(sys.stdout)
    out.print(f"{found['parameters']:,} parameters, sequence length {found['seq_len']:,}")
    table = plain_table(out, "forward, per token", "GFLOP", "share")
    total = found["forward_per_token"]["total"]
    for name, flops in found["forward_per_token"].items():
        table.add_row(name, f"{flops / 1e9:.3f}", f"{100 * flops / total:.1f} %")
    out.print(table)
    training = found["training_per_token"]
    line = f"training: {training['model'] / 1e9:.3f} GFLOP per token"
    if training["recomputed"]:
        line += f", {training['hardware'] / 1e9:.3f} with recomputation"
    out.print(line)
    if found["tokens_per_step"]:
        out.print(f"per step: {found['model_flops_per_step'] / 1e12:.1f} TFLOP")
    out.print(found["convention"])
