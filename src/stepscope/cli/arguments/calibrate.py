"""What do collectives take on this machine? Latency and bandwidth of every operation, with their error.

examples:
  stepscope calibrate --backend gloo --world-size 2,4
  stepscope calibrate --from-csv times.csv --out calibration.json
  stepscope calibrate --from-nccl-tests all_reduce.txt all_gather.json
  stepscope calibrate --from-run run-folder/

A CSV has the columns op, world_size, bytes (the full buffer of the operation) and median_us. On a cluster run
`torchrun ... -m stepscope.bench.collectives --backend nccl --out times.json` and use --from-bench times.json.
"""

import argparse

from stepscope.cli.arguments.sizes import ExtendWorldSizes, above_zero, size_bytes, world_sizes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    live = parser.add_argument_group("measure here")
    live.add_argument("--backend", choices=("gloo", "nccl"), help="start processes and measure")
    live.add_argument(
        "--world-size", type=world_sizes, action=ExtendWorldSizes, metavar="N,N", help="ranks, one or several"
    )
    live.add_argument("--limit-s", type=above_zero, default=60.0, metavar="S", help="time to spend (default 60)")
    live.add_argument("--max-bytes", type=size_bytes, default=2**30, metavar="N", help="largest size (default 1GiB)")
    known = parser.add_argument_group("or take what was measured")
    known.add_argument("--from-csv", nargs="+", metavar="FILE")
    known.add_argument("--from-nccl-tests", nargs="+", metavar="FILE", help="its printed table or its JSON (-J)")
    known.add_argument("--op", help="operation of --from-nccl-tests where neither output nor name says it")
    known.add_argument("--from-run", metavar="RUN", help="recorded run: transfer times, waiting removed")
    known.add_argument("--from-bench", nargs="+", metavar="FILE", help="written by stepscope.bench.collectives")
    parser.add_argument("--out", default="calibration.json", metavar="PATH", help="default calibration.json")
    parser.add_argument("--plot", metavar="PATH", help="measured against predicted, as SVG")
    parser.add_argument("--html", metavar="PATH", help="curves and errors as one HTML file that needs no network")
    parser.add_argument("--json", metavar="PATH", help="write the calibration there as well; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
