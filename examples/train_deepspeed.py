"""DeepSpeed ZeRO, recorded through the engine.

Run it:      torchrun --nproc-per-node=2 examples/train_deepspeed.py --out run --stage 1
Read it:     stepscope report run
"""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from stepscope.integrations.deepspeed import recorded

WIDTH = 256


class Classifier(nn.Module):
    """A perceptron with two layers that returns its loss, as an engine likes it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self.net(x), y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", default="stepscope-run")
    parser.add_argument("--stage", type=int, default=1, choices=(0, 1, 2, 3))
    args = parser.parse_args()

    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    samples = args.steps * 2 * 32 * dist.get_world_size()
    data = TensorDataset(torch.randn(samples, WIDTH), torch.randint(0, 10, (samples,)))
    model = Classifier()
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        training_data=data,
        config={
            "train_micro_batch_size_per_gpu": 32,
            "gradient_accumulation_steps": 2,
            "zero_optimization": {"stage": args.stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    with recorded(engine, out=args.out, wait=4, warmup=1, active=3) as recording:
        for x, y in loader:
            loss = engine(x.to(engine.device), y.to(engine.device))
            engine.backward(loss)
            engine.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}   run folder {recording.run_folder}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
