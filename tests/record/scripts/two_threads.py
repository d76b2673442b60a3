"""Two training loops in two threads of one process, each with a model of its own; prints the losses of both."""

import threading

import torch
from digests import print_digests  # type: ignore[import-not-found]

torch.set_num_threads(1)
torch.manual_seed(0)
STEPS = 300
models = [torch.nn.Linear(8, 8) for _ in range(2)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9) for model in models]
losses: list[list[float]] = [[], []]


def train(number: int) -> None:
    """Train for as many steps as the other thread."""
    model, optimizer = models[number], optimizers[number]
    for _ in range(STEPS):
        loss = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[number].append(loss.item())


threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for number in range(2):
    print("thread", number, *(loss.hex() for loss in losses[number]))
    print_digests(models[number], optimizers[number])
