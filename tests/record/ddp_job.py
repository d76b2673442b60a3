"""A small DDP job for the tests: trains an MLP on gloo, recorded or not, and misbehaves on request.

Everything comes from one JSON argument; each rank leaves its losses in `losses.RANK.json`, one entry per step, so a
recorded run can be compared bit by bit with a plain one.
"""

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH = 64, 16


def main() -> None:
    asked = json.loads(sys.argv[1])
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, 1)
    )
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    losses = Losses(Path(asked["losses"]) / f"losses.{rank}.json")
    faults = {name: value for name, value in asked.items() if name.startswith("at_") and asked.get("on", rank) == rank}
    with recording(asked) as recorder:
        if recorder is not None:
            recorder.note(model=ddp, optimizer=optimizer, samples_per_step=BATCH)
        for step in range(asked.get("steps", 20)):
            misbehave(faults, step)
            optimizer.zero_grad()
            with region(recorder, "data_loading"):
                batch = torch.randn(BATCH, WIDTH)
            with region(recorder, "forward_pass"):
                loss = ddp(batch).pow(2).mean()
            with region(recorder, "backward_pass"):
                loss.backward()
            with region(recorder, "optimizer_step"):
                optimizer.step()
            losses.append(loss)
            if recorder is not None and rank not in asked.get("never_steps", ()):
                recorder.step()
    if asked.get("print_folder") and recorder is not None:
        print(recorder.run_folder)
    if not asked.get("keep_group"):
        dist.destroy_process_group()


class Losses:
    """Written after every step, so that a job that dies leaves what it had."""

    def __init__(self, path: Path) -> None:
        self.path, self.values = path, []

    def append(self, loss: torch.Tensor) -> None:
        self.values.append(loss.item().hex())
        self.path.write_text(json.dumps(self.values))


def recording(asked: dict):
    if asked.get("profile") is None:
        return nullcontext()
    import stepscope

    return stepscope.profile(**asked["profile"])


def region(recorder, name: str):
    return nullcontext() if recorder is None else recorder.region(name)


def misbehave(faults: dict, step: int) -> None:
    """Do at this step what was asked for: `{"at_5": "raise"}`."""
    what = faults.get(f"at_{step}")
    if what is None:
        return
    getattr(sys.modules[__name__], f"do_{what}")()


def do_raise() -> None:
    raise ValueError("planted")


def do_sleep() -> None:
    time.sleep(0.3)


if __name__ == "__main__":
    main()
