"""What is fastest here? Implementations, settings and sizes, measured on real ranks, interleaved, raw samples kept.

examples:
  stepscope bench ddp --world-size 2
  stepscope bench ddp --profile --profile-implementation ddp_bucketed
  stepscope bench strategy --world-size 2 --workload mymodule:make
  stepscope bench buckets --backend nccl --world-size 4
  stepscope bench scaling --world-size 1,2,4 --mode weak
  stepscope bench precision --d-model 1024
  stepscope bench ddp --config examples/configs/small_gpt.toml --set workload.d_model=128

`stepscope bench WHAT --help` tells more.
"""

import argparse
from functools import partial
from importlib import import_module
from typing import Any

from stepscope.bench.config.parser import ConfiguredParser
from stepscope.cli.arguments.lazy_parser import LazyParser

WHAT = {
    "ddp": ("ddp", "all data-parallel implementations side by side; --profile records one"),
    "fsdp": ("ddp", "sharded data parallelism against DDP: time, memory, traffic"),
    "strategy": ("sweeps", "DDP or ZeRO-1, -2, -3: what fits and what is fastest, with one recommendation"),
    "buckets": ("buckets", "best bucket size and options of DDP"),
    "batch-size": ("sweeps", "largest batch that fits, and the fastest"),
    "precision": ("sweeps", "fp32, tf32, fp16, bf16"),
    "compile": ("sweeps", "torch.compile modes and CUDA graphs"),
    "attention": ("sweeps", "attention kernels"),
    "checkpointing": ("sweeps", "activation checkpointing: memory against time"),
    "dataloader": ("sweeps", "workers, pinning, prefetching"),
    "allocator": ("sweeps", "settings of the caching allocator"),
    "accumulation": ("sweeps", "gradient accumulation"),
    "offload": ("sweeps", "parameters and optimizer state on the host"),
    "scaling": ("scaling", "strong and weak scaling over world sizes"),
    "straggler": ("straggler", "what one slow rank costs, and whether it is found"),
    "collectives": ("collectives", "time and bandwidth of every collective"),
}
"""kinds of benchmarks: the file that has them, here and in `cli.bench`, and what they are for"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one parser per kind of benchmark."""
    # Configured by --config, and saying what is wrong as the command's own parser does: in one line.
    one_line: Any = type("_BenchParser", (LazyParser, ConfiguredParser, type(parser)), {})
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True, parser_class=one_line)
    for name, (_, purpose) in WHAT.items():
        kinds.add_parser(name, help=purpose, add=partial(_add, what=name))


def _add(parser: argparse.ArgumentParser, *, what: str) -> None:
    module = import_module(f"stepscope.cli.arguments.bench.{WHAT[what][0]}")
    parser.description = module.__doc__
    module.add_arguments(parser, what=what)
