"""A job on two ranks that fails twice: it resumes from checkpoints, evaluates, compiles, and times its parts by hand.

Every rank appends what it did to `stamps-RANK.jsonl`: [attempt, what, begin, end, step], by the wall clock.
The first attempt compiles with the backend "eager": Dynamo traces the model, and no code is generated, which would
take a minute. Once per process the first forward also waits, as for a library that is loaded by its first call.
"""

import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

ATTEMPT, RANK = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
STEPS, SAVE_EVERY, EVALUATE_AT = 28, 5, (4, 9, 21)
KILLS = {0: (8, 1), 1: (18, 0)}  # by attempt: in which step, and on which rank
SLOW = (22, 24)  # steps in which rank 1 is slow
STEP_S, SLOW_S, FIRST_CALL_S, SAVE_S, LOAD_S, EVALUATION_S = 0.15, 0.6, 1.0, 0.4, 0.3, 0.1
CHECKPOINT = Path("checkpoint.pt")


def stamp(what: str, begin: float, step: int | None = None) -> float:
    end = time.time()
    with Path(f"stamps-{RANK}.jsonl").open("a", encoding="utf-8") as f:
        f.write(json.dumps([ATTEMPT, what, begin, end, step]) + "\n")
    return end


class SlowState:
    """Takes a while to be written and read."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __getstate__(self) -> dict[str, int]:
        time.sleep(SAVE_S)
        return {"step": self.step}

    def __setstate__(self, state: dict[str, int]) -> None:
        time.sleep(LOAD_S)
        self.step = state["step"]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        self.is_used = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_used:
            self.is_used = True
            time.sleep(FIRST_CALL_S)
        return self.layers(x)


def save(model: torch.nn.Module, step: int) -> None:
    began = time.time()
    if RANK == 0:
        torch.save({"state": SlowState(step), "model": model.state_dict()}, CHECKPOINT)
    dist.barrier()
    stamp("save", began)


def evaluate(model: torch.nn.Module, batches: DataLoader) -> None:
    began = time.time()
    model.eval()
    with torch.no_grad():
        for (x,) in batches:
            called = time.time()
            model(x)
            stamp("evaluated", called)  # the first one traces the model again, without gradients
            time.sleep(EVALUATION_S)
    model.train()
    stamp("evaluation", began)


def main() -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{Path.cwd()}/store{ATTEMPT}", rank=RANK, world_size=int(os.environ["WORLD_SIZE"])
    )
    torch.manual_seed(0)
    inner = Model()
    if ATTEMPT == 0:  # it takes as much CPU as everything else, in each process
        inner.layers.compile(backend="eager")
    model = torch.nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    training, held_out = (TensorDataset(torch.randn(count * 4, 16)) for count in (STEPS, 6))
    first = 0
    if CHECKPOINT.exists():
        began = time.time()
        loaded = torch.load(CHECKPOINT, weights_only=False)
        stamp("load", began)
        model.load_state_dict(loaded["model"])
        first = loaded["state"].step
    batches = iter(DataLoader(training, batch_size=4))
    for step in range(first, STEPS):
        began = time.time()
        (x,) = next(batches)
        loss = model(x).square().mean()
        time.sleep(STEP_S)
        if KILLS.get(ATTEMPT) == (step, RANK):
            stamp("killed", began, step)
            os.kill(os.getpid(), signal.SIGKILL)
        if ATTEMPT == 2 and step in SLOW and RANK == 1:
            time.sleep(SLOW_S)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        stamp("step", began, step)
        if (step + 1) % SAVE_EVERY == 0:
            save(model, step + 1)
        if step in EVALUATE_AT:
            evaluate(model, DataLoader(held_out, batch_size=4))
    evaluate(model, DataLoader(held_out, batch_size=4))
    stamp("trained", time.time())
    dist.destroy_process_group()


main()
