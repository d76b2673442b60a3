"""An ordinary DDP script that times its own regions by hand and leaves the times of each step as JSON.

Loading is timed inside the loader, from the first sample to the collated batch: the call around it is also where one
step ends and the recorder does its work between two steps.

    hand_timed_job.py FOLDER [STEPS WIDTH MS_PER_SAMPLE]
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS, WIDTH = (int(word) for word in (*sys.argv[2:4], 24, 512)[:2])
SAMPLE_S = float(sys.argv[4]) / 1000 if len(sys.argv) > 4 else 0.004
BATCH = 8
LOADING: list[int] = []


class SlowData(Dataset):
    """Sequences of token ids; reading one takes a moment."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, i: int) -> torch.Tensor:
        if i % BATCH == 0:
            LOADING.append(time.perf_counter_ns())
        time.sleep(SAMPLE_S)
        return torch.full((64,), i % 100)


def collated(samples: list[torch.Tensor]) -> torch.Tensor:
    batch = torch.stack(samples)
    LOADING.append(time.perf_counter_ns())
    return batch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH)
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(8)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embedding(ids)).pow(2).mean()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = iter(DataLoader(SlowData(), batch_size=BATCH, collate_fn=collated))
    steps = []
    for step in range(STEPS):
        optimizer.zero_grad()
        ids = next(batches)
        t = [time.perf_counter_ns()]
        loss = model(ids)
        t.append(time.perf_counter_ns())
        loss.backward()
        t.append(time.perf_counter_ns())
        optimizer.step()
        t.append(time.perf_counter_ns())
        names = ("forward_pass", "backward_pass", "optimizer_step")
        times = {name: t[i + 1] - t[i] for i, name in enumerate(names)}
        steps.append({"data_loading": LOADING[-1] - LOADING[-2], **times})
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f}")
    Path(sys.argv[1], f"hand{os.environ['RANK']}.json").write_text(json.dumps(steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
