"""What would it take? Collectives, memory, FLOPs, strategies, and a recorded run at other world sizes.

examples:
  stepscope predict collective --calibration calibration.json --op all_reduce --bytes 25MB --world-size 8
  stepscope predict flops --layers 32 --d-model 4096 --heads 32 --vocab 32000 --seq-len 4096
  stepscope predict memory --layers 32 --d-model 4096 --heads 32 --vocab 32000 --seq-len 4096 \\
      --strategy fsdp --data 64 --device H200
  stepscope predict strategy --layers 32 --d-model 4096 --heads 32 --vocab 32000 --seq-len 4096 \\
      --sequences 512 --device H200 --world-size 64
  stepscope predict scale run-folder/ --world-size 64 --link 50

`stepscope predict WHAT --help` tells more.
"""

import argparse
from functools import partial
from importlib import import_module
from typing import Any

from stepscope.cli.arguments.lazy_parser import LazyParser

WHAT = {
    "collective": "time of one collective, from a calibration or from a link",
    "flops": "FLOPs of a model per token and step",
    "memory": "memory of a training step on each device, and whether it fits",
    "scale": "a recorded run's step on more devices",
    "strategy": "what fits, what is fastest, and why",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one parser per kind of prediction."""
    late: Any = type("_PredictParser", (LazyParser, type(parser)), {})
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True, parser_class=late)
    for name, purpose in WHAT.items():
        kinds.add_parser(name, help=purpose, add=partial(_add, what=name))


def _add(parser: argparse.ArgumentParser, *, what: str) -> None:
    module = import_module(f"stepscope.cli.arguments.predict.{what}")
    parser.description = module.__doc__
    module.add_arguments(parser)
    parser.add_argument("--json", metavar="PATH", help="write the prediction as JSON; - for standard output")
    parser.add_argument("--html", metavar="PATH", help="write it as one HTML file that needs no network")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
