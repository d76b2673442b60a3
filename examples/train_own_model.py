"""Your own model, data and loss in stepscope's trainer: recorded, summarised, logged for TensorBoard.

Run it:      python examples/train_own_model.py --out train         or on two ranks:
             torchrun --nproc-per-node=2 examples/train_own_model.py --out train --set train.strategy=ddp_bucketed
Read it:     stepscope report train/run        cat train/summary.txt        tensorboard --logdir train/tensorboard
"""

import argparse
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import stepscope
from stepscope.bench.config import add_config_arguments

WIDTH = 64


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="stepscope-train")
    add_config_arguments(parser)  # --config FILE and --set KEY=VALUE
    args = parser.parse_args()

    torch.manual_seed(0)
    x = torch.randn(4096, WIDTH)
    data = TensorDataset(x, x[:, :10].argmax(dim=1))
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 10))
    defaults = ["workload.batch_size=32", "train.steps=40", "scheduler.decay=cosine", f"output.dir={args.out}"]
    trainer = stepscope.Trainer(
        args.config,
        overrides=[*defaults, *args.overrides],
        model=model,
        data=data,
        loss=loss_of,
        say=print,
        force=True,
    )
    trainer.train(profile=True)


if __name__ == "__main__":
    main()
