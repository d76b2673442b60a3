"""The CUDA caching allocator under batches of changing length, with the settings of PYTORCH_CUDA_ALLOC_CONF.

Default:     python examples/custom_allocator.py
Compare:     PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python examples/custom_allocator.py
             PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128,garbage_collection_threshold:0.8 python ...
All at once: stepscope bench allocator

On a CPU there is no caching allocator: the host's memory is shown, and the setting has no effect.
"""

import argparse
import os
import random

import torch
from torch import nn

import stepscope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()
    setting = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF")
    cuda = torch.cuda.is_available()
    effect = torch.cuda.get_allocator_backend() if cuda else "no CUDA device, no effect"
    print(f"PYTORCH_CUDA_ALLOC_CONF={setting or '(default)'}  ({effect})")

    device, lengths = "cuda" if cuda else "cpu", random.Random(0)
    model = nn.TransformerEncoderLayer(args.width, 8, batch_first=True).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    memory = stepscope.MemoryProfiler()
    for step in range(args.steps):
        model(torch.randn(4, lengths.randint(16, 256), args.width, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 5 == 4:
            memory.snapshot(f"after {step + 1} steps")
    memory.report()
    stepscope.diagnose_memory_pressure()


if __name__ == "__main__":
    main()
