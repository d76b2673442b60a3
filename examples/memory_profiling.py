"""Memory through a training step: labelled snapshots, what holds it, and a check list.

Run it:      python examples/memory_profiling.py
On CUDA:     python examples/memory_profiling.py --snapshot memory.pickle && stepscope memory memory.pickle

On a CPU the allocator keeps no counters: the host's memory and the bytes of the model's states are shown.
"""

import argparse
import pickle
from pathlib import Path

import torch
from torch import nn

import stepscope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--snapshot", help="CUDA: write the allocator's history there")
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.memory._record_memory_history()  # gives memory_breakdown() source lines

    memory = stepscope.MemoryProfiler()
    device = "cuda" if cuda else "cpu"
    layers = [layer for _ in range(4) for layer in (nn.Linear(args.width, args.width), nn.GELU())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    memory.snapshot("model")
    for step in range(2):
        memory.reset_peak()
        loss = model(torch.randn(args.batch_size, args.width, device=device)).square().mean()
        memory.snapshot(f"step {step}: forward")
        loss.backward()
        memory.snapshot(f"step {step}: backward")
        optimizer.step()
        memory.snapshot(f"step {step}: optimizer")
        if step == 1:
            stepscope.memory_breakdown()
        optimizer.zero_grad(set_to_none=True)
    memory.report()
    stepscope.diagnose_memory_pressure()
    if args.snapshot and cuda:
        Path(args.snapshot).write_bytes(pickle.dumps(torch.cuda.memory._snapshot()))


if __name__ == "__main__":
    main()
