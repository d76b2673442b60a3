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


def passes(model: nn.Module, steps: int = STEPS, *, micro: int = 1):
    """Yield the loss of each step after its backward; what updates the parameters comes after that."""
    for _ in range(steps):
        model.zero_grad()
        for _ in range(micro):
            loss = model(batch()).square().mean() / micro
            loss.backward()
        yield loss


def descend(parameters: object, rate: float = RATE) -> None:
    with torch.no_grad():
        for p in parameters:  # type: ignore[attr-defined]
            p -= rate * p.grad


def optimizer_per_step() -> Iterator[Tensor]:
    model = net()
    for _ in range(STEPS):
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for loss in passes(model, 1):
            optimizer.step()
            yield loss


def optimizer_and_scheduler_per_step() -> Iterator[Tensor]:
    """The scheduler holds its optimizer in a reference cycle: old ones live until the garbage collector runs."""
    model = net()
    for loss in passes(model):
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        optimizer.step()
        scheduler.step()
        yield loss


def models_in_turn() -> Iterator[Tensor]:
    """Folds of a cross-validation: the models and optimizers of earlier folds stay alive."""
    folds = []
    for _ in range(4):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        folds.append((model, optimizer))
        for loss in passes(model, STEPS // 4):
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
        for _ in passes(copy, 3):
            inner.step()
        outer.zero_grad()
        (loss,) = passes(copy, 1)
        for own, copied in zip(model.parameters(), copy.parameters(), strict=True):
            own.grad = copied.grad
        outer.step()
        yield loss


def alternating_classes() -> Iterator[Tensor]:
    """Two optimizers over the same parameters, one in even and one in odd steps."""
    model = net()
    both = torch.optim.Adam(model.parameters(), lr=RATE), torch.optim.SGD(model.parameters(), lr=RATE)
    for step, loss in enumerate(passes(model)):
        both[step % 2].step()
        yield loss


def subtracted_by_hand() -> Iterator[Tensor]:
    model = net()
    for loss in passes(model):
        descend(model.parameters())
        yield loss


def replaced_by_hand() -> Iterator[Tensor]:
    """Each updated parameter is put in the place of the old one."""
    model = net()
    for loss in passes(model):
        for p in model.parameters():
            p.data = p.data - RATE * p.grad
        yield loss


def by_hand_accumulated() -> Iterator[Tensor]:
    model = net()
    for loss in passes(model, micro=4):
        descend(model.parameters())
        yield loss


def tensors_by_hand() -> Iterator[Tensor]:
    """No module: the parameters are plain tensors."""
    both = torch.randn(WIDTH, WIDTH, requires_grad=True), torch.randn(WIDTH, requires_grad=True)
    for _ in range(STEPS):
        loss = ((batch() @ both[0]).relu() @ both[1]).square().mean()
        loss.backward()
        descend(both, 0.001)
        for p in both:
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


class Momentum:
    """An optimizer that is not one of torch's."""

    def __init__(self, part: nn.Module) -> None:
        self.parameters = list(part.parameters())
        self.buffers = [torch.zeros_like(p) for p in self.parameters]

    def step(self) -> None:
        for p, b in zip(self.parameters, self.buffers, strict=True):
            b.mul_(0.9).add_(p.grad)
            p.data.add_(b, alpha=-RATE)


def own_class() -> Iterator[Tensor]:
    """Over two parts of the model."""
    model = net()
    halves = [Momentum(part) for part in (model[0], model[2])]
    for loss in passes(model):
        for half in halves:
            half.step()
        yield loss


def critics_by_hand() -> Iterator[Tensor]:
    """A generator and a critic, both updated by hand in every step."""
    generator, critic = net(WIDTH), net(1)

    def update(model: nn.Module, loss: Tensor) -> None:
        model.zero_grad()
        loss.backward()
        descend(model.parameters())

    for _ in range(STEPS):
        update(critic, critic(generator(batch()).detach()).mean() - critic(batch()).mean())
        loss = -critic(generator(batch())).mean()
        update(generator, loss)
        yield loss


def no_update() -> Iterator[Tensor]:
    """Only forward and backward, as a benchmark does."""
    yield from passes(net())


def by_hand_then_optimizer() -> Iterator[Tensor]:
    """Warm-up by hand, then an optimizer."""
    model = net()
    for loss in passes(model, STEPS // 2):
        descend(model.parameters())
        yield loss
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for loss in passes(model, STEPS // 2):
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
    yield from passes(model)


def by_hand_in_backward() -> Iterator[Tensor]:
    """Updates by hand inside the backward."""
    model = net()

    def step(p: Tensor) -> None:
        p.data.add_(p.grad, alpha=-RATE)
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    yield from passes(model)


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


NAMES = [name for name, f in globals().items() if getattr(f, "__annotations__", {}) == {"return": Iterator[Tensor]}]

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for number, value in enumerate(globals()[sys.argv[1]]()):
        print(number, float(value.detach()).hex())
