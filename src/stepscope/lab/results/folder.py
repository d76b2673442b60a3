"""What does a benchmark's results folder hold: series of step times by name, each of one or several runs?"""

from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import SCHEMA, json_object_in
from stepscope.errors import InputError
from stepscope.records import dataclass
from stepscope.run.sources import RESULTS_JSON
from stepscope.side_file import is_number
from stepscope.units import NS_PER_MS

_KIND = "bench"
# thirty years
_MAX_TIME_MS = 1e12


@dataclass(frozen=True)
class BenchSeries:
    """One configuration that was measured."""

    name: str
    #: step times of every run, in order
    samples_ns: tuple[tuple[int, ...], ...]
    config: dict[str, Any] = field(default_factory=dict)
    #: its other numbers
    summary: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchResults:
    """The results of one benchmark."""

    name: str
    command: str
    series: dict[str, BenchSeries]
    #: where it ran: ranks, backend, device, versions
    environment: dict[str, str | float] = field(default_factory=dict)
    #: of a sweep
    question: str = ""
    #: what to take, and why
    advice: tuple[str, ...] = ()
    #: why it is not complete
    message: str = ""


def read_bench_results(folder: str | Path) -> BenchResults:
    """Return the results in a folder; an `InputError` where they are damaged or of another schema."""
    path = Path(folder) / RESULTS_JSON
    return bench_results_of(json_object_in(path), name=Path(folder).resolve().name, path=path)


def bench_results_of(document: dict[str, Any], *, name: str, path: Path) -> BenchResults:
    """Return the contents of a results document; values of a wrong type are ignored."""
    if document.get("kind") != _KIND or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is not a benchmark result of schema {SCHEMA}")
    rows = document.get("series")
    found = [_series(row, path) for row in (rows if isinstance(rows, list) else [])]
    kept = {s.name: s for s in found if s.samples_ns}
    if not kept:
        raise InputError(f"{path} has no series with samples_ms; was the benchmark interrupted?")
    where, sweep = _object(document, "environment"), _object(document, "sweep")
    return BenchResults(
        name=name,
        command=str(document.get("command") or ""),
        series=kept,
        environment={k: v for k, v in where.items() if isinstance(v, str) or is_number(v)},
        question=_text(sweep.get("question")),
        advice=tuple(_advice(document, sweep)),
        message=_text(document.get("message")),
    )


def _advice(document: dict[str, Any], sweep: dict[str, Any]) -> Iterator[str]:
    verdict = sweep.get("verdict")
    listed = verdict.get("advice") if isinstance(verdict, dict) else None
    yield from (line for line in (listed if isinstance(listed, list) else ()) if isinstance(line, str))
    chosen = document.get("recommendation")
    if isinstance(chosen, dict) and isinstance(chosen.get("series"), str):
        yield f"recommended: {chosen['series']} ({_text(chosen.get('reason'))})"


def _object(document: dict[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def joined_series(several: Sequence[BenchResults]) -> dict[str, BenchSeries]:
    """Return the series of several results of one side, the runs of the same name together."""
    out: dict[str, BenchSeries] = {}
    for results in several:
        for name, one in results.series.items():
            before = out.get(name)
            runs = (*before.samples_ns, *one.samples_ns) if before else one.samples_ns
            out[name] = BenchSeries(name, runs, one.config, one.summary)
    return out


def _series(row: Any, path: Path) -> BenchSeries:
    name, samples = (row.get("name"), row.get("samples_ms")) if isinstance(row, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(samples, list):
        raise InputError(f"{path}: a series needs name and samples_ms, which a {type(row).__name__} does not have")
    runs = [tuple(round(t * NS_PER_MS) for t in run if _is_time(t)) for run in samples if isinstance(run, list)]
    config, summary = (row.get(key) if isinstance(row.get(key), dict) else {} for key in ("config", "summary"))
    numbers = {k: float(v) for k, v in summary.items() if is_number(v)}
    return BenchSeries(name, tuple(run for run in runs if run), config, numbers)


def _is_time(value: object) -> bool:
    return is_number(value, high=_MAX_TIME_MS) and isinstance(value, int | float) and value * NS_PER_MS > 0.5
