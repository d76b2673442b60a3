"""An ordinary DDP script that times its own regions by hand and leaves `{region: [inside, outside]}` per step as JSON.

Every region is timed twice: outside, around the call, and inside, in what the call calls. A recorder that times the
call itself lies between the two, on any machine, however loaded:

    data_loading      next(batches)       from the first sample to the collated batch
    forward_pass      model(ids)          the model's own forward
    backward_pass     loss.backward()     from the gradient of the loss to the last one of a parameter
    optimizer_step    optimizer.step()    from hook to hook of this optimizer, which lie inside those of all

    hand_timed_job.py FOLDER [STEPS WIDTH MS_PER_SAMPLE]

With STEPS given, every step counts as short, so that most are only timed, however slow the machine is.
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

STEPS, WIDTH = (int(word) for word in (*sys.argv[2:4], "24", "512")[:2])
SAMPLE_S = float(sys.argv[4]) / 1000 if len(sys.argv) > 4 else 0.004
BATCH = 8
INSIDE: dict[str, list[int]] = {}


def note(name: str) -> None:
    """Note the time, inside a region."""
    INSIDE.setdefault(name, []).append(time.perf_counter_ns())


class SlowData(Dataset):
    """Sequences of token ids; reading one takes a moment."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, i: int) -> torch.Tensor:
        if i % BATCH == 0:
            note("data_loading")
        time.sleep(SAMPLE_S)
        return torch.full((64,), i % 100)


def collated(samples: list[torch.Tensor]) -> torch.Tensor:
    batch = torch.stack(samples)
    note("data_loading")
    return batch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH)
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(8)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        note("forward_pass")
        loss = self.layers(self.embedding(ids)).pow(2).mean()
        note("forward_pass")
        return loss


def main() -> None:
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        setattr(sys.modules["stepscope.record.loop.loop"], "SHORT_STEP_NS", 1 << 60)  # noqa: B010
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    optimizer.register_step_pre_hook(lambda *_: note("optimizer_step"))
    optimizer.register_step_post_hook(lambda *_: note("optimizer_step"))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: note("backward_pass"))
    batches = iter(DataLoader(SlowData(), batch_size=BATCH, collate_fn=collated))
    steps = []
    for step in range(STEPS):
        INSIDE.clear()
        optimizer.zero_grad()
        t = [time.perf_counter_ns()]
        ids = next(batches)
        t.append(time.perf_counter_ns())
        loss = model(ids)
        t.append(time.perf_counter_ns())
        loss.register_hook(lambda _: note("backward_pass"))
        since_ns = time.perf_counter_ns()
        loss.backward()
        t.append(time.perf_counter_ns())
        optimizer.step()
        t.append(time.perf_counter_ns())
        names = ("data_loading", "forward_pass", "backward_pass", "optimizer_step")
        outside = {name: t[i + 1] - t[i] for i, name in enumerate(names)}
        outside["backward_pass"] = t[3] - since_ns
        steps.append({name: [max(INSIDE[name]) - min(INSIDE[name]), outside[name]] for name in names})
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f}")
    Path(sys.argv[1], f"hand{os.environ['RANK']}.json").write_text(json.dumps(steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
