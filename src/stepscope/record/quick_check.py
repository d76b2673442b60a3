"""Time of a training step on the user's own objects, by part: loading, forward, backward, optimizer step.

    print(stepscope.quick_check(model, loader, loss_fn, optimizer))

It runs real steps on the objects it is given and puts them back afterwards: parameters, gradients, buffers, optimizer
state, training mode and random numbers are as before (the loader has given out some batches). It is a stand-alone
check, so it waits for the device after every phase: do not call it inside a training loop.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from stepscope.errors import UsageError

# A model, its optimizer and the random numbers, restored after a trial run.
#
# State is saved separately and copied back into the same tensors, so that references to them (DDP's buckets,
# other modules, captured graphs) stay valid. It needs memory for one copy of parameters, buffers and optimizer state.


@contextmanager
def _keep_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, loader: Any = None) -> Iterator[None]:
    in_groups = (p for group in optimizer.param_groups for p in group["params"])
    parameters = list({id(p): p for p in (*model.parameters(), *in_groups)}.values())
    tensors = [*parameters, *model.buffers()]
    values = [t.detach().clone() for t in tensors]
    gradients = [p.grad for p in parameters]
    optimizer_state = {p: dict(state) for p, state in optimizer.state.items()}
    optimizer_values = {
        p: {k: v.detach().clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}
        for p, state in optimizer_state.items()
    }
    modes = [(module, module.training) for module in model.modules()]
    own = getattr(loader, "generator", None)
    generators = {
        "python": random.getstate(),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
        "loader": own.get_state() if own is not None else None,
    }
    for p in parameters:
        p.grad = None
    try:
        model.train()
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
            _restore_optimizer(optimizer, optimizer_state, optimizer_values)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        for module, training in modes:
            module.training = training
        random.setstate(generators["python"])
        torch.set_rng_state(generators["cpu"])
        if generators["cuda"] is not None:
            torch.cuda.set_rng_state_all(generators["cuda"])
        if generators["loader"] is not None:
            loader.generator.set_state(generators["loader"])


def _restore_optimizer(
    optimizer: torch.optim.Optimizer, states: dict[Any, dict[Any, Any]], values: dict[Any, dict[Any, Any]]
) -> None:
    for p in list(optimizer.state):
        if p not in states:
            del optimizer.state[p]
    for p, state in states.items():
        for name, kept in state.items():
            if isinstance(kept, torch.Tensor):
                kept.copy_(values[p][name])
        optimizer.state[p] = state


# Shares of a healthy step in %, as the field's check lists give them.
EXPECTED_PCT = {
    "data loading": (5.0, 10.0),
    "forward": (30.0, 40.0),
    "backward": (40.0, 50.0),
    "optimizer step": (5.0, 10.0),
}
_ADVICE = {
    "data loading": "more loader workers, pinned memory, less work per sample",
    "forward": "mixed precision, fused kernels, torch.compile",
    "backward": "recomputation, unfused attention, small kernels",
    "optimizer step": "a fused optimizer (fused=True or foreach=True)",
}


@dataclass(frozen=True)
class Phase:
    """One phase of the step: its median time, its share of the step and what is expected of it."""

    name: str
    ms: float
    share_pct: float
    expected_pct: tuple[float, float]

    @property
    def verdict(self) -> str:
        """`as expected`, `above` or `below` the expected share."""
        low, high = self.expected_pct
        return "above" if self.share_pct > high else "below" if self.share_pct < low else "as expected"


@dataclass(frozen=True)
class QuickCheck:
    """What a step is made of; `print` it for a table."""

    phases: tuple[Phase, ...]
    steps: int
    device: str

    @property
    def step_ms(self) -> float:
        """The sum of the phases' medians."""
        return sum(phase.ms for phase in self.phases)

    def __str__(self) -> str:
        rows = [f"{'phase':<16}{'ms':>10}{'share':>9}   expected", "-" * 54]
        for p in self.phases:
            low, high = p.expected_pct
            mark = "" if p.verdict == "as expected" else f"  {p.verdict}"
            rows.append(f"{p.name:<16}{p.ms:>10.3f}{p.share_pct:>8.1f}%   {low:.0f}-{high:.0f} %{mark}")
        rows.append(f"{'step':<16}{self.step_ms:>10.3f}{100:>8.1f}%   {self.steps} steps on {self.device}")
        rows += [
            f"{p.name} takes more than its share; check: {_ADVICE[p.name]}" for p in self.phases if p.verdict == "above"
        ]
        return "\n".join(rows)


def quick_check(
    model: torch.nn.Module,
    loader: Iterable[Any],
    loss_fn: Callable[..., torch.Tensor] | None,
    optimizer: torch.optim.Optimizer,
    *,
    steps: int = 10,
    warmup: int = 3,
    forward: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None,
) -> QuickCheck:
    """Return the median time of each phase over `steps` steps after `warmup` uncounted ones.

    A batch `(inputs, targets)` is trained as `loss_fn(model(inputs), targets)`, a dict as `loss_fn(model(**batch),
    batch)`, or by the model's own `.loss` where `loss_fn` is None. For anything else give `forward(model, batch)`,
    which returns the loss.
    """
    if steps < 1 or warmup < 0:
        raise UsageError(f"quick_check: steps have to be at least 1 and warmup at least 0, not {steps} and {warmup}")
    loss_of = forward or (lambda m, batch: _loss(m, batch, loss_fn))
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with _keep_state(model, optimizer, loader=loader):
        batches = timed_batches(loader, device)
        times = [_step(model, batches, loss_of, optimizer, device) for _ in range(warmup + steps)][warmup:]
    loading = [t[0] for t in times if not t[-1]] or [t[0] for t in times]
    columns = [loading, *([t[i] for t in times] for i in (1, 2, 3))]
    medians = {name: statistics.median(column) for name, column in zip(EXPECTED_PCT, columns, strict=True)}
    step_ns = sum(medians.values())
    phases = tuple(
        Phase(name, ms=ns / 1e6, share_pct=100 * ns / step_ns, expected_pct=EXPECTED_PCT[name])
        for name, ns in medians.items()
    )
    return QuickCheck(phases, steps=steps, device=str(device))


def _step(
    model: torch.nn.Module,
    batches: Iterator[tuple[Any, int, bool]],
    loss_of: Callable[[torch.nn.Module, Any], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> tuple[int, int, int, int, bool]:
    """Return the ns of loading, forward, backward and optimizer step, and whether the batch began an epoch."""
    batch, loading_ns, is_first = next(batches)
    since_ns = time.perf_counter_ns()
    loss = loss_of(model, batch)
    forward_ns = now_ns(device)
    loss.backward()
    backward_ns = now_ns(device)
    optimizer.step()
    optimizer.zero_grad()
    end_ns = now_ns(device)
    return loading_ns, forward_ns - since_ns, backward_ns - forward_ns, end_ns - backward_ns, is_first


def timed_batches(loader: Iterable[Any], device: torch.device) -> Iterator[tuple[Any, int, bool]]:
    """Return batches on the device without end, the ns each took to load, and whether it began an epoch."""
    while True:
        is_first = True
        since_ns = time.perf_counter_ns()
        for batch in loader:
            moved = to_device(batch, device)
            yield moved, now_ns(device) - since_ns, is_first
            is_first = False
            since_ns = time.perf_counter_ns()
        if is_first:
            raise UsageError("the loader has no batch")


def now_ns(device: torch.device) -> int:
    """Return the time once the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu" and hasattr(torch, "accelerator"):
        torch.accelerator.synchronize()
    return time.perf_counter_ns()


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch whose tensors are on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {k: to_device(v, device) for k, v in batch.items()}
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return type(batch)(to_device(item, device) for item in batch)
    return batch


def _loss(model: torch.nn.Module, batch: Any, loss_fn: Callable[..., torch.Tensor] | None) -> torch.Tensor:
    if isinstance(batch, dict):
        output = model(**batch)
        return output.loss if loss_fn is None else loss_fn(output, batch)
    if loss_fn is None or not isinstance(batch, list | tuple) or len(batch) != 2:
        raise UsageError(
            f"quick_check: a batch has to be (inputs, targets) with a loss_fn, or a dict, not {type(batch).__name__}; "
            "or give forward=lambda model, batch: ... that returns the loss"
        )
    inputs, targets = batch
    return loss_fn(model(inputs), targets)
