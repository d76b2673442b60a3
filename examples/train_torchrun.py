"""A DDP script with the recorder put around its loop: one `with`, nothing else.

Run it:      torchrun --nproc-per-node=2 examples/train_torchrun.py --out run
Read it:     stepscope report run
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from stepscope.integrations.torchrun import recorded

WIDTH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", default="stepscope-run")
    args = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(args.steps, out=args.out)
    dist.destroy_process_group()


def train(steps: int, *, out: str) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(steps * 64, WIDTH), torch.randint(0, 10, (steps * 64,)))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with recorded(out=out, wait=4, warmup=1, active=3) as recording:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}   run folder {recording.run_folder}")


if __name__ == "__main__":
    main()
