"""The meter of `overhead_rank.py`: how long each call of ours takes inside real steps."""

import contextlib
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any


class Meter:
    """Time spent in our code, call by call, inside real steps: what torch calls of ours minus what that calls of torch.

    Some steps cost several times what most do (those that are followed, and those in which lines leave), so it is the
    mean that counts. A step in which the system took the processor away from the thread does not.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []
        self.disturbed = 0
        self._now: dict[str, int] = {}
        self._switches = _switches()

    def around(self, name: str, call: Callable[..., object], *, sign: int = 1) -> object:
        """Return `call` with its time added to `name`, or taken off it."""

        def timed(*args: object, **kwargs: object) -> object:
            since = time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                self._now[name] = self._now.get(name, 0) + sign * (time.perf_counter_ns() - since)

        return timed

    def step_over(self) -> None:
        """Begin the next step's account."""
        switches = _switches()
        if switches == self._switches:
            self.steps.append(self._now)
        else:
            self.disturbed += 1
        self._now, self._switches = {}, switches

    def start(self) -> None:
        """Forget what was measured so far."""
        self.steps, self.disturbed, self._now, self._switches = [], 0, {}, _switches()

    def mean_us(self) -> dict[str, float]:
        """Return what every name takes in a step on average, and their sum."""
        names = sorted({name for step in self.steps for name in step})
        found = {name: statistics.fmean(step.get(name, 0) for step in self.steps) / 1000 for name in names}
        return {**found, "all": sum(found.values())}


def _switches() -> int:
    """Return how often the system took the processor away from this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


@contextlib.contextmanager
def metered(meter: Meter, light: Any, job: Any) -> Iterator[None]:
    """Light mode with the meter around everything of ours that torch calls."""
    import torch.autograd.graph
    import torch.distributed as dist
    from torch.optim import optimizer as optim
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from stepscope.record.hooks.forward import Root
    from stepscope.record.hooks.gradient_sync import GradientSync

    wrapped = [
        ("data loader", _BaseDataLoaderIter, "__next__"),
        ("backward", torch.autograd.graph, "_engine_run_backward"),
        ("collective", dist.ProcessGroup, "allreduce"),
    ]
    originals = [(owner, attribute, vars(owner)[attribute]) for _, owner, attribute in wrapped]
    originals.append((torch.autograd, "_engine_run_backward", torch.autograd._engine_run_backward))
    for name, owner, attribute in wrapped:
        setattr(owner, attribute, meter.around(name, getattr(owner, attribute), sign=-1))
    light.turn(True, job.model)
    for name, owner, attribute in wrapped:
        setattr(owner, attribute, meter.around(name, getattr(owner, attribute)))
    torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward
    for name, owner, attribute in (
        ("forward", Root, "begins"),
        ("forward", Root, "ends"),
        ("gradient sync", GradientSync, "_queue"),
    ):
        originals.append((owner, attribute, getattr(owner, attribute)))
        setattr(owner, attribute, meter.around(name, getattr(owner, attribute)))
    for hooks in (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks):
        for key in list(hooks):
            hooks[key] = meter.around("optimizer", hooks[key])
    try:
        yield
    finally:
        light.turn(False, job.model)
        for owner, attribute, original in originals:
            setattr(owner, attribute, original)


@contextlib.contextmanager
def metered_alone(meter: Meter, job: Any) -> Iterator[None]:
    """The meter in the same places without anything of ours: what it takes itself."""
    import torch.autograd.graph
    from torch.optim import optimizer as optim
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    wrapped = [
        ("data loader", _BaseDataLoaderIter, "__next__"),
        ("backward", torch.autograd.graph, "_engine_run_backward"),
    ]
    originals = [(owner, attribute, vars(owner)[attribute]) for _, owner, attribute in wrapped]
    originals.append((torch.autograd, "_engine_run_backward", torch.autograd._engine_run_backward))
    for name, owner, attribute in wrapped:
        for sign in (-1, 1):
            setattr(owner, attribute, meter.around(name, getattr(owner, attribute), sign=sign))
    torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward
    handles = [
        job.model.register_forward_pre_hook(meter.around("forward", _nothing)),
        job.model.register_forward_hook(meter.around("forward", _nothing)),
        optim.register_optimizer_step_pre_hook(meter.around("optimizer", _nothing)),
        optim.register_optimizer_step_post_hook(meter.around("optimizer", _nothing)),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for owner, attribute, original in originals:
            setattr(owner, attribute, original)


def _nothing(*args: object, **kwargs: object) -> None:
    pass
