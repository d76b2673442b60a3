"""What a comparison needs of an unchanged run, kept beside its traces: the next one does not read them.

Numbers are written so that they come back to the bit. What is not as we would have written it counts for nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.compare.reports import OwnedLine, lines_by_key
from stepscope.compare.samples import Floats, Int64s, PerStepTimes, RunSamples, StepTimes
from stepscope.compare.sides import ComparedRun
from stepscope.contract.run_folder import SCHEMA
from stepscope.document.cache import KeptPlace, kept_place

_LINE = {"file": str, "line": int, "function": str, "module": str | None, "source": str | None, "own_ns": float | int}


def compared_place(given: Sequence[str], *, options: Mapping[str, Any], cache_folder: Path | None) -> KeptPlace | None:
    """Return where what is compared of a run lies, None where there is no run."""
    return kept_place(given, ending="compared", options=options, cache_folder=cache_folder)


def keep_compared(place: KeptPlace | None, run: ComparedRun, *, key: dict[str, Any] | None, raw_bytes: int) -> None:
    """Write what a comparison needs of a run where it is to be kept; none that has numbers which JSON does not know."""
    if place is None:
        return
    parts = {
        "samples": _samples_json(run.samples),
        "report": run.report,
        "lines": None if run.lines is None else [vars(line) for line in run.lines.values()],
        "not_read": list(run.not_read),
        "is_partial": run.is_partial,
    }
    try:
        place.keep(parts, key=key, raw_bytes=raw_bytes)
    except ValueError:
        return


def found_compared(place: KeptPlace | None) -> ComparedRun | None:
    """Return what was kept of a run, None where there is nothing of exactly this."""
    kept = place.found() if place else None
    try:
        return None if kept is None else _compared(kept)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _compared(kept: dict[str, Any]) -> ComparedRun:
    report, not_read, is_partial = kept["report"], kept["not_read"], kept["is_partial"]
    _require(isinstance(report, dict) and report["schema"] == SCHEMA)
    _require(isinstance(is_partial, bool) and all(isinstance(line, str) for line in not_read))
    lines = None if kept["lines"] is None else lines_by_key(map(_line, kept["lines"]))
    return ComparedRun(_samples(kept["samples"]), report, lines, tuple(not_read), is_partial)


def _line(kept: dict[str, Any]) -> OwnedLine:
    _require(all(isinstance(kept[field.name], _LINE[field.name]) for field in fields(OwnedLine)))
    return OwnedLine(**kept)


# Samples ------------------------------------------------------------------------------------------------------------


def _samples_json(samples: RunSamples) -> dict[str, Any]:
    return {
        "name": samples.name,
        "logged": _times_json(samples.logged),
        "recorded": _times_json(samples.recorded),
        "periods": _times_json(samples.periods),
        "unprofiled_ns": samples.unprofiled_ns,
        "profiled_ns": samples.profiled_ns,
        "part_ms": None if samples.part_ms is None else samples.part_ms.tolist(),
        "profiled_part_ms": None if samples.profiled_part_ms is None else samples.profiled_part_ms.tolist(),
        "parts": _table_json(samples.parts),
        "causes": _table_json(samples.causes),
        "kernels": _table_json(samples.kernels),
        "operators": _table_json(samples.operators),
    }


def _samples(kept: dict[str, Any]) -> RunSamples:
    _require(isinstance(kept["name"], str))
    return RunSamples(
        name=kept["name"],
        logged=_times(kept["logged"]),
        recorded=_times(kept["recorded"]),
        periods=_times(kept["periods"]),
        unprofiled_ns=_whole_or_none(kept["unprofiled_ns"]),
        profiled_ns=_whole_or_none(kept["profiled_ns"]),
        part_ms=None if kept["part_ms"] is None else _floats(kept["part_ms"]),
        profiled_part_ms=None if kept["profiled_part_ms"] is None else _floats(kept["profiled_part_ms"]),
        parts=_table(kept["parts"]),
        causes=_table(kept["causes"]),
        kernels=_table(kept["kernels"]),
        operators=_table(kept["operators"]),
    )


def _times_json(times: StepTimes | None) -> list[Any] | None:
    return None if times is None else [times.dur_ns.tolist(), times.warm_up_steps, times.source]


def _times(kept: list[Any] | None) -> StepTimes | None:
    if kept is None:
        return None
    dur_ns, warm_up_steps, source = kept
    _require(type(warm_up_steps) is int and isinstance(source, str) and all(type(ns) is int for ns in dur_ns))
    found: Int64s = np.array(dur_ns, np.int64)
    return StepTimes(found, warm_up_steps, source)


def _table_json(table: PerStepTimes) -> dict[str, Any]:
    ms, count = (values.reshape(-1).tolist() for values in (table.ms, table.count))
    return {"names": list(table.names), "steps": len(table.ms), "ms": ms, "count": count}


def _table(kept: dict[str, Any]) -> PerStepTimes:
    names, steps = kept["names"], kept["steps"]
    _require(all(isinstance(name, str) for name in names) and type(steps) is int and steps >= 0)
    ms, count = (_floats(kept[column]).reshape(steps, len(names)) for column in ("ms", "count"))
    return PerStepTimes(tuple(names), ms, count)


def _floats(kept: list[float]) -> Floats:
    found: Floats = np.array(kept, np.float64)
    _require(found.ndim == 1 and bool(np.isfinite(found).all()))
    return found


def _whole_or_none(kept: object) -> int | None:
    _require(kept is None or type(kept) is int)
    return kept if isinstance(kept, int) else None


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("not as it was written")
