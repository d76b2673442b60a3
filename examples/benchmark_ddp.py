"""Data-parallel implementations side by side, or a profile of one of them: `stepscope bench ddp` as a script.

Compare:     python examples/benchmark_ddp.py --world-size 2           or on the ranks of torchrun:
             torchrun --nproc-per-node=2 examples/benchmark_ddp.py
Profile:     python examples/benchmark_ddp.py --profile --profile-implementation ddp_bucketed \
                 --profile-output-dir profiler_output
Read it:     stepscope report 'profiler_output/ddp_bucketed_rank_*_trace.json'

All options of `stepscope bench ddp --help` hold. The backend is NCCL where every rank has a GPU of its own, else gloo.
Run again, it replaces its own results and traces.
"""

import os
import sys

import torch

from stepscope.cli.main import main


def default_backend(arguments: list[str]) -> list[str]:
    if any(a.startswith("--backend") for a in arguments):
        return []
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "2"))
    return ["--backend", "nccl" if torch.cuda.device_count() >= ranks else "gloo"]


if __name__ == "__main__":
    sys.exit(main(["bench", "ddp", "--force", *sys.argv[1:], *default_backend(sys.argv[1:])]))
