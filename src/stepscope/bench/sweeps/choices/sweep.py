"""The words of a sweep: one question, its variants, and how closely their results have to agree. No torch here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

from stepscope.errors import UsageError

SWEEPS = {
    "batch-size": "batch_size",
    "precision": "precision",
    "compile": "compile",
    "attention": "attention",
    "checkpointing": "checkpointing",
    "dataloader": "dataloader",
    "allocator": "allocator",
    "accumulation": "accumulation",
    "offload": "offload",
    "strategy": "strategy",
}

# relative error of rounding once
_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-9}


@dataclass(frozen=True)
class Tolerance:
    """How far a variant may be from the first one, relative; gradients of the first step, losses of the first few."""

    gradient: float
    loss: float
    why: str


@dataclass(frozen=True)
class Variant:
    """One candidate: what it changes in the workload, in the step, or in the process."""

    name: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    step: Mapping[str, Any] = field(default_factory=dict)
    #: variables of a process of its own
    env: Mapping[str, str] = field(default_factory=dict)
    only_on: Literal["cuda", "cpu"] | None = None
    why_only: str = ""
    #: why it cannot run on these ranks; empty where it can
    why_not: str = ""
    #: where it differs from the sweep's
    tolerance: Tolerance | None = None
    #: the variant that exchanges gradients once in a step, where this one does in each micro-batch
    once: str = ""
    #: its steps take other samples than the first one's: there is nothing to compare
    other_samples: bool = False
    #: its activations lie in the pool of a CUDA graph, which the allocator does not count
    graph_memory: bool = False


@dataclass(frozen=True)
class Sweep:
    """A question and its candidates; the first variant is what the others are compared with."""

    name: str
    question: str
    variants: tuple[Variant, ...]
    tolerance: Tolerance
    #: memory: variants that cost time to save memory; both: judged by either
    goal: Literal["time", "memory", "both"] = "time"
    #: what results are compared with: the first variant, or the same batch as two halves whose gradients add up
    reference: Literal["first", "halves"] = "first"
    #: every measurement in a process of its own
    fresh: bool = False
    #: instead of an exact `tolerance`, where the first variant differs from itself between its runs: many kernels of a
    #: GPU add in no fixed order
    reordered: Tolerance | None = None


def sweep_named(name: str, spec: Mapping[str, Any], options: Mapping[str, Any]) -> Sweep:
    """Return a sweep for a workload described by `spec`; `options` are the sweep's own."""
    made: Sweep = import_module(f"stepscope.bench.sweeps.choices.{SWEEPS[name]}").sweep(spec, **options)
    return made


def only(sweep: Sweep, names: Sequence[str]) -> Sweep:
    """Return the sweep with these variants alone; the first always stays."""
    known = [variant.name for variant in sweep.variants]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"unknown variant {', '.join(unknown)}; use some of {', '.join(known)}")
    return replace(sweep, variants=tuple(v for i, v in enumerate(sweep.variants) if i == 0 or v.name in names))


def rounding(precision: str) -> Tolerance:
    """Return the tolerance for the same arithmetic in another order.

    Rounding errors of a step's long sums and of its layers add up to some tens of roundings in the gradient; the mean
    over a batch makes the loss more exact than any of its terms.
    """
    once = _ROUNDOFF[precision]
    return Tolerance(
        gradient=max(64 * once, 1e-5), loss=max(8 * once, 1e-5), why=f"the same sums in another order, in {precision}"
    )


def narrower(precision: str) -> Tolerance:
    """Return the tolerance where inputs of products are rounded.

    Some tens of roundings meet in a gradient, about independently.
    """
    once = _ROUNDOFF[precision]
    return Tolerance(gradient=32 * once, loss=4 * once, why=f"inputs of products rounded to {precision}")
