"""The trainer on each of two ranks: several strategies, one of them recorded, one resumed from another's checkpoint."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from stepscope.lab.bench.trainer import Trainer

SETTINGS = [
    "workload.d_model=16", "workload.num_layers=2", "workload.num_heads=2", "workload.seq_len=8",
    "workload.vocab_size=32", "workload.batch_size=2", "train.steps=8", "train.grad_accum=2",
    "train.bucket_size_mb=0.01", "scheduler.warmup_steps=2", "scheduler.decay=linear", "optimizer.weight_decay=0.1",
    "profile.wait=3", "profile.warmup=1", "profile.active=2",
]  # fmt: skip
STRATEGIES = ("ddp", "ddp_bucketed", "pytorch_ddp", "zero1", "fsdp2_zero3")


def main(out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    losses = {}
    for strategy in STRATEGIES:
        settings = [*SETTINGS, f"train.strategy={strategy}", f"output.dir={out / strategy}"]
        done = Trainer(overrides=settings).train(profile=strategy == "ddp_bucketed")
        losses[strategy] = done.losses
    to = f"output.dir={out / 'resumed'}"
    part = ["train.steps=5", "train.checkpoint_every=5", "scheduler.total_steps=8"]
    first = Trainer(overrides=[*SETTINGS, to, "train.strategy=fsdp2_zero3", *part]).train()
    rest = Trainer(overrides=[*SETTINGS, to, "train.strategy=pytorch_ddp"]).train(resume=True)
    losses["resumed"] = first.losses + rest.losses
    (out / f"losses{dist.get_rank()}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
