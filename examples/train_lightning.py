"""Lightning with DDP, recorded by a callback.

Run it:      torchrun --nproc-per-node=2 examples/train_lightning.py --out run
Read it:     stepscope report run
"""

import argparse
import os

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stepscope.integrations.lightning import StepscopeCallback

WIDTH = 256


class Classifier(pl.LightningModule):
    """A perceptron with two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of all parameters."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", default="stepscope-run")
    args = parser.parse_args()

    pl.seed_everything(0, verbose=False)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    data = TensorDataset(torch.randn(32 * args.steps * ranks, WIDTH), torch.randint(0, 10, (32 * args.steps * ranks,)))
    callback = StepscopeCallback(out=args.out, wait=4, warmup=1, active=3)
    trainer = pl.Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        max_steps=args.steps,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=32))
    if trainer.is_global_zero:
        print(f"run folder {callback.recording.run_folder}")


if __name__ == "__main__":
    main()
