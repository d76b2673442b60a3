"""Optimizers that step at unequal rates: `unequal_rates.py wgan|sac` prints every loss."""

import sys

import torch
from digests import print_digests  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, TensorDataset


def wgan() -> None:
    """A critic for every batch, a generator for every fifth."""
    critic, generator = torch.nn.Linear(4, 1), torch.nn.Linear(4, 4)
    critics, generators = torch.optim.Adam(critic.parameters()), torch.optim.Adam(generator.parameters())
    for i, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(33 * 4, 4)), batch_size=4)):
        critics.zero_grad()
        fake = generator(torch.randn(4, 4)).detach()
        mixed = ((x + fake) / 2).requires_grad_()
        slope = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
        loss = critic(fake).mean() - critic(x).mean() + (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        critics.step()
        print("critic", loss.item().hex())
        if i % 5 == 0:
            generators.zero_grad()
            loss = -critic(generator(torch.randn(4, 4))).mean()
            loss.backward()
            generators.step()
            print("generator", loss.item().hex())
    print_digests(torch.nn.ModuleList([critic, generator]), critics, generators)


def sac() -> None:
    """One update of the value network per step of the environment; actor and temperature, twice, in every second."""
    value, actor, temperature = torch.nn.Linear(5, 1), torch.nn.Linear(4, 1), torch.zeros(1, requires_grad=True)
    values, actors = torch.optim.Adam(value.parameters()), torch.optim.Adam(actor.parameters())
    temperatures = torch.optim.Adam([temperature])
    for i in range(30):
        with torch.no_grad():
            actor(torch.randn(1, 4))
        state = torch.randn(8, 4)
        with torch.no_grad():
            target = value(torch.cat([state, actor(state)], 1))
        values.zero_grad()
        loss = (value(torch.randn(8, 5)) - target).square().mean()
        loss.backward()
        values.step()
        print("value", loss.item().hex())
        if i % 2 == 0:
            for _ in range(2):
                actors.zero_grad()
                loss = -value(torch.cat([state, actor(state)], 1)).mean()
                loss.backward()
                actors.step()
                print("actor", loss.item().hex())
                temperatures.zero_grad()
                temperature.exp().sum().backward()
                temperatures.step()
    print_digests(torch.nn.ModuleList([value, actor]), values, actors, temperatures)


torch.manual_seed(0)
{"wgan": wgan, "sac": sac}[sys.argv[1]]()
