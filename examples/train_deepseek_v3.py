"""A small DeepSeek-V3-style model (latent attention, shared and routed experts), recorded where TORCH_TRACE_DIR is set.

Train it:    python examples/train_deepseek_v3.py         or on two ranks:
             torchrun --nproc-per-node=2 examples/train_deepseek_v3.py --steps 40
Record it:   TORCH_TRACE_DIR=traces torchrun --nproc-per-node=2 examples/train_deepseek_v3.py --steps 40
Read it:     stepscope report traces

Run again, it replaces its summary and numbers its traces. `--set workload.d_model=1024` and the like change the
configuration.
"""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist

import stepscope
from stepscope.bench.config import add_config_arguments
from stepscope.integrations.torchrun import recorded

SMALL = ("d_model=64", "num_layers=2", "num_heads=4", "seq_len=64", "vocab_size=512", "batch_size=4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", default="deepseek-v3", help="folder of the summary")
    add_config_arguments(parser)  # --config FILE and --set KEY=VALUE
    args = parser.parse_args()
    many = "WORLD_SIZE" in os.environ
    if many:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    given = ["workload.name=deepseek", *(f"workload.{size}" for size in SMALL), f"train.steps={args.steps}"]
    given += [f"train.strategy={'pytorch_ddp' if many else 'single'}", f"output.dir={args.out}"]
    trainer = stepscope.Trainer(args.config, overrides=[*given, *args.overrides], say=print, force=True)
    with recorded(wait=4, warmup=1, active=3) if os.environ.get("TORCH_TRACE_DIR") else nullcontext():
        trainer.train()
    if many:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
