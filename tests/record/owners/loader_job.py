"""A job whose loader's workers spend nearly all their time in one line of the dataset; argument: fork or spawn."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 8 * 14

    def decode(self):
        time.sleep(0.02)  # the planted line

    def __getitem__(self, i):
        self.decode()
        return torch.full((16,), i / 112), torch.zeros(4)


def main():
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Slow(), batch_size=8, num_workers=1, multiprocessing_context=sys.argv[1])
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sys.stdout.write(loss.item().hex() + "\n")


if __name__ == "__main__":
    main()
