"""What is fastest here? Implementations, settings and sizes, measured on real ranks, interleaved, with raw samples.

examples:
  stepscope bench ddp --world-size 2
  stepscope bench ddp --profile --profile-implementation ddp_bucketed
  stepscope bench strategy --world-size 2 --workload mymodule:make
  stepscope bench buckets --backend nccl --world-size 4
  stepscope bench scaling --world-size 1,2,4 --mode weak
  stepscope bench precision --d-model 1024
  stepscope bench ddp --config examples/configs/small_gpt.toml --set workload.d_model=128

`stepscope bench WHAT --help` lists the options.
"""

import argparse
from functools import partial
from typing import Any

from stepscope.cli.arguments import (
    ExtendWorldSizes,
    LazyParser,
    above_zero,
    at_least_one,
    at_least_zero,
    size_bytes,
    world_sizes,
)
from stepscope.contract.operations import DEFAULT_WORKLOAD, TRAINING_PRECISIONS, WORKLOAD_DEFAULTS
from stepscope.lab.bench.config import ConfiguredParser
from stepscope.lab.bench.sessions import COLLECTIVES
from stepscope.lab.bench.strategies import NAMES
from stepscope.lab.bench.sweeps import START, SWEEPS

# kinds of benchmarks
WHAT = {
    "ddp": "all data-parallel implementations side by side; --profile records one",
    "fsdp": "sharded data parallelism against DDP: time, memory, traffic",
    "strategy": "DDP or ZeRO-1, -2, -3: what fits and what is fastest, with one recommendation",
    "buckets": "best bucket size and options of DDP",
    "batch-size": "largest batch that fits, and the fastest",
    "precision": "fp32, tf32, fp16, bf16",
    "compile": "torch.compile modes and CUDA graphs",
    "attention": "attention kernels",
    "checkpointing": "activation checkpointing: memory against time",
    "dataloader": "workers, pinning, prefetching",
    "allocator": "settings of the caching allocator",
    "accumulation": "gradient accumulation",
    "offload": "parameters and optimizer state on the host",
    "scaling": "strong and weak scaling over world sizes",
    "straggler": "what one slow rank costs, and whether it is found",
    "collectives": "time and bandwidth of every collective",
}
# kinds that can use several ranks, and how many by default; None: several world sizes
RANKS: dict[str, int | None] = {
    **dict.fromkeys(("ddp", "fsdp", "buckets", "straggler", "strategy"), 2),
    **dict.fromkeys(("accumulation", "batch-size"), 1),
    "scaling": None,
}
MODES = {"strong": ("strong",), "weak": ("weak",), "both": ("strong", "weak")}
# by default, unless started by a launcher
WORLD_SIZES = (1, 2)
_PROFILE_EPOCHS = 10

_DDP = """\
Data-parallel implementations side by side, on real ranks, with the same gradients.

examples:
  stepscope bench ddp --world-size 2
  stepscope bench ddp --backend nccl --world-size 8 --d-model 1024 --num-layers 24 --precision bf16
  stepscope bench ddp --implementations ddp,ddp_bucketed,pytorch_ddp --bucket-size-mb 10
  stepscope bench ddp --profile --profile-implementation ddp_bucketed --profile-output-dir traces
  stepscope bench fsdp --world-size 4

Every run measures all of them one after the other. Gradients of the first step, losses, and weights after all steps are
held against those of the first one. A short trace of each says what of the communication was hidden.
"""

_BUCKETS = """\
Which bucket size is best for DDP's gradients, and do its options help? Found by a search, then measured properly.

examples:
  stepscope bench buckets --world-size 2
  stepscope bench buckets --backend nccl --world-size 8 --d-model 1024 --precision bf16
  stepscope bench buckets --implementation ddp_bucketed --sizes-mb 1,5,25,100

Sizes from 1 to 250 MB. Those that cut the model into the same buckets are measured once; the search tries every third,
then the neighbours of the best. --exhaustive tries all.
"""

_SCALING = """\
How well do more ranks help? Strong scaling (the same work shared out) and weak scaling (the same work each).

examples:
  stepscope bench scaling --world-size 1,2,4
  stepscope bench scaling --mode strong --batch-size 64 --world-size 1,2,4,8 --backend nccl

Efficiency is T1 / (N x TN) for strong and T1 / TN for weak scaling, against the smallest world size. In strong scaling
--batch-size is that of the whole job and every world size has to divide it. Each run measures all world sizes.
"""

_STRAGGLER = """\
What does one slow rank cost, and is it found? A delay is planted on one rank; light mode has to name it.

examples:
  stepscope bench straggler --world-size 2
  stepscope bench straggler --world-size 4 --slow-rank 2 --delays-ms 0,10,50

The job is recorded in light mode: step and region times, no profiler. Each delay's log is judged as soon as its run is
over, while the job goes on (results.json grows). Lost throughput is against the run without a delay.
"""

_COLLECTIVES = """\
What do collectives take here? Time, algorithm and bus bandwidth of every operation over sizes and world sizes.

examples:
  stepscope bench collectives --backend gloo --world-size 2,4
  stepscope bench collectives --backend nccl --world-size 8 --op all_reduce --limit-s 30

Bytes are the full buffer of the operation. `stepscope calibrate` fits latency and bandwidth to the same measurement.
"""

_SWEEPS = """\
One choice at a time: every variant measured in turn, checked against the first, ended with advice.

examples:
  stepscope bench precision --backend nccl --d-model 1024 --num-layers 12 --batch-size 16
  stepscope bench batch-size --memory-limit 2GB
  stepscope bench dataloader --workers 0,2,8 --preprocess-us 500
  stepscope bench compile --workload mymodule:make --runs 5
  stepscope bench strategy --backend nccl --world-size 8 --workload mymodule:make --batch-size 4
  torchrun --nnodes 2 --nproc-per-node 8 -m stepscope bench strategy --backend nccl --memory-limit 70GB
  stepscope bench accumulation --world-size 4 --batch-size 16
  stepscope bench allocator --backend nccl --setting max_split_size_mb:128,garbage_collection_threshold:0.6

Variants run in a process of their own: one that runs out of memory, crashes or hangs is named, and the rest goes on.
Variants that cannot run here are listed as not measured, with the reason. `strategy`, and `accumulation` and
`batch-size` with --world-size, train on several ranks: what is saved in communication is measured with it.
"""

DOCS = {
    **dict.fromkeys(SWEEPS, _SWEEPS),
    **dict.fromkeys(("ddp", "fsdp"), _DDP),
    "buckets": _BUCKETS,
    "scaling": _SCALING,
    "straggler": _STRAGGLER,
    "collectives": _COLLECTIVES,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one parser per kind of benchmark."""
    # Configured by --config, and reporting errors as the command's own parser does: in one line.
    one_line: Any = type("_BenchParser", (LazyParser, ConfiguredParser, type(parser)), {})
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True, parser_class=one_line)
    for name, purpose in WHAT.items():
        kinds.add_parser(name, help=purpose, add=partial(_add, what=name))


def _add(parser: argparse.ArgumentParser, *, what: str) -> None:
    parser.description = DOCS[what]
    own = {
        **dict.fromkeys(SWEEPS, _add_sweep),
        **dict.fromkeys(("ddp", "fsdp"), _add_ddp),
        "buckets": _add_buckets,
        "scaling": _add_scaling,
        "straggler": _add_straggler,
        "collectives": _add_collectives,
    }
    own[what](parser, what)
    if what != "collectives":
        _add_shared(parser, what)


def _add_ddp(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--implementations", type=_names, metavar="A,B", help=f"of {', '.join(NAMES)} (those that run here)"
    )
    parser.add_argument("--bucket-size-mb", type=above_zero, default=25.0, metavar="MB", help="of gradients (25)")
    parser.add_argument("--no-trace", action="store_true", help="measure times only")
    if what == "ddp":
        group = parser.add_argument_group("profile one implementation")
        group.add_argument("--profile", action="store_true", help="record traces instead of comparing")
        group.add_argument(
            "--profile-implementation", metavar="NAME", default="ddp", help=f"of {', '.join(NAMES)} (ddp)"
        )
        group.add_argument(
            "--profile-output-dir", metavar="DIR", default="./profiler_output", help="(./profiler_output)"
        )
        group.add_argument(
            "--profile-epochs", type=at_least_one, default=_PROFILE_EPOCHS, metavar="N",
            help=f"epochs in the trace ({_PROFILE_EPOCHS})",
        )  # fmt: skip


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _add_buckets(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--implementation", choices=("pytorch_ddp", "ddp_bucketed"), default="pytorch_ddp")
    parser.add_argument("--sizes-mb", metavar="A,B", help="sizes to choose from (14 sizes from 1 to 250)")
    parser.add_argument("--exhaustive", action="store_true", help="try every size")
    parser.add_argument("--round-steps", type=at_least_one, default=10, metavar="N", help="steps of one turn (10)")


def _add_scaling(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--mode", choices=tuple(MODES), default="both")
    parser.add_argument(
        "--world-size", "--world-sizes", dest="world_sizes", type=world_sizes, metavar="N,N",
        help=f"default {','.join(map(str, WORLD_SIZES))}",
    )  # fmt: skip
    parser.add_argument("--implementation", default="pytorch_ddp", metavar="NAME", help="default pytorch_ddp")
    parser.add_argument("--bucket-size-mb", type=above_zero, default=25.0, metavar="MB", help="of gradients (25)")


def _add_straggler(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--slow-rank", type=int, default=1, metavar="R", help="rank that is slowed down (1)")
    parser.add_argument("--delays-ms", default="0,5,20,60", metavar="A,B", help="per step, 0 first (0,5,20,60)")
    parser.add_argument("--implementation", default="ddp_bucketed", metavar="NAME", help="default ddp_bucketed")


def _add_collectives(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="gloo on the CPU (default), nccl")
    parser.add_argument(
        "--world-size", type=world_sizes, action=ExtendWorldSizes, metavar="N,N", help="ranks, one or several (2)"
    )
    names = f"only this operation, repeatable: {', '.join(COLLECTIVES)}"
    parser.add_argument("--op", action="append", choices=COLLECTIVES, metavar="OP", help=names)
    parser.add_argument("--limit-s", type=above_zero, default=60.0, metavar="S", help="time to spend (60)")
    parser.add_argument("--max-bytes", type=size_bytes, default=2**30, metavar="N", help="largest size (1GiB)")
    _add_output(parser, what)


def _add_sweep(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the workload, such as kv_heads=2"
    )
    parser.add_argument(
        "--variant-limit-s", type=above_zero, default=300.0, metavar="S", help="give up on one measurement after (300)"
    )
    if what != "batch-size":
        parser.add_argument("--only", metavar="NAME,NAME", help="only these variants, in addition to the first")
    if what == "batch-size":
        parser.add_argument("--start", type=at_least_one, default=START, metavar="N", help=f"first size ({START})")
        parser.add_argument("--most", type=at_least_one, default=1 << 16, metavar="N", help="last size (65536)")
    if what in ("batch-size", "strategy"):
        meaning = (
            "of a rank on the CPU (half of what is free)"
            if what == "batch-size"
            else "that a rank may take (all of its device)"
        )
        parser.add_argument("--memory-limit", type=size_bytes, metavar="SIZE", help=meaning)
    if what == "allocator":
        parser.add_argument(
            "--setting", action="append", default=[], metavar="NAME:VALUE,...",
            help="of PYTORCH_CUDA_ALLOC_CONF, or NAME=VALUE of the environment; one more variant, may be repeated",
        )  # fmt: skip
    if what == "dataloader":
        parser.add_argument("--workers", type=_counts, default=(0, 1, 2, 4), metavar="N,N", help="default 0,1,2,4")
        parser.add_argument(
            "--preprocess-us", type=at_least_zero, default=0, metavar="US", help="work per sample while loading (0)"
        )


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} are no numbers; write them with commas between") from error


def _add_shared(parser: argparse.ArgumentParser, what: str) -> None:
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--workload", default=DEFAULT_WORKLOAD, metavar="NAME",
        help="gpt, deepseek, mlp, transformers:CONFIG, module:function (gpt)",
    )  # fmt: skip
    for name, value in WORKLOAD_DEFAULTS.items():
        option = f"--{name.replace('_', '-')}"
        help_text = f"samples of one rank in one forward ({value})" if name == "batch_size" else f"default {value}"
        group.add_argument(option, type=at_least_one, default=value, metavar="N", help=help_text)
    group.add_argument("--precision", choices=TRAINING_PRECISIONS, default="fp32", help="default fp32")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="default 0")
    group = parser.add_argument_group("method")
    group.add_argument(
        "--num-epochs", "--steps", dest="steps", type=at_least_one, default=50, metavar="N",
        help="measured epochs of one step each, after the warm-up (50)",
    )  # fmt: skip
    group.add_argument(
        "--warmup-epochs", "--warmup-steps", dest="warmup_steps", type=at_least_one, default=10, metavar="N",
        help="epochs that are not measured, with a rising learning rate (10)",
    )  # fmt: skip
    group.add_argument("--runs", type=at_least_one, default=3, metavar="N", help="interleaved repetitions (3)")
    group.add_argument("--grad-accum", type=at_least_one, default=1, metavar="N", help="micro-batches per step (1)")
    group = parser.add_argument_group("ranks")
    if ranks := RANKS.get(what):
        group.add_argument("--world-size", type=at_least_one, default=ranks, metavar="N", help=f"({ranks})")
    group.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="gloo on the CPU (default), nccl")
    group.add_argument("--share-devices", action="store_true", help="let NCCL ranks share a device")
    group.add_argument("--threads", type=at_least_one, default=1, metavar="N", help="threads of one rank (1)")
    group.add_argument("--limit-s", type=above_zero, default=3600.0, metavar="S", help="give up after (3600)")
    _add_output(parser.add_argument_group("results"), what, plot=True)


def _add_output(group: Any, what: str, *, plot: bool = False) -> None:
    group.add_argument("--out", metavar="DIR", default=f"stepscope-bench-{what}", help=f"stepscope-bench-{what}")
    group.add_argument("--json", metavar="PATH", help="write the results there as well; - for standard output")
    group.add_argument("--html", metavar="PATH", help="write a self-contained HTML file")
    if plot:
        group.add_argument("--plot", metavar="PATH", help="where to draw them (results.svg in the folder)")
    group.add_argument("--force", action="store_true", help="overwrite results that exist")
