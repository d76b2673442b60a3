"""The same training under Slurm, without torchrun: each task of `srun` is a rank.

Run it:      srun --ntasks=2 python examples/train_slurm.py --out run        (examples/slurm.sbatch submits that)
Read it:     stepscope report run
"""

import argparse

import torch.distributed as dist
from train_torchrun import train

from stepscope.integrations.slurm import join


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", default="stepscope-run", help="on storage that all nodes share")
    args = parser.parse_args()
    join()
    train(args.steps, out=args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
