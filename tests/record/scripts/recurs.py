"""A job in which everything recurs: epochs with new workers, evaluation, checkpoints, collections, compilations."""

import gc
import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    compiled = torch.compile(model, backend="eager", dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = DataLoader(TensorDataset(torch.randn(24, 16)), batch_size=4, num_workers=1)
    held_out = DataLoader(TensorDataset(torch.randn(80, 16)), batch_size=4)
    step = 0
    for _ in range(4):
        for (x,) in train:
            optimizer.zero_grad()
            loss = compiled(x if step != 13 else x[:3]).square().mean()
            loss.backward()
            optimizer.step()
            if step % 6 == 2:
                torch.save(model.state_dict(), folder / "c.pt")
            if step % 6 == 4:
                gc.collect()
            print(step, loss.item().hex())
            step += 1
        with torch.no_grad():
            for (y,) in held_out:
                model(y)
    sys.stdout.flush()
