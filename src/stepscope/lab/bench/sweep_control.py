"""Run a sweep: start processes that measure its variants in turn, and continue without those that crash or hang.

One process, or one on each of several ranks, measures everything where it can; sweeps of process settings start one per
measurement. On a launcher's ranks rank 0 decides: a session that fails is followed by another, one that is complete is
the last, so the other ranks know when to stop. Standard library only: torch is needed by those processes, not here.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepscope.errors import UsageError
from stepscope.lab.bench.launch import LauncherPlace, LaunchResult, launch
from stepscope.lab.bench.results import REFUSED, results, series
from stepscope.lab.bench.sweeps import Sweep, Variant, next_probe

MEASURING = "stepscope.lab.bench.sweep_child:measure_items"
FITTING = "stepscope.lab.bench.sweep_child:find_fitting"
# environment of a process whose growth is limited: torch for aarch64 allocates by mimalloc, which maps 1 GiB ahead
NOTHING_IN_RESERVE = {"MIMALLOC_ARENA_RESERVE": "0"}
_NOTHING_CACHED = {"MIMALLOC_PURGE_DELAY": "0"}  # where growth is measured: it also caches freed memory
_END_S = 60.0
_UNCOUNTED = {
    "peak_memory_allocated_gb": None,
    "avg_memory_allocated_gb": None,
    "memory_reason": "a CUDA graph's pool counts as reserved, and as allocated only while the graph is captured",
}

Progress = Callable[[int, int, str], None]
Record = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """How, where and for how long to measure.

    `accumulation` is the number of micro-batches of variants that set none, `memory_limit_bytes` that of one rank.
    """

    backend: str = "gloo"
    runs: int = 3
    warmup_steps: int = 10
    steps: int = 50
    accumulation: int = 1
    threads: int = 1
    item_limit_s: float = 300.0
    limit_s: float = 3600.0
    world_size: int = 1
    share_devices: bool = False
    memory_limit_bytes: int | None = None


@dataclass
class Sessions:
    """Where the next launch runs, and the number of launches so far."""

    launched: LauncherPlace | None = None
    number: int = 0

    def start(self, job: str, settings: Mapping[str, Any], *, method: Method, out: Path, **how: Any) -> LaunchResult:
        """Return how the next session ended."""
        self.number += 1
        plan = {"job": job, "settings": settings, "threads": method.threads, "share_devices": method.share_devices}
        how = {"limit_s": method.limit_s, "on_record": None, "environ": None, **how}
        return launch(
            plan, world_size=method.world_size, backend=method.backend, out=out, launched=self.launched,
            session=self.number - 1, **how,
        )  # fmt: skip

    def end(self, last: LaunchResult | None, *, method: Method, out: Path) -> None:
        """Let the other ranks of a launcher know that nothing is left to do, where the last session failed."""
        if self.launched and last and not last.complete and not last.interrupted:
            self.start(MEASURING, {"items": []}, method=method, out=out, limit_s=_END_S)

    def follow(self, job: str, *, method: Method, out: Path, environ: Mapping[str, str] | None = None) -> LaunchResult:
        """Return how the last session ended, after taking part in all of rank 0's."""
        while True:
            place = out / f"session{self.number:03d}"
            result = self.start(job, {}, method=method, out=place, environ=environ)
            refused = REFUSED in result.exit_codes
            if result.complete or result.interrupted or refused or not any(result.records):
                return result


@dataclass
class SweepMeasurements:
    """What a sweep has measured so far: records of each variant's runs, and the reason of variants without all runs.

    `message` is the reason why the sweep is not complete.
    """

    runs: dict[str, list[Record]] = field(default_factory=dict)
    refusals: dict[str, Record] = field(default_factory=dict)
    environment: Record = field(default_factory=dict)
    message: str | None = None
    interrupted: bool = False


def run_sweep(
    sweep: Sweep, *, spec: Mapping[str, Any], method: Method, out: Path, progress: Progress | None = None,
    keep: Callable[[SweepMeasurements], None] | None = None, sessions: Sessions | None = None,
) -> SweepMeasurements:  # fmt: skip
    """Return everything measured, whatever happened to single variants; Ctrl-C keeps what there is.

    `keep` gets the results so far after every measurement.
    """
    sessions = sessions or Sessions()
    found = SweepMeasurements(refusals=_not_here(sweep.variants, backend=method.backend))
    pending = _interleaved([v for v in sweep.variants if v.name not in found.refusals], runs=method.runs)
    wanted = Counter(variant.name for variant, _ in pending)
    begun: list[Record] = []  # the measurement that has begun and not ended

    def on_record(record: Record) -> None:
        if record["what"] == "machine":
            found.environment = found.environment or {k: v for k, v in record.items() if k != "what"}
        elif record["what"] == "begin":
            begun[:] = [record]
        elif "variant" in record:
            begun.clear()
            if record["what"] == "samples":
                found.runs.setdefault(record["variant"], []).append(record)
            else:
                found.refusals[record["variant"]] = record
            if keep:
                keep(found)
        if progress and "variant" in record:
            done = sum(n if name in found.refusals else len(found.runs.get(name, ())) for name, n in wanted.items())
            progress(done, wanted.total(), record["variant"] if record["what"] == "begin" else "")

    names = ("accumulation", "warmup_steps", "steps", "item_limit_s", "memory_limit_bytes")
    settings = {
        "spec": dict(spec),
        "reference": sweep.reference,
        **{name: getattr(method, name) for name in names},
    }
    environ = _NOTHING_CACHED if sweep.goal != "time" and method.backend == "gloo" else None
    deadline_s = time.monotonic() + method.limit_s
    result: LaunchResult | None = None
    for number in range(2 * len(pending)):
        left_s = deadline_s - time.monotonic()
        if not pending or found.interrupted or found.message or left_s <= 0:
            break
        items = pending[:1] if sweep.fresh else pending
        given = {**settings, "items": [{"variant": asdict(variant), "run": run} for variant, run in items]}
        with _variables(items[0][0].env if sweep.fresh else {}):
            result = sessions.start(
                MEASURING, given, method=method, out=out / f"process{number:03d}", limit_s=left_s,
                on_record=on_record, environ=environ,
            )  # fmt: skip
        _note_end(found, result, begun=begun[0] if begun else None, first=items[0][0].name, limit_s=method.limit_s)
        begun.clear()
        done = {(record["variant"], record["run"]) for runs in found.runs.values() for record in runs}
        pending = [i for i in pending if i[0].name not in found.refusals and (i[0].name, i[1]) not in done]
    if pending and not found.message:
        found.message = _out_of_time(method.limit_s)
    sessions.end(result, method=method, out=out / "end")
    return found


def _not_here(variants: Sequence[Variant], *, backend: str) -> dict[str, Record]:
    """Return the variants that this backend's device cannot run, each with the reason; no process is needed.

    >>> not_here([Variant("a"), Variant("b", only_on="cuda", why_only="graphs are CUDA's")], backend="gloo")
    {'b': {'what': 'not_measured', 'reason': "graphs are CUDA's; this is cpu"}}
    """
    device = "cuda" if backend == "nccl" else "cpu"
    return {
        v.name: {"what": "not_measured", "reason": v.why_not or f"{v.why_only}; this is {device}"}
        for v in variants
        if v.why_not or v.only_on not in (None, device)
    }


def _interleaved(variants: Sequence[Variant], *, runs: int) -> list[tuple[Variant, int]]:
    """Return variants and run numbers in the order of measuring: round by round, the last of one begins the next.

    So the first variant, with which all are compared, comes early in every round, also in one that is cut short.

    >>> [(v.name, run) for v, run in interleaved([Variant("a"), Variant("b"), Variant("c")], runs=2)]
    [('a', 0), ('b', 0), ('c', 0), ('c', 1), ('a', 1), ('b', 1)]
    """
    count = len(variants)
    return [(variants[(i - run) % count], run) for run in range(runs) for i in range(count)]


def _note_end(
    found: SweepMeasurements, result: LaunchResult, *, begun: Record | None, first: str, limit_s: float
) -> None:
    if result.interrupted:
        found.interrupted, found.message = True, result.message
    elif REFUSED in result.exit_codes:
        raise UsageError(result.message)
    elif _cut_off(result):  # the sweep's time was up, not only what was left of it for this process
        found.message = _out_of_time(limit_s)
    elif len(result.records) > 1 and (last := _last_words(result)).get("variant"):  # other ranks only lost that one
        found.refusals[last["variant"]] = last
    elif begun is None and any(record["what"] == "begin" for record in result.records[0]):
        return  # it completed its items, or reported why not
    elif begun is None and not found.runs:
        raise UsageError(f"nothing could be measured: {result.message}")
    else:
        variant, reason = begun["variant"] if begun else first, result.message or "the process ended"
        found.refusals[variant] = {"what": "failed", "reason": reason}


def _cut_off(result: LaunchResult) -> bool:
    return not result.complete and not result.interrupted and None in result.exit_codes and not any(result.exit_codes)


def _last_words(result: LaunchResult) -> Record:
    words = [record for rank in result.records for record in rank if record["what"] in ("out_of_memory", "failed")]
    return max(words, key=lambda record: record["what"] == "out_of_memory", default={})


def _out_of_time(limit_s: float) -> str:
    return f"not finished after {limit_s:.0f} s; raise --limit-s or ask for fewer steps"


@contextmanager
def _variables(env: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def fitting_sizes(
    spec: Mapping[str, Any], *, start: int, most: int, memory_limit_bytes: int | None, method: Method, out: Path,
    progress: Progress | None = None, sessions: Sessions | None = None,
) -> tuple[dict[int, bool], dict[int, str], dict[int, float]]:  # fmt: skip
    """Return which batch sizes fit, why the others do not, and how long their steps take in ms."""
    sessions = sessions or Sessions()
    known: dict[int, bool] = {}
    reasons: dict[int, str] = {}
    step_ms: dict[int, float] = {}
    deadline_s = time.monotonic() + method.limit_s
    result: LaunchResult | None = None

    def on_record(record: Record) -> None:
        if progress and record["what"] == "begin":
            progress(0, 1, f"batch {record['batch_size']}")

    for number in range(64):
        known_all = next_probe(known, start=start, limit=most) is None
        if known_all and (sessions.launched is None or (result and result.complete)):
            break
        settings = {"spec": dict(spec), "start": start, "most": most, "known": known,
                    "memory_limit_bytes": memory_limit_bytes, "item_limit_s": method.item_limit_s}  # fmt: skip
        result = sessions.start(
            FITTING, settings, method=method, out=out / f"fitting{number:03d}", on_record=on_record,
            limit_s=max(deadline_s - time.monotonic(), 1.0), environ=NOTHING_IN_RESERVE,
        )  # fmt: skip
        _add_probes(result, known, reasons, step_ms)
        if _cut_off(result):
            fits = ", ".join(str(size) for size, fitted in sorted(known.items()) if fitted)
            until = f"; what fitted until then: {fits}" if fits else ""
            raise UsageError(f"cannot find the largest batch: {_out_of_time(method.limit_s)}{until}")
    return known, reasons, step_ms


def _add_probes(
    result: LaunchResult, known: dict[int, bool], reasons: dict[int, str], step_ms: dict[int, float]
) -> None:
    begun = None
    for record in result.records[0]:
        if record["what"] == "begin":
            begun = record["batch_size"]
        elif record["what"] == "probe":
            known[record["batch_size"]], begun = record["fits"], None
            step_ms[record["batch_size"]] = record["step_ms"]
            if record["reason"]:
                reasons[record["batch_size"]] = record["reason"]
    if result.interrupted:
        raise KeyboardInterrupt
    if result.complete or _cut_off(result):
        return
    if begun is None:
        raise UsageError(f"cannot find the largest batch: {result.message}")
    known[begun] = False
    reasons[begun] = _last_words(result).get("reason") or result.message or "the process ended"


def available_bytes() -> int | None:
    """Return the memory that can still be used without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def sweep_document(
    sweep: Sweep, found: SweepMeasurements, *, spec: Mapping[str, Any], method: Method, command: str, **notes: Any
) -> Record:
    """Return the results document of a sweep, without a verdict; `notes` are added to its description."""
    about = {
        **asdict(sweep),
        "variants": [asdict(variant) for variant in sweep.variants],
        "refusals": {name: {"what": r["what"], "reason": r["reason"]} for name, r in found.refusals.items()},
        "method": asdict(method),
        **notes,
    }
    rows = [_row(v, found.runs[v.name], spec, method) for v in sweep.variants if v.name in found.runs]
    environment = {"backend": method.backend, "world_size": method.world_size, **found.environment}
    return results(rows, command=command, environment=environment, message=found.message, sweep=about)


def _row(variant: Variant, runs: list[Record], spec: Mapping[str, Any], method: Method) -> Record:
    ordered = sorted(runs, key=lambda record: record["run"])
    first = ordered[0]
    host = [record["peak_host_bytes"] for record in runs if record["peak_host_bytes"] is not None]
    changed = {**spec, **variant.spec, "options": {**spec.get("options", {}), **variant.options}}
    row = series(
        variant.name,
        config={**changed, **variant.step, **variant.env, "warmup_steps": method.warmup_steps},
        runs=[[record] for record in ordered],
        flops_per_step=first["flops_per_step"],
        peak_host_memory_gb=max(host) / 1e9 if host else None,
        samples_per_step=first["samples_per_step"],
        **(_UNCOUNTED if variant.graph_memory else {}),
    )
    return {**row, "checks": [record["check"] for record in ordered], "reference": first["reference"]}
