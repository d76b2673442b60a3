"""An ordinary DDP training script, as people write them. It knows nothing of stepscope.

Run it:      torchrun --nproc-per-node=2 examples/train_ddp.py
Record it:   stepscope record -- torchrun --nproc-per-node=2 examples/train_ddp.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if cuda else torch.device("cpu")
    torch.manual_seed(0)

    data = TensorDataset(torch.randn(4096, args.width), torch.randint(0, 10, (4096,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, 10)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    step = 0
    while step < args.steps:
        sampler.set_epoch(step)
        for x, y in loader:
            loss = criterion(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0 and dist.get_rank() == 0:
                print(f"step {step:4d}  loss {loss.item():.4f}")
            if step == args.steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
