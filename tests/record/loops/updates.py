"""Loops that update their parameters in unusual ways, one function each: `updates.py NAME`; all make 40 steps."""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

STEPS, WIDTH, RATE = 40, 8, 0.05


def net(outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs))


def batch() -> Tensor:
    return torch.randn(4, WIDTH)


def optimizer_per_step() -> Iterator[Tensor]:
    model = net()
    for _ in range(STEPS):
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        optimizer.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        optimizer.step()
        yield loss


def optimizer_and_scheduler_per_step() -> Iterator[Tensor]:
    """The scheduler holds its optimizer in a reference cycle: old ones live until the garbage collector runs."""
    model = net()
    for _ in range(STEPS):
        loss = model(batch()).square().mean()
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        yield loss


def optimizer_per_epoch() -> Iterator[Tensor]:
    model = net()
    for _ in range(8):
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        for _ in range(STEPS // 8):
            optimizer.zero_grad()
            loss = model(batch()).square().mean()
            loss.backward()
            optimizer.step()
            yield loss


def models_in_turn() -> Iterator[Tensor]:
    """Folds of a cross-validation: the models and optimizers of earlier folds stay alive."""
    folds = []
    for _ in range(4):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        folds.append((model, optimizer))
        for _ in range(STEPS // 4):
            optimizer.zero_grad()
            loss = model(batch()).square().mean()
            loss.backward()
            optimizer.step()
            yield loss


def inner_loop() -> Iterator[Tensor]:
    """Meta-learning: three steps of a new optimizer on a copy of the model, then one of the model's own."""
    model = net()
    outer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        copy = net()
        copy.load_state_dict(model.state_dict())
        inner = torch.optim.SGD(copy.parameters(), lr=RATE)
        for _ in range(3):
            inner.zero_grad()
            copy(batch()).square().mean().backward()
            inner.step()
        outer.zero_grad()
        loss = copy(batch()).square().mean()
        loss.backward()
        for own, copied in zip(model.parameters(), copy.parameters(), strict=True):
            own.grad = copied.grad
        outer.step()
        yield loss


def alternating_classes() -> Iterator[Tensor]:
    """Two optimizers over the same parameters, one in even and one in odd steps."""
    model = net()
    both = torch.optim.Adam(model.parameters(), lr=RATE), torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        loss = model(batch()).square().mean()
        model.zero_grad()
        loss.backward()
        both[step % 2].step()
        yield loss


def subtracted_by_hand() -> Iterator[Tensor]:
    model = net()
    for _ in range(STEPS):
        model.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= RATE * p.grad
        yield loss


def by_hand_accumulated() -> Iterator[Tensor]:
    model = net()
    for _ in range(STEPS):
        for _ in range(4):
            loss = model(batch()).square().mean() / 4
            loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= RATE * p.grad
                p.grad.zero_()
        yield loss


def tensors_by_hand() -> Iterator[Tensor]:
    """No module: the parameters are plain tensors."""
    first = torch.randn(WIDTH, WIDTH, requires_grad=True)
    second = torch.randn(WIDTH, requires_grad=True)
    for _ in range(STEPS):
        loss = ((batch() @ first).relu() @ second).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in (first, second):
                p -= 0.001 * p.grad
                p.grad = None
        yield loss


def functional() -> Iterator[Tensor]:
    """Every step makes new parameters from the old ones."""
    values = [torch.randn(WIDTH, WIDTH), torch.randn(WIDTH)]
    for _ in range(STEPS):
        leaves = [v.requires_grad_() for v in values]
        loss = ((batch() @ leaves[0]).relu() @ leaves[1]).square().mean()
        gradients = torch.autograd.grad(loss, leaves)
        values = [(v - 0.001 * g).detach() for v, g in zip(leaves, gradients, strict=True)]
        yield loss


def own_class() -> Iterator[Tensor]:
    """An optimizer that is not one of torch's, over two parts of the model."""

    class Momentum:
        def __init__(self, parameters: list[Tensor]) -> None:
            self.parameters = parameters
            self.buffers = [torch.zeros_like(p) for p in parameters]

        def step(self) -> None:
            for p, b in zip(self.parameters, self.buffers, strict=True):
                b.mul_(0.9).add_(p.grad)
                p.data.add_(b, alpha=-RATE)

    model = net()
    halves = [Momentum(list(part.parameters())) for part in (model[0], model[2])]
    for _ in range(STEPS):
        model.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        for half in halves:
            half.step()
        yield loss


def critics_by_hand() -> Iterator[Tensor]:
    """A generator and a critic, both updated by hand in every step."""
    generator, critic = net(WIDTH), net(1)

    def update(model: nn.Module, loss: Tensor) -> None:
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= RATE * p.grad

    for _ in range(STEPS):
        update(critic, critic(generator(batch()).detach()).mean() - critic(batch()).mean())
        loss = -critic(generator(batch())).mean()
        update(generator, loss)
        yield loss


def no_update() -> Iterator[Tensor]:
    """Only forward and backward, as a benchmark does."""
    model = net()
    for _ in range(STEPS):
        model.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        yield loss


def by_hand_then_optimizer() -> Iterator[Tensor]:
    """Warm-up by hand, then an optimizer."""
    model = net()
    for _ in range(STEPS // 2):
        model.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= RATE * p.grad
        yield loss
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(STEPS // 2):
        optimizer.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        optimizer.step()
        yield loss


def in_backward() -> Iterator[Tensor]:
    """One optimizer per parameter, which steps as soon as the gradient is there."""
    model = net()
    for p in model.parameters():
        optimizer = torch.optim.SGD([p], lr=RATE)

        def step(p: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        loss = model(batch()).square().mean()
        loss.backward()
        yield loss


def by_hand_in_backward() -> Iterator[Tensor]:
    """Updates by hand inside the backward."""
    model = net()

    def step(p: Tensor) -> None:
        p.data.add_(p.grad, alpha=-RATE)
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        loss = model(batch()).square().mean()
        loss.backward()
        yield loss


def closures() -> Iterator[Tensor]:
    """A new L-BFGS in every step, whose closure runs the model."""
    model = net()
    for _ in range(STEPS):
        optimizer = torch.optim.LBFGS(model.parameters(), lr=RATE, max_iter=3)
        x = batch()

        def closure(optimizer: torch.optim.Optimizer = optimizer, x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        yield optimizer.step(closure)


def skipped() -> Iterator[Tensor]:
    """A scaler that skips every fifth step, of an optimizer that is new in every step."""
    model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(STEPS):
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        optimizer.zero_grad()
        loss = model(batch()).square().mean() * (float("inf") if step % 5 == 4 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield loss


NAMES = [name for name, f in globals().items() if getattr(f, "__annotations__", {}) == {"return": Iterator[Tensor]}]

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for number, value in enumerate(globals()[sys.argv[1]]()):
        print(number, float(value.detach()).hex())
