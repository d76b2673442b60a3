"""Loops as people write them by hand, one function each. All return their losses."""

import contextlib
import copy
import io
import pickle
import threading
from types import SimpleNamespace
from typing import Any

import torch
from parts import STEPS, WIDTH, Losses, ddp_model, evaluate, exact, loader, loss_of, small_model, train
from torch import nn
from torch.utils.checkpoint import checkpoint


def ddp_with_evaluation() -> Losses:
    net, losses = ddp_model(), []
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    evaluate(net)
    for _ in range(2):
        for batch in loader(batches=STEPS // 2):
            optimizer.zero_grad()
            loss = loss_of(net, batch)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(exact(loss))
        evaluate(net)
    return losses


def accumulation() -> Losses:
    net, losses = ddp_model(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for i, batch in enumerate(loader(batches=STEPS * 4)):
        last = i % 4 == 3
        with contextlib.nullcontext() if last else net.no_sync():
            loss = loss_of(net, batch) / 4
            loss.backward()
        losses.append(exact(loss))
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def two_optimizers() -> Losses:
    net = ddp_model()
    first, second = net.module.first.parameters(), net.module.second.parameters()
    return train(net, torch.optim.SGD(first, lr=0.01), torch.optim.Adam(second, lr=0.01))


def gan() -> Losses:
    torch.manual_seed(0)
    g, d, losses = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1), []
    g_optimizer, d_optimizer = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
    for x, _ in loader():
        d_optimizer.zero_grad()
        d_loss = nn.functional.softplus(-d(x)).mean() + nn.functional.softplus(d(g(x).detach())).mean()
        d_loss.backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        g_loss = nn.functional.softplus(-d(g(x))).mean()
        g_loss.backward()
        g_optimizer.step()
        losses.append(exact(g_loss))
    return losses


def scaler_that_skips() -> Losses:
    net, losses = ddp_model(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for i, batch in enumerate(loader()):
        optimizer.zero_grad()
        loss = loss_of(net, batch) * (float("inf") if i in (1, 3) else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(exact(loss))
    return losses


def without_loader() -> Losses:
    net, criterion, losses = ddp_model(), nn.MSELoss(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        x = torch.randn(4, WIDTH, generator=generator)
        optimizer.zero_grad()
        loss = criterion(net(x), x[:, :2])
        loss.backward()
        optimizer.step()
        losses.append(exact(loss))
    return losses


def teacher_and_recomputation() -> Losses:
    student, teacher = small_model(), small_model().eval()

    def distilled(net: nn.Module, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            target = teacher(batch[0] + 1)
        return nn.functional.mse_loss(checkpoint(net, batch[0], use_reentrant=False), target)

    return train(student, torch.optim.SGD(student.parameters(), lr=0.01), value_of=distilled)


def compiled_model() -> Losses:
    net = torch.compile(small_model(), backend="eager", fullgraph=True)
    return train(net, torch.optim.SGD(net.parameters(), lr=0.01))


def compiled_in_place() -> Losses:
    net = small_model()
    net.compile(backend="eager", fullgraph=True)
    return train(net, torch.optim.SGD(net.parameters(), lr=0.01))


def compiled_after_some_steps() -> Losses:
    net = small_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = train(net, optimizer)
    return losses + train(torch.compile(net, backend="eager", fullgraph=True), optimizer)


def compiled_optimizer() -> Losses:
    net = small_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    compiled = torch.compile(optimizer.step, backend="eager")
    return train(net, SimpleNamespace(step=compiled, zero_grad=optimizer.zero_grad))


def training_in_a_thread() -> Losses:
    losses: Losses = []
    net = small_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    thread = threading.Thread(target=lambda: losses.extend(train(net, optimizer)))
    thread.start()
    thread.join()
    return losses


def errors_that_the_script_survives() -> Losses:
    """A forward, a backward and an optimizer step that raise, and go on."""
    net, losses = small_model(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for i, batch in enumerate(loader()):
        if i == 2:
            with contextlib.suppress(RuntimeError):
                net(torch.ones(1, WIDTH + 1))
            with contextlib.suppress(RuntimeError):
                torch.ones(1).backward()
            with contextlib.suppress(TypeError):
                optimizer.step(closure="not a function")
        loss = loss_of(net, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(exact(loss))
    return losses


def model_that_is_traced() -> Losses:
    """Traced while the search for modules is on; then what came out is trained."""
    net = small_model()
    train(net, torch.optim.SGD(net.parameters(), lr=0.01), batches=2)
    batch = next(iter(loader()))
    net = torch.jit.trace(small_model(), batch[0])
    return train(net, torch.optim.SGD(net.parameters(), lr=0.01), batches=STEPS - 2)


def model_that_is_copied() -> Losses:
    """After training the model can be pickled, copied and scripted, without a trace of the hooks."""
    net = small_model()
    losses = train(net, torch.optim.SGD(net.parameters(), lr=0.01))
    buffer = io.BytesIO()
    torch.save(net, buffer)
    if b"stepscope" in buffer.getvalue() or b"stepscope" in pickle.dumps(net):
        raise AssertionError("the saved model needs stepscope")
    x = torch.ones(1, WIDTH)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.jit.script(net)):
        if not torch.equal(other(x), net(x)):
            raise AssertionError("a copy computes something else")
    return losses
