"""Two training loops in two threads of one process, each with a model of its own."""

import threading

import torch

torch.set_num_threads(1)
torch.manual_seed(0)

done: list[int] = []


def train(number: int) -> None:
    """Train for as many steps as the other thread."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(300):
        model(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done.append(number)


threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("trained", sorted(done))
