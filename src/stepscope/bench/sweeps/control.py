"""Run a sweep: start processes that measure its variants in turn, and go on without those that crash or hang.

One process, or one on each of several ranks, measures everything where it can; sweeps of process settings start one per
measurement. Standard library only: torch is needed by those processes, not here.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepscope.bench.session.launch import LaunchResult
from stepscope.bench.sweeps.choices.batch_size import next_probe
from stepscope.bench.sweeps.choices.sweep import Sweep, Variant
from stepscope.bench.sweeps.host_memory import NOTHING_IN_RESERVE, NOTHING_KEPT
from stepscope.bench.sweeps.sessions import FITTING, MEASURING, REFUSED, Method, Sessions, cut_off, last_words
from stepscope.errors import UsageError

_OUTCOMES = ("samples", "not_measured", "out_of_memory", "failed")

_OF_THE_METHOD = ("accumulation", "warmup_steps", "steps", "item_limit_s", "memory_limit_bytes")

Progress = Callable[[int, int, str], None]


@dataclass
class SweepMeasurements:
    """What a sweep has found so far."""

    #: records of each variant's runs
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: variants without a result, or without all: what happened and why
    refusals: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    #: why the sweep is not complete
    message: str | None = None
    interrupted: bool = False


def run_sweep(
    sweep: Sweep, *, spec: Mapping[str, Any], method: Method, out: Path, progress: Progress | None = None,
    keep: Callable[[SweepMeasurements], None] | None = None, sessions: Sessions | None = None,
) -> SweepMeasurements:  # fmt: skip
    """Return everything measured, whatever happened to single variants; Ctrl-C keeps what there is.

    `keep` gets what has been found so far after every measurement.
    """
    sessions = sessions or Sessions()
    found = SweepMeasurements(refusals=_not_here(sweep.variants, backend=method.backend))
    pending = interleaved([v for v in sweep.variants if v.name not in found.refusals], runs=method.runs)
    listen = _Listener(found, pending=pending, progress=progress, keep=keep)
    deadline_s = time.monotonic() + method.limit_s
    result: LaunchResult | None = None
    for number in range(2 * len(pending)):
        left_s = deadline_s - time.monotonic()
        if not pending or found.interrupted or found.message or left_s <= 0:
            break
        items = pending[:1] if sweep.fresh else pending
        result = _launch_items(
            sweep, items, spec=spec, method=method, out=out / f"process{number:03d}", limit_s=left_s, on_record=listen,
            sessions=sessions,
        )  # fmt: skip
        _note_end(found, result, begun=listen.begun, first=items[0][0].name, limit_s=method.limit_s)
        listen.begun = None
        done = {(record["variant"], record["run"]) for runs in found.runs.values() for record in runs}
        pending = [i for i in pending if i[0].name not in found.refusals and (i[0].name, i[1]) not in done]
    if pending and not found.message:
        found.message = _out_of_time(method.limit_s)
    sessions.end(result, method=method, out=out / "end")
    return found


def _not_here(variants: Sequence[Variant], *, backend: str) -> dict[str, dict[str, Any]]:
    """Return the variants that this backend's device cannot run, each with the reason; no process is needed to know.

    >>> not_here([Variant("a"), Variant("b", only_on="cuda", why_only="graphs are CUDA's")], backend="gloo")
    {'b': {'what': 'not_measured', 'reason': "graphs are CUDA's; this is cpu"}}
    """
    device = "cuda" if backend == "nccl" else "cpu"
    return {
        v.name: {"what": "not_measured", "reason": v.why_not or f"{v.why_only}; this is {device}"}
        for v in variants
        if v.why_not or v.only_on not in (None, device)
    }


def _out_of_time(limit_s: float) -> str:
    return f"not finished after {limit_s:.0f} s; raise --limit-s or ask for fewer steps"


def interleaved(variants: Sequence[Variant], *, runs: int) -> list[tuple[Variant, int]]:
    """Return variants and run numbers in the order of measuring: round by round, the last of one begins the next.

    So the first variant, with which all are compared, comes early in every round, also in one that is cut short.

    >>> [(v.name, run) for v, run in interleaved([Variant("a"), Variant("b"), Variant("c")], runs=2)]
    [('a', 0), ('b', 0), ('c', 0), ('c', 1), ('a', 1), ('b', 1)]
    """
    count = len(variants)
    return [(variants[(i - run) % count], run) for run in range(runs) for i in range(count)]


def fitting_sizes(
    spec: Mapping[str, Any], *, start: int, most: int, memory_limit_bytes: int | None, method: Method, out: Path,
    progress: Progress | None = None, sessions: Sessions | None = None,
) -> tuple[dict[int, bool], dict[int, str]]:  # fmt: skip
    """Return which batch sizes fit, and why the others do not."""
    sessions = sessions or Sessions()
    known: dict[int, bool] = {}
    reasons: dict[int, str] = {}
    deadline_s = time.monotonic() + method.limit_s
    result: LaunchResult | None = None
    for number in range(64):
        known_all = next_probe(known, start=start, limit=most) is None
        if known_all and (sessions.launched is None or (result and result.complete)):
            break
        settings = {"spec": dict(spec), "start": start, "most": most, "known": known,
                    "memory_limit_bytes": memory_limit_bytes, "item_limit_s": method.item_limit_s}  # fmt: skip
        result = sessions.start(
            FITTING, settings, method=method, out=out / f"fitting{number:03d}", on_record=_probed(progress),
            limit_s=max(deadline_s - time.monotonic(), 1.0), environ=NOTHING_IN_RESERVE,
        )  # fmt: skip
        _take_probes(result, known, reasons)
        if cut_off(result):
            raise UsageError(f"cannot find the largest batch: {_out_of_time(method.limit_s)}{_fitted(known)}")
    return known, reasons


def _fitted(known: Mapping[int, bool]) -> str:
    fits = [str(size) for size, fitted in sorted(known.items()) if fitted]
    return f"; what fitted until then: {', '.join(fits)}" if fits else ""


def _take_probes(result: LaunchResult, known: dict[int, bool], reasons: dict[int, str]) -> None:
    begun, said = None, last_words(result)
    for record in result.records[0]:
        if record["what"] == "begin":
            begun = record["batch_size"]
        elif record["what"] == "probe":
            known[record["batch_size"]], begun = record["fits"], None
            if record["reason"]:
                reasons[record["batch_size"]] = record["reason"]
    if result.interrupted:
        raise KeyboardInterrupt
    if result.complete or cut_off(result):
        return
    if begun is None:
        raise UsageError(f"cannot find the largest batch: {result.message}")
    known[begun], reasons[begun] = False, said.get("reason") or result.message or "the process ended"


def _launch_items(
    sweep: Sweep, items: Sequence[tuple[Variant, int]], *, spec: Mapping[str, Any], method: Method, out: Path,
    limit_s: float, on_record: Callable[[dict[str, Any]], None] | None, sessions: Sessions,
) -> LaunchResult:  # fmt: skip
    settings = {
        "spec": dict(spec),
        "reference": sweep.reference,
        "items": [{"variant": asdict(variant), "run": run} for variant, run in items],
        **{name: getattr(method, name) for name in _OF_THE_METHOD},
    }
    environ = NOTHING_KEPT if sweep.goal != "time" and method.backend == "gloo" else None
    with _variables(items[0][0].env if sweep.fresh else {}):
        return sessions.start(
            MEASURING, settings, method=method, out=out, limit_s=limit_s, on_record=on_record, environ=environ
        )


class _Listener:
    def __init__(
        self, found: SweepMeasurements, *, pending: Sequence[tuple[Variant, int]], progress: Progress | None,
        keep: Callable[[SweepMeasurements], None] | None,
    ) -> None:  # fmt: skip
        self._found, self._progress, self._keep = found, progress, keep
        self._wanted = Counter(variant.name for variant, _ in pending)
        # the measurement that has begun and not ended
        self.begun: dict[str, Any] | None = None

    def __call__(self, record: dict[str, Any]) -> None:
        if record["what"] == "machine":
            self._found.environment = self._found.environment or {k: v for k, v in record.items() if k != "what"}
        elif record["what"] == "begin":
            self.begun = record
        elif record["what"] in _OUTCOMES:
            self.begun = None
            self._outcome(record)
        if self._progress and "variant" in record:
            self._progress(self._done(), self._wanted.total(), record["variant"])

    def _done(self) -> int:
        found = self._found
        return sum(n if name in found.refusals else len(found.runs.get(name, ())) for name, n in self._wanted.items())

    def _outcome(self, record: dict[str, Any]) -> None:
        if record["what"] == "samples":
            self._found.runs.setdefault(record["variant"], []).append(record)
        else:
            self._found.refusals[record["variant"]] = record
        if self._keep:
            self._keep(self._found)


def _note_end(
    found: SweepMeasurements, result: LaunchResult, *, begun: dict[str, Any] | None, first: str, limit_s: float
) -> None:
    if result.interrupted:
        found.interrupted, found.message = True, result.message
    elif REFUSED in result.exit_codes:
        raise UsageError(result.message)
    elif cut_off(result):  # the sweep's time was up, not only what was left of it for this process
        found.message = _out_of_time(limit_s)
    elif len(result.records) > 1 and (said := last_words(result)).get("variant"):  # the other ranks only lost it
        found.refusals[said["variant"]] = said
    elif begun is None and any(record["what"] == "begin" for record in result.records[0]):
        return  # it did what it was asked, or said itself why not
    elif begun is None and not found.runs:
        raise UsageError(f"nothing could be measured: {result.message}")
    else:
        variant, reason = begun["variant"] if begun else first, result.message or "the process ended"
        found.refusals[variant] = {"what": "failed", "reason": reason}


@contextmanager
def _variables(env: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _probed(progress: Progress | None) -> Callable[[dict[str, Any]], None] | None:
    if progress is None:
        return None

    def listen(record: dict[str, Any]) -> None:
        if record["what"] == "begin":
            progress(0, 1, f"batch {record['batch_size']}")

    return listen
