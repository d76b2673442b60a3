"""Accelerate with gradient accumulation, recorded through `accelerator.profile()`.

Run it:      torchrun --nproc-per-node=2 examples/train_accelerate.py --out run
Read it:     stepscope report run
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stepscope.integrations.accelerate import StepscopeKwargs

WIDTH, ACCUMULATION = 256, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", default="stepscope-run")
    args = parser.parse_args()

    window = {"wait": 4, "warmup": 1, "active": 3}
    handler = StepscopeKwargs(schedule_option=window, output_trace_dir=args.out)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), gradient_accumulation_steps=ACCUMULATION, kwargs_handlers=[handler]
    )
    torch.manual_seed(0)
    samples = args.steps * ACCUMULATION * 32 * accelerator.num_processes
    data = TensorDataset(torch.randn(samples, WIDTH), torch.randint(0, 10, (samples,)))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=32))

    with accelerator.profile() as recording:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    accelerator.print(f"loss {loss.item():.4f}   run folder {recording.run_folder}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
