"""Which settings are worth a trial in this job? Those that apply to it, the ones that its findings point at first.

A setting that can change results is of one of three kinds, and is judged by it:

    equal      the same numbers: loader, allocator, order of streams
    rounding   the same sums in another order or another kernel: bucket size, threads, fused optimizer
    inexact    other numbers: TF32, a compiled model; only tried where that was allowed
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.contract import live as names
from stepscope.contract.live import TRIAL
from stepscope.contract.run_folder import RUN_JSON, json_object_in, rank_file
from stepscope.dataclass import dataclass
from stepscope.run.step_log import step_logs

# What is known of a job before anything is tried, from the folder of its first run.


@dataclass(frozen=True)
class Loader:
    """One `DataLoader`, as the script asked for it."""

    num_workers: int
    pin_memory: bool
    prefetch_factor: int | None
    persistent_workers: bool
    map_style: bool


@dataclass(frozen=True)
class Job:
    """What decides which settings can matter."""

    #: cpu, cuda or rocm
    device: str
    #: of this machine, that the job may use
    cores: int
    local_ranks: int
    backend: str | None
    has_ddp: bool
    loaders: tuple[Loader, ...] = ()
    #: how often a loader began again after the first step
    loader_starts: int = 0
    optimizer: str | None = None
    #: the script asked for a fused or a foreach form itself
    optimizer_chosen: bool = False
    threads: int | None = None
    convolutions: bool = False
    #: variables that matter for performance, as they were
    environment: Mapping[str, str] | None = None
    #: torch brings its own allocator for the CPU here
    mimalloc: bool = False

    @property
    def on_cuda(self) -> bool:
        """Return whether it trains on a GPU."""
        return self.device in ("cuda", "rocm")

    @property
    def cores_per_rank(self) -> int:
        """Return how many cores each rank of this machine can have for itself."""
        return max(1, self.cores // max(1, self.local_ranks))


def job_in(folder: Path, *, cores: int, mimalloc: bool = False) -> Job:
    """Return what the folder of a trial tells of its job; what it does not tell is left out of what is tried."""
    run, noted = json_object_in(folder / RUN_JSON), json_object_in(folder / rank_file(0, TRIAL))
    device, optimizer = _object(run, "device"), _object(noted, "optimizer")
    hosts = [ranks for ranks in _object(run, "hosts").values() if isinstance(ranks, list)]
    loaders = noted.get("loaders")
    return Job(
        device=str(device.get("kind") or "cpu"),
        cores=cores,
        local_ranks=max(map(len, hosts), default=1),
        backend=_text(run.get("backend")),
        has_ddp=bool(run.get("ddp")),
        loaders=tuple(_loader(one) for one in loaders if isinstance(one, dict)) if isinstance(loaders, list) else (),
        loader_starts=_loader_starts(folder),
        optimizer=_text(optimizer.get("name")),
        optimizer_chosen=optimizer.get("fused") is not None or optimizer.get("foreach") is not None,
        threads=_count(noted.get("threads")),
        convolutions=noted.get("convolutions") is True,
        environment={k: v for k, v in _object(run, "environment").items() if isinstance(v, str)},
        mimalloc=mimalloc,
    )


def _loader_starts(folder: Path) -> int:
    counts = [float(np.nansum(log.column("regions.loader_start.n")[1:])) for log in step_logs(folder)]
    return int(max(counts, default=0.0))


def _loader(found: Mapping[str, Any]) -> Loader:
    return Loader(
        num_workers=_count(found.get("num_workers")) or 0,
        pin_memory=found.get("pin_memory") is True,
        prefetch_factor=_count(found.get("prefetch_factor")),
        persistent_workers=found.get("persistent_workers") is True,
        map_style=found.get("map_style") is True,
    )


def _object(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 20 else None


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
    #: EQUAL, ROUNDING or INEXACT
    results: str
    #: what to write in the script, or in front of the command
    keep: str
    #: in the job's processes
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    #: finding ids that speak for it
    findings: tuple[str, ...] = ()


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
    alone = [loader for loader in job.loaders if loader.map_style and not loader.num_workers]
    at_work = [loader for loader in job.loaders if loader.num_workers]
    if alone:
        for workers in sorted({min(4, max(2, job.cores_per_rank)), min(_MAX_WORKERS, max(2, job.cores_per_rank))}):
            yield _candidates_loader({names.WORKERS: workers})
            if job.loader_starts:
                yield _candidates_loader({names.WORKERS: workers, names.PERSISTENT: True})
    if at_work and job.loader_starts and not all(loader.persistent_workers for loader in at_work):
        yield _candidates_loader({names.PERSISTENT: True})
    if at_work and not alone:
        yield _candidates_loader({names.PREFETCH: 2 * max(_prefetch(loader) for loader in at_work)})
        workers = max(loader.num_workers for loader in at_work)
        if all(loader.map_style for loader in at_work) and 2 * workers <= min(job.cores_per_rank, 4 * _MAX_WORKERS):
            yield _candidates_loader({names.WORKERS: 2 * workers})
    if job.loaders and job.on_cuda and not all(loader.pin_memory for loader in job.loaders):
        yield _candidates_loader({names.PIN: True}, ("host-to-device-copy", *_LOADING))


def _prefetch(loader: Loader) -> int:
    return loader.prefetch_factor or 2  # torch's own default


def _candidates_loader(settings: Mapping[str, Any], findings: tuple[str, ...] = _LOADING) -> Candidate:
    given = ", ".join(f"{name.partition('.')[2]}={value}" for name, value in settings.items())
    short = ", ".join(f"{name}={value}" for name, value in settings.items()).replace(", loader.", ", ")
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
