"""Sweeps over one choice at a time: a question, its variants, and how closely their results have to agree. No torch.

The first variant of a sweep is what the others are compared with. Batch sizes are found first: doubled from 32 until
memory runs out, then bisected.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from stepscope.errors import UsageError
from stepscope.lab.bench.strategies import HYBRID_RANKS

START = 32
_RESOLUTION = 16  # bisection ends when the next size would be about a sixteenth larger
_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-9}  # of rounding once, relative
# of one run of a batch size: large batches take as long as small ones, with fewer steps
_RUN_MS, _LEAST_STEPS = 10_000.0, 5
_MIXED = "bf16"  # fp16 would need a loss scale that shards agree on
_CUDA_SETTINGS = {
    "max_split_size_mb:64": "max_split_size_mb:64",
    "max_split_size_mb:512": "max_split_size_mb:512",
    "garbage_collection_threshold:0.8": "garbage_collection_threshold:0.8",
    "expandable_segments": "expandable_segments:True",
}
_SETTINGS = re.compile(r"[a-z][a-z0-9_]*:[^,\s=]+(,[a-z][a-z0-9_]*:[^,\s=]+)*", re.ASCII)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=[^\0]*", re.ASCII)

Spec = Mapping[str, Any]


@dataclass(frozen=True)
class Tolerance:
    """How far a variant may be from the first one, relative; gradients of the first step, losses of the first few."""

    gradient: float
    loss: float
    why: str


@dataclass(frozen=True)
class Variant:
    """One candidate: what it changes in the workload, in the step, or in the environment of a new process.

    `why_not` is the reason why it cannot run on these ranks; `once` the variant that exchanges gradients once in a
    step, where this one does in each micro-batch. Steps of `other_samples` cannot be compared with the first one's.
    `graph_memory`: activations are in the pool of a CUDA graph, which the allocator does not count. `most_steps` limits
    the steps of a run.
    """

    name: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    step: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    only_on: Literal["cuda", "cpu"] | None = None
    why_only: str = ""
    why_not: str = ""
    tolerance: Tolerance | None = None
    once: str = ""
    other_samples: bool = False
    graph_memory: bool = False
    most_steps: int | None = None


@dataclass(frozen=True)
class Sweep:
    """A question and its candidates.

    Goal memory: variants that cost time to save memory; both: judged by either. Results are compared with the first
    variant, or with the same batch as two halves whose gradients add up. `fresh`: every measurement in a new process.
    `reordered` replaces an exact `tolerance` where the first variant differs from itself between its runs: many kernels
    of a GPU add in no fixed order.
    """

    name: str
    question: str
    variants: tuple[Variant, ...]
    tolerance: Tolerance
    goal: Literal["time", "memory", "both"] = "time"
    reference: Literal["first", "halves"] = "first"
    fresh: bool = False
    reordered: Tolerance | None = None


def sweep_named(name: str, spec: Spec, options: Mapping[str, Any]) -> Sweep:
    """Return a sweep for a workload described by `spec`; `options` are the sweep's own."""
    return SWEEPS[name](spec, **options)


def only(sweep: Sweep, names: Sequence[str]) -> Sweep:
    """Return the sweep with these variants alone; the first always stays."""
    known = [variant.name for variant in sweep.variants]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"unknown variant {', '.join(unknown)}; use some of {', '.join(known)}")
    return replace(sweep, variants=tuple(v for i, v in enumerate(sweep.variants) if i == 0 or v.name in names))


def rounding(precision: str) -> Tolerance:
    """Return the tolerance for the same arithmetic in another order.

    Rounding errors of a step's long sums and of its layers add up to some tens of roundings in the gradient; the mean
    over a batch makes the loss more exact than any of its terms.
    """
    once = _ROUNDOFF[precision]
    return Tolerance(max(64 * once, 1e-5), max(8 * once, 1e-5), f"the same sums in another order, in {precision}")


def _narrower(precision: str) -> Tolerance:
    once = _ROUNDOFF[precision]
    return Tolerance(32 * once, 4 * once, f"inputs of products rounded to {precision}")


def next_probe(known: Mapping[int, bool], *, start: int = START, limit: int = 1 << 16) -> int | None:
    """Return the size to try next, None when the largest that fits is known well enough.

    >>> next_probe({}), next_probe({32: True}), next_probe({32: True, 64: False}), next_probe({32: False})
    (32, 64, 48, 16)
    """
    fits = [size for size, fitted in known.items() if fitted]
    fails = [size for size, fitted in known.items() if not fitted]
    if not known:
        return start
    if not fails:
        return 2 * max(fits) if 2 * max(fits) <= limit else None
    if not fits:
        return min(fails) // 2 or None
    low, high = max(fits), min(fails)
    gap = 1 << max((low // _RESOLUTION).bit_length() - 1, 0)  # a power of two, so that sizes stay round
    middle = low + max((high - low) // 2 // gap * gap, gap)
    return middle if low < middle < high else None


def largest_fitting(known: Mapping[int, bool]) -> int | None:
    """Return the largest size that fitted, None if none did."""
    return max((size for size, fitted in known.items() if fitted), default=None)


def measured_sizes(known: Mapping[int, bool]) -> list[int]:
    """Return the sizes worth measuring: all that fitted while doubling, and the largest of all."""
    fits = sorted(size for size, fitted in known.items() if fitted)
    return sorted({*(size for size in fits if size & (size - 1) == 0), *fits[-1:]})


def _sweep(name: str, question: str, variants: Iterable[Variant], spec: Spec, **more: Any) -> Sweep:
    return Sweep(name, question, tuple(variants), more.pop("tolerance", rounding(spec["precision"])), **more)


def _batch_size(spec: Spec, *, sizes: Sequence[int], step_ms: Mapping[int, float] | None = None) -> Sweep:
    question = "how large may a batch be, and which size is best per sample?"
    known = step_ms or {}
    variants = [
        Variant(
            str(size),
            spec={"batch_size": size},
            most_steps=max(_LEAST_STEPS, int(_RUN_MS / known[size])) if known.get(size) else None,
        )
        for size in sizes
    ]
    # Batches of different sizes hold different samples, so each is checked against the same samples in two halves.
    return _sweep("batch-size", question, variants, spec, goal="both", reference="halves")


def _dataloader(spec: Spec, *, workers: Sequence[int] = (0, 1, 2, 4)) -> Sweep:
    def variant(name: str, count: int, **loader: Any) -> Variant:
        pinned, persistent = "pin_memory" in loader, {"persistent_workers": True} if count else {}
        options = {"loader": {"num_workers": count, **loader, **persistent}}
        why = "pinned memory speeds up copies to a CUDA device"
        return Variant(f"workers={count}{name}", options=options, only_on="cuda" if pinned else None, why_only=why)

    most = max(workers)
    variants = [variant("", count) for count in sorted({0, *workers})]
    variants += [variant(" pinned", count, pin_memory=True) for count in sorted({0, most})]
    variants += [variant(" prefetch=8", most, prefetch_factor=8)] if most else []
    return _sweep(
        "dataloader",
        "does the step wait for data, and which loader ends that?",
        variants,
        spec,
        tolerance=Tolerance(gradient=0.0, loss=0.0, why="the same samples in the same order"),
        reordered=rounding(spec["precision"]),
    )


def _allocator(spec: Spec, *, settings: Sequence[str] = ()) -> Sweep:
    def on_device(name: str, value: str) -> Variant:
        env = {"PYTORCH_CUDA_ALLOC_CONF": value, "PYTORCH_ALLOC_CONF": value}
        return Variant(name, env=env, only_on="cuda", why_only="a setting of the CUDA caching allocator")

    def given(text: str) -> Variant:
        if _VARIABLE.fullmatch(text):
            return Variant(text, env=dict([text.split("=", 1)]))
        if _SETTINGS.fullmatch(text) and text not in _CUDA_SETTINGS:
            return on_device(text, text)
        raise UsageError(
            f"--setting {text[:80]!r}: write NAME:VALUE, several with commas between, such as max_split_size_mb:128, "
            "or NAME=VALUE of the environment; one that is measured anyway is not given again"
        )

    # Large tensors come from mmap by default, are zeroed by the kernel page by page, and given back at once.
    keep = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
    host = Variant(
        "malloc keeps 1 GiB",
        env={**keep, "MALLOC_TOP_PAD_": str(64 << 20)},
        only_on="cpu",
        why_only="a setting of the C library's malloc",
    )
    devices = [on_device(name, value) for name, value in _CUDA_SETTINGS.items()]
    return _sweep(
        "allocator",
        "do allocator settings change time or memory?",
        (Variant("default"), *devices, host, *(given(text) for text in dict.fromkeys(settings))),
        spec,
        tolerance=Tolerance(gradient=1e-6, loss=1e-6, why="the same kernels on other addresses"),
        fresh=True,
        reordered=rounding(spec["precision"]),
    )


def _accumulation(spec: Spec, *, most: int = 8, world_size: int = 1) -> Sweep:
    """Return the sweep over 1, 2, 4 ... micro-batches of the given batch size.

    On several ranks also what is saved in communication: gradients exchanged in every micro-batch instead of the last
    one only, and steps of more samples, in which they are exchanged once.
    """
    batch = int(spec["batch_size"])
    parts = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= most and batch % k == 0]
    if len(parts) < 2:
        raise UsageError(f"--batch-size {batch} cannot be halved; give an even one")
    variants = [
        Variant(f"{k} x {batch // k}", spec={"batch_size": batch // k}, step={"accumulation": k}) for k in parts
    ]
    if world_size > 1:
        once = variants[-1]
        each = replace(once, name=f"{once.name} each", step={**once.step, "exchange_each": True}, once=once.name)
        more = [Variant(f"{k} x {batch}", step={"accumulation": k}, other_samples=True) for k in (2, 4)]
        variants += [each, *more]
    question = "what does accumulating gradients over micro-batches save, and what does it cost?"
    return _sweep("accumulation", question, variants, spec, goal="memory")


def _strategy(spec: Spec, *, world_size: int) -> Sweep:
    precision = spec["precision"]
    if precision == "fp16":
        raise UsageError("fp16 needs a loss scale that shards agree on, and sharded gradients have none; use bf16")
    if world_size < 2:
        raise UsageError("a strategy is for several ranks; use --world-size 2 or more")
    few = world_size < HYBRID_RANKS or world_size % 2
    variants = [
        Variant(
            name if used == precision else f"{name}-{used}",
            spec={"precision": used},
            step={"strategy": implementation},
            tolerance=None if used == precision else _narrower(used),
            why_not=f"hybrid sharding needs an even number of ranks, {HYBRID_RANKS} or more"
            if name == "hybrid" and few
            else "",
        )
        for name, implementation in (
            ("ddp", "pytorch_ddp"),
            ("zero1", "zero1"),
            ("zero2", "fsdp2_zero2"),
            ("zero3", "fsdp2_zero3"),
            ("hybrid", "fsdp2_hybrid"),
        )
        for used in dict.fromkeys((precision, _MIXED))
    ]
    return _sweep("strategy", "which data-parallel strategy fits, and which is fastest?", variants, spec, goal="both")


_CUDA_GRAPH: dict[str, Any] = {
    "only_on": "cuda",
    "why_only": "CUDA graphs replay kernels of a CUDA device",
    "graph_memory": True,
}
_CUDA_KERNELS = {
    "efficient": "the memory-efficient kernel is written for CUDA",
    "cudnn": "cuDNN is a library for CUDA",
}
_ON_THE_HOST: dict[str, Any] = {"only_on": "cuda", "why_only": "on the CPU everything is in host memory already"}
_TENSOR_CORES: dict[str, Any] = {"only_on": "cuda", "why_only": "tf32 is a mode of NVIDIA's tensor cores"}

SWEEPS: dict[str, Callable[..., Sweep]] = {
    "batch-size": _batch_size,
    "precision": partial(
        _sweep,
        "precision",
        "which precision is fastest, and does it still compute the same?",
        (
            Variant("fp32", spec={"precision": "fp32"}),
            Variant("tf32", spec={"precision": "tf32"}, tolerance=_narrower("tf32"), **_TENSOR_CORES),
            *(Variant(name, spec={"precision": name}, tolerance=_narrower(name)) for name in ("fp16", "bf16")),
        ),
        tolerance=rounding("fp32"),
    ),
    "compile": partial(
        _sweep,
        "compile",
        "what do torch.compile and CUDA graphs give, and when is the compilation paid back?",
        (
            Variant("eager"),
            Variant("cuda-graph", step={"cuda_graph": True}, **_CUDA_GRAPH),
            Variant("default", step={"compile": "default"}),
            Variant("reduce-overhead", step={"compile": "reduce-overhead"}, **_CUDA_GRAPH),
            Variant("max-autotune-no-cudagraphs", step={"compile": "max-autotune-no-cudagraphs"}),
            Variant("max-autotune", step={"compile": "max-autotune"}, **_CUDA_GRAPH),
        ),
    ),
    "attention": partial(
        _sweep,
        "attention",
        "which attention kernel is fastest?",
        tuple(
            Variant(
                kernel,
                options={"attention": kernel},
                only_on="cuda" if kernel in _CUDA_KERNELS else None,
                why_only=_CUDA_KERNELS.get(kernel, ""),
            )
            for kernel in ("unfused", "math", "efficient", "flash", "cudnn", "sdpa")
        ),
    ),
    "checkpointing": partial(
        _sweep,
        "checkpointing",
        "what does recomputing activations save, and what does it cost?",
        tuple(Variant(policy, options={"checkpointing": policy}) for policy in ("none", "selective", "half", "full")),
        goal="memory",
    ),
    "dataloader": _dataloader,
    "allocator": _allocator,
    "accumulation": _accumulation,
    "offload": partial(
        _sweep,
        "offload",
        "what does keeping state in host memory save on the device, and what does it cost?",
        (
            Variant("none"),
            *(
                Variant(what, step={"offload": what}, **_ON_THE_HOST)
                for what in ("activations", "optimizer", "parameters")
            ),
        ),
        goal="memory",
    ),
    "strategy": _strategy,
}
