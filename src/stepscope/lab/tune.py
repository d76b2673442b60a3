"""Which settings are worth a trial in this job, and which of them to keep after their rounds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from stepscope.contract import live as names
from stepscope.contract.live import TRIAL
from stepscope.contract.run_folder import RUN_JSON, json_object_in, rank_file
from stepscope.lab.experiment import Agreement, Rounds, Trial, run_rounds
from stepscope.records import dataclass
from stepscope.run.side_files import step_logs
from stepscope.stats.change import Change, mean

# What is known of a job before anything is tried, from the folder of its first run.


@dataclass(frozen=True)
class Loader:
    """One `DataLoader` as the script created it."""

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
    #: the script chose a fused or a foreach form itself
    optimizer_chosen: bool = False
    threads: int | None = None
    convolutions: bool = False
    #: variables that matter for performance, as they were
    environment: Mapping[str, str] | None = None
    #: torch brings its own allocator for the CPU here
    mimalloc: bool = False

    @property
    def on_cuda(self) -> bool:
        return self.device in ("cuda", "rocm")

    @property
    def cores_per_rank(self) -> int:
        return max(1, self.cores // max(1, self.local_ranks))


def job_in(folder: Path, *, cores: int, mimalloc: bool = False) -> Job:
    """Return the job's facts from the folder of a trial; settings that need unknown ones are not tried."""
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
_NCCL = (
    ("TORCH_NCCL_HIGH_PRIORITY", "1", EQUAL),
    ("NCCL_ALGO", "Tree", ROUNDING),
    ("NCCL_PROTO", "LL128", EQUAL),
)


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
    #: ids of the findings that suggest it
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
    yield from (candidate for applies, candidate in _by_condition(job, compiled=compiled) if applies)


def _by_condition(job: Job, *, compiled: bool) -> list[tuple[bool, Candidate]]:
    env, nccl, memory = job.environment or {}, job.backend == "nccl", ("allocator", "memory-pressure")
    wrapper = "DistributedDataParallel(..., {})"
    fused = job.optimizer in names.FUSED_OPTIMIZERS and not job.optimizer_chosen
    tf32 = 'torch.set_float32_matmul_precision("high"); torch.backends.cudnn.allow_tf32 = True'
    view = ("no-overlap", "memory-pressure", "launch-overhead")
    # What is freed stays with the process: glibc would give large blocks back and fault them in again.
    malloc = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
    keeps = not job.on_cuda and not job.mimalloc and "MALLOC_TRIM_THRESHOLD_" not in env
    expands = job.on_cuda and not {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} & env.keys()
    segments = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    compiles = ("launch-overhead", "memory-bound-kernels")
    return [
        *(
            (job.has_ddp, _setting(names.BUCKET, mb, ROUNDING, wrapper.format(f"bucket_cap_mb={mb}"), _COMMUNICATION))
            for mb in _BUCKETS_MB
        ),
        (job.has_ddp, _setting(names.BUCKET_VIEW, True, EQUAL, wrapper.format("gradient_as_bucket_view=True"), view)),
        (fused, _setting(names.FUSED, True, ROUNDING, f"{job.optimizer}(..., fused=True)", _HOST)),
        (job.on_cuda, _setting(names.TF32, True, INEXACT, tf32, ("precision",))),
        (
            job.on_cuda and job.convolutions,
            _setting(
                names.BENCHMARK, True, ROUNDING, "torch.backends.cudnn.benchmark = True", ("memory-bound-kernels",)
            ),
        ),
        *(
            (
                not job.on_cuda and job.threads not in (None, threads),
                _variables({"OMP_NUM_THREADS": str(threads)}, ROUNDING, ("host-stall",)),
            )
            for threads in sorted({job.cores_per_rank, 1}, reverse=True)
        ),
        (keeps, _variables(malloc, EQUAL, memory, name="malloc keeps freed memory")),
        (expands, _variables(segments, EQUAL, memory, name="expandable_segments:True")),
        *(
            (nccl and name not in env, _variables({name: value}, results, _COMMUNICATION))
            for name, value, results in _NCCL
        ),
        (compiled, _setting(names.COMPILE, True, INEXACT, "model.compile()", compiles)),
    ]


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


def _setting(name: str, value: Any, results: str, keep: str, findings: tuple[str, ...]) -> Candidate:
    return Candidate(f"{name}={value}", results, keep, {name: value}, findings=findings)


def _variables(
    environment: Mapping[str, str], results: str, findings: tuple[str, ...], *, name: str | None = None
) -> Candidate:
    keep = " ".join(f"{variable}={value}" for variable, value in environment.items())
    return Candidate(name or keep, results, keep, environment=environment, findings=findings)


# Does the job still compute the same with a setting? Losses of the same backward, and sums over the parameters.
#
#     apart = max |loss - loss'| / |loss'|        over the first backwards, before rounding has grown into the loss
#             |sum - sum'| / size'                over the parameters at the end
#
# Settings that change no number have to agree exactly; where the unchanged job itself differs from trial to trial
# (many GPU kernels add in no fixed order), by no more than three times that. Those that only add in another order are
# limited to rounding. Inexact ones, which were requested, may be a few percent off, and the difference is reported.

# relative: what other orders of summation grow to in the first steps
_ROUNDING_BOUND = 1e-3
# by which the unchanged job may differ from itself: more is no rounding, but a seed that is not set
_MAX_OWN = 1e-2
_COMPARED = 16  # backwards
# for settings that may change results: further off is another training
_INEXACT_BOUND = 0.05
# of the first loss: below that a loss is practically 0, and its relative error is meaningless
_SMALL = 1e-3


def agreement(trial: Trial, base: Sequence[Trial], *, results: str) -> Agreement:
    """Return whether a trial computes what the trials of the unchanged job do."""
    own = max((a for other in base[1:] if (a := _distance(other, base[0])) is not None), default=0.0)
    if own > _MAX_OWN:
        return Agreement(None, f"the unchanged job differs from itself by {own:.1e}: set its seeds")
    apart = _distance(trial, base[0])
    if apart is None:
        return Agreement(None, "it left no loss and no parameters to compare")
    if results == INEXACT:
        return Agreement(apart <= _INEXACT_BOUND, f"losses or parameters differ by {apart:.1e}", loss_error=apart)
    if apart <= max(0.0 if results == EQUAL else _ROUNDING_BOUND, min(_MAX_OWN, 3.0 * own)):
        return Agreement(True, "equal" if apart == 0 else f"equal within rounding ({apart:.0e})", loss_error=apart)
    return Agreement(False, f"losses or parameters differ by {apart:.1e}", loss_error=apart)


def _distance(a: Trial, b: Trial) -> float | None:
    """Return how far two trials are apart, relative; infinite where one is not finite, None without a number of both.

    Sums over the parameters are compared where both trials took the same number of steps.
    """
    pairs = zip(a.losses[:_COMPARED], b.losses[:_COMPARED], strict=False)
    apart = [_apart(x, y, b.losses[0]) for x, y in pairs]
    if a.parameters is not None and b.parameters is not None and a.steps.shape == b.steps.shape:
        apart.append(abs(a.parameters[0] - b.parameters[0]) / max(b.parameters[1], 1e-30))
    return max(apart, default=None)


def _apart(x: float | None, y: float | None, first: float | None) -> float:
    if x is None or y is None:
        return 0.0 if x is y else float("inf")
    return abs(x - y) / max(abs(y), _SMALL * abs(first or 0.0), 1e-30)


# Which settings to keep: those whose results agree and whose gain is beyond chance, alone and together.
#
# A setting that fails, takes no hold or changes results is given up at once, one that saved nothing in two rounds after
# them: that can only take recommendations away, so the intervals of the others hold. Where some may help but could be
# chance, they have more rounds, and a second look at all of them. Several that are worth keeping are then run together,
# which decides: they replace the single ones only where their own interval is beyond chance and they save more than the
# best of them. All intervals are corrected for the looks and for the settings tried, the one of them together included:
# in at most one of twenty jobs in which nothing helps any setting has an interval above 0.

BASE = "as it is"
# measured, below which a trial is inconclusive
MIN_STEPS = 5
_GIVE_UP_AFTER = 2
_MATTERS = 0.05
# more rounds: fewer hardly narrow an interval that one disturbed round has widened
_MIN_MORE = 6
_LOOKS = 2
_UNDECIDED = "may help, but within the noise: use more --rounds or a quieter machine"

# takes what to say of it, and the setting: None for the unchanged job
RunTrial = Callable[[str, Candidate | None], Trial]


# a setting as the JSON has it
Row = dict[str, Any]


def tune(tried: Sequence[Candidate], run: RunTrial, *, rounds: int) -> dict[str, Any]:
    """Return the result of trying these settings as JSON, also of an interrupted search.

    `keep` is what to recommend: the shortest step, and of several settings the combination only if it is shorter.
    """
    tests = len(tried) + (len(tried) > 1)
    looks = (rounds, rounds + max(rounds, _MIN_MORE))
    found = _rounds(tried, run, looks=looks, tests=tests, what="round")
    rows, base, stopped = [_judged(c, found, tests=tests) for c in tried], found.base, found.stopped
    kept = {row["name"]: c for row, c in sorted(zip(rows, tried, strict=True), key=_step) if row["kept"]}
    both = together([*kept.values()])
    if len(kept) > 1 and both.name not in kept and not stopped:
        found = _rounds([both], run, looks=looks[:1], tests=tests, what="together, round")
        rows.append(_judged(both, found, tests=tests))
        base, stopped = [*base, *found.base], found.stopped
    known = [trial.step_ms for trial in base if trial.step_ms is not None]
    return {
        "stopped": stopped,
        "tried": len(tried),
        "unchanged_step_ms": fmean(known) if known else None,
        "keep": max((row for row in rows if row["kept"]), key=lambda row: row["gain_pct"], default=None),
        "settings": rows,
    }


def _step(judged: tuple[Row, Candidate]) -> float:
    return -float(judged[0]["gain_pct"] or 0.0)


def _rounds(tried: Sequence[Candidate], run: RunTrial, *, looks: Sequence[int], tests: int, what: str) -> Rounds:
    by_name = {c.name: c for c in tried}

    def run_round(number: int, names: Sequence[str]) -> dict[str, Trial]:
        of = looks[number >= looks[0]]
        return {name: run(f"{what} {number + 1} of {of}", by_name.get(name)) for name in names}

    return run_rounds(
        [BASE, *by_name],
        run_round,
        looks=looks,
        undecided=lambda found: [c.name for c in tried if _judged(c, found, tests=tests)["why_not"] == _UNDECIDED],
        why_out=lambda found, name: _why_out(by_name[name], found),
    )


def _why_out(candidate: Candidate, found: Rounds) -> str | None:
    trials = found.trials[candidate.name]
    if trials[-1].failed is not None:
        return trials[-1].failed
    if candidate.settings and not set(candidate.settings) & set(trials[-1].took):
        return "changed nothing in this job"
    agrees = agreement(trials[-1], [t for t in found.base if t.failed is None], results=candidate.results)
    if agrees.agrees is False:
        return f"changes results: {agrees.why}"
    if len(pairs := found.pairs(candidate.name)) == _GIVE_UP_AFTER and _mean_ratio(pairs) >= 1:
        return f"no gain in {_GIVE_UP_AFTER} rounds"
    return None


def _judged(candidate: Candidate, found: Rounds, *, tests: int) -> Row:
    name = candidate.name
    pairs, good = found.pairs(name), [t for t in found.base if t.failed is None]
    change = found.change(name, location=mean, tests=_LOOKS * tests)
    agrees = [agreement(b, good, results=candidate.results) for b in found.trials[name] if b.failed is None]
    order = {False: 0, None: 1, True: 2}
    worst = min(agrees, key=lambda a: (order[a.agrees], -(a.loss_error or 0.0)), default=None)
    why_not = found.out[name] if name in found.out else _why_not(change, worst, _mean_ratio(pairs))
    gains = {"gain_pct": "ratio", "gain_low_pct": "high", "gain_high_pct": "low"}
    return {
        "name": name,
        "settings": dict(candidate.settings),
        "environment": dict(candidate.environment),
        "in_the_script": candidate.keep,
        "step_ms": fmean(b.step_ms or 0.0 for _, b in pairs) if pairs else None,
        **{key: 100 * (1 - getattr(change, of)) if change else None for key, of in gains.items()},
        "rounds": len(pairs) if change else None,
        "results": worst.why if worst else None,
        "results_apart": worst.loss_error if worst else None,
        "kept": why_not is None,
        "why_not": why_not,
    }


def _mean_ratio(pairs: Sequence[tuple[Trial, Trial]]) -> float:
    return exp(fmean(log((b.step_ms or 1.0) / (a.step_ms or 1.0)) for a, b in pairs)) if pairs else 1.0


def _why_not(change: Change | None, agrees: Agreement | None, mean_ratio: float) -> str | None:
    if change is None:
        return "too few trials ended well"
    if agrees is None or not agrees.agrees:
        return agrees.why if agrees else "nothing to compare"
    if change.faster:
        return None
    if change.slower:
        return "slower"
    return _UNDECIDED if min(change.ratio, mean_ratio) < 1 - _MATTERS else "within chance"
