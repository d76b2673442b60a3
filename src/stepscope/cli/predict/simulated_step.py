"""A simulated step asked for on the command line: run in a process of its own, compared with the formulas."""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepscope.cost.model_flops import Recompute, Transformer
from stepscope.cost.model_memory import Batch
from stepscope.cost.model_shape import Layout, Precision, Sharding
from stepscope.cost.strategy_cost import Traffic, load_simulated, strategy_traffic
from stepscope.errors import UsageError

_STRATEGIES = {Sharding.DDP: "ddp", Sharding.ZERO2: "zero2", Sharding.ZERO3: "zero3"}


def simulated_step(args: argparse.Namespace, model: Transformer, layout: Layout) -> dict[str, Any]:
    """Return what one simulated step communicates and holds, and whether the formulas say the same."""
    _check(args, model, layout)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        command = [sys.executable, "-m", "stepscope.bench.simulate", *_arguments(args, model, layout)]
        done = subprocess.run(
            [*command, "--out", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UsageError(f"the simulated step failed: {last}; predict without --simulate")
        step = load_simulated(path)
    batch = Batch(args.micro_batch, args.seq_len, Precision(args.precision), _recompute(args))
    return {
        "peak_bytes": step.peak_bytes,
        "peak_when": step.peak_when,
        "parts": step.peak_parts,
        "collectives": [vars(t) for t in step.traffic],
        "agrees": _counted(step.traffic) == _counted(strategy_traffic(model, batch, layout)),
        "took_s": step.took_s,
    }


def _check(args: argparse.Namespace, model: Transformer, layout: Layout) -> None:
    if find_spec("torch") is None:
        raise UsageError("--simulate needs torch, which is not installed here; predict without it")
    wrong = {
        "--pipeline": layout.pipeline > 1,
        "--micro-batches": layout.micro_batches > 1,
        "latent attention": model.latent is not None,
        "shared experts": bool(model.experts and (model.experts.shared or model.experts.dense_layers)),
        "--head-width": model.head_width not in (None, model.d_model // model.heads),
        "--tied-head": model.tied_head,
        f"--strategy {layout.sharding.value}": layout.sharding not in _STRATEGIES,
        f"--precision {args.precision}": args.precision not in ("fp32", "amp", "mixed"),
        f"--optimizer {args.optimizer}": args.optimizer not in ("adam", "sgd"),
        f"--recompute {args.recompute}": args.recompute not in ("none", "blocks"),
        "a position table of another length": model.learned_positions not in (0, args.seq_len),
        "--plain-attention": args.plain_attention,
    }
    found = [name for name, is_so in wrong.items() if is_so]
    if found:
        raise UsageError(f"cannot simulate {', '.join(found)}; predict without --simulate")


def _arguments(args: argparse.Namespace, model: Transformer, layout: Layout) -> list[str]:
    values = {
        "layers": model.layers, "d-model": model.d_model, "heads": model.heads, "vocab": model.vocab,
        "seq-len": args.seq_len, "mlp-width": model.experts.width if model.experts else model.mlp_width,
        "kv-heads": model.kv_heads or 0, "micro-batch": args.micro_batch, "precision": args.precision,
        "experts": model.experts.count if model.experts else 0,
        "experts-per-token": model.experts.per_token if model.experts else 0,
        "optimizer": args.optimizer, "strategy": _STRATEGIES[layout.sharding],
        "data": layout.data, "tensor": layout.tensor, "expert": layout.expert,
    }  # fmt: skip
    flags = {
        "gated-mlp": model.gated_mlp, "no-positions": not model.learned_positions,
        "no-norm-bias": not model.norm_bias, "checkpoint": _recompute(args) is not Recompute.NONE,
        "fused": args.fused_optimizer,
    }  # fmt: skip
    out = [text for name, value in values.items() for text in (f"--{name}", str(value))]
    return out + [f"--{name}" for name, is_set in flags.items() if is_set]


def _recompute(args: argparse.Namespace) -> Recompute:
    return Recompute.BLOCKS if args.recompute == "blocks" else Recompute.NONE


def _counted(traffic: tuple[Traffic, ...] | list[Traffic]) -> Counter[tuple[str, str, int, str]]:
    found: Counter[tuple[str, str, int, str]] = Counter()
    for t in traffic:
        found[t.op, t.group, t.size_bytes, t.when] += t.count
    return found
