"""The loops inside Accelerate, Transformers and Lightning, reduced to the order in which they call things."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from parts import STEPS, Losses, ddp_model, evaluate, exact, loader, loss_of


def accelerate_loop() -> Losses:
    """One batch ahead of the loop; a wrapped optimizer that steps only when gradients are complete."""
    net, losses = ddp_model(), []
    inner = torch.optim.AdamW(net.parameters(), lr=0.01)
    for i, batch in enumerate(_one_ahead(iter(loader(batches=STEPS * 2)))):
        sync = i % 2 == 1
        net.require_backward_grad_sync = sync
        loss = loss_of(net, batch) / 2
        loss.backward()
        if sync:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            inner.step()
            inner.zero_grad()
        losses.append(exact(loss))
    return losses


def transformers_loop() -> Losses:
    """All micro-batches of a step are loaded first; evaluation every few steps; loss inside the model's call."""
    net, losses = ddp_model(), []
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    batches = iter(loader(batches=STEPS * 2))
    evaluate(net)
    for step in range(STEPS):
        micro = list(itertools.islice(batches, 2))
        for i, batch in enumerate(micro):
            net.require_backward_grad_sync = i == 1
            loss = loss_of(net, batch) / 2
            loss.backward()
            losses.append(exact(loss))
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        net.zero_grad()
        if step % 3 == 2:
            evaluate(net)
    return losses


def lightning_loop() -> Losses:
    """A sanity check, one batch ahead, and the whole of training_step inside `optimizer.step(closure)`."""
    net, losses = ddp_model(), []
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    evaluate(net)
    for batch in _one_ahead(iter(loader())):

        def closure(batch: Any = batch) -> torch.Tensor:
            loss = loss_of(net, batch)
            optimizer.zero_grad()
            loss.backward()
            return loss

        losses.append(exact(optimizer.step(closure)))
    evaluate(net)
    return losses


def lightning_accumulation() -> Losses:
    """The closure runs without the optimizer on all but the last micro-batch."""
    net, losses = ddp_model(), []
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for i, batch in enumerate(_one_ahead(iter(loader(batches=STEPS * 2)))):
        last = i % 2 == 1
        net.require_backward_grad_sync = last

        def closure(batch: Any = batch, last: bool = last) -> torch.Tensor:
            loss = loss_of(net, batch) / 2
            if not last:
                optimizer.zero_grad()
            loss.backward()
            return loss

        losses.append(exact(optimizer.step(closure) if last else closure()))
    return losses


def _one_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    current = next(batches)
    for following in batches:
        yield current
        current = following
    yield current
