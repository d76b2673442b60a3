"""Which settings are worth a trial in this job? Those that apply to it, the ones that its findings point at first.

A setting that can change results is of one of three kinds, and is judged by it:

    equal      the same numbers: loader, allocator, order of streams
    rounding   the same sums in another order or another kernel: bucket size, threads, fused optimizer
    inexact    other numbers: TF32, a compiled model; only tried where that was allowed
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from stepscope.contract import tuning as names
from stepscope.dataclass import dataclass
from stepscope.tune.job import Job, Loader

EQUAL, ROUNDING, INEXACT = "equal", "rounding", "inexact"

_MAX_WORKERS = 8
_BUCKETS_MB = (100, 5)
_COMMUNICATION = (
    "too-many-small-collectives",
    "communication-bound",
    "no-overlap",
    "slow-link",
    "redundant-communication",
)
_LOADING = ("data-loading", "straggler", "host-stall")
_HOST = ("optimizer", "launch-overhead")


@dataclass(frozen=True)
class Candidate:
    """One setting, or a few that belong together."""

    name: str
    results: str
    """EQUAL, ROUNDING or INEXACT"""
    keep: str
    """what to write in the script, or in front of the command"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """in the job's processes"""
    environment: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    """finding ids that speak for it"""


@dataclass(frozen=True)
class Choice:
    """What is tried, in order, and what is not, with the reason."""

    tried: tuple[Candidate, ...]
    left_out: tuple[tuple[str, str], ...]


def candidates(
    job: Job,
    findings: Sequence[str],
    *,
    inexact: bool = False,
    compiled: bool = False,
    only: Sequence[str] = (),
    most: int | None = None,
) -> Choice:
    """Return what to try: `findings` are ids, the costliest first; `only` keeps names that begin so."""
    every = [c for c in _every(job, compiled=compiled) if not only or c.name.startswith(tuple(only))]
    refused = [c for c in every if c.results == INEXACT and not inexact and names.COMPILE not in c.settings]
    every = sorted((c for c in every if c not in refused), key=lambda c: _place(c, findings))
    kept = every[:most] if most is not None else every
    reasons = [(c.name, "changes results; --allow-inexact tries it") for c in refused]
    reasons += [(c.name, "beyond --most") for c in every[len(kept) :]]
    return Choice(tuple(kept), tuple(reasons))


def together(kept: Sequence[Candidate]) -> Candidate:
    """Return several candidates as one; the first of those that set the same thing has its way."""
    settings: dict[str, Any] = {}
    environment: dict[str, str] = {}
    used = []
    for c in kept:
        if not (c.settings.keys() & settings.keys() or c.environment.keys() & environment.keys()):
            settings |= c.settings
            environment |= c.environment
            used.append(c)
    kinds = [kind for kind in (INEXACT, ROUNDING, EQUAL) if any(c.results == kind for c in used)]
    return Candidate(
        " + ".join(c.name for c in used),
        kinds[0] if kinds else EQUAL,
        "; ".join(c.keep for c in used),
        settings,
        environment,
    )


def _place(candidate: Candidate, findings: Sequence[str]) -> int:
    return min((findings.index(f) for f in candidate.findings if f in findings), default=len(findings))


def _every(job: Job, *, compiled: bool) -> Iterator[Candidate]:
    yield from _loading(job)
    yield from _ddp(job)
    yield from _kernels(job)
    yield from _host(job)
    yield from _nccl(job)
    if compiled:
        yield _setting(names.COMPILE, True, INEXACT, "model.compile()", ("launch-overhead", "memory-bound-kernels"))


def _loading(job: Job) -> Iterator[Candidate]:
    """Loaders of the script, all at once: nobody knows which of them is the one of the training loop."""
    alone = [loader for loader in job.loaders if loader.map_style and not loader.num_workers]
    at_work = [loader for loader in job.loaders if loader.num_workers]
    if alone:
        for workers in _worker_counts(job):
            yield _loader({names.WORKERS: workers})
            if job.loader_starts:
                yield _loader({names.WORKERS: workers, names.PERSISTENT: True})
    if at_work and job.loader_starts and not all(loader.persistent_workers for loader in at_work):
        yield _loader({names.PERSISTENT: True})
    if at_work and not alone:
        factor = max(_prefetch(loader) for loader in at_work)
        yield _loader({names.PREFETCH: 2 * factor})
        workers = max(loader.num_workers for loader in at_work)
        if all(loader.map_style for loader in at_work) and 2 * workers <= min(job.cores_per_rank, 4 * _MAX_WORKERS):
            yield _loader({names.WORKERS: 2 * workers})
    if job.loaders and job.on_cuda and not all(loader.pin_memory for loader in job.loaders):
        yield _loader({names.PIN: True}, ("host-to-device-copy", *_LOADING))


def _worker_counts(job: Job) -> list[int]:
    """Return a few and, on a machine that has the cores, as many as each rank has: waiting for a disk takes no core."""
    return sorted({min(4, max(2, job.cores_per_rank)), min(_MAX_WORKERS, max(2, job.cores_per_rank))})


def _prefetch(loader: Loader) -> int:
    return loader.prefetch_factor or 2  # torch's own default


def _loader(settings: Mapping[str, Any], findings: tuple[str, ...] = _LOADING) -> Candidate:
    given = ", ".join(f"{name.partition('.')[2]}={value}" for name, value in settings.items())
    title = ", ".join(f"{name}={value}" for name, value in settings.items())
    short = title.replace(", loader.", ", ")
    return Candidate(short, EQUAL, f"DataLoader(..., {given})", dict(settings), findings=findings)


def _ddp(job: Job) -> Iterator[Candidate]:
    if job.has_ddp:
        for size_mb in _BUCKETS_MB:
            keep = f"DistributedDataParallel(..., bucket_cap_mb={size_mb})"
            yield _setting(names.BUCKET, size_mb, ROUNDING, keep, _COMMUNICATION)
        keep = "DistributedDataParallel(..., gradient_as_bucket_view=True)"
        yield _setting(names.BUCKET_VIEW, True, EQUAL, keep, ("no-overlap", "memory-pressure", "launch-overhead"))


def _kernels(job: Job) -> Iterator[Candidate]:
    if job.optimizer in names.FUSED_OPTIMIZERS and not job.optimizer_chosen:
        yield _setting(names.FUSED, True, ROUNDING, f"{job.optimizer}(..., fused=True)", _HOST)
    if job.on_cuda:
        keep = 'torch.set_float32_matmul_precision("high"); torch.backends.cudnn.allow_tf32 = True'
        yield _setting(names.TF32, True, INEXACT, keep, ("precision",))
        if job.convolutions:
            keep = "torch.backends.cudnn.benchmark = True"
            yield _setting(names.BENCHMARK, True, ROUNDING, keep, ("memory-bound-kernels",))


def _host(job: Job) -> Iterator[Candidate]:
    env = job.environment or {}
    if not job.on_cuda:
        for threads in sorted({job.cores_per_rank, 1}, reverse=True):
            if job.threads is not None and threads != job.threads:
                yield _variables({"OMP_NUM_THREADS": str(threads)}, ROUNDING, ("host-stall",))
        if not job.mimalloc and "MALLOC_TRIM_THRESHOLD_" not in env:
            # What is freed stays with the process: glibc would give large blocks back and fault them in again.
            keep = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
            yield _variables(keep, EQUAL, ("allocator", "memory-pressure"), name="malloc keeps freed memory")
    elif not {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} & env.keys():
        keep = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        yield _variables(keep, EQUAL, ("allocator", "memory-pressure"), name="expandable_segments:True")


def _nccl(job: Job) -> Iterator[Candidate]:
    env = job.environment or {}
    if job.backend != "nccl":
        return
    for name, value, results in (
        ("TORCH_NCCL_HIGH_PRIORITY", "1", EQUAL),
        ("NCCL_ALGO", "Tree", ROUNDING),
        ("NCCL_PROTO", "LL128", EQUAL),
    ):
        if name not in env:
            yield _variables({name: value}, results, _COMMUNICATION)


def _setting(name: str, value: Any, results: str, keep: str, findings: tuple[str, ...]) -> Candidate:
    return Candidate(f"{name}={value}", results, keep, {name: value}, findings=findings)


def _variables(
    environment: Mapping[str, str], results: str, findings: tuple[str, ...], *, name: str | None = None
) -> Candidate:
    keep = " ".join(f"{variable}={value}" for variable, value in environment.items())
    return Candidate(name or keep, results, keep, environment=environment, findings=findings)
