"""Trials of a benchmark: rounds of variants in turned order, measured by ranks that are started as often as needed.

    variants -> rounds in turned order -> trial(items) -> records of rank 0 -> Measured

A trial starts the ranks of one session and measures items, each a variant and the number of its run. One session
measures everything where it can; process settings and world sizes need one per measurement. A sweep continues without
variants that crash or hang; every other benchmark ends with the first session that fails.

Records are lines of rank 0: `begin`, then one of `samples`, `trace`, `out_of_memory`, `failed`, all with `variant` and
`run`; `machine` once per session. On a launcher's ranks rank 0 decides: a session that fails is followed by another,
one that is complete is the last, so the other ranks know when to stop. Standard library only: torch is needed by ranks.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepscope.contract.rounds import turned
from stepscope.contract.run_folder import SCHEMA
from stepscope.errors import UsageError
from stepscope.lab.bench.config import BenchMethod, RanksConfig
from stepscope.lab.bench.launch import LauncherPlace, LaunchResult, launch
from stepscope.lab.bench.results import REFUSED, Record, results, series
from stepscope.lab.bench.sweeps import Sweep, Variant, next_probe

MEASURING = "sweep_child:measure_items"
FITTING = "sweep_child:find_fitting"
# environment of a process whose growth is limited: torch for aarch64 allocates by mimalloc, which maps 1 GiB ahead
NOTHING_IN_RESERVE = {"MIMALLOC_ARENA_RESERVE": "0"}
_NOTHING_CACHED = {"MIMALLOC_PURGE_DELAY": "0"}  # where growth is measured: it also caches freed memory
_END_S = 60.0
_UNCOUNTED = {
    "peak_memory_allocated_gb": None,
    "avg_memory_allocated_gb": None,
    "memory_reason": "a CUDA graph's pool counts as reserved, and as allocated only while the graph is captured",
}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
_ENDS = ("samples", "trace", "out_of_memory", "failed")

# items that ended, their number, the variant that begins
Progress = Callable[[int, int, str], None]
# a variant's name and the number of its run; None for its trace
Item = tuple[str, int | None]


@dataclass(frozen=True)
class Method(BenchMethod, RanksConfig):
    """How, where and for how long to measure, as a configuration says, and what only sweeps use.

    `accumulation` is the number of micro-batches of variants that set none, `memory_limit_bytes` that of one rank.
    """

    world_size: int = 1
    accumulation: int = 1
    item_limit_s: float = 300.0
    memory_limit_bytes: int | None = None


@dataclass
class Sessions:
    """Where the next session runs, and the number of sessions so far."""

    launched: LauncherPlace | None = None
    number: int = 0

    def start(self, job: str, settings: Mapping[str, Any], *, method: Method, out: Path, **how: Any) -> LaunchResult:
        """Return how the next session ended; `job` is a module and a function of this folder."""
        self.number += 1
        plan = {"job": f"stepscope.lab.bench.{job}", "settings": settings, "threads": method.threads}
        how = {"world_size": method.world_size, "limit_s": method.limit_s, **how}
        return launch(
            {**plan, "share_devices": method.share_devices}, backend=method.backend, out=out, launched=self.launched,
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
class Measured:
    """What has been measured so far: records of rank 0, and the reason of variants without all runs.

    `message` is the reason why it is not complete.
    """

    records: list[Record] = field(default_factory=list)
    refusals: dict[str, Record] = field(default_factory=dict)
    message: str | None = None
    interrupted: bool = False

    @property
    def runs(self) -> dict[str, list[Record]]:
        """Return the samples of each variant, run by run."""
        found: dict[str, list[Record]] = {}
        for record in sorted(self.every("samples"), key=lambda record: record["run"]):
            found.setdefault(record["variant"], []).append(record)
        return found

    @property
    def environment(self) -> Record:
        """Return the machine of the first session."""
        return {k: v for k, v in self.first("machine").items() if k != "what"}

    def every(self, what: str, **wanted: Any) -> list[Record]:
        """Return all records of a kind with these fields."""
        return [r for r in self.records if r["what"] == what and all(r.get(k) == v for k, v in wanted.items())]

    def first(self, what: str, **wanted: Any) -> Record:
        """Return the first record of a kind with these fields, empty without one."""
        return next(iter(self.every(what, **wanted)), {})

    def add(self, records: Sequence[Record]) -> None:
        """Add the records of a session."""
        self.records += records
        self.refusals |= {r["variant"]: r for r in records if r["what"] in _ENDS[2:] and "variant" in r}

    def pending(self, items: Sequence[Item]) -> list[Item]:
        """Return the items that were neither measured nor refused."""
        done = {(r["variant"], r["run"]) for r in self.records if r["what"] in _ENDS[:2]}
        return [item for item in items if item not in done and item[0] not in self.refusals]


# measures items in the session of a number; options are those of `launch`
Trial = Callable[..., LaunchResult]


def in_rounds(names: Sequence[str], runs: int) -> list[Item]:
    """Return the items of all rounds, in turned order."""
    return [(name, run) for run in range(runs) for name in turned(run, names)]


def run_trials(
    items: Sequence[Item], trial: Trial, *, limit_s: float, fresh: bool = False, resumes: bool = False,
    refusals: Mapping[str, Record] | None = None, progress: Progress | None = None,
    keep: Callable[[Measured], None] | None = None,
) -> tuple[Measured, LaunchResult | None]:  # fmt: skip
    """Return everything measured, whatever happened to single variants, and how the last session ended.

    `fresh`: every measurement in a new session. `resumes`: a session that failed is followed by one without the variant
    that failed. `keep` gets the results so far after every measurement; Ctrl-C keeps what there is.
    """
    found = Measured(refusals=dict(refusals or {}))
    pending = found.pending(items)
    total, deadline_s = len(pending), time.monotonic() + limit_s
    result: LaunchResult | None = None
    for number in range(2 * total):
        left_s = deadline_s - time.monotonic()
        if not pending or found.message or left_s <= 0:
            break
        live = Measured([*found.records], {**found.refusals})

        def on_record(record: Record, live: Measured = live) -> None:
            live.add([record])
            if keep and record["what"] in _ENDS:
                keep(live)
            if progress and "variant" in record:
                name = record["variant"] if record["what"] == "begin" else ""
                progress(total - len(live.pending(items)), total, name)

        now = pending[:1] if fresh else pending
        result = trial(now, number, limit_s=left_s, on_record=on_record)
        found.add(result.records[0])  # all of them, also where a callback was interrupted
        _note_end(found, result, first=now[0][0], limit_s=limit_s, resumes=resumes)
        pending = found.pending(items)
    if pending and not found.message:
        found.message = _out_of_time(limit_s)
    return found, result


def run_sweep(
    sweep: Sweep, *, spec: Mapping[str, Any], method: Method, out: Path, progress: Progress | None = None,
    keep: Callable[[Measured], None] | None = None, sessions: Sessions | None = None,
) -> Measured:  # fmt: skip
    """Return everything measured of a sweep, whose session is followed by another where a variant fails."""
    sessions = sessions or Sessions()
    variants = {variant.name: variant for variant in sweep.variants}
    names = ("accumulation", "warmup_steps", "steps", "item_limit_s", "memory_limit_bytes")
    settings = {
        "spec": dict(spec),
        "reference": sweep.reference,
        **{name: getattr(method, name) for name in names},
    }
    environ = _NOTHING_CACHED if sweep.goal != "time" and method.backend == "gloo" else None

    def trial(items: Sequence[Item], number: int, **how: Any) -> LaunchResult:
        given = {**settings, "items": [{"variant": asdict(variants[name]), "run": run} for name, run in items]}
        with _variables(variants[items[0][0]].env if sweep.fresh else {}):
            place = out / f"process{number:03d}"
            return sessions.start(MEASURING, given, method=method, out=place, environ=environ, **how)

    refusals = _not_here(sweep.variants, backend=method.backend)
    items = in_rounds([name for name in variants if name not in refusals], method.runs)
    found, last = run_trials(
        items, trial, limit_s=method.limit_s, fresh=sweep.fresh, resumes=True, refusals=refusals, progress=progress,
        keep=keep,
    )  # fmt: skip
    sessions.end(last, method=method, out=out / "end")
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


def _note_end(found: Measured, result: LaunchResult, *, first: str, limit_s: float, resumes: bool) -> None:
    ends = [record for record in result.records[0] if record["what"] in ("begin", *_ENDS) and "variant" in record]
    begun = ends[-1]["variant"] if ends and ends[-1]["what"] == "begin" else None
    if result.interrupted:
        found.interrupted, found.message = True, result.message
    elif _cut_off(result):  # the time of all sessions was up, not only what was left of it for this one
        found.message = _out_of_time(limit_s)
    elif not resumes:
        found.message = result.message
    elif REFUSED in result.exit_codes:
        raise UsageError(result.message)
    elif len(result.records) > 1 and (last := _last_words(result)).get("variant"):  # other ranks only lost that one
        found.refusals[last["variant"]] = last
    elif begun is None and ends:
        return  # it completed its items, or reported why not
    elif begun is None and not found.runs:
        raise UsageError(f"nothing could be measured: {result.message}")
    else:
        found.refusals[begun or first] = {"what": "failed", "reason": result.message or "the process ended"}


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


def collective_times(
    backend: str, world_sizes: Sequence[int], *, ops: Sequence[str], max_bytes: int, limit_s: float,
    launched: LauncherPlace | None = None,
) -> Record:  # fmt: skip
    """Return the times of collectives, measured on new ranks of this machine or on those of a launcher."""
    worlds = sorted(set(world_sizes))
    size = launched.world_size if launched else worlds[-1]
    if worlds[0] < 2:
        raise UsageError(f"world sizes have to be 2 or more, not {worlds[0]}: a single rank does not communicate")
    if worlds[-1] > size:
        raise UsageError(f"world size {worlds[-1]} is more than the job's {size}")
    settings = {"world_sizes": worlds, "ops": list(ops) or COLLECTIVES, "max_bytes": max_bytes, "limit_s": limit_s}
    method = Method(backend=backend, world_size=size, share_devices=True)
    with tempfile.TemporaryDirectory() as folder:
        result = Sessions(launched).start("collectives:measure", settings, method=method, out=Path(folder))
    if not result.complete:
        raise UsageError(f"measuring {backend} collectives failed: {result.message}; try another --backend or size")
    found = Measured(list(result.records[0]))
    return {
        "schema": SCHEMA,
        "kind": "stepscope collective times",
        "backend": backend,
        "machine": {name: found.environment.get(name) for name in ("host", "cpus", "device")},
        "software": {name: found.environment.get(name) for name in ("torch", "nccl", "python")},
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "columns": ("op", "world_size", "bytes", "median_us", "min_us", "max_us"),
        "rows": [record["row"] for record in found.every("row")],
    }


def proc_bytes(path: str, name: str) -> int | None:
    """Return a size that Linux reports in a file such as /proc/meminfo, None elsewhere."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def sweep_document(
    sweep: Sweep, found: Measured, *, spec: Mapping[str, Any], method: Method, command: str, **notes: Any
) -> Record:
    """Return the results document of a sweep, without a verdict; `notes` are added to its description."""
    about = {
        **asdict(sweep),
        "variants": [asdict(variant) for variant in sweep.variants],
        "refusals": {name: {"what": r["what"], "reason": r["reason"]} for name, r in found.refusals.items()},
        "method": asdict(method),
        **notes,
    }
    rows = [_row(v, runs, spec, method) for v in sweep.variants if (runs := found.runs.get(v.name))]
    environment = {"backend": method.backend, "world_size": method.world_size, **found.environment}
    return results(rows, command=command, environment=environment, message=found.message, sweep=about)


def _row(variant: Variant, runs: list[Record], spec: Mapping[str, Any], method: Method) -> Record:
    first = runs[0]
    host = [record["peak_host_bytes"] for record in runs if record["peak_host_bytes"] is not None]
    changed = {**spec, **variant.spec, "options": {**spec.get("options", {}), **variant.options}}
    row = series(
        variant.name,
        config={**changed, **variant.step, **variant.env, "warmup_steps": method.warmup_steps},
        runs=[[record] for record in runs],
        flops_per_step=first["flops_per_step"],
        peak_host_memory_gb=max(host) / 1e9 if host else None,
        samples_per_step=first["samples_per_step"],
        **(_UNCOUNTED if variant.graph_memory else {}),
    )
    return {**row, "checks": [record["check"] for record in runs], "reference": first["reference"]}


def compared_row(variant: Record, runs: Sequence[Record], found: Measured, settings: Record) -> Record:
    """Return the row of the results of one variant of `data_parallel:compare`."""
    method = {name: settings[name] for name in ("grad_accum", "warmup_steps", "steps", "runs")}
    own = {k: v for k, v in variant.items() if k not in ("name", "options", "workload")}
    config = {**settings["workload"], **method, **own, **variant.get("options", {})}
    agreed = {
        k: v for k, v in found.first("agreement", variant=variant["name"]).items() if k not in ("what", "variant")
    }
    size = found.first("size", variant=variant["name"]).get("parameters")
    row = series(variant["name"], config=config, runs=[[run] for run in runs])
    return {**row, "agreement": agreed or None, "parameters": size}
