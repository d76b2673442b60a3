"""What would it take? Collectives, memory, FLOPs, strategies, and a recorded run at other world sizes.

examples:
  stepscope predict collective --calibration calibration.json --op all_reduce --bytes 25MB --world-size 8
  stepscope predict flops --layers 32 --d-model 4096 --heads 32 --vocab 32000 --seq-len 4096
  stepscope predict mfu --step-ms 412 --flops-per-step 2.1e15 --device H100 --devices 8
  stepscope predict memory --layers 32 --d-model 4096 --heads 32 --vocab 32000 --seq-len 4096 \\
      --strategy fsdp --data 64 --device H200
  stepscope predict strategy --layers 32 --d-model 4096 --heads 32 --vocab 32000 --seq-len 4096 \\
      --sequences 512 --device H200 --world-size 64
  stepscope predict scale run-folder/ --world-size 64 --link 50

`stepscope predict WHAT --help` lists the options.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.arguments import (
    ExtendWorldSizes,
    HelpFormatter,
    above_zero,
    add_flags,
    add_force,
    add_options,
    add_run_arguments,
    at_least_one,
    at_least_zero,
    size_bytes,
    world_sizes,
)
from stepscope.cli.outputs import say_with_answer, show
from stepscope.cli.run import account_from, warn_incomplete
from stepscope.contract.operations import OPERATIONS
from stepscope.errors import UsageError
from stepscope.lab.predict.closed_form import Fabric, Link
from stepscope.lab.predict.model_shape import (
    Experts,
    LatentAttention,
    Layout,
    Optimizer,
    Precision,
    Recompute,
    Sharding,
    Transformer,
    checked,
    forward_flops_per_token,
    parameters,
    training_flops_per_token,
    transformer_from_config,
)
from stepscope.units import ms, us

if TYPE_CHECKING:
    from stepscope.cost.calibration import Calibration
    from stepscope.cost.chips import Chip
    from stepscope.lab.predict.strategy import Candidate

WHAT = {
    "collective": "time of one collective, from a calibration or from a link",
    "flops": "FLOPs of a model per token and step",
    "mfu": "model FLOPs utilisation of a step time that is known",
    "memory": "memory of a training step on each device, and whether it fits",
    "scale": "a recorded run's step on more devices",
    "strategy": "what fits, what is fastest, and why",
}
_RECOMPUTE = {choice.name.lower(): choice for choice in Recompute}
_STRATEGIES = {**{s.value: s for s in Sharding}, "fsdp": Sharding.ZERO3}
_MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "temporary")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one parser per kind of prediction."""
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, add in (
        ("collective", _add_collective),
        ("flops", _add_flops),
        ("mfu", _add_mfu),
        ("memory", _add_memory),
        ("scale", _add_scale),
        ("strategy", _add_strategy),
    ):
        kind = kinds.add_parser(name, help=WHAT[name], formatter_class=HelpFormatter)
        add(kind)
        kind.add_argument("--json", metavar="PATH", help="write the prediction as JSON; - for standard output")
        kind.add_argument("--html", metavar="PATH", help="write a self-contained HTML file")
        add_force(kind)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a rank of the run could not be read."""
    kinds = {"collective": _collective, "flops": _flops, "mfu": _mfu_of_step, "memory": _memory}
    kinds |= {"scale": _scale, "strategy": _strategy}
    return kinds[args.what](args)


def _answer(args: argparse.Namespace, document: Any) -> int:
    """Return 0 after writing a prediction as JSON, as a page and as text."""
    from stepscope.lab.report.sheets import predict_sheet

    show(args, document, lambda: predict_sheet(args.what, document, asked=_command_line()))
    return 0


def _command_line() -> str:
    """Return the command without its outputs, and with names in place of paths."""
    words = iter(sys.argv[1:])
    shown = []
    for word in words:
        if word in ("--html", "--json"):
            next(words, None)
        elif not word.startswith(("--html", "--json", "--force")):
            shown.append(Path(word).name or word)
    return shlex.join(["stepscope", *shown])


# Links, models and devices, shared by several predictions


def _add_links(parser: argparse.ArgumentParser) -> None:
    for name, text in (("--link", "link between ranks, or between nodes"), ("--node-link", "link inside a node")):
        parser.add_argument(name, type=_link, metavar="GB/s[:us]", help=text)
    parser.add_argument("--per-node", type=at_least_one, default=8, metavar="N", help="devices per node (default 8)")


def _link(text: str) -> Link:
    rate, _, latency = text.partition(":")
    try:
        gb_per_s, latency_us = float(rate), float(latency or 5)
    except ValueError:
        gb_per_s = latency_us = -1.0
    if not 0 < gb_per_s < float("inf") or not 0 <= latency_us < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a bandwidth; write GB/s or GB/s:us, such as 50:5")
    return Link(latency_us * 1e3, 1 / gb_per_s)


def _fabric(args: argparse.Namespace) -> Fabric | None:
    if args.node_link is not None:
        return Fabric(args.node_link, args.link, args.per_node)
    return Fabric(args.link) if args.link is not None else None


def _add_model(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model")
    model.add_argument("--config", metavar="FILE", help="config.json of the Transformers library, instead of the rest")
    shape = {
        "--layers": ("N", None),
        "--d-model": ("N", None),
        "--heads": ("N", None),
        "--vocab": ("N", None),
        "--kv-heads": ("N", "heads of keys and values (grouped)"),
        "--head-width": ("N", "default d_model / heads"),
        "--mlp-width": ("N", "default 4 d_model"),
    }
    add_options(model, shape, type=at_least_one)
    model.add_argument("--gated-mlp", action="store_true", help="three matrices (SwiGLU)")
    model.add_argument("--positions", type=at_least_one, default=0, metavar="N", help="learned position table")
    variants = {
        "--norm-bias": "layer norms with a bias",
        "--tied-head": "the head is the embedding",
        "--fused-qkv": "one matrix for queries, keys and values",
    }
    add_flags(model, variants)
    model.add_argument("--experts", type=at_least_one, metavar="N", help="routed experts per layer")
    model.add_argument("--experts-per-token", type=at_least_one, default=2, metavar="N")
    model.add_argument("--expert-width", type=at_least_one, metavar="N", help="default the MLP's width")
    dense = {"--shared-experts": ("N", None), "--dense-layers": ("N", "leading layers without experts")}
    add_options(model, dense, type=at_least_zero, default=0)
    model.add_argument(
        "--latent",
        type=_latent,
        metavar="KV:NOPE:ROPE:VALUE[:Q]",
        help="latent attention: key-value rank, widths without and with rotation, value width, query rank",
    )


def _latent(text: str) -> LatentAttention:
    parts = text.split(":")
    try:
        numbers = [int(p) for p in parts]
        if len(numbers) not in (4, 5) or min(numbers) < 1:
            raise ValueError
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not KV:NOPE:ROPE:VALUE[:Q] in whole numbers above 0") from error
    return LatentAttention(*numbers)


def _add_device(parser: argparse.ArgumentParser) -> None:
    device = parser.add_argument_group("device")
    device.add_argument("--device", metavar="NAME", help="a chip of the hardware table, such as H200")
    device.add_argument("--hardware", metavar="FILE", help="TOML file with additional chips")
    device.add_argument("--memory-gib", type=above_zero, metavar="N", help="memory of a device")


def _model_of(args: argparse.Namespace) -> Transformer:
    if args.config:
        return transformer_from_config(args.config)
    missing = [
        f"--{name.replace('_', '-')}" for name in ("layers", "d_model", "heads", "vocab") if getattr(args, name) is None
    ]
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


def _chip_of(args: argparse.Namespace) -> "Chip | None":
    from stepscope.cost.chips import built_in_chips, load_chips, look_up

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
        raise UsageError(f"device {args.device!r} may be {', '.join(c.name for c in named)}; be more specific")
    raise UsageError(found.reason or f"device {args.device!r} is not known")


def _device_bytes(args: argparse.Namespace, chip: "Chip | None") -> float | None:
    gib = args.memory_gib or (chip.memory_gib if chip else None)
    return float(gib) * 2**30 if gib else None


# predict collective


def _add_collective(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
What does a collective take? From a calibration with its interval, or from a link's latency and bandwidth.

examples:
  stepscope predict collective --calibration calibration.json --op all_reduce --bytes 25MB --world-size 8 --json -
  stepscope predict collective --link 50:5 --node-link 400:2 --per-node 8 --op all_reduce --bytes 25MB --world-size 64

--bytes is the full buffer: what a gather receives, what a scatter sends; several give a list. A link is
GB/s:microseconds per device and direction.
"""
    parser.add_argument("--op", required=True, choices=OPERATIONS, metavar="OP", help=", ".join(OPERATIONS))
    parser.add_argument("--bytes", required=True, type=size_bytes, nargs="+", action="extend", metavar="N")
    parser.add_argument("--world-size", required=True, type=at_least_one, metavar="W")
    parser.add_argument("--calibration", metavar="FILE", help="written by `stepscope calibrate`")
    _add_links(parser)


def _collective(args: argparse.Namespace) -> int:
    rows = [_collective_row(args, size) for size in args.bytes]
    return _answer(args, rows if len(rows) > 1 else rows[0])


def _collective_row(args: argparse.Namespace, size: int) -> dict[str, Any]:
    query: dict[str, Any] = {"op": args.op, "bytes": size, "world_size": args.world_size}
    links = _fabric(args)
    if (args.calibration is None) == (links is None):
        raise UsageError("give either --calibration FILE (from `stepscope calibrate`) or --link GB/s:us")
    if links is None:
        from stepscope.cost.calibration import load_calibration

        found = load_calibration(args.calibration).predict(args.op, size_bytes=size, world_size=args.world_size)
        times = {"time_us": us(found.time_ns), "low_us": us(found.low_ns), "high_us": us(found.high_ns)}
        return {**query, **times, "coverage": 0.9, "how": found.how}
    if args.world_size < 2:
        raise UsageError(
            f"the world size has to be 2 or more, not {args.world_size}: a single rank does not communicate"
        )
    choice = links.predict(args.op, size_bytes=size, world_size=args.world_size)
    each = {name: us(time) for name, time in choice.all_ns.items()}
    reason = "a link alone gives no error; calibrate for an interval"
    none = {"low_us": None, "high_us": None, "reason": reason}
    return {**query, "time_us": us(choice.time_ns), **none, "algorithm": choice.algorithm, "algorithms_us": each}


# predict flops


def _add_flops(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
How many FLOPs does a model take, per token and per step?

examples:
  stepscope predict flops --layers 12 --d-model 1024 --heads 16 --vocab 32768 --seq-len 1024
  stepscope predict flops --config config.json --seq-len 4096 --tokens-per-step 4194304 --recompute blocks

2 FLOPs per multiply-add, attention in full (not halved for a causal mask), training three times forward.
"""
    _add_model(parser)
    parser.add_argument("--seq-len", type=at_least_one, required=True, metavar="N")
    parser.add_argument("--tokens-per-step", type=at_least_one, metavar="N", help="of the whole job")
    parser.add_argument("--recompute", choices=_RECOMPUTE, default="none", help="what checkpointing computes again")


def _flops(args: argparse.Namespace) -> int:
    model = _model_of(args)
    forward = forward_flops_per_token(model, seq_len=args.seq_len)
    training = training_flops_per_token(model, seq_len=args.seq_len, recompute=_RECOMPUTE[args.recompute])
    tokens = args.tokens_per_step
    found = {
        "parameters": parameters(model).total,
        "seq_len": args.seq_len,
        "convention": "2 per multiply-add, attention in full, training 3 x forward",
        "forward_per_token": forward,
        "training_per_token": training,
        "tokens_per_step": tokens,
        "model_flops_per_step": None if tokens is None else training["model"] * tokens,
        "hardware_flops_per_step": None if tokens is None else training["hardware"] * tokens,
    }
    return _answer(args, found)


# predict mfu


def _add_mfu(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Which share of the devices' peak does a step use?

examples:
  stepscope predict mfu --step-ms 412 --flops-per-step 2.1e15 --device H100 --devices 8
  stepscope predict mfu --step-ms 120 --layers 12 --d-model 1024 --heads 16 --vocab 32768 --seq-len 1024 \\
      --tokens-per-step 8192 --peak-tflops 989

MFU counts the model's FLOPs, HFU those of recomputation as well; both against the dense 16-bit peak of all devices.
"""
    parser.add_argument(
        "--step-ms", type=above_zero, required=True, metavar="X", help="step time, without the profiler"
    )
    parser.add_argument("--flops-per-step", type=above_zero, metavar="F", help="model FLOPs of the whole job per step")
    parser.add_argument("--devices", type=at_least_one, default=1, metavar="N", help="devices of the job (default 1)")
    parser.add_argument("--peak-tflops", type=above_zero, metavar="P", help="peak of one device in TFLOP/s")
    parser.add_argument("--seq-len", type=at_least_one, metavar="N")
    parser.add_argument("--tokens-per-step", type=at_least_one, metavar="N", help="of the whole job")
    parser.add_argument("--recompute", choices=_RECOMPUTE, default="none", help="what checkpointing computes again")
    _add_model(parser)
    _add_device(parser)


def _mfu_of_step(args: argparse.Namespace) -> int:
    model_flops, hardware_flops = _flops_of_step(args)
    peak, source = _peak_of(args)
    step_s = args.step_ms / 1e3
    per_device = model_flops / step_s / args.devices
    found = {
        "mfu": per_device / peak,
        "hfu": None if hardware_flops is None else hardware_flops / step_s / args.devices / peak,
        "step_ms": args.step_ms,
        "model_flops_per_step": model_flops,
        "hardware_flops_per_step": hardware_flops,
        "devices": args.devices,
        "tflops_per_device": per_device / 1e12,
        "peak_tflops": peak / 1e12,
        "peak_source": source,
        "tokens_per_s": args.tokens_per_step and args.tokens_per_step / step_s,
        "convention": "2 per multiply-add, attention in full, training 3 x forward",
    }
    if found["mfu"] > 1:
        say_with_answer("note: more than the peak; check the step time, the FLOPs and the number of devices")
    return _answer(args, found)


def _flops_of_step(args: argparse.Namespace) -> tuple[float, float | None]:
    """Return the FLOPs of the whole job in a step: of the model, and with recomputation where that is known."""
    if args.flops_per_step is not None:
        return args.flops_per_step, args.flops_per_step if args.recompute == "none" else None
    missing = [f"--{n.replace('_', '-')}" for n in ("seq_len", "tokens_per_step") if getattr(args, n) is None]
    if missing:
        raise UsageError(f"FLOPs of the step are unknown: give --flops-per-step, or the model and {', '.join(missing)}")
    training = training_flops_per_token(_model_of(args), seq_len=args.seq_len, recompute=_RECOMPUTE[args.recompute])
    return training["model"] * args.tokens_per_step, training["hardware"] * args.tokens_per_step


def _peak_of(args: argparse.Namespace) -> tuple[float, str]:
    from stepscope.cost.chips import mfu_peak

    if args.peak_tflops is not None:
        return args.peak_tflops * 1e12, "--peak-tflops"
    chip = _chip_of(args)
    if chip is None:
        raise UsageError("the peak of a device is unknown: give --device NAME or --peak-tflops P")
    peak = mfu_peak(chip)
    if peak is None:
        raise UsageError(f"{chip.name} has no 16-bit tensor peak; give --peak-tflops P")
    return peak.flops_per_s, f"dense {peak.precision} of {chip.name}"


# predict memory


def _add_memory(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
How much memory does a training step take on each device, by category, and does it fit?

examples:
  stepscope predict memory --layers 12 --d-model 1024 --heads 16 --vocab 32768 --seq-len 1024 --micro-batch 8
  stepscope predict memory --config config.json --seq-len 4096 --strategy zero3 --data 64 --device H200
"""
    _add_model(parser)
    _add_device(parser)
    job = parser.add_argument_group("job")
    job.add_argument("--seq-len", type=at_least_one, required=True, metavar="N")
    job.add_argument("--micro-batch", type=at_least_one, default=1, metavar="N", help="sequences of a rank at a time")
    job.add_argument("--micro-batches", type=at_least_one, default=1, metavar="N", help="accumulated per step")
    job.add_argument("--strategy", choices=_STRATEGIES, default="ddp", help="fsdp is zero3")
    for name in ("data", "tensor", "pipeline", "expert"):
        job.add_argument(f"--{name}", type=at_least_one, default=1, metavar="N", help=f"ranks of {name} parallelism")
    job.add_argument("--precision", choices=[p.value for p in Precision], default="amp")
    job.add_argument("--optimizer", choices=[o.value for o in Optimizer], default="adam")
    job.add_argument("--fused-optimizer", action="store_true", help="one that makes no copy of the weights")
    job.add_argument("--recompute", choices=_RECOMPUTE, default="none")
    job.add_argument("--plain-attention", action="store_true", help="attention that keeps its scores")


def _memory(args: argparse.Namespace) -> int:
    from stepscope.lab.predict.model_memory import CONTEXT_BYTES, Batch, Moment, training_memory
    from stepscope.lab.predict.strategy_cost import strategy_traffic

    model = _model_of(args)
    layout = Layout(args.data, args.tensor, args.pipeline, args.expert, _STRATEGIES[args.strategy], args.micro_batches)
    batch = Batch(
        args.micro_batch,
        args.seq_len,
        Precision(args.precision),
        _RECOMPUTE[args.recompute],
        fused_attention=not args.plain_attention,
    )
    memory = training_memory(
        model, batch, layout=layout, optimizer=Optimizer(args.optimizer), foreach_optimizer=not args.fused_optimizer
    )
    device = _device_bytes(args, _chip_of(args))

    def parts(moment: Moment) -> dict[str, int]:
        return {f"{name}_bytes": round(getattr(moment, name)) for name in _MEMORY_PARTS}

    traffic = list(strategy_traffic(model, batch, layout))
    found = {
        "layout": str(layout),
        "world_size": layout.world_size,
        "peak_bytes": round(memory.peak_bytes),
        "peak_when": memory.peak.when,
        "peak": parts(memory.peak),
        "outside_allocator_bytes": CONTEXT_BYTES,
        "device_bytes": device and round(device),
        "fits": None if device is None else memory.fits(device),
        "moments": [{"when": m.when, **parts(m)} for m in memory.moments],
        "collectives": [
            {"op": t.op, "group": t.group, "ranks": t.ranks, "count": t.count, "bytes": t.size_bytes, "when": t.when}
            for t in traffic
        ],
    }
    return _answer(args, found)


# predict scale


def _add_scale(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
What would a recorded run's step take on more devices?

examples:
  stepscope predict scale run-folder/ --world-size 64
  stepscope predict scale run-folder/ --world-size 64 --link 50:5 --node-link 450:3 --per-node 8
  stepscope predict scale run-folder/ --world-size 4 --calibration calibration.json --json -

Same work per rank (weak scaling). The run's compute and overlap are replayed with the communication of more ranks;
the curve goes on to 16,384 devices, with a band.
"""
    add_run_arguments(parser)
    parser.add_argument(
        "--world-size",
        type=world_sizes,
        nargs="+",
        action=ExtendWorldSizes,
        metavar="N,N",
        help="ranks, one or several",
    )
    parser.add_argument("--calibration", metavar="FILE", help="written by `stepscope calibrate`")
    _add_links(parser)
    parser.add_argument(
        "--compute-factor",
        type=above_zero,
        default=1.0,
        metavar="X",
        help="what compute takes longer where more ranks share a device or its cores (default 1)",
    )


def _scale(args: argparse.Namespace) -> int:
    from stepscope.lab.predict.scale import scaled

    account = account_from(args)
    wanted = args.world_size or []
    recorded = account.run.world_size or 2
    curve = [max(recorded << i, 2) for i in range(15) if recorded << i <= 16384]
    found = scaled(account, [*wanted, *curve], source=_source(args), compute_factor=args.compute_factor)
    _answer(args, {**found, "asked": [row for row in found["curve"] if row["world_size"] in wanted]})
    return warn_incomplete(account)


def _source(args: argparse.Namespace) -> "Calibration | Fabric | None":
    from stepscope.cost.calibration import load_calibration

    links = _fabric(args)
    if args.calibration and links is not None:
        raise UsageError("--calibration and --link cannot be used together; use one")
    return load_calibration(args.calibration) if args.calibration else links


# predict strategy


def _add_strategy(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Which strategy for this model on these devices: what fits, what is fastest, and why?

examples:
  stepscope predict strategy --config config.json --seq-len 4096 --sequences 512 --device H200 --world-size 64
  stepscope predict strategy --layers 12 --d-model 1024 --heads 16 --vocab 32768 --seq-len 1024 --sequences 64 \\
      --device "A100 SXM 80GB" --world-size 8 --calibration calibration.json

Compute is taken at a share of the chip's peak (--efficiency; the MFU of a single-device run is the right number).
Links come from --calibration, or from --link and --node-link; by default the chip's own link inside a node and
50 GB/s per device between nodes.
"""
    _add_model(parser)
    _add_device(parser)
    parser.add_argument("--world-size", type=at_least_one, required=True, metavar="N", help="devices of the job")
    parser.add_argument("--seq-len", type=at_least_one, required=True, metavar="N")
    parser.add_argument("--sequences", type=at_least_one, required=True, metavar="N", help="of the job per step")
    parser.add_argument("--precision", choices=[p.value for p in Precision], default="mixed")
    parser.add_argument("--optimizer", choices=[o.value for o in Optimizer], default="adam")
    parser.add_argument("--efficiency", type=above_zero, metavar="X", help="share of the peak (default 0.5, +- 0.15)")
    parser.add_argument("--peak-tflops", type=above_zero, metavar="P", help="instead of the chip's")
    parser.add_argument("--calibration", metavar="FILE", help="written by `stepscope calibrate`")
    _add_links(parser)


def _strategy(args: argparse.Namespace) -> int:
    from stepscope.cost.chips import mfu_peak
    from stepscope.lab.predict.strategy import TYPICAL_RANGE, Question, Speed, advise, time_band

    chip, assumed = _chip_of(args), []
    memory = _device_bytes(args, chip)
    known = mfu_peak(chip) if chip else None
    peak = args.peak_tflops * 1e12 if args.peak_tflops else known.flops_per_s if known else None
    if memory is None or peak is None:
        raise UsageError("the device is not known; give --device NAME, or --memory-gib and --peak-tflops")
    efficiency = args.efficiency
    if efficiency is None:
        assumed.append("compute reaches 50% of the peak (35 % to 65 %); --efficiency sets it")
    elif efficiency > 1:
        raise UsageError(f"--efficiency has to be between 0 and 1, not {efficiency}")
    bandwidth = chip.memory_gb_per_s * 1e9 if chip and chip.memory_gb_per_s else None
    question = Question(
        _model_of(args), args.seq_len, args.sequences, args.world_size, memory,
        Speed(peak, efficiency or 0.5, bandwidth),
        Precision(args.precision), Optimizer(args.optimizer), args.per_node,
    )  # fmt: skip
    source = _links(args, chip, assumed)
    shares = (0.9 * efficiency, min(1.0, 1.1 * efficiency)) if efficiency else TYPICAL_RANGE
    advice = advise(question, source=source, shares=shares)

    def row(c: "Candidate") -> dict[str, Any]:
        low, high = time_band(question, c, shares=shares, source=source)
        return {**_strategy_row(c), "low_ms": ms(low), "high_ms": ms(high)}

    others = [c for c in (advice.fastest, *advice.close) if c is not advice.recommended]
    found = {
        "recommended": row(advice.recommended),
        "fastest": row(advice.fastest),
        "no_difference": advice.recommended is not advice.fastest,
        "reason": advice.reason,
        "test_also": [row(c) for c in others],
        "simple_rule": {"rule": "DDP if it fits, else ZeRO-3", **row(advice.by_rule)},
        "candidates": [row(c) for c in advice.candidates[:12]],
        "not_fitting": [_strategy_row(c) for c in advice.not_fitting],
        "assumed": assumed,
    }
    return _answer(args, found)


def _links(args: argparse.Namespace, chip: "Chip | None", assumed: list[str]) -> "Calibration | Fabric":
    if args.calibration:
        from stepscope.cost.calibration import load_calibration

        return load_calibration(args.calibration)
    given = _fabric(args)
    if given is not None and (given.outer is not None or args.world_size <= args.per_node):
        return given
    outer = args.link or Link(8_000.0, 1 / 50)
    if args.link is None and args.world_size > args.per_node:
        assumed.append("50 GB/s per device between nodes; --link sets it")
    if chip is None or chip.link_gb_per_s is None:
        return Fabric(outer)
    assumed.append(f"{chip.link or 'link'} of {chip.link_gb_per_s:g} GB/s inside a node; --node-link sets it")
    return Fabric(Link(3_000.0, 1 / chip.link_gb_per_s), outer, args.per_node)


def _strategy_row(c: "Candidate") -> dict[str, Any]:
    t = c.time
    return {
        "strategy": c.layout.sharding.value if c.layout.data > 1 else "none",
        "data": c.layout.data,
        "tensor": c.layout.tensor,
        "pipeline": c.layout.pipeline,
        "micro_batch": c.batch.micro_batch,
        "micro_batches": c.layout.micro_batches,
        "recompute": c.batch.recompute.name.lower(),
        "fits": c.fits,
        "memory_bytes": round(c.memory.peak_bytes),
        "step_ms": ms(t.total_ns),
        "mfu": c.mfu and round(c.mfu, 4),
        "exposed_comm_ms": ms(t.exposed_comm_ns),
        "comm_ms": ms(t.comm_ns),
        "bubble_ms": ms(t.bubble_ns),
        "recompute_ms": ms(t.recompute_ns),
        "optimizer_ms": ms(t.optimizer_ns),
    }
