"""The loops inside Lightning, reduced to the order in which they call things; those of Accelerate and Transformers are
real in `test_real_scripts.py` and `tests/integrations/test_examples.py`.
"""

from collections.abc import Iterator
from typing import Any

import torch
from parts import STEPS, Losses, ddp_model, evaluate, exact, loader, loss_of


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
