"""Which strategy for this model on these devices: what fits, what is fastest, and why?

examples:
  stepscope predict strategy --config config.json --seq-len 4096 --sequences 512 --device H200 --world-size 64
  stepscope predict strategy --layers 12 --d-model 1024 --heads 16 --vocab 32768 --seq-len 1024 --sequences 64 \\
      --device "A100 SXM 80GB" --world-size 8 --calibration calibration.json

Compute is taken at a share of the chip's peak (--efficiency; the MFU of a single-device run is the right number).
Links come from --calibration, or from --link and --node-link; by default the chip's own link inside a node and
50 GB/s per device between nodes.
"""

import argparse

from stepscope.cli.arguments.predict.fabric import add_fabric_arguments
from stepscope.cli.arguments.predict.model import add_device_arguments, add_model_arguments
from stepscope.cli.arguments.sizes import above_zero, at_least_one
from stepscope.cost.model_shape import Optimizer, Precision


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_model_arguments(parser)
    add_device_arguments(parser)
    parser.add_argument("--world-size", type=at_least_one, required=True, metavar="N", help="devices of the job")
    parser.add_argument("--seq-len", type=at_least_one, required=True, metavar="N")
    parser.add_argument("--sequences", type=at_least_one, required=True, metavar="N", help="of the job per step")
    parser.add_argument("--precision", choices=[p.value for p in Precision], default="mixed")
    parser.add_argument("--optimizer", choices=[o.value for o in Optimizer], default="adam")
    parser.add_argument("--efficiency", type=above_zero, metavar="X", help="share of the peak (default 0.5, +- 0.15)")
    parser.add_argument("--peak-tflops", type=above_zero, metavar="P", help="instead of the chip's")
    parser.add_argument("--calibration", metavar="FILE", help="written by `stepscope calibrate`")
    add_fabric_arguments(parser)
