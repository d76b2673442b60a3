"""The whole experiment, round by round, with the runner of trials as an argument: a job, or a simulation of one.

    1. rounds of the unchanged job and of each setting that is still in
    2. where some may help but could be chance: more rounds of these, and a second look at all their rounds
    3. where several settings are worth keeping: rounds of the unchanged job and of all of them together

All intervals are corrected for the settings tried, the one of them together included. Ctrl-C ends it at any time: what
has run is judged as it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from stepscope.contract import live as names
from stepscope.contract.live import TRIAL
from stepscope.contract.run_folder import RUN_JSON, json_object_in, rank_file
from stepscope.records import dataclass
from stepscope.run.side_files import MISSING, StepLog, step_logs
from stepscope.stats.robust import t_quantile
from stepscope.units import NS_PER_MS

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


# What did one trial leave? Its time per step after the warm-up, and what it computed.
#
#     step = (end of the last step - end of the warm-up) / steps        on the rank that took longest
#
# The mean, because what recurs in some steps only (a loader that starts again) is paid for too. On a GPU by the
# device's own times, since the host runs ahead of it.

# measured, below which a trial is inconclusive
MIN_STEPS = 5


@dataclass(frozen=True)
class Trial:
    """One run of the job; without a step time the reason is there."""

    step_ms: float | None
    #: measured, on the rank with the fewest
    steps: int = 0
    losses: tuple[float | None, ...] = ()
    #: sum, and sum of sizes
    parameters: tuple[float, float] | None = None
    #: settings that changed anything in the job
    took: tuple[str, ...] = ()
    failed: str | None = None


def trial_in(folder: Path | None, *, warmup: int, ended: str | None = None) -> Trial:
    """Return what a trial left in its run folder; `ended` is the reason of an unexpected end."""
    logs = step_logs(folder) if folder is not None else ()
    if ended is not None or folder is None or not logs:
        return Trial(None, failed=ended or "no step of it was recorded")
    times = [_mean_ns(log, warmup) for log in logs]
    steps = min(count for _, count in times)
    if steps < MIN_STEPS:
        return Trial(None, steps, failed=f"only {steps} steps after the first {warmup} were recorded")
    noted = json_object_in(folder / rank_file(logs[0].rank, TRIAL))
    return Trial(
        max(ns for ns, _ in times) / NS_PER_MS,
        steps,
        losses=_losses(noted.get("losses")),
        parameters=_sums(noted.get("parameters")),
        took=tuple(name for name in noted.get("took") or () if isinstance(name, str)),
    )


def _mean_ns(log: StepLog, warmup: int) -> tuple[float, int]:
    kept = (log.step >= warmup) & ~log.profiled
    device = log.device_ns[kept]
    times = device if len(device) and (device != MISSING).all() else log.dur_ns[kept]
    return (float(times.mean()), len(times)) if len(times) else (0.0, 0)


def _losses(found: Any) -> tuple[float | None, ...]:
    return tuple(_number(one) for one in found) if isinstance(found, list) else ()


def _sums(found: Any) -> tuple[float, float] | None:
    if not isinstance(found, Mapping):
        return None
    total, size = _number(found.get("sum")), _number(found.get("size"))
    return None if total is None or size is None else (total, size)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


# What does a setting save, and could that be chance? From the trials of each round, with and without it.
#
#     gain = 1 - exp(mean of log(with / without))        over rounds; what slows a whole round cancels
#     interval: Student's t over the rounds, at a confidence of 1 - 5 % / (2 x settings tried) (Bonferroni)
#
# So in at most one of twenty jobs in which nothing helps any setting has an interval above 0. Twice, because an
# undecided setting is tested once more, after more rounds.

MAX_FALSE = 0.05
MIN_ROUNDS = 3
# tests of a setting: after the requested rounds, and after more of them
_LOOKS = 2


@dataclass(frozen=True)
class Gain:
    """The share of the step that a setting saves; negative where it costs."""

    share: float
    low: float
    high: float
    rounds: int
    #: share by the median over rounds, which one disturbed round does not move
    typical: float

    @property
    def beyond_chance(self) -> bool:
        return self.low > 0

    @property
    def slower(self) -> bool:
        return self.high < 0


def gain(base_ms: Sequence[float], with_ms: Sequence[float], *, tried: int) -> Gain | None:
    """Return what a setting saves by pairs of trials of the same round; None with fewer than three of them.

    >>> found = gain([100.0, 104.0, 98.0], [50.0, 51.0, 50.0], tried=1)
    >>> round(found.share, 2), found.beyond_chance
    (0.5, True)
    """
    ratios = [log(b / a) for a, b in zip(base_ms, with_ms, strict=True)]
    if len(ratios) < MIN_ROUNDS:
        return None
    middle = fmean(ratios)
    width = t_quantile(1 - MAX_FALSE / (_LOOKS * max(1, tried)), len(ratios) - 1) * stdev(ratios) / sqrt(len(ratios))
    typical = 1 - exp(median(ratios))
    return Gain(1 - exp(middle), 1 - exp(middle + width), 1 - exp(middle - width), len(ratios), typical)


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


@dataclass(frozen=True)
class Agreement:
    """Whether results agree, None if unknown, and their difference."""

    agrees: bool | None
    apart: float | None
    why: str


def agreement(trial: Trial, base: Sequence[Trial], *, results: str) -> Agreement:
    """Return whether a trial computes what the trials of the unchanged job do."""
    own = max((a for other in base[1:] if (a := _distance(other, base[0])) is not None), default=0.0)
    if own > _MAX_OWN:
        return Agreement(None, None, f"the unchanged job differs from itself by {own:.1e}: set its seeds")
    apart = _distance(trial, base[0])
    if apart is None:
        return Agreement(None, None, "it left no loss and no parameters to compare")
    if results == INEXACT:
        return Agreement(apart <= _INEXACT_BOUND, apart, f"losses or parameters differ by {apart:.1e}")
    if apart <= max(0.0 if results == EQUAL else _ROUNDING_BOUND, min(_MAX_OWN, 3.0 * own)):
        return Agreement(True, apart, "equal" if apart == 0 else f"equal within rounding ({apart:.0e})")
    return Agreement(False, apart, f"losses or parameters differ by {apart:.1e}")


def _distance(a: Trial, b: Trial) -> float | None:
    """Return how far two trials are apart, relative; infinite where one is not finite, None without a number of both.

    Sums over the parameters are compared where both trials took the same number of steps.
    """
    pairs = zip(a.losses[:_COMPARED], b.losses[:_COMPARED], strict=False)
    apart = [_apart(x, y, b.losses[0]) for x, y in pairs]
    if a.parameters is not None and b.parameters is not None and a.steps == b.steps:
        apart.append(abs(a.parameters[0] - b.parameters[0]) / max(b.parameters[1], 1e-30))
    return max(apart, default=None)


def _apart(x: float | None, y: float | None, first: float | None) -> float:
    if x is None or y is None:
        return 0.0 if x is y else float("inf")
    return abs(x - y) / max(abs(y), _SMALL * abs(first or 0.0), 1e-30)


# Who runs when: every round has one trial of the unchanged job and one of each setting still in, in a turned order.
#
# What the machine does over time then falls on all alike. After two rounds a setting that saved nothing is given up:
# that can only take recommendations away, so the intervals of the others hold. One that fails, does not take hold or
# changes results is given up at once.

BASE = "as it is"
_GIVE_UP_AFTER = 2


def order_of(number: int, names: Sequence[str]) -> list[str]:
    """Return the order of a round: every round begins one further on, every second one goes backwards.

    >>> order_of(0, ["a", "b"]), order_of(1, ["a", "b"])
    (['as it is', 'a', 'b'], ['as it is', 'b', 'a'])
    """
    every = [BASE, *names]
    at = number % len(every)
    turned = [*every[at:], *every[:at]]
    return turned if number % 2 == 0 else turned[::-1]


def _why_out(candidate: Candidate, trials: Sequence[Trial], base: Sequence[Trial]) -> str | None:
    last, good = trials[-1], [t for t in base if t.failed is None]
    if last.failed is not None:
        return last.failed
    if candidate.settings and not set(candidate.settings) & set(last.took):
        return "changed nothing in this job"
    agrees = agreement(last, good, results=candidate.results)
    if agrees.agrees is False:
        return f"changes results: {agrees.why}"
    times = _pairs(base, trials)
    if len(times) == _GIVE_UP_AFTER and fmean(log(b / a) for a, b in times) >= 0:
        return f"no gain in {_GIVE_UP_AFTER} rounds"
    return None


def _pairs(base: Sequence[Trial], trials: Sequence[Trial]) -> list[tuple[float, float]]:
    return [
        (a.step_ms, b.step_ms)
        for a, b in zip(base, trials, strict=False)
        if a.step_ms is not None and b.step_ms is not None
    ]


# Verdict from all trials: every setting with its gain, results and reason, and the settings to apply together.
#
# A setting is accepted where its results agree and its interval is above 0. Several accepted ones were also run
# together, which decides: the combination replaces the single ones only where its own interval is above 0 and it saves
# more than the best of them.

_UNDECIDED = "may help, but within the noise: use more --rounds or a quieter machine"


@dataclass(frozen=True)
class JudgedSetting:
    """One setting after its trials."""

    candidate: Candidate
    step_ms: float | None
    gain: Gain | None
    agreement: Agreement | None
    #: why it is not recommended; None if it is
    why_not: str | None

    @property
    def keeps(self) -> bool:
        return self.why_not is None

    @property
    def undecided(self) -> bool:
        """Return whether more rounds may decide what these do not."""
        return self.why_not == _UNDECIDED


def judged(
    candidate: Candidate, trials: Sequence[Trial], base: Sequence[Trial], *, tried: int, out: str | None = None
) -> JudgedSetting:
    """Return the verdict on a setting; `tried` is their number."""
    times = _pairs(base, trials)
    found = gain([a for a, _ in times], [b for _, b in times], tried=tried)
    good, unchanged = ([t for t in some if t.failed is None] for some in (trials, base))
    agrees = _worst([agreement(t, unchanged, results=candidate.results) for t in good])
    return JudgedSetting(
        candidate,
        fmean(b for _, b in times) if times else None,
        found,
        agrees,
        out if out is not None else _why_not(found, agrees),
    )


def document(kept: JudgedSetting | None, rows: Sequence[JudgedSetting]) -> Mapping[str, object]:
    """Return the verdict as JSON: recommended settings, and every setting that was tried."""
    return {"keep": _row(kept) if kept else None, "settings": [_row(j) for j in rows]}


def _worst(found: Sequence[Agreement]) -> Agreement | None:
    order = {False: 0, None: 1, True: 2}
    return min(found, key=lambda a: (order[a.agrees], -(a.apart or 0.0)), default=None)


def _why_not(found: Gain | None, agrees: Agreement | None) -> str | None:
    if found is None:
        return "too few trials ended well"
    if agrees is None or not agrees.agrees:
        return agrees.why if agrees else "nothing to compare"
    if found.beyond_chance:
        return None
    if found.slower:
        return "slower"
    return _UNDECIDED if max(found.share, found.typical) > 0.05 else "within chance"


def _row(judged: JudgedSetting) -> dict[str, object]:
    c, g, a = judged.candidate, judged.gain, judged.agreement
    return {
        "name": c.name,
        "settings": dict(c.settings),
        "environment": dict(c.environment),
        "in_the_script": c.keep,
        "step_ms": judged.step_ms,
        "gain_pct": 100 * g.share if g else None,
        "gain_low_pct": 100 * g.low if g else None,
        "gain_high_pct": 100 * g.high if g else None,
        "rounds": g.rounds if g else None,
        "results": a.why if a else None,
        "results_apart": a.apart if a else None,
        "kept": judged.keeps,
        "why_not": judged.why_not,
    }


# rounds: fewer hardly narrow an interval that one disturbed round has widened
_MIN_MORE = 6

# takes what to say of it, and the setting: None for the unchanged job
RunTrial = Callable[[str, Candidate | None], Trial]


@dataclass(frozen=True)
class Experiment:
    """Result of a search."""

    settings: tuple[JudgedSetting, ...]
    #: those worth keeping, together; None where there were not several
    combined: JudgedSetting | None
    base: tuple[Trial, ...]
    #: whether it was ended before all rounds had run
    stopped: bool = False

    @property
    def keep(self) -> JudgedSetting | None:
        both = self.combined
        kept = sorted(
            (j for j in self.settings if j.keeps and j.gain), key=lambda j: -(j.gain.share if j.gain else 0.0)
        )
        if both is not None and both.keeps and both.gain and kept and kept[0].gain:
            return both if both.gain.share > kept[0].gain.share else kept[0]
        return kept[0] if kept else None


@dataclass
class _Series:
    base: list[Trial] = field(default_factory=list)
    trials: dict[str, list[Trial]] = field(default_factory=dict)
    out: dict[str, str] = field(default_factory=dict)
    stopped: bool = False


def experiment(tried: Sequence[Candidate], run: RunTrial, *, rounds: int) -> Experiment:
    """Return the result of trying these settings, also of an interrupted search."""
    corrected = len(tried) + (len(tried) > 1)
    first = _series(tried, run, rounds=rounds, what="round")
    single = [_judged(c, first, tried=corrected) for c in tried]
    undecided = [j.candidate for j in single if j.undecided]
    if undecided and not first.stopped:
        _go_on(first, undecided, run, rounds=max(rounds, _MIN_MORE), what="undecided, round")
        again = {c.name: _judged(c, first, tried=corrected) for c in undecided}
        single = [again.get(j.candidate.name, j) for j in single]
    kept = sorted((j for j in single if j.keeps), key=lambda j: -(j.gain.share if j.gain else 0.0))
    both = together([j.candidate for j in kept])
    combined = None
    if len(kept) > 1 and both.name != kept[0].candidate.name and not first.stopped:
        second = _series([both], run, rounds=rounds, what="together, round")
        combined = _judged(both, second, tried=corrected)
        first.base += second.base
        first.stopped = second.stopped
    return Experiment(tuple(single), combined, tuple(first.base), first.stopped)


def _series(tried: Sequence[Candidate], run: RunTrial, *, rounds: int, what: str) -> _Series:
    series = _Series(trials={c.name: [] for c in tried})
    _go_on(series, tried, run, rounds=rounds, what=what)
    return series


def _go_on(series: _Series, tried: Sequence[Candidate], run: RunTrial, *, rounds: int, what: str) -> None:
    by_name = {c.name: c for c in tried}
    for number in range(rounds):
        names = [name for name in list(by_name) if name not in series.out]
        if not names:
            break
        for name in order_of(number, names):
            try:
                trial = run(f"{what} {number + 1} of {rounds}", by_name.get(name))
            except KeyboardInterrupt:
                series.stopped = True
                return
            (series.base if name == BASE else series.trials[name]).append(trial)
        for name in names:
            if (out := _why_out(by_name[name], series.trials[name], series.base)) is not None:
                series.out[name] = out


def _judged(candidate: Candidate, series: _Series, *, tried: int) -> JudgedSetting:
    name = candidate.name
    return judged(candidate, series.trials[name], series.base, tried=tried, out=series.out.get(name))
